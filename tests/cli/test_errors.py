"""Tests of the errors of all commands: the exit code, one line that names the mistake, and no file written."""

import gzip
import json
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import conversion_runs, question_runs
from helpers.cli import Cli, Result
from helpers.logged import make_logged
from helpers.scored_runs import scored_run
from helpers.small import write_corpus
from helpers.trained import make_run

from attnkit.cli import main
from attnkit.recipe import mechanism_registry

TABLE = """
#
2 trian :: error: no such command 'trian'. Did you mean 'train'? See `attnkit --help`
2 --bold :: error: no such option: --bold; see `attnkit --help`
2 train :: error: missing argument 'RECIPE'; see `attnkit train --help`
2 train x --ofline :: error: no such option: --ofline
2 train x --batch-size 9 :: error: no such option: --batch-size; batches are counted
2 eval runs --save x :: error: no such option: --save; results go to standard output
2 train x --seed one :: error: invalid value for '--seed'
2 train a.yaml b.yaml :: error: 'b.yaml' is not KEY=VALUE
73 demo --out void :: void
# align run
2 a.en :: a.en: name the target
2 - - :: only one of the
2 a.en a.de --head 1 :: --head 1 needs --layer
2 a.en a.de --layer 4 :: --layer 4: cross attention has only layer 0
2 a.en a.de --gold a.gold --output x :: add --layer and --head
2 a.en a.de --method argmin :: '--method': 'argmin': did you mean argmax?
2 a.en a.de --step outptu :: '--step': 'outptu': did you mean output?
2 a.en a.de --gold a.gold --format jsn :: --format': 'jsn': did you mean json?
65 a.en short :: short ends after line 1, but a.en
65 a.en a.de --gold short :: short: 1 lines for 3 sentence pairs
65 a.en a.de --gold a.de :: a.de:1: 'ein' is not a valid link: write 0-0 (sure) or 0?0
66 a.en a.de --gold absent :: absent
65 void void --gold void :: void: no sentence pairs to score
73 a.en a.de --output no/such/file :: no/such
65 < a dog :: standard input:1: no ||| between source and target; add ||| or name two files
# align lm
2 a.en a.de :: word alignments need cross attention, which a model of shape decoder
# bench attention
2 liner :: called 'liner'; did you mean linear?
2 --lengths 12..x :: --lengths '12..x': must be numbers such as 512,1000 or a range
2 --lengths 512..128 :: --lengths '512..128': the range must ascend
2 --causal efficient :: efficient cannot hide the future
2 --heads 0 :: '--heads'
2 --budget 0 :: --budget 0: must be more than 0 seconds
2 --dtype int8 :: '--dtype': 'int8': choose from float32
2 --device tpu :: tpu
# bench train
2 quickstart --variant linaer :: did you mean
2 quickstart --profile trace.txt :: .json
73 quickstart --profile nowhere/trace.json :: nowhere
2 language-modeling/naive-bayes --variant trigram :: counted
# bench decode
66 quikstart :: quikstart
# check
2 dto :: called 'dto'; did you mean dot?
2 dot key_head=2 :: dot has no option 'key_head'; did you mean key_heads?
2 dot key_heads=3 :: key_heads must divide heads (4), got 3
2 dot key_heads=two :: dot: key_heads must be a whole number or null
66 dot --plugin x.py :: plug-in x.py: no such file
# compare
2 runs/toy/good :: name at least two runs
66 runs/toy/good new/runs/toy/base :: not scored yet: run `attnkit eval
66 runs --split tets :: did you mean test?
2 runs --metric blue :: did you mean bleu?
2 runs --method mean :: --method is for question answering
2 runs/toy/good asked/runs/toy :: compare runs of one task
66 nowhere runs/toy/good :: no such folder of runs
# convert small
2 :: missing option '--attention'
78 --attention liner :: did you mean linear?
78 --attention local :: local cannot be cross attention
78 --attention '{decoder: linformer}' :: cannot be decoder attention
78 --attention '{encoder: {name: local, wndow: 3}}' :: did you mean window?
78 --attention '{encoder: {name: local, window: -1}}' :: window
78 --attention '{name: local, 1: 2}' :: model.attention.1: local has no option '1'; it has window
78 --attention '{name: [local]}' :: {name: NAME} with options, got {name: [local]}
2 --attention linear,performer :: give one mechanism, and one value for each key
2 --attention linear train.lr=1e-3,1e-4 :: one value for each key
2 --attention linear model.width=32 :: model.width: convert keeps the run's value
2 --attention linear train.seeds=[2] :: train.seeds: convert keeps the run's value
2 --attention linear train.init=x :: train.init
2 --attention linear train.steps=9 --tune 1 :: train.steps: use --tune 9 instead
78 --attention linear train.lr=fast :: train.lr: must be a number
2 --attention linear --transfer -1 :: '--transfer'
66 --attention linear --data-dir nowhere :: nowhere
# convert
66 nowhere --attention linear :: nowhere
66 logged/toy/quick/seed-1 --attention linear :: training is not finished
2 hf --attention linear :: hf: no run found; a Hugging Face model needs --text FILE
66 someone/model --attention linear :: someone/model: no run found; a Hugging Face model needs
# convert someone/model --text a.en
78 --attention '[1, 2]' :: must be the name of a mechanism
2 --attention '{encoder: linear}' :: a causal model has decoder attention only
78 --attention '{name: local, window: abc}' :: window: must be a whole number
78 --attention '{name: local, windw: 2}' :: did you mean window
78 --attention '{name: local, 1: 2}' :: model.attention.1: local has no option '1'; it has window
78 --attention '{name: [local]}' :: {name: NAME} with options, got {name: [local]}
78 --attention '{' :: not valid YAML
78 --attention linear,local :: must be a single value here
2 --attention nystrom :: cannot be causal
78 --attention linaer :: did you mean linear
73 --attention linear --out a.en :: is not a writable folder
# convert hf --attention linear --text a.en --length 16 --transfer 2 --tune 1
78 train.lr=0 :: must be a number > 0
78 train.lr=nan :: must be a number > 0
78 train.lr :: must be KEY=VALUE
78 train.batch_tokens=1e4 :: must be a whole number
2 train.precision=fp16 :: must be fp32 or bf16
2 model.width=3 :: for a Hugging Face model, use only train.lr
66 --text absent.txt :: absent.txt
# data encode
66 none.yaml :: none.yaml
2 tiny.yaml --variant three :: has no variant 'three'
78 tiny.yaml data.max_length=x :: data.max_length
66 tiny.yaml 'data.train=[train.source, c.tgt]' :: c.tgt
65 tiny.yaml 'data.train=[bad.txt, ref.txt]' :: bad.txt:2:2: malformed UTF-8
# eval
2 :: name a recipe, a run, or files with --hyp and --ref
2 --hyp hyp.txt :: --hyp needs --ref FILE too
2 --ref ref.txt :: --ref needs --hyp FILE too
2 --hyp hyp.txt --ref ref.txt other.txt :: put --hyp or --ref before each file
2 --hyp - --ref - :: only one of --hyp and --ref can be standard input
66 --hyp none.txt --ref ref.txt :: none.txt
66 --hyp . --ref ref.txt :: .: is a folder; a regular file is needed
65 --hyp short --ref ref.txt :: short and ref.txt have 1 and 4 lines
65 --hyp bad.txt --ref ref.txt :: bad.txt:2:2: malformed UTF-8
65 --hyp void --ref void :: nothing to score
2 --hyp a --ref b --model x :: --model is for trained runs; it has no effect with --hyp
66 nowhere :: no recipe 'nowhere'
66 folder.md :: no finished run found
66 tiny.yaml :: no finished run in runs/tiny; train one: attnkit train tiny.yaml
2 run lm :: is a run of translation, lm of language-modeling: score each task separately
66 absent.results.tar.xz :: absent.results.tar.xz: no such file
# eval --hyp hyp.txt --ref ref.txt
2 --split test :: --split is for trained runs
2 --metrics blue :: did you mean bleu?
2 --metrics= :: unknown metric ''
2 --metrics perplexity :: needs a trained run
2 --metrics context-found :: needs a trained run
2 --tokenize zhh :: did you mean zh?
2 --words unicod :: did you mean unicode?
2 --metrics meteors :: did you mean meteor?
2 --metrics embedding-average :: or add --vectors FILE
65 --metrics embedding-average --vectors ref.txt :: ref.txt:1: 'red' is not a finite number
66 --metrics embedding-average --vectors none.vec :: word vectors: none.vec: no such file
2 --format jsn :: did you mean json?
2 --hyp hyp.txt :: --hyp 'hyp.txt' is given twice; name
65 --ref short :: short have 4 and 1 lines
# eval --offline
66 gone.jsonl --model asked/runs/toy/base/seed-1 :: gone.jsonl
2 own.jsonl :: own.jsonl: a file of questions needs --model NAME
2 --model x :: --model needs exactly one recipe or file
2 asked/toy.yaml asked/toy.yaml --model x :: --model needs exactly one recipe or file
2 asked/runs/toy --model x :: --model needs exactly one recipe or file
2 quickstart --model x :: quickstart: --model needs a recipe of task question-answering
# eval --offline asked/toy.yaml --out asked/runs
2 --model x --model x :: --model 'x' is given twice
66 --model ./gone :: './gone': no such directory
66 --model asked/runs/toy/gone :: asked/runs/toy/gone: no such folder
2 --model asked/runs/toy/base/seed-1 --chat :: is a run; remove chat, which is for Hugging Face models only
66 --model asked/runs/toy/base/seed-1 --split tset :: no split 'tset'
2 --model asked/runs/toy/base/seed-1 --metrics perplexity :: perplexity does not apply
2 --model x --baseline concta :: --baseline 'concta': did you mean concat?
2 --baseline concta :: --baseline 'concta': did you mean concat?
2 --chat :: --chat needs --model NAME
2 --dtype float16 :: --dtype needs --model NAME
2 --template {context}{prompt} :: --template needs --model NAME
# export run out
2 --to onxx :: did you mean onnx?
2 --to onnx --quantization int8 :: --quantization is for --to ctranslate2
2 --to ctranslate2 --quantization int7 :: did you mean int8?
# generate run
2 --beam 3 --sample :: --beam and sampling exclude each other
2 --top-p 0.9 :: --top-p is for sampling: add --sample
2 --beam 2 --temperature 0.9 :: --temperature is for sampling: add --sample
2 --seed 1 :: --seed is for sampling
2 --beam 0 :: --beam: must be a whole number >= 1, got 0
2 --sample --top-p 1.5 :: --top-p: must be a number > 0 and <= 1, got 1.5
2 --sample --temperature 0 :: --temperature: must be a number > 0, got 0.0
2 --sample --temperature nan :: --temperature: must be a number > 0, got nan
2 --length-penalty inf :: --length-penalty: must be a number >= -10 and <= 10, got inf
2 --n-best 3 :: --n-best 3: must be at most 2 for beam search; use a wider beam, or sample
2 --beam 1 --n-best 2 :: --n-best 2: must be at most 1 for beam search
2 --min-length 8 :: --min-length 8: must be below max_length 8
2 --json --scores :: remove --scores
2 --block 0 :: '--block': must be >= 1
2 --block 1.5 :: '--block': must be a whole number; see `attnkit generate --help`
66 in.txt :: in.txt: cannot be read: No such file or directory
66 runs :: runs: is a folder; a regular file is needed
66 'a\0b' :: a
69 --device cuda:77 :: cuda:77
73 a.en --output gone/out.txt :: out.txt: cannot be created: No such file or directory
73 a.en --output runs :: runs
74 a.en --output /dev/full :: No space left on device
65 damaged.gz :: damaged gzip data
# generate
66 run/no :: run/no
# nbce lm
66 --context none.txt --prompt x :: none.txt: no such file
65 --contexts a.en --prompt x :: a.en:1:1: not JSON
2 --prompt x :: there is no context: add --context FILE
2 --context - --prompt x :: there is no context (1 empty)
2 --context a.en a.de :: there is no prompt: add --prompt TEXT or --prompts FILE
2 --context a.en a.de --prompt ' ' :: prompt 1 is empty
# nbce lm --context a.en a.de short --prompt ein
2 --weights 1,0,0 :: weights are for pool 'weighted', not 'entropy'
2 --pool weighted --weights 1,0 :: weights: got 2 for 3 contexts
2 --weights a,b,c :: --weights 'a,b,c': must be numbers such as 0.5
2 --pool entropie :: 'entropie': did you mean entropy?
2 --beta -2 :: beta must be at least -1, got -2
2 --top-p 2 :: top_p must be from 0 to 1, got 2
2 --baseline concta :: 'concta': did you mean concat?
2 --baseline concat --alpha 1 :: of at least 0, with --baseline cad
2 --baseline cad --alpha -1 :: --alpha -1: must be a number of at least 0
2 --window 0 :: '--window': must be >= 1
2 --seed 2 :: --seed is for sampling: add --sample
2 --beam 2 --temperature 1 :: --beam and sampling exclude each other
2 --context - --prompts - :: only one of --context, --contexts and
2 --pool best --trace :: --pool best merges no contexts
2 --choices a :: --choices: give at least two different answers
2 --max-length 8 --choices a,b :: --max-length has no effect with --choices
2 --chat :: is a run; remove chat, which is for Hugging Face models only
2 --dtype bfloat16 :: is a run; remove dtype, which is for Hugging Face models only
# nbce
66 ./no-run --context a.en --prompt x :: no-run
2 hf --context a.en --prompt x --chat --offline :: has no chat template
2 hf --context a.en --prompt x --template {prompt} --offline :: a template needs {context} once, and {prompt} after
# plot
2 logged --y overview,score :: overview or differences must be the only --y
2 logged --save p.svg --size 3 :: --size '3': must be width and height
66 nowhere :: nowhere: no such folder of runs
2 logged --x model.attention :: --x model.attention: no run has a number for model.attention; use a key such as
2 logged --x hours :: --x 'hours': choose from updates, tokens, time, parameters
2 logged --y los :: --y 'los':
2 logged --save p.jpg :: unknown suffix '.jpg'; choose from .png .svg .pdf
2 :: missing argument
# probe heads run --split test
2 --kind croos :: '--kind': 'croos': did you mean cross?
2 --rows 0 :: '--rows': must be >= 1
2 --format jsn :: --format': 'jsn': did you mean json?
2 --metrics blue :: unknown metric 'blue': did you mean bleu? (load your own with --plugin FILE)
2 --layer 7 :: --layer 7: encoder attention has only layer 0
66 --split valid :: valid
# probe noise run --split test
2 --sigma 0 :: --sigma 0: must be above 0 and at most 20
2 --sigma a :: --sigma 'a': must be numbers such as 0.5,1,2
2 --by head :: '--by': 'head': choose from model, kind
2 --seeds 0 :: '--seeds'
66 --split valid :: valid
# probe
2 noise :: missing argument
66 noise nowhere :: nowhere: no such run
2 entropy run --head 9 --split test :: --head 9: encoder attention has heads 0, 1
66 rank no/run :: no/run: no such folder of runs
2 rank :: missing argument
# recipe
78 explain tiny.yaml train.setps=3 :: line: train.setps: unknown key; did you mean train.steps?
66 explain gone.yaml :: this name; `attnkit recipe list`
2 show tiny.yaml --variant tow :: tiny has no variant 'tow'; did you mean two?
66 copy quickstrt :: no recipe 'quickstrt': no such file
2 shwo :: show
73 copy tiny.yaml gone/x.yaml :: gone
2 list --columns variant :: --columns 'variant': did you mean variants?
# report
66 nowhere :: nowhere: no such folder of runs
66 new/runs :: not scored yet: run `attnkit eval new/runs/toy/base/seed-1`
66 new/runs -o o.svg :: : not scored; skipped
2 runs asked/runs :: make a report for each task
2 runs -o r.txt :: unknown suffix '.txt'; choose from .html .htm .md
73 runs -o no/r.html :: there is no folder no
73 runs -o folder.md :: it is a folder
73 runs -o r.md :: r-figures is not a folder
# runs
66 nowhere :: nowhere: no such folder of runs; `attnkit train RECIPE` makes
66 tiny.yaml :: tiny.yaml: is a file; a folder is needed; `attnkit train
66 clean nowhere :: nowhere: no such folder of runs
2 --format xml :: '--format': 'xml': choose from table
2 pack runs :: add --results
66 pack --results absent :: absent: no such folder of runs
66 pack --results new/runs :: not scored yet: run `attnkit eval new/runs
73 pack --results runs results/toy/good :: a second run with the same name
73 pack --results runs -o void :: void
# slurm quickstart
2 --time soon :: --time 'soon': must be as in Slurm
2 --time 4 :: --time 4: too short, because trainings stop 120 seconds before
2 --time 0:04:00 :: too short
78 train.step=3 :: train.step
2 -- --nosuch :: no such option: --nosuch
2 -- --jobs 2 :: --jobs does not work in a script
2 -- --nproc 2 :: --nproc does not work in a script
2 -- --fresh :: --fresh would start over whenever the job is requeued
2 -- --variant nosuch :: nosuch
# slurm
66 quickstrat :: quickstart
# train tiny.yaml
2 --nproc 2 --jobs 2 :: use one of the two
2 --nproc 0 :: --nproc
2 --jobs 0 :: '--jobs': must be >= 1
2 --jobs many :: invalid value for '--jobs'
2 --jobs 3 :: --jobs 3: must be at most 2, the number of runs
2 --jobs 3 --dry-run :: --jobs 3: must be at most 2, the number of runs
2 --jobs 2 --variant one :: --jobs 2: must be at most 1, the number of runs
2 --tune-steps 3 :: --tune-steps 3: needs --tune KEY=V1,V2
2 --tune train.lr=1,2 --tune-steps 13 :: must be from 1 to the train.steps of one, 12
2 --tune train.lr=1,2 --tune-steps 0 :: --tune-steps 0: must be from 1
2 --tune train.lr :: must be KEY=V1,V2
78 --tune train.lr=1e-3,0.001 :: names a value twice
78 --tune lr=1,2 :: lr: unknown key: this key belongs under train
78 --tune train.lr=1e-3,fast :: train.lr: must be a number
2 --tune train.steps=5,6 :: must be equal in all trials
78 'model.attention={decoder: {name: gated-delta, steps: 0}}' :: steps must be at least 1
2 --tune train.lr=1 :: --tune train.lr=1: needs at least two values
78 --tune train.lrr=1,2 :: train.lrr: unknown key; did you mean train.lr?
2 --tune search.beam=1,2 :: only keys of train and model can be tuned
2 --tune train.lr=1,2 --jobs 9 :: must be at most 6, the number of runs (variants times seeds) and trials
# verify
66 nothing-of-that-name :: nothing-of-that-name
66 quickstart :: `attnkit train RECIPE` makes one
66 absent.results.tar.xz :: absent.results.tar.xz: no such file
# visualize-attn
2 lm zwei --kind cross :: cross
2 run ' ' :: empty
73 no/run cat --save no/b.html :: there is no folder
73 no/run cat --save folder.md/a.html :: it is a folder
# visualize-attn run 'a very red cat'
2 --layer 7 :: --layer 7: cross attention has only layer 0
2 --head 2 :: --head 2: cross attention has heads 0, 1
2 --head 0-3 :: --head 2: cross attention has heads 0, 1
2 --head 1-0 :: --head '1-0': must be numbers from 0, such as 3, 0-5 or 0,2,4
2 --layer first :: --layer 'first': must be numbers from 0
2 --save maps.jpg :: --save maps.jpg: unknown suffix '.jpg'; choose from .png
73 --save no/such/folder/a.html :: no/such/folder
2 --view all :: '--view': 'all': choose from full, grid
2 --kind crosss :: '--kind': 'crosss': did you mean cross?
2 --target rote --max-length 0 :: --target sets the output; remove
2 --with other --save a.npz :: a.npz: .npz holds one model
2 --with other --save a.svg :: a.svg: .svg holds one model
2 --reference --save a.svg :: a.svg: .svg does not support --reference
2 --save . :: unknown suffix ''
66 --with nothing/here/at/all :: nothing/here/at/all
2 --max-length 0 :: --max-length: must be a whole number >= 1
"""
"""Lines `CODE WORDS < INPUT :: PART OF THE ERROR`; WORDS and INPUT are optional. `# WORDS` begins the lines below."""
WEIGHTS = "results have no weights; name their run, or train it again: attnkit train"
TINY = """\
task: translation
data: {train: [train.source, train.target], valid: [valid.source, valid.target],
       test: [test.source, test.target], max_length: 32}
tokenizer: {type: word, size: 60}
model: {width: 16, heads: 2, layers: 1, ff: 32}
train: {steps: 12, batch_tokens: 128, precision: fp32}
search: {method: greedy, max_length: 20}
eval: {bootstrap: 0}
variants: {one: {}, two: {model.attention: linear}}
"""
FILES = {
    "a.en": "one red dog\n\na dog and a cat\n",
    "a.de": "ein hund\n\nein hund und eine katze\n",
    "a.gold": "0-0 1-1 2-2\n\n0-0 1-1 2-2 3?3 4-4\n",
    "short": "0-0\n",
    "none": "0?0\n\n\n",
    "void": "",
    "hyp.txt": "a b\nc d\ne f\nall\n",
    "ref.txt": "a red\nb\nc\nd\n",
    "tiny.yaml": TINY,
    "r-figures": "mine",
    "own.jsonl": json.dumps({"question": "a?", "answers": ["b"]}) + "\n",
}


