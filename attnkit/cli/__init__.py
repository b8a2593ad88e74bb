"""The command line: each command is a module that is imported when it is called or completed."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from attnkit import __version__
from attnkit.cli import console
from attnkit.cli.help import Command, Group
from attnkit.device import limit_caches, share_processor
from attnkit.distributed import group

COMMANDS = {
    "demo": "Translate and show attention with the included model, in seconds.",
    "train": "Train every variant of a recipe and print a table that compares them.",
    "convert": "Replace the attention mechanism of a trained model, and measure the cost.",
    "eval": "Score trained runs, or the output of any system, side by side.",
    "compare": "Show where the outputs of scored runs differ, sentence by sentence.",
    "plot": "Plot learning curves of runs, or their scores against time and parameters.",
    "report": "Write a report of scored runs: one page, or Markdown for a paper.",
    "runs": "List runs with state, score, age and size, pack them, or remove checkpoints.",
    "verify": "Check that runs and their scores match what was recorded.",
    "generate": "Translate, summarize or answer line by line with a trained run.",
    "export": "Export a trained model to transformers, CTranslate2 or ONNX.",
    "visualize-attn": "Show attention maps on the terminal, as a picture or as a web page.",
    "probe": "Study attention: which heads matter, noise, entropy, rank.",
    "align": "Align the words of sentence pairs by cross attention.",
    "nbce": "Answer from more context than a model was trained for.",
    "recipe": "List, show, explain and copy recipes.",
    "data": "Encode the corpus of a recipe before training.",
    "check": "Run the contract tests on an attention mechanism.",
    "mechanisms": "List the attention mechanisms, or explain one.",
    "doctor": "Show the versions, device, data and extras that attnkit finds.",
    "bench": "Benchmark attention, training and decoding on this machine.",
    "slurm": "Write a batch script that trains a recipe on a cluster.",
}
"""Help line of each command.

The module of a command in `attnkit.cli.commands`, with "_" for "-", defines a function of the same name; or `app`, a
typer.Typer with subcommands, and GROUP, the class of the group, unless it is `Group`.
"""

HELP = {"help_option_names": ["-h", "--help"]}


class RootGroup(Group):
    """Root group, which imports the module of a command only when the command is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # Loading on demand keeps `--help` fast; keeping them in `commands` feeds did-you-mean.
        self.commands.update({name: None for name in COMMANDS if name not in self.commands})  # type: ignore[misc]
        if cmd_name not in COMMANDS:
            return None
        if self.commands[cmd_name] is None:
            self.commands[cmd_name] = load(cmd_name)
        return self.commands[cmd_name]

    def summaries(self, ctx: Any) -> list[tuple[str, str]]:
        return list(COMMANDS.items())


def load(name: str) -> Any:
    """Import the module of a command and build the command."""
    module_name = name.replace("-", "_")
    module = import_module(f"attnkit.cli.commands.{module_name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=name, cls=Command, context_settings=HELP)(getattr(module, module_name))
        return get_command(app)
    app.info.name, app.info.cls, app.info.context_settings = name, getattr(module, "GROUP", Group), HELP
    app._add_completion, app.rich_markup_mode = False, None
    for command in app.registered_commands:
        command.cls = Command
    return get_command(app)


def root_app() -> typer.Typer:
    """Return the root application, with the options of `attnkit` itself."""
    app = typer.Typer(
        cls=RootGroup,
        context_settings=HELP,
        rich_markup_mode=None,
        epilog="Exit codes: 0 success, 1 bug, 2 usage error, 3 training diverged, 65 bad data, "
        "66 missing input, 69 unavailable, 71 out of memory, 73 output cannot be created, 74 write "
        "error, 75 stopped and resumable, 78 bad recipe, 130 interrupted.",
    )

    @app.callback(invoke_without_command=True)
    def attnkit(
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
        no_color: Annotated[
            bool, typer.Option("--no-color", help="Disable color; also accepted after a command.")
        ] = False,
    ) -> None:
        """Train, score and compare sequence-to-sequence models with interchangeable attention
        mechanisms.

          attnkit demo                                      see attention in seconds
          attnkit train quickstart                          train and print a table
          attnkit eval runs/quickstart --format markdown    score the trained models
          attnkit generate RUN < input.txt > output.txt     use one in a pipe
        """
        if version:
            console.write(f"attnkit {__version__}\n")
            raise typer.Exit

    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    share_processor()
    limit_caches()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not group.launched():
        return console.run(lambda: get_command(root_app()), arguments)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # attnkit says itself what went wrong
    group.end_with_launcher()

    def join_and_build() -> Any:
        try:
            group.join(arguments)
        finally:
            if not group.is_main_process():
                console.silence()
        return get_command(root_app())

    return console.run(join_and_build, arguments)


def _exit_on_signal(number: int, _: object) -> NoReturn:
    """Handle a signal by raising SystemExit, so that partial files are removed as after Ctrl-C."""
    console.received_signals.append(number)
    raise SystemExit(128 + console.received_signals[0])


def _repeat_signal(ignored: Any) -> None:
    """Repeat, after this function, a signal that arrived while an object was removed and Python ignores exceptions."""
    if console.received_signals and isinstance(ignored.exc_value, SystemExit):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(ignored)


def script() -> NoReturn:
    """Run the console script and exit without Python's finalization.

    With torch imported, finalization takes up to a second, in which a second Ctrl-C prints a traceback, and it aborts
    if a library still computes in a thread.
    """
    # importing torch creates many permanent objects, and scanning them repeatedly takes 0.1 s, while the garbage
    # collector has little to free in a command
    gc.set_threshold(50_000)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _exit_on_signal)
    signal.signal(signal.SIGALRM, _exit_on_signal)
    sys.unraisablehook = _repeat_signal
    try:
        code = main()
    except (KeyboardInterrupt, SystemExit) as error:  # a signal after the command
        code = console.outcome(error).code
    if "attnkit.storage.files" in sys.modules:
        sys.modules["attnkit.storage.files"].remove_process_folder()
    os._exit(code)
