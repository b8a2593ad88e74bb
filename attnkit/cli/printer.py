"""A rich console that keeps attnkit's rules of colour and hostile text."""

from typing import TextIO

from rich.console import Console


class Printer(Console):
    """A rich console on one stream: no markup, no emoji codes, no guessing of links or numbers.

    Text that comes from files goes through `attnkit.text.safe_text` before it gets here.
    """

    def __init__(self, stream: TextIO, live: bool, coloured: bool) -> None:
        self.live = live  # whether a person watches
        super().__init__(
            file=stream,
            force_terminal=live,
            color_system="auto" if coloured else None,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=False,
        )

    def on_broken_pipe(self) -> None:
        """Let the broken pipe reach the one place that maps errors to exit codes."""
        raise BrokenPipeError
