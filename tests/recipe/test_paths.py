"""Tests of paths in recipes: where they are searched, and how a run stores them."""

from pathlib import Path

import pytest
from helpers.recipe_texts import GOOD, write

from attnkit.recipe import Recipe, dump, load, load_resolved, relative_to

OWN = "task: translation\ndata: {train: train.jsonl, valid: ../valid.jsonl}\n"


def touch(*names: str) -> None:
    for name in names:
        write("", name)


def base(path: Path, *overrides: str) -> Recipe:
    return load(path, overrides).variants["base"]


def test_paths_are_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch("mine/train.jsonl", "valid.jsonl", "train.jsonl", "elsewhere/train.jsonl")
    data = base(write(OWN, "mine/r.yaml")).data
    assert (data.train, data.valid) == (str(tmp_path / "mine/train.jsonl"), str(tmp_path / "valid.jsonl"))
    monkeypatch.chdir("elsewhere")
    assert base(Path("../mine/r.yaml")).data == data


@pytest.mark.parametrize(("section", "name"), [("tokenizer", "model"), ("eval", "vectors")])
def test_other_paths_are_relative_to_the_recipe(section: str, name: str, tmp_path: Path) -> None:
    touch("mine/file")
    recipe = base(write(f"{GOOD}{section}: {{{name}: file}}\n", "mine/r.yaml"))
    assert getattr(getattr(recipe, section), name) == str(tmp_path / "mine/file")


def test_inherited_path_is_relative_to_the_file_that_sets_it(tmp_path: Path) -> None:
    touch("shared/train.jsonl", "valid.jsonl", "mine/train.jsonl")
    write(OWN, "shared/parent.yaml")
    data = base(write("extends: ../shared/parent.yaml\n", "mine/r.yaml")).data
    assert data.train == str(tmp_path / "shared/train.jsonl")


def test_path_of_the_command_line_is_relative_to_the_working_folder(tmp_path: Path) -> None:
    touch("mine/train.jsonl", "valid.jsonl", "train.jsonl", "train.de", "train.en")
    recipe = write(OWN, "mine/r.yaml")
    assert base(recipe, "data.train=train.jsonl").data.train == str(tmp_path / "train.jsonl")
    both = base(recipe, "data.train=[train.en, train.de]").data.train
    assert both == (str(tmp_path / "train.en"), str(tmp_path / "train.de"))


def test_path_of_an_earlier_version_is_found_in_the_working_folder(tmp_path: Path) -> None:
    touch("train.jsonl")
    data = base(write(OWN, "mine/r.yaml")).data
    assert data.train == str(tmp_path / "train.jsonl")
    assert data.valid == "../valid.jsonl"  # not found: it may be in the data folder


def test_run_finds_its_data_after_both_have_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch("project/data/train.jsonl", "project/valid.jsonl")
    recipe = base(write(OWN, "project/data/r.yaml"))
    folder = tmp_path / "project/runs/r/base/seed-1"
    text = dump(relative_to(recipe, folder))
    assert "train: ../../../../data/train.jsonl\n" in text
    assert load_resolved(write(text, str(folder / "recipe.yaml"))) == recipe
    (tmp_path / "project").rename(tmp_path / "moved")
    monkeypatch.chdir("/")
    moved = load_resolved(tmp_path / "moved/runs/r/base/seed-1/recipe.yaml")
    assert moved.data.train == str(tmp_path / "moved/data/train.jsonl")


def test_paths_of_a_run_in_a_linked_folder_are_found(tmp_path: Path) -> None:
    """If the folder of runs is a link to another disk, `..` leads to another folder there."""
    touch("project/data/train.jsonl", "project/valid.jsonl")
    (tmp_path / "disk/runs").mkdir(parents=True)
    (tmp_path / "project/runs").symlink_to(tmp_path / "disk/runs")
    recipe = base(write(OWN, "project/data/r.yaml"))
    write(dump(relative_to(recipe, "project/runs")), "project/runs/recipe.yaml")
    for folder in ("project/runs", "disk/runs"):
        assert load_resolved(Path(folder, "recipe.yaml")) == recipe