def cases() -> Iterator[tuple[str, int, str, str]]:
    """Yield words, exit code, message and standard input of each line of TABLE."""
    common = ""
    for line in TABLE.strip("\n").split("\n"):
        if line.startswith("#"):
            common = line[1:].strip()
            continue
        call, _, message = line.partition(":: ")
        code, _, words = call.partition(" ")
        words, _, stdin = words.partition("< ")
        yield f"{common} {words}".strip(), int(code), message, stdin


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of every kind, some of them behind links, and files for the commands of TABLE."""
    folder = tmp_path_factory.mktemp("errors")
    write_corpus(folder)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "bad.txt").write_bytes(b"a\nb\xff\nc\nd\n")
    (folder / "damaged.gz").write_bytes(gzip.compress(b"a dog\n" * 100)[:-9])
    for name in ("folder.md", "folder.md/a.html", "new", "words", "converted"):
        (folder / name).mkdir()
    (folder / "run").symlink_to(make_run(folder / "new").path)
    (folder / "lm").symlink_to(make_run(folder / "words", task="language-modeling").path)
    (folder / "small").symlink_to(conversion_runs.make_run(folder / "converted").path)
    for variant in ("good", "bad"):
        scored_run(folder, variant, ["ein hund", "zwei", "", "katzen", "eine"], ("chrf", "bleu"))
    question_runs.make_run(folder / "asked")
    make_logged(folder / "logged", scores={"bleu": 20.0})
    make_logged(folder / "logged", "quick", finished=False)
    if find_spec("transformers"):
        from helpers.pretrained import save_pretrained

        save_pretrained(folder / "hf", "llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["runs", "pack", "runs", "--results"]) == 0
    return folder


@pytest.fixture
def fail(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command in the folder, and check that it writes one error line and changes no file."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(mechanism_registry, "_plugged", {})

    def call(*words: str, stdin: str, code: int) -> Result:
        before = sorted(folder.rglob("*"))
        done = cli(*words, stdin=stdin, code=code)
        assert sorted(folder.rglob("*")) == before
        assert done.out == ""
        assert done.err.count("error:") == 1
        return done

    return call


@pytest.mark.parametrize(("words", "code", "message", "stdin"), [*cases()], ids=[words for words, *_ in cases()])
def test_mistake_gives_one_error_line(words: str, code: int, message: str, stdin: str, fail: Cli) -> None:
    if words.split()[1:2] == ["hf"]:
        pytest.importorskip("transformers")
    assert message in fail(*shlex.split(words), stdin=stdin, code=code).error


GOOD = "results/toy/good/seed-1.results.tar.xz"


@pytest.mark.parametrize(
    "words",
    [
        "generate {}",
        "visualize-attn {} cats",
        "nbce {} --context a.en --prompt cats",
        "align {}",
        "export {} --to onnx exported",
        "probe heads {} --split test",
        "probe rank results --split test",
        "convert {} --attention linear",
        "bench decode {}",
        "train quickstart train.init={}",
        "eval {} search.beam=7",
        "eval {} --fresh",
        "eval {} --split valid",
    ],
)
def test_results_file_instead_of_weights_is_an_error(words: str, fail: Cli) -> None:
    done = fail(*words.format(GOOD).split(), stdin="two cats\n", code=66)
    assert f"{GOOD}: {WEIGHTS}" in done.error or f"/bad/seed-1.results.tar.xz: {WEIGHTS}" in done.err
