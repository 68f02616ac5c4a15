"""The bundled embedder, and folders of its make."""

import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softkv.embedders import static
from softkv.embedders.static import BUNDLED, Static
from softkv.errors import EmbedderError, KindError, UnknownText

from . import reference
from .embedding import WORDS, intents


@pytest.fixture(scope="module")
def bundled() -> Static:
    """The bundled embedder."""
    return Static.load(BUNDLED, "static")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the bundled folder, to be damaged."""
    return Path(shutil.copytree(BUNDLED, tmp_path / "copy"))


def sentences(count: int, seed: int = 0) -> list[str]:
    """Texts of one to thirty words, a few of them very long."""
    chance = random.Random(seed)
    lengths = [chance.choice([1, 3, 8, 30, 30, 4000 if at % 50 == 0 else 12]) for at in range(count)]
    return [" ".join(chance.choices(WORDS, k=length)) for length in lengths]


def test_vectors_have_the_promised_shape_and_length(bundled: Static) -> None:
    """256 numbers of float32 for each text, of length 1, as the attributes say."""
    vectors = bundled.documents(["a boy looking for treasure", "Coffee?"])
    assert (vectors.shape, vectors.dtype) == ((2, bundled.width), np.float32)
    assert (bundled.width, bundled.normalised, bundled.name) == (256, True, "static")
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-6)


def test_a_text_is_the_sum_of_its_tokens(bundled: Static) -> None:
    """The vector is what the files say, computed the slow way in float64."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    vectors, scales = np.load(BUNDLED / "vectors.npy"), np.load(BUNDLED / "scales.npy")
    text = "The old city, unforgettably cold; 42 red cars!"
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    total = [sum(float(scales[token]) * float(vectors[token, at]) for token in tokens) for at in range(256)]
    length = sum(x * x for x in total) ** 0.5
    assert bundled.documents([text])[0] == pytest.approx([x / length for x in total], abs=1e-6)


def test_model2vec_agrees(bundled: Static) -> None:
    """The library that invented such models makes the same vectors of the same table."""
    model2vec = pytest.importorskip("model2vec")
    from tokenizers import Tokenizer

    table = np.load(BUNDLED / "vectors.npy") * np.load(BUNDLED / "scales.npy")[:, None]
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    oracle = model2vec.StaticModel(table, tokenizer, normalize=True, max_length=None)
    texts = [text for text in sentences(40) if len(text) < 1000]
    assert bundled.documents(texts) == pytest.approx(oracle.encode(texts), abs=1e-5)


def test_near_meanings_are_near(bundled: Static) -> None:
    """A question is nearer to what it asks about than to anything else."""
    keys = bundled.documents(["how do I make coffee", "the train is late", "he searched for hidden gold"])
    queries = bundled.queries(["brewing an espresso", "delays on the railway", "a boy looking for treasure"])
    assert (queries @ keys.T).argmax(axis=1).tolist() == [0, 1, 2]


def test_queries_are_embedded_like_documents(bundled: Static) -> None:
    """This model makes no difference between the two."""
    texts = sentences(5)
    assert bundled.queries(texts).tobytes() == bundled.documents(texts).tobytes()


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_neighbours_change_nothing(bundled: Static, size: int) -> None:
    """A text has the same vector to the bit, whatever batch it is in, in whatever order."""
    texts = sentences(600)
    together = bundled.documents(texts)
    order = random.Random(size).sample(range(len(texts)), len(texts))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        assert bundled.documents([texts[at] for at in part]).tobytes() == together[part].tobytes()


def test_threads_get_what_one_thread_gets(bundled: Static) -> None:
    """Eight threads at once disturb each other in nothing."""
    texts = sentences(300)
    alone = bundled.documents(texts).tobytes()
    with ThreadPoolExecutor(8) as pool:
        assert {vectors.tobytes() for vectors in pool.map(bundled.documents, [texts] * 24)} == {alone}


def test_a_long_text_is_read_to_its_end(bundled: Static) -> None:
    """Nothing is cut off: a megabyte is the mean of all of it, and its last word counts."""
    words = bundled.documents(["treasure", "treasure " * 120_000])
    assert words[1] == pytest.approx(words[0], abs=1e-5)
    half = bundled.documents(["coffee " * 20_000 + "treasure " * 20_000])[0]
    assert half @ words[0] > 0.3


def test_a_long_text_takes_little_memory(bundled: Static) -> None:
    """The token vectors of four megabytes of text never stand in memory all at once."""
    import tracemalloc

    text = "a boy looking for treasure " * 150_000
    tracemalloc.start()
    try:
        bundled.documents([text])
        assert tracemalloc.get_traced_memory()[1] < 60e6  # all at once: 750,000 tokens, 768 MB
    finally:
        tracemalloc.stop()


@given(st.lists(st.sampled_from(["word", "x" * 50, " ", "\n", "\u3000", "z" * 20_000, "é" * 9_000]), max_size=60))
def test_pieces_make_up_the_text(parts: list[str]) -> None:
    """Pieces joined are the text, none is too long, and words are cut only when they are longer than a piece."""
    text = "".join(parts)
    pieces = list(static._pieces(text))
    assert "".join(pieces) == text
    assert all(len(piece) <= static._PIECE for piece in pieces)
    for piece in pieces[:-1]:
        assert piece[-1].isspace() or not any(character.isspace() for character in piece)


@pytest.mark.parametrize("text", ["", "  \n\t", "\u2e3b\U0001f984", "[PAD] [UNK]", "q" * 200])
def test_a_text_of_which_nothing_is_known_is_refused(bundled: Static, text: str) -> None:
    """No zero vector and no NaN comes out: the error names the position, also in a later block, and the text."""
    with pytest.raises(UnknownText, match=r"position 700, '") as caught:
        bundled.documents([*["a boy"] * 700, text, "treasure"])
    assert repr(text)[:50] in str(caught.value)


