"""`attnkit probe`: studies of attention, one a subcommand."""

import typer

from attnkit.cli.probes.entropy import entropy
from attnkit.cli.probes.heads import heads
from attnkit.cli.probes.noise import noise
from attnkit.cli.probes.rank import rank

app = typer.Typer(
    help="Study attention: which heads matter, noise, entropy, rank.", no_args_is_help=True
)

for study in (heads, noise, entropy, rank):
    app.command(study.__name__)(study)
