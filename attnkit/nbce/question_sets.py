"""Question sets asked with more and more passages: scores of every method and number of contexts.

Each method and number is kept like a split of its own, `<split>.<method>.<contexts>`: its answers
in outputs/, its scores in scores.json, in the run or in the folder of a model from elsewhere.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from attnkit.data.corpus import Corpus
from attnkit.data.questions import QuestionSet, accepted
from attnkit.device import pick_device
from attnkit.errors import UsageError
from attnkit.nbce.answer import Reply, ask
from attnkit.nbce.merge import Rule
from attnkit.nbce.questioned_models import QuestionedModel, of_run
from attnkit.recipe.schema import ContextsConfig, EvalConfig, SearchConfig
from attnkit.scoring import CONTEXT, TEACHER_FORCED, Entry, Score, context_found, expand, score
from attnkit.scoring.evaluation import corpus_of
from attnkit.scoring.saved_scores import digest, reusable_scores

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
        """What it is kept under."""
        return f"{self.split}.{self.method}.{self.number}"


def rule_of(method: str, spec: ContextsConfig) -> Rule:
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
    eval: EvalConfig,
    spec: ContextsConfig | None = None,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    search: SearchConfig | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Entry]:
    """Ask a run the questions of its corpus; see `examine`.

    Args:
        run: a finished one.
        splits, eval: as `examine`.
        spec: methods and numbers; the recipe's when None.
        device, data_dir, offline, search, force, progress: as `scoring.evaluation.evaluate`.

    Raises:
        MissingInputError: the run is not finished; and as `examine`.
    """
    corpus = corpus_of(run, data_dir, offline)
    return examine(
        of_run(run, pick_device(device)),
        corpus,
        splits,
        eval,
        spec or run.recipe.contexts,
        search or run.recipe.search,
        force=force,
        progress=progress,
    )


def examine(
    subject: QuestionedModel,
    corpus: Corpus,
    splits: Sequence[str],
    eval: EvalConfig,
    spec: ContextsConfig,
    search: SearchConfig,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Entry]:
    """Ask the questions of splits by every method with every number of contexts.

    Args:
        subject: who is asked.
        corpus: of questions; it need not be the one that the model was trained on.
        splits: names of splits that the corpus has.
        eval: metrics and their settings.
        spec: methods and numbers.
        search: how answers are found; always one a question.
        force: ask and score again what is known.
        progress: told about answers.

    Returns:
        One entry a split, number of contexts and method, also stored in the subject's folder; its
        row has `method`, `contexts`, and in `cut` how many questions lost some of their contexts.

    Raises:
        MissingInputError: the corpus has no such split.
        DataError: a split has no contexts, or too few.
        UsageError: a method or metric is not for this model, or a row does not fit.
    """
    names = _metrics(eval)
    greedy = search.model_copy(update={"n_best": 1})
    cases = [case for split in splits for case in _cases(corpus, split, spec)]
    total = sum(len(case.asked) for case in cases)
    job = _QuestionJob(subject, eval, names, spec, greedy, force, progress, total)
    return [job.entry(case) for case in cases]


def _metrics(eval: EvalConfig) -> tuple[str, ...]:
    names = expand(eval.metrics)
    if wrong := [name for name in names if name in TEACHER_FORCED]:
        raise UsageError(
            f"metrics: {wrong[0]} is not measured of questions: choose answer-match, answer-f1, "
            "context-found or a metric of text"
        )
    return names


def _cases(corpus: Corpus, split: str, spec: ContextsConfig) -> Iterator[Case]:
    """Numbers of contexts in order, and all methods with each."""
    rows = corpus.questions(split, max(spec.counts))
    asked = QuestionSet(rows, spec.seed)
    first = rows[: spec.rows or None]  # the passages of the others serve as well
    for count in spec.counts:
        told = [(row, asked.contexts(number, count)) for number, row in enumerate(first)]
        some = [(row, contexts) for row, contexts in told if contexts is not None]
        for method in spec.methods if some else ():
            yield Case(split, method, count, some)


@dataclass
class _QuestionJob:
    """Who is asked, and how."""

    subject: QuestionedModel
    eval: EvalConfig
    names: tuple[str, ...]
    spec: ContextsConfig
    search: SearchConfig
    force: bool
    progress: Progress | None
    total: int
    """Answers to all questions, however they are asked."""
    done: int = 0

    def entry(self, case: Case) -> Entry:
        """Ask and score, or take what is known."""
        references = [list(accepted(row)) for row, _ in case.asked]
        source = digest(*[[row.source, *contexts] for row, contexts in case.asked])
        settings = self.spec.model_dump(mode="json", exclude={"counts", "methods", "rows", "seed"})
        kept = reusable_scores(
            self.subject.results, self.subject.weights, case.name, self.eval, force=self.force,
            source=source, references=digest(*references),
            search={
                **self.search.model_dump(mode="json"),
                "contexts": {"method": case.method, **settings, **self.subject.settings},
            },
        )  # fmt: skip
        if not kept.texts:
            replies, kept.facts["decode"] = self._ask(case)
            kept.texts = [first_line(reply.text) for reply in replies]
            kept.facts |= {"sentences": len(replies), "warnings": []}
        self.done += len(case.asked)
        decode = kept.facts["decode"]
        known = () if decode["chosen"] else CONTEXT
        if missing := [name for name in self.names if name not in (*kept.scores, *known)]:
            kept.scores |= self._scores(missing, case, kept.texts, decode["chosen"], references)
            kept.write(self.subject.results, case.name)
        entry = kept.entry(self.subject.system, case.name).only(self.names)
        row = {"split": case.split, "method": case.method, "contexts": case.number}
        return Entry({**entry.row, **row, "cut": decode["cut"]}, entry.scores, entry.references)

    def _scores(
        self,
        names: Sequence[str],
        case: Case,
        texts: Sequence[str],
        chosen: Sequence[int] | None,
        references: list[list[str]],
    ) -> dict[str, Score]:
        """Scores of the answers, and of the contexts that were chosen."""
        found = score(names, texts, references, self.eval)
        if chosen is not None and set(names) & set(CONTEXT):
            pairs = zip(case.asked, chosen, strict=True)
            contexts = [contexts[place] for (_, contexts), place in pairs]
            found["context-found"] = context_found(contexts, references)
        return found

    def _ask(self, case: Case) -> tuple[list[Reply], dict[str, Any]]:
        """Answers, and how fast they came."""
        reader, limit = self.subject.reader, self.spec.limit or self.subject.limit
        replies: list[Reply] = []
        start = time.perf_counter()
        for place in range(0, len(case.asked), PORTION):
            some = case.asked[place : place + PORTION]
            replies += ask(
                reader,
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
                what = f"{self.subject.name}, {case.split}"
                self.progress(what, self.done + len(replies), self.total)
        seconds = max(time.perf_counter() - start, 1e-6)
        places = [decisive(reply) for reply in replies]
        return replies, {
            "seconds": round(seconds, 3),
            "sentences_per_second": round(len(replies) / seconds, 2),
            "device": str(reader.device),
            "threads": torch.get_num_threads(),
            "lines": len(replies),
            "chosen": None if None in places else places,
            "cut": sum(any("cut off" in note for note in reply.notes) for reply in replies),
        }


def first_line(text: str) -> str:
    """What counts as the answer: models of text that were trained elsewhere go on after it."""
    return text.strip().partition("\n")[0].rstrip()


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