def test_unknown_words_beside_known_ones_change_nothing(bundled: Static) -> None:
    """What is not known is passed over."""
    with_unknown, without = bundled.documents(["treasure \U0001f984", "treasure"])
    assert with_unknown.tobytes() == without.tobytes()


def test_marks_in_a_text_mean_nothing(bundled: Static) -> None:
    """[CLS] and [SEP], written by a user, are no part of the meaning."""
    marked, plain = bundled.documents(["[CLS] treasure [SEP]", "treasure"])
    assert marked.tobytes() == plain.tobytes()


def test_no_texts_give_no_rows(bundled: Static) -> None:
    """An empty list is a matrix without rows, of the right width."""
    assert bundled.documents([]).shape == (0, 256)


def test_one_text_is_not_taken_for_a_list_of_letters(bundled: Static) -> None:
    """A bare string is refused, with what to write instead."""
    with pytest.raises(KindError, match=r"Pass \[text\]"):
        bundled.documents("treasure")


@pytest.mark.parametrize(("texts", "said"), [(["a", 3], "int at position 1"), (["\ud800"], "surrogate")])
def test_what_is_no_text_is_refused(bundled: Static, texts: list[str], said: str) -> None:
    """Numbers and broken characters are named, with their position."""
    with pytest.raises(KindError, match=said):
        bundled.documents(texts)


def test_progress_is_told_up_to_the_end(bundled: Static) -> None:
    """The callback sees growing counts, and at last all texts."""
    told: list[tuple[int, int]] = []
    bundled.documents(["a boy"] * 600, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert len(told) > 1
    assert told[-1] == (600, 600)


def test_intents_are_found(bundled: Static, real_data: str) -> None:
    """Of the questions of CLINC150, at least 83% have the intent of their nearest neighbour."""
    keys, labels = intents(real_data, "train")
    queries, expected = intents(real_data, "test")
    nearest = (bundled.queries(queries) @ bundled.documents(keys).T).argmax(axis=1)
    right = [labels[at] == intent for at, intent in zip(nearest, expected, strict=True)]
    assert np.mean(right) >= 0.83


def test_the_reference_finds_the_same_neighbour(bundled: Static) -> None:
    """Cosines of our vectors, computed the slow way, rank as their dot products do: the length really is 1."""
    vectors = bundled.documents(sentences(12))
    slow = [[reference.cosine(one, other) for other in vectors.tolist()] for one in vectors.tolist()]
    assert vectors @ vectors.T == pytest.approx(np.array(slow), abs=1e-6)


@pytest.mark.slow
def test_it_needs_no_torch_and_does_not_mind_a_fork() -> None:
    """A new process embeds, forks and embeds again: nothing heavy is loaded, and nobody warns of anything."""
    script = """
import os, sys
from softkv.embedders import find
before = find("static").documents(["a boy looking for treasure"] * 500)
child = os.fork()
if child == 0:
    same = find("static").documents(["a boy looking for treasure"]).tobytes() == before[:1].tobytes()
    os._exit(0 if same else 1)
heavy = {"torch", "transformers", "sentence_transformers"} & set(sys.modules)
print(os.waitpid(child, 0)[1], list(heavy))
"""
    # One thread: newer Pythons warn of any fork beside threads, and those of the linear algebra are not ours.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("TOKENIZERS_PARALLELISM", None)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert (run.stdout.strip(), run.stderr) == ("0 []", "")


@pytest.mark.slow
def test_importing_embedders_loads_no_tokenizer() -> None:
    """The tokenizers wheel is imported when the first text comes."""
    script = "import softkv.embedders, sys; print([name for name in ('tokenizers', 'torch') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["model.json", "vectors.npy", "scales.npy", "tokenizer.json"])
@pytest.mark.parametrize("keep", [0, 100])
def test_a_file_that_was_cut_off_is_named_as_damage(copied: Path, name: str, keep: int) -> None:
    """A folder whose files are not whole is refused, with what to do."""
    os.truncate(copied / name, keep)
    with pytest.raises(EmbedderError, match="Distil it again"):
        Static.load(copied, "copy")


@pytest.mark.parametrize("name", ["model.json", "vectors.npy", "scales.npy", "tokenizer.json"])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    """A missing file is named, and so is a folder without one of its files."""
    (copied / name).unlink()
    with pytest.raises(EmbedderError, match="Distil it again"):
        Static.load(copied, "copy")


@pytest.mark.parametrize(
    ("file", "array"),
    [
        ("vectors.npy", np.zeros((30522, 256), dtype=np.float32)),
        ("vectors.npy", np.zeros((100, 256), dtype=np.int8)),
        ("scales.npy", np.zeros(99, dtype=np.float32)),
        ("scales.npy", np.full(30522, np.nan, dtype=np.float32)),
        ("scales.npy", np.array([{"run": "me"}] * 30522, dtype=object)),
    ],
    ids=["float vectors", "too few vectors", "too few scales", "NaN", "pickled"],
)
def test_a_table_that_does_not_fit_is_refused(copied: Path, file: str, array: np.ndarray) -> None:
    """Wrong types and sizes are named; a pickle is not opened."""
    np.save(copied / file, array)
    with pytest.raises(EmbedderError, match="Distil it again"):
        Static.load(copied, "copy")


def test_a_folder_of_another_format_is_refused(copied: Path) -> None:
    """A later format is named, not guessed at."""
    (copied / "model.json").write_text('{"format": "softkv static embedder 9"}', encoding="utf-8")
    with pytest.raises(EmbedderError, match="static embedder 9"):
        Static.load(copied, "copy")
