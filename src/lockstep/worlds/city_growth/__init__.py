"""City growth: industry, education and council build on slots of a growing city."""
