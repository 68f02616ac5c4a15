"""Make a static embedder out of a model of sentence-transformers.

Each token of the model's vocabulary is run through the model alone, between the special tokens that begin and end a
text; the output at its position is its vector. The vectors are reduced to their principal components, and those of
common tokens are shortened: frequencies are estimated by Zipf's law from the rank of a token, since vocabularies are
ordered by frequency. This is the recipe of model2vec (MIT, https://github.com/MinishLab/model2vec), except that
model2vec averages over the special tokens as well, which made lookups of intents 1.3 percentage points worse.

Does not train: each token is run through the model once, and no texts are needed.

Shapes: t tokens, e width of the model, w width of the result.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.embedders.fetching import fetch, library_for
from softkv.embedders.static import CARD, FORMAT, SCALES, TOKENIZER, VECTORS, Static
from softkv.errors import EmbedderError, KindError
from softkv.maths.inputs import is_whole
from softkv.ndarrays import AnyArray, Floats, Matrix
from softkv.progress import Progress

_ZIPF = 1e-4  # a token of this frequency keeps half of its length
_TOKENS = 1024  # tokens in one batch
_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|<reserved\d+>")
_STEPS = 127  # of int8, on either side of 0


def distil(
    source: str, folder: str | os.PathLike[str], *, width: int = 256, progress: Progress | None = None
) -> Static:
    """Distil the model of a name or in a folder into a new folder, which `find` opens as a static embedder."""
    target = Path(folder)
    require_new(target)
    library_for("distilling a model")
    model = fetch(source)
    tokenizer = _plain_tokenizer(model, source)
    tokens = _spoken(model, tokenizer)
    marks = _marks(model)
    _check_width(width, len(tokens), _outputs(model, tokens[:1], marks).shape[1])
    leading = _leading(_all_outputs(model, tokens, marks, progress), width)
    vectors, scales = _table(leading * _rarity(len(tokens))[:, None], tokens, 1 + max(tokenizer.get_vocab().values()))
    card = {"format": FORMAT, "source": source, "width": width, "tokens": len(tokens)}
    _write(target, {VECTORS: vectors, SCALES: scales}, tokenizer.to_str(), card)
    return Static.load(target, str(folder))


def require_new(target: Path) -> None:
    """Raise if a model cannot be written to this path: something is there, or there is no parent folder."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise EmbedderError(f"{target} is not an empty folder. Write into a new one, or remove it first.")
    if not target.absolute().parent.is_dir():
        raise EmbedderError(f"the folder {target.absolute().parent} does not exist. Make it first.")


def _check_width(width: int, tokens: int, given: int) -> None:
    most = min(tokens, given)
    if not is_whole(width) or not 1 <= width <= most:
        raise KindError(
            f"expected a width from 1 to {most}, got {width!r}: the model gives {given} numbers for each of {tokens} "
            f"tokens."
        )


def _plain_tokenizer(model: Any, source: str) -> Any:
    """The model's tokenizer, without padding and truncation."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EmbedderError(
            f"{source!r} cannot be distilled: its tokenizer, {type(model.tokenizer).__name__}, is not one of the "
            f"tokenizers library. Choose a model with a fast tokenizer."
        )
    plain = type(backend).from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    return plain


def _spoken(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that occur in texts: all but special tokens, [UNK], and unused entries of the vocabulary."""
    silent = set(model.tokenizer.all_special_ids)
    return sorted(
        at for token, at in tokenizer.get_vocab().items() if at not in silent and not _UNUSED.fullmatch(token)
    )


def _marks(model: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the model's tokenizer puts before and after a text."""
    inner = model.tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = model.tokenizer("a")["input_ids"]
    start = next(at for at in range(len(whole)) if whole[at : at + len(inner)] == inner)
    return whole[:start], whole[start + len(inner) :]


def _outputs(model: Any, tokens: list[int], marks: tuple[list[int], list[int]]) -> Matrix:
    """The model's vectors of tokens, each alone between the special tokens; (t, e)."""
    torch = import_module("torch")
    before, after = marks
    asked = torch.tensor([[*before, token, *after] for token in tokens], device=model.device)
    with torch.inference_mode():
        outputs = model[0]({"input_ids": asked, "attention_mask": torch.ones_like(asked)})
    vectors: Matrix = outputs["token_embeddings"][:, len(before)].float().cpu().numpy()
    return vectors


def _all_outputs(
    model: Any, tokens: list[int], marks: tuple[list[int], list[int]], progress: Progress | None
) -> Matrix:
    rounds = []
    for first in range(0, len(tokens), _TOKENS):
        rounds.append(_outputs(model, tokens[first : first + _TOKENS], marks))
        if progress is not None:
            progress(min(first + _TOKENS, len(tokens)), len(tokens))
    return np.concatenate(rounds)


def _leading(vectors: Matrix, width: int) -> Floats:
    """The principal components of the vectors; (t, e) -> (t, w)."""
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    directions = np.linalg.eigh(centred.T @ centred).eigenvectors[:, ::-1][:, :width]
    turned: Floats = centred @ directions
    # The sign of a component is arbitrary; it is fixed, so that every machine makes the same table.
    largest = np.abs(turned).argmax(axis=0)
    turned *= np.sign(turned[largest, np.arange(width)])
    return turned


def _rarity(tokens: int) -> Floats:
    """How much of its length a token of each rank keeps: most of it if rare, little if common."""
    frequencies = 1.0 / np.arange(2, tokens + 2)
    frequencies /= frequencies.sum()
    return _ZIPF / (_ZIPF + frequencies)


def _table(vectors: Floats, tokens: list[int], rows: int) -> tuple[npt.NDArray[np.int8], Matrix]:
    """Vectors as int8 with one scale for each row; rows of other tokens are zero, and take no space when compressed."""
    scales = np.zeros(rows, dtype=np.float32)
    scales[tokens] = np.abs(vectors).max(axis=1) / _STEPS
    steps = np.zeros((rows, vectors.shape[1]), dtype=np.int8)
    steps[tokens] = np.rint(vectors / np.maximum(scales[tokens], np.finfo(np.float32).tiny)[:, None])
    return steps, scales


def _write(target: Path, arrays: dict[str, AnyArray], tokenizer: str, card: dict[str, Any]) -> None:
    with made_whole(target) as beside:
        for file, array in arrays.items():
            np.save(beside / file, array, allow_pickle=False)
        (beside / TOKENIZER).write_text(tokenizer, encoding="utf-8")
        (beside / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target, which is renamed to it at the end: the target is complete or absent."""
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.absolute().parent))
    try:
        beside.chmod(0o755)
        yield beside
        os.rename(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
