"""Commands, one per module: each parses arguments, calls the package that does the work, and prints the result."""
