"""Rich console with attnkit's rules for color and untrusted text."""

from typing import TextIO

from rich.console import Console


class Printer(Console):
    """Rich console without markup, emoji codes and highlighting; callers pass text from files through `safe_text`."""

    def __init__(self, stream: TextIO, live: bool, colored: bool) -> None:
        self.live = live  # whether the stream is a terminal
        super().__init__(
            file=stream,
            force_terminal=live,
            color_system="auto" if colored else None,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=False,
        )

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which `console.outcome` maps to an exit code; rich would exit by itself."""
        raise BrokenPipeError
