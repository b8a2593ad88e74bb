"""README.md of an exported folder: what it is, how it is used, how well it scores."""

from collections.abc import Iterator, Mapping
from typing import Any

from attnkit.recipe.export_rules import TARGETS, pretrained_class
from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run

TRANSFORMERS = """\
from transformers import {model}, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), {model}.from_pretrained(".")
given = tokenizer(["TEXT"], truncation=True, padding=True, return_tensors="pt")
found = model.generate(**given){behind}
{target}.batch_decode(found, skip_special_tokens=True)"""
ENGINE = """\
import ctranslate2, sentencepiece

source = sentencepiece.SentencePieceProcessor("tokenizer.model")
target = sentencepiece.SentencePieceProcessor("{target}")
tokens = source.encode(" ".join("TEXT".split()), out_type=str)
found = ctranslate2.Translator(".").translate_batch(
    [tokens], beam_size={beam}, length_penalty={length_penalty}, max_decoding_length={max_length},
    suppress_sequences=[["<pad>"], ["<unk>"], ["<s>"]], return_end_token=True)
target.decode(found[0].hypotheses[0])"""
GRAPHS = """\
import onnxruntime

# ids of tokenizer.model, int64: 2 begins what is written, 3 ends, 0 behind the end is padding
encoder = onnxruntime.InferenceSession("encoder.onnx")
decoder = onnxruntime.InferenceSession("decoder.onnx")
(memory,) = encoder.run(None, {{"source": source}})  # source [rows, source] with ends
(logits,) = decoder.run(None, {{"source": source, "memory": memory, "ids": ids}})"""
GRAPH = """\
import onnxruntime

# ids of tokenizer.model, int64 [rows, tokens]: 2 begins, 3 ends, 0 behind the end is padding
(logits,) = onnxruntime.InferenceSession("model.onnx").run(None, {{"ids": ids}})"""
RESAVED = """
`save_pretrained` of Marian leaves the table of positions out, and opens with sinusoidal ones: copy
this folder rather than save the model again.
"""


def card(run: Run, facts: Mapping[str, Any]) -> str:
    """The text; `facts` are those of export.json."""
    recipe, target = run.recipe, facts["to"]
    family = pretrained_class(recipe) if target == "huggingface" else ""
    what = f"{TARGETS[target]}{f' ({family})' if family else ''}"
    rounded = f", weights as {facts['quantization']}" if facts["quantization"] else ""
    checks = [f"| {one['check']} | {one['found']} | {one['needed']} |" for one in facts["checks"]]
    scores = [f"| {' | '.join(row)} |" for row in _scores(run)]
    table = ["", "| split | metric | score of the run |", "|---|---|---|", *scores]
    return f"""\
# {run.name} {run.variant}

A model of {what}{rounded}, trained by attnkit {facts["attnkit"]} (task {recipe.task}, seed
{run.seed}); its recipe is in recipe.yaml. It reads at most {recipe.data.max_length} tokens, end
token included. In this folder:

```python
{_usage(run, target)}
```
{RESAVED if family == "Marian" else ""}{chr(10).join(table) + chr(10) if scores else ""}
Compared with the run on lines of {facts["split"]}, by {facts["library"]}:

| check | found | needed |
|---|---|---|
{chr(10).join(checks)}

No licence comes with the weights: it depends on the data of the recipe. Add one before you publish.
"""


def _usage(run: Run, target: str) -> str:
    """How to use it, in Python."""
    recipe, decoder = run.recipe, run.recipe.model.shape == "decoder"
    own = not run.tokenizer().shared
    if target == "onnx":
        return (GRAPHS if recipe.model.shape == "encoder-decoder" else GRAPH).format()
    if target == "ctranslate2":
        name, values = "tokenizer.target.model" if own else "tokenizer.model", recipe.search
        beam = values.beam if values.method == "beam" else 1
        return ENGINE.format(target=name, **values.model_dump() | {"beam": beam})
    return TRANSFORMERS.format(
        model="AutoModelForCausalLM" if decoder else "AutoModelForSeq2SeqLM",
        behind='[:, given["input_ids"].shape[1]:]' if decoder else "",
        target='AutoTokenizer.from_pretrained("target")' if own else "tokenizer",
    )


def _scores(run: Run) -> Iterator[tuple[str, str, str]]:
    for split, scores in run.scores().items():
        for name, found in scores["metrics"].items():
            if found["score"] is not None:
                yield split, metric_facts(name).title, f"{found['score']:.2f}"
