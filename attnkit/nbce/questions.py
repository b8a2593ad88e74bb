"""Question sets asked with more and more passages: scores of every method and number of contexts.

Each method and number is kept in the run like a split of its own, `<split>.<method>.<contexts>`:
its answers in outputs/, its scores in scores.json.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from attnkit.data.corpus import Corpus
from attnkit.data.questions import Asked, accepted
from attnkit.errors import UsageError
from attnkit.evaluate import corpus_of, digest, kept_before, pick_device
from attnkit.nbce.ask import Reply, ask
from attnkit.nbce.merge import Rule
from attnkit.nbce.own import open_run
from attnkit.nbce.reader import Reader
from attnkit.recipe.schema import Contexts, Eval, Search
from attnkit.scoring import CHOSEN, FORCED, Entry, context_found, expand, score, side_by_side

if TYPE_CHECKING:
    from attnkit.data.rows import Row
    from attnkit.runs import Run

Progress = Callable[[str, int, int], object]
"""Called with what is asked, answers so far, and answers in all."""
PORTION = 32
"""Questions between two reports of the progress."""


class Case(NamedTuple):
    """Questions asked in one way."""

    split: str
    method: str
    number: int
    asked: list[tuple["Row", tuple[str, ...]]]
    """Those that can be asked with so many contexts."""

    @property
    def name(self) -> str:
        """What the run keeps it under."""
        return f"{self.split}.{self.method}.{self.number}"


def rule_of(method: str, spec: Contexts) -> Rule:
    """How a pool merges; methods that are none do not look at it."""
    rule = Rule("entropy", spec.beta, spec.eta, spec.top_p)
    if method == "entropy-free":
        return rule._replace(eta=0.0)
    return rule._replace(top_p=1.0) if method == "mean-whole" else rule


def word_of(method: str) -> str:
    """The method's word for `ask`."""
    return {"entropy-free": "entropy", "mean-whole": "mean"}.get(method, method)


def evaluate(
    run: "Run",
    splits: Sequence[str],
    eval: Eval,
    spec: Contexts | None = None,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    search: Search | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Entry]:
    """Ask the questions of splits by every method with every number of contexts.

    Args:
        run: a finished one.
        splits: names of splits that the corpus has.
        eval: metrics and their settings.
        spec: methods and numbers; the recipe's when None.
        device, data_dir, offline, search, force, progress: as `attnkit.evaluate.evaluate`.

    Returns:
        One entry a split, number of contexts and method, also stored in the run; its row has
        `method` and `contexts`.

    Raises:
        MissingInputError: the run is not finished, or the corpus has no such split.
        DataError: a split has no contexts, or too few.
        UsageError: a method or metric is not for this model, or a row does not fit.
    """
    recipe = run.recipe
    chosen = spec or recipe.contexts
    corpus = corpus_of(run, data_dir, offline)
    cases = [case for split in splits for case in _cases(corpus, split, chosen)]
    greedy = (search or recipe.search).model_copy(update={"n_best": 1})
    job = _Job(run, eval, _metrics(eval), chosen, greedy, pick_device(device), force, progress)
    return [job.entry(case) for case in cases]


def comparison(entries: Sequence[Entry], resamples: int = 1000) -> dict[str, Any]:
    """Methods side by side, for each number of contexts: the object of `eval --format json`.

    Each is compared with the first method of the first variant.
    """
    several = len({(entry.row["recipe"], entry.row["variant"]) for entry in entries}) > 1
    named = []
    for entry in entries:
        row = dict(entry.row)
        label = f"{row['variant']} {row['method']}" if several else row["method"]
        named.append(Entry({**row, "variant": label}, entry.scores, entry.references))
    if not named:
        return side_by_side([], {})
    bases = {entry.row["recipe"]: named[0].row["variant"] for entry in named}
    parts = []
    for split, count in dict.fromkeys((e.row["split"], e.row["contexts"]) for e in named):
        some = [e for e in named if (e.row["split"], e.row["contexts"]) == (split, count)]
        part = side_by_side(some, bases, resamples=resamples)
        part["comparisons"] = [{**one, "contexts": count} for one in part["comparisons"]]
        parts.append(part)
    joined = {key: [one for part in parts for one in part[key]] for key in ("rows", "comparisons")}
    return {**parts[0], **joined, "baseline": named[0].row["variant"]}


def _metrics(eval: Eval) -> tuple[str, ...]:
    names = expand(eval.metrics)
    if wrong := [name for name in names if name in FORCED]:
        raise UsageError(
            f"metrics: {wrong[0]} is not measured of questions: choose answer-match, answer-f1, "
            "context-found or a metric of text"
        )
    return names


