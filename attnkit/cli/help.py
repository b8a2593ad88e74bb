"""How `--help` looks: columns that fit any width, headings in bold where there is colour.

Typer's own pages wrap examples, need 50 columns or more, and with rich take twice the time.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnkit.cli import console, user_defaults
from attnkit.errors import RecipeError

Rows = list[tuple[str, str]]

WIDEST = 100  # longer lines are hard to read
NARROW = 60  # below this the explanation goes under the name


class Command(TyperCommand):
    """A command whose help is drawn by `page`, with the defaults of the user's file."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Raises RecipeError where the defaults file has mistakes, which `doctor` shows itself."""
        wanted = {param.name for param in self.params} & {*user_defaults.KEYS, *user_defaults.SAME}
        if wanted and not extra.get("resilient_parsing") and not {"-h", "--help"} & {*args}:
            with suppress(*[RecipeError] * (self.name == "doctor")):
                extra["default_map"] = user_defaults.of_options()
        return super().make_context(info_name, args, parent, **extra)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(draw(page(self, ctx, [])))


class Group(TyperGroup):
    """A group of commands whose help is drawn by `page`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(draw(page(self, ctx, self.summaries(ctx))))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """No command at all is a usage error that is answered with the whole help."""
        if not args and not ctx.resilient_parsing:
            console.say(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def summaries(self, ctx: Any) -> Rows:
        """Name and one line for each command."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        return [(name, command.get_short_help_str(200)) for name, command in commands if command]


def page(command: Any, context: Any, commands: Rows) -> Iterator[tuple[str, str | Rows]]:
    """The parts of a help page as (heading, text or two columns); an empty heading is none."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.get_params(context) if p.param_type_name == "option"]
    words = [usage(argument) for argument in arguments] + (["COMMAND ..."] if commands else [])
    yield "Usage", " ".join([context.command_path, *words, "[OPTIONS]"])
    yield "", command.help or ""
    yield "Arguments", [(argument.metavar, argument.help or "") for argument in arguments]
    yield "Commands", commands
    yield "Options", [option_row(option) for option in options if not option.hidden]
    yield "", command.epilog or ""


def usage(argument: Any) -> str:
    """How an argument is written on the usage line: RECIPE, [INPUT], [KEY=VALUE ...]."""
    word = f"{argument.metavar} ..." if argument.nargs != 1 else argument.metavar
    return word if argument.required else f"[{word}]"


def option_row(option: Any) -> tuple[str, str]:
    """An option's spellings with its value, and what it does with its default."""
    names = sorted(option.opts, key=len) + list(option.secondary_opts)
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    default = option.default if option.show_default and not option.is_flag else None
    shown = f" [default: {default}]" if default not in (None, "", [], ()) else ""
    return ", ".join(names) + value, (option.help or "") + shown


def draw(parts: Iterable[tuple[str, str | Rows]], width: int | None = None) -> str:
    """A page as text; width is the terminal's unless given."""
    width = min(width or shutil.get_terminal_size().columns, WIDEST)
    blocks = []
    for heading, body in parts:
        if not body:
            continue
        title = console.paint(f"{heading}:", "1", sys.stdout)
        if isinstance(body, str):
            text = _paragraphs(f"{heading}: {body}" if heading else body, width)
            blocks.append(text.replace(f"{heading}:", title, 1) if heading else text)
        else:
            blocks.append("\n".join([title, *_columns(body, width)]))
    return "\n\n".join(blocks) + "\n"


def _paragraphs(text: str, width: int) -> str:
    """Text wrapped paragraph by paragraph; indented paragraphs (examples) stay as they are."""
    wrapped = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if all(line.startswith(("  ", f"{console.PROGRAM} ")) for line in lines):
            # an example stays as it is where it fits; a wider path has to be cut somewhere
            examples = (f"  {line.strip()}" for line in lines)
            wrapped.append("\n".join(
                e if len(e) <= width else "  " + _fill(e, width, "      ", cut=True).lstrip()
                for e in examples
            ))  # fmt: skip
        else:
            wrapped.append(_fill(paragraph, width, ""))
    return "\n\n".join(wrapped)


def _columns(rows: Rows, width: int) -> Iterator[str]:
    """Two columns, or one under the other where there is no room for two."""
    left = max(len(name) for name, _ in rows) + 4
    stacked = width < NARROW or left > width // 2
    for name, text in rows:
        first = "  " + console.paint(name, "36", sys.stdout)
        if stacked:
            yield first
            yield from _fill(text, width, "      ").splitlines()
            continue
        lines = _fill(text, width, " " * left).splitlines() or [""]
        yield (first + " " * (left - len(name) - 2) + lines[0].lstrip()).rstrip()
        yield from lines[1:]


def _fill(text: str, width: int, indent: str, *, cut: bool = False) -> str:
    """One paragraph, every line indented; long words are cut on demand only."""
    return textwrap.fill(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=cut,
        break_on_hyphens=False,
    )
