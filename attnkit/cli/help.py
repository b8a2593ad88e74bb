"""Classes of commands and groups, which format help pages."""

import re
import shutil
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnkit.cli import console

MAX_WIDTH = 100  # maximum width of a help page; longer lines are hard to read


class _HelpPage:
    """Help page as wide as the terminal; indented paragraphs (examples) are not wrapped, and types are not shown."""

    help: str | None
    params: list[Any]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        extra["terminal_width"] = min(shutil.get_terminal_size().columns, MAX_WIDTH)
        base: Any = super()
        return base.make_context(info_name, args, parent, **extra)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        # a docstring whose body is nothing but examples has lost their indentation
        text = re.sub(r"(?m)^(?=attnkit )", "  ", self.help or "")
        self.help = re.sub(r"\n\n(?=  )", "\n\n\b\n", text)
        base: Any = super()
        base.format_help_text(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = []
        for argument in self._arguments():
            piece = f"{argument.metavar} ..." if argument.nargs != 1 else argument.metavar
            pieces.append(piece if argument.required else f"[{piece}]")
        return [*pieces, *["COMMAND ..."] * isinstance(self, TyperGroup), "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [(p.metavar, p.help or "") for p in self._arguments()]
        command: Any = self
        options = [p.get_help_record(ctx) for p in command.get_params(ctx) if p not in self._arguments()]
        for title, rows in (("Arguments", arguments), ("Options", [*filter(None, options)])):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)

    def _arguments(self) -> list[Any]:
        return [param for param in self.params if param.param_type_name == "argument"]


class Command(_HelpPage, TyperCommand):
    """Command with the option --plugin."""

    def __init__(self, *args: Any, params: list[Any], **kwargs: Any) -> None:
        from attnkit.cli.options import plugin_option

        super().__init__(*args, params=[*params, plugin_option()], **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let an option whose metavar ends in " ..." take all words up to the next option."""
        repeatable = {
            name
            for param in self.params
            if str(param.metavar).endswith(" ...") and param.param_type_name == "option"
            for name in param.opts
        }
        option, words = "", list[str]()
        for word in args:
            if word.startswith("-") and word != "-":
                option = word.partition("=")[0]
            elif option in repeatable and words and words[-1] != option:
                words.append(option)
            words.append(word)
        return super().parse_args(ctx, words)


class Group(_HelpPage, TyperGroup):
    """Group of commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help page and exit with the code of a usage error if there is no command."""
        if not args and not ctx.resilient_parsing:
            console.say(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: Any) -> list[tuple[str, str]]:
        """Return the name and the help line of each command."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        return [(name, command.get_short_help_str(200)) for name, command in commands if command]