def _cases(corpus: Corpus, split: str, spec: Contexts) -> Iterator[Case]:
    """Numbers of contexts in order, and all methods with each."""
    rows = corpus.questions(split, max(spec.counts), spec.rows)
    asked = Asked(rows, spec.seed)
    for count in spec.counts:
        told = [(row, asked.contexts(number, count)) for number, row in enumerate(rows)]
        some = [(row, contexts) for row, contexts in told if contexts is not None]
        for method in spec.methods if some else ():
            yield Case(split, method, count, some)


@dataclass
class _Job:
    """One run and how it is asked."""

    run: "Run"
    eval: Eval
    names: tuple[str, ...]
    spec: Contexts
    search: Search
    device: str
    force: bool
    progress: Progress | None
    opened: Reader | None = None

    @property
    def reader(self) -> Reader:
        """The run's model; not loaded where everything is known already."""
        self.opened = self.opened or open_run(self.run, self.device)
        return self.opened

    def entry(self, case: Case) -> Entry:
        """Ask and score, or take what is known."""
        references = [list(accepted(row)) for row, _ in case.asked]
        source = digest(*[[row.source, *contexts] for row, contexts in case.asked])
        settings = self.spec.model_dump(mode="json", exclude={"counts", "methods", "rows", "seed"})
        kept = kept_before(
            self.run, case.name, self.eval, force=self.force, source=source,
            references=digest(*references),
            search={
                **self.search.model_dump(mode="json"),
                "contexts": {"method": case.method, **settings},
            },
        )  # fmt: skip
        if not kept.texts:
            replies, kept.facts["decode"] = self._ask(case)
            kept.texts = [" ".join(reply.text.split("\n")) for reply in replies]
            kept.facts |= {"sentences": len(replies), "warnings": _warnings(case, replies)}
            places = [decisive(reply) for reply in replies]
            if None not in places:
                pairs = zip(case.asked, places, strict=True)
                kept.scores["context-found"] = context_found(
                    [contexts[cast(int, place)] for (_, contexts), place in pairs], references
                )
            self._score(kept, case, references, self.names)
        elif missing := [name for name in self.names if name not in (*kept.scores, *CHOSEN)]:
            self._score(kept, case, references, missing)
        entry = kept.entry(self.run, case.name).only(self.names)
        row = {"split": case.split, "method": case.method, "contexts": case.number}
        return Entry({**entry.row, **row}, entry.scores, entry.references)

    def _score(
        self, kept: Any, case: Case, references: list[list[str]], names: Sequence[str]
    ) -> None:
        """Score what was answered, and store everything."""
        kept.scores |= score(names, kept.texts, references, self.eval)
        kept.write(self.run, case.name)

    def _ask(self, case: Case) -> tuple[list[Reply], dict[str, Any]]:
        """Answers, and how fast they came."""
        limit = self.spec.limit or self.run.recipe.data.max_length
        replies: list[Reply] = []
        start = time.perf_counter()
        for place in range(0, len(case.asked), PORTION):
            some = case.asked[place : place + PORTION]
            replies += ask(
                self.reader,
                word_of(case.method),
                [contexts for _, contexts in some],
                [row.source for row, _ in some],
                self.search,
                rule_of(case.method, self.spec),
                alpha=self.spec.alpha,
                limit=limit,
                traced=True,
            )
            if self.progress is not None:
                what = f"{self.run.variant} seed {self.run.seed}, {case.name}"
                self.progress(what, len(replies), len(case.asked))
        seconds = max(time.perf_counter() - start, 1e-6)
        return replies, {
            "seconds": round(seconds, 3),
            "sentences_per_second": round(len(replies) / seconds, 2),
            "device": self.device,
            "threads": torch.get_num_threads(),
            "lines": len(replies),
        }


def decisive(reply: Reply) -> int | None:
    """The context that gave an answer: of merged ones who spoke where most hung on who speaks.

    That is the step at which the contexts' entropies lie furthest apart; words that every context
    would have said tell nothing.
    """
    spoken = [step for step in reply.steps if step.chosen is not None]
    if not spoken:
        return reply.context
    apart = max(spoken, key=lambda step: max(step.entropies) - min(step.entropies))
    return apart.chosen


def _warnings(case: Case, replies: Sequence[Reply]) -> list[str]:
    """What the method said of its answers."""
    cut = sum(any("cut off" in note for note in reply.notes) for reply in replies)
    if not cut:
        return []
    what = f"{case.method} with {case.number} contexts of {case.split}"
    return [f"{what}: cut to the limit for {cut} of {len(replies)} questions"]
