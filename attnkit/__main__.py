"""Command line for `python -m attnkit`."""

from attnkit.cli import script

script()
