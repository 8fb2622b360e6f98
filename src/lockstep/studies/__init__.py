"""Studies: sets of trials declared in code, how they are run, and the figures they make."""
