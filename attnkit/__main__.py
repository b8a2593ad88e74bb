"""`python -m attnkit` is the command line."""

from attnkit.cli import script

script()
