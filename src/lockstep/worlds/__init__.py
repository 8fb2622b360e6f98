"""The worlds, strangers to each other; `registry` knows their names."""
