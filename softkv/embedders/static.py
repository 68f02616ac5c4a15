"""Static embedders, such as the bundled model: a table with one vector for each token.

The vector of a text is the sum of the vectors of its tokens, scaled to length 1. Rare tokens have longer vectors than
common ones, so the sum is a weighted mean. The table is int8 with one float32 scale per token, and is memory-mapped.
Token i is row i; tokens that are ignored have scale 0: [UNK], [CLS], those that no text contains.

Texts are never cut off. A long one is tokenized in pieces that end at white space, so that memory stays bounded.

Ignores word order: "dog bites man" equals "man bites dog".

Shapes: n texts, t tokens, w width.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from softkv.embedders.vectors import embedded, refuse_unknown
from softkv.errors import EmbedderError
from softkv.ndarrays import AnyArray, Matrix
from softkv.progress import Progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BUNDLED = Path(__file__).parent / "bundled"
FORMAT = "softkv static embedder 1"
VECTORS, SCALES, TOKENIZER, CARD = "vectors.npy", "scales.npy", "tokenizer.json", "model.json"

_TEXTS = 256  # texts in one batch: their token vectors should stay in the cache of the processor
_PIECE = 16_384  # characters that are tokenized at once
_PORTION = 65_536  # characters of all pieces that are summed at once


@final
class Static:
    """A table of token vectors. Any number of threads may use it at the same time."""

    def __init__(self, name: str, tokenizer: "Tokenizer", vectors: npt.NDArray[np.int8], scales: Matrix) -> None:
        self.name = name
        self.width = int(vectors.shape[1])
        self.normalised = True
        self.query_prompt: str | None = None
        self.document_prompt: str | None = None
        self._tokenizer = tokenizer
        self._vectors = vectors  # (tokens, w)
        self._scales = scales  # (tokens,)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Static":
        """Open a folder that `distillation.distil` wrote."""
        from tokenizers import Tokenizer

        try:
            _check_card(folder)
            vectors, scales = (_mapped(folder / file) for file in (VECTORS, SCALES))
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except EmbedderError:
            raise
        except Exception as error:  # the tokenizers wheel raises bare Exception
            raise EmbedderError(f"the static embedder in {folder} cannot be read: {error}. Distil it again.") from None
        _check_table(folder, vectors, scales, tokenizer.get_vocab_size())
        return cls(name, tokenizer, vectors, scales)

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Matrix:
        """The vectors of texts. The vector of a text is the same, to the bit, in any batch."""
        return embedded(texts, self.width, _TEXTS, self._embed, progress)

    def queries(self, texts: Sequence[str]) -> Matrix:
        """The vectors of texts that ask, which this model embeds as it does documents."""
        return self.documents(texts)

    def _embed(self, texts: list[str], first: int) -> Matrix:
        sums = np.zeros((len(texts), self.width), dtype=np.float32)
        for owners, pieces in _portions(texts):
            self._add(sums, owners, pieces)
        lengths = np.linalg.norm(sums, axis=1)
        refuse_unknown(texts, lengths > 0, self.name, first=first)
        sums /= lengths[:, None]
        return sums

    def _add(self, sums: Matrix, owners: list[int], pieces: list[str]) -> None:
        """Add the token vectors of pieces to the sums of the texts they come from."""
        # One by one, because encode_batch starts threads, which causes a warning if the process forks later. A short
        # text takes 13 microseconds.
        encode = self._tokenizer.encode
        tokens = [encode(piece, add_special_tokens=False).ids for piece in pieces]
        found = [at for at, ids in enumerate(tokens) if ids]
        if not found:
            return
        counts = [len(tokens[at]) for at in found]
        flat = np.fromiter(chain.from_iterable(tokens), dtype=np.intp, count=sum(counts))  # (t,)
        weighted = self._vectors[flat] * self._scales[flat, None]  # (t, w)
        starts = np.cumsum([0, *counts[:-1]])
        sums[[owners[at] for at in found]] += np.add.reduceat(weighted, starts, axis=0)


def _portions(texts: list[str]) -> Iterator[tuple[list[int], list[str]]]:
    """Batches of pieces and the texts they come from; no batch has two pieces of one text."""
    owners: list[int] = []
    pieces: list[str] = []
    characters = 0
    for owner, text in enumerate(texts):
        for piece in _pieces(text):
            if owners and (owners[-1] == owner or characters + len(piece) > _PORTION):
                yield owners, pieces
                owners, pieces, characters = [], [], 0
            owners.append(owner)
            pieces.append(piece)
            characters += len(piece)
    yield owners, pieces


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces that end at white space; a word that is longer than a piece is cut."""
    start = 0
    while len(text) - start > _PIECE:
        end = start + _PIECE
        cut = next((at for at in range(end, start, -1) if text[at - 1].isspace()), end)
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def _mapped(path: Path) -> AnyArray:
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _check_card(folder: Path) -> None:
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    found = card.get("format") if isinstance(card, dict) else None
    if found != FORMAT:
        raise EmbedderError(
            f"the static embedder in {folder} says that its format is {found!r}, expected {FORMAT!r}. Distil it again, "
            f"or use the softkv that wrote it."
        )


def _check_table(folder: Path, vectors: AnyArray, scales: AnyArray, tokens: int) -> None:
    fits = vectors.ndim == 2 and scales.shape == vectors.shape[:1] and len(vectors) >= tokens and vectors.shape[1] > 0
    if not fits or vectors.dtype != np.int8 or scales.dtype != np.float32:
        raise EmbedderError(
            f"the static embedder in {folder} holds vectors {vectors.dtype} {vectors.shape} and scales {scales.dtype} "
            f"{scales.shape} for {tokens} tokens; expected int8 ({tokens}, width) and float32 ({tokens},). "
            f"Distil it again."
        )
    if not np.isfinite(scales).all():
        raise EmbedderError(f"the static embedder in {folder} holds scales that are not finite. Distil it again.")
