"""README.md of an exported folder: what it is, how well it scores, how to use it."""

from collections.abc import Mapping
from typing import Any

from attnkit.recipe import Recipe
from attnkit.recipe.export_rules import TARGETS, pretrained_class
from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run

SEQUENCES = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")
given = tokenizer(["TEXT"], truncation=True, padding=True, return_tensors="pt")
TARGET.batch_decode(model.generate(**given), skip_special_tokens=True)"""
OWN_TARGET = 'AutoTokenizer.from_pretrained("FOLDER", subfolder="target")'
CAUSAL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
given = tokenizer(["TEXT"], truncation=True, padding=True, return_tensors="pt")
found = model.generate(**given)[:, given["input_ids"].shape[1] :]
tokenizer.batch_decode(found, skip_special_tokens=True)"""
ENGINE = """\
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor("FOLDER/tokenizer.model")
target = sentencepiece.SentencePieceProcessor("FOLDER/TARGET")
translator = ctranslate2.Translator("FOLDER")
tokens = [source.encode(" ".join("TEXT".split()), out_type=str)]
found = translator.translate_batch(tokens, OPTIONS)
target.decode(found[0].hypotheses[0])"""
GRAPHS = """\
import numpy, onnxruntime

encoder = onnxruntime.InferenceSession("FOLDER/encoder.onnx")
decoder = onnxruntime.InferenceSession("FOLDER/decoder.onnx")
# source: int64 [B, S], ids of tokenizer.model, 3 (end) behind each, then 0 (padding)
# ids: int64 [B, T], 2 (begin) and what has been written so far
(memory,) = encoder.run(None, {"source": source})
(logits,) = decoder.run(None, {"source": source, "memory": memory, "ids": ids})"""
GRAPH = """\
import numpy, onnxruntime

model = onnxruntime.InferenceSession("FOLDER/model.onnx")
# ids: int64 [B, T], ids of tokenizer.model: 2 begins, 3 ends, 0 behind that is padding
(logits,) = model.run(None, {"ids": ids})"""


def card(run: Run, facts: Mapping[str, Any]) -> str:
    """The text; `facts` are those of export.json."""
    recipe, target = run.recipe, facts["to"]
    what = TARGETS[target]
    if target == "huggingface":
        what += f" ({pretrained_class(recipe)})"
    rounded = f", weights as {facts['quantization']}" if facts["quantization"] else ""
    lines = [
        f"# {run.name} {run.variant}",
        "",
        f"A model of {what}{rounded}, trained by attnkit {facts['attnkit']} (task {recipe.task}, "
        f"seed {run.seed}). Its recipe is in recipe.yaml.",
        "",
        "```python",
        _usage(recipe, target),
        "```",
        "",
        f"Text is cut into pieces after white space was collapsed; at most {recipe.data.max_length}"
        " tokens, end token included, are read.",
        *_notes(recipe, target),
        *_scores(run),
        "",
        "## Does it answer as the run does?",
        "",
        f"Compared on the first lines of {facts['split']} with {facts['library']}:",
        "",
        "| check | found | needed |",
        "|---|---|---|",
        *(f"| {c['name']} | {c['found']} | {c['needed']} |" for c in facts["checks"]),
        "",
        "## Licence",
        "",
        "Nothing here says what the weights may be used for: that depends on the data of the "
        "recipe. Add a licence before you publish this folder.",
    ]
    return "\n".join(lines) + "\n"


def _usage(recipe: Recipe, target: str) -> str:
    """How to use it, in Python."""
    own = not recipe.tokenizer.shared and recipe.model.shape == "encoder-decoder"
    if target == "onnx":
        return GRAPHS if recipe.model.shape == "encoder-decoder" else GRAPH
    if target == "ctranslate2":
        spec = recipe.search
        options = {
            "beam_size": spec.beam if spec.method == "beam" else 1,
            "length_penalty": spec.length_penalty,
            "max_decoding_length": spec.max_length,
            "return_end_token": True,
        }
        text = ENGINE.replace("OPTIONS", ", ".join(f"{k}={v}" for k, v in options.items()))
        return text.replace("TARGET", "tokenizer.target.model" if own else "tokenizer.model")
    if recipe.model.shape == "decoder":
        return CAUSAL
    return SEQUENCES.replace("TARGET", OWN_TARGET if own else "tokenizer")


def _notes(recipe: Recipe, target: str) -> list[str]:
    """What a user would not expect."""
    notes = []
    if target == "huggingface" and pretrained_class(recipe) == "Marian":
        notes.append(
            "`save_pretrained` of Marian leaves the table of positions out, and opens with "
            "sinusoidal ones: copy this folder rather than save the model again."
        )
    if target == "ctranslate2":
        notes.append(
            "The engine adds the end token to a source. `return_end_token` makes it count in the "
            "length by which hypotheses are ranked, as attnkit does."
        )
    return [line for note in notes for line in ("", note)]


def _scores(run: Run) -> list[str]:
    """The scores of the run, a line a split and metric."""
    rows = [
        f"| {split} | {metric_facts(name).title} | {value['score']:.2f} |"
        for split, scores in run.scores().items()
        for name, value in scores["metrics"].items()
        if value["score"] is not None
    ]
    head = ["", "## Scores of the run", "", "| split | metric | score |", "|---|---|---|"]
    return head + rows if rows else []
