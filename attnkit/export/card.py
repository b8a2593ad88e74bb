"""Model card (README.md) of an exported folder: description, usage and scores."""

from collections.abc import Mapping
from typing import Any

from attnkit.recipe.export_rules import TARGETS, pretrained_class
from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run

USAGE = {
    "huggingface": """\
from transformers import {auto}, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), {auto}.from_pretrained(".")
given = tokenizer(["TEXT"], truncation=True, padding=True, return_tensors="pt")
found = model.generate(**given){behind}
{target}.batch_decode(found, skip_special_tokens=True)""",
    "ctranslate2": """\
import ctranslate2
from tokenizer import source, target  # the file beside this one; it needs sentencepiece

names = target.spelled(range(len(target)))
tokens = source.spelled(source.encode(["TEXT"])[0][:{cut}])
found = ctranslate2.Translator(".").translate_batch(
    [tokens], beam_size={beam}, length_penalty={length_penalty}, max_decoding_length={max_length},
    suppress_sequences=[[name] for name in names[:3]], return_end_token=True)
target.decode([[names.index(name) for name in found[0].hypotheses[0]]])""",
    "onnx": """\
import numpy, onnxruntime
from tokenizer import source, target  # the file beside this one; it needs sentencepiece

text = ["TEXT"]  # ids: 0 pads at the end, 2 begins the output, 3 ends the output
{graphs}""",
}
GRAPHS = {
    "encoder-decoder": """\
encoder, decoder = map(onnxruntime.InferenceSession, ("encoder.onnx", "decoder.onnx"))
given = {{"source": numpy.array([[*source.encode(text)[0][:{cut}], 3]])}}
(given["memory"],) = encoder.run(None, given)
found = [2]  # greedy, without the ids that are never generated
while found[-1] != 3 and len(found) <= {max_length}:
    (logits,) = decoder.run(None, given | {{"ids": numpy.array([found])}})
    found.append(int(logits[0, -1, 3:].argmax()) + 3)
target.decode([found])""",
    "decoder": """\
ids = numpy.array([[2, *target.encode(text)[0]]])
(logits,) = onnxruntime.InferenceSession("model.onnx").run(None, {{"ids": ids}})""",
    "encoder": """\
ids = numpy.array([[*source.encode(text)[0][:{cut}], 3]])
(logits,) = onnxruntime.InferenceSession("model.onnx").run(None, {{"ids": ids}})""",
}
RESAVED = """
`save_pretrained` of Marian omits the table of positions, so that the saved model has sinusoidal
positions: copy this folder instead of saving the model again.
"""


def card(run: Run, facts: Mapping[str, Any]) -> str:
    """Return the model card; `facts` is the content of export.json."""
    recipe, target = run.recipe, facts["to"]
    family = f" ({pretrained_class(recipe)})" if target == "huggingface" else ""
    quantized = f", weights as {facts['quantization']}" if facts["quantization"] else ""
    scores = [
        (split, metric_facts(name).title, f"{metric.score:.2f}")
        for split, scored in run.scores().items()
        for name, metric in scored.metrics.items()
        if metric.score is not None
    ]
    decoder, separate_target = recipe.model.shape == "decoder", not run.tokenizer().shared
    limits = {"cut": recipe.data.max_length - 1, "max_length": recipe.search.max_length}
    usage = USAGE[target].format(
        auto="AutoModelForCausalLM" if decoder else "AutoModelForSeq2SeqLM",
        behind='[:, given["input_ids"].shape[1]:]' if decoder else "",
        target='AutoTokenizer.from_pretrained("target")' if separate_target else "tokenizer",
        graphs=GRAPHS[recipe.model.shape].format(**limits),
        length_penalty=recipe.search.length_penalty,
        **limits,
        beam=recipe.search.beam if recipe.search.method == "beam" else 1,
    )
    checks = [(check["check"], check["found"], check["needed"]) for check in facts["checks"]]
    return f"""\
# {run.name} {run.variant}

A model for {TARGETS[target]}{family}{quantized}, trained by attnkit {facts["attnkit"]} (task
{recipe.task}, seed {run.seed}); its recipe is in recipe.yaml. It reads at most
{recipe.data.max_length} tokens, end token included. In this folder:

```python
{usage}
```
{RESAVED if "Marian" in family else ""}{_table("split metric score", scores)}
Compared with the run on lines of {facts["split"]}, by {facts["library"]}:
{_table("check found needed", checks)}
No licence comes with the weights: it depends on the data of the recipe. Add one before you publish.
"""


def _table(heads: str, rows: list[tuple[str, str, str]]) -> str:
    """Format a Markdown table of three columns; "" without rows."""
    lines = [heads.split(), ["---"] * 3, *rows]
    return "".join(f"\n| {' | '.join(line)} |" for line in lines) + "\n" if rows else ""
