"""Models of the sentence-transformers library, by name or from a folder.

They capture more than the bundled model (above all word order) and take more than a hundred times as long.

The model truncates texts to its `max_seq_length` tokens. The vector of a text may differ in its last bits from batch to
batch, because shorter texts are padded to the length of the longest.

Does not find models (fetching.py), and does not run code that comes with them.
"""

import threading
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from softkv.embedders.vectors import PROBES, checked_vectors, embedded, known_vectors, of_length_one, refuse_unknown
from softkv.ndarrays import Matrix
from softkv.progress import Progress

_TEXTS = 512  # texts in one call; the library sorts them by length and makes its own batches


@final
class Transformer:
    """A model of sentence-transformers. Threads take turns."""

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self.query_prompt = _prompt(model, "query")
        self.document_prompt = _prompt(model, "document", "passage", "corpus")
        self._model = model
        # Subtle: a fast tokenizer that truncates refuses a second thread with "Already borrowed".
        self._turn = threading.Lock()
        probes = checked_vectors(self._encode(list(PROBES), "document"), PROBES, name=name, width=None)
        self.width = int(probes.shape[1])
        self.normalised = of_length_one(probes)

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Matrix:
        """The vectors of texts as keys, with the model's prompt for documents before them."""
        return self._embed(texts, "document", progress)

    def queries(self, texts: Sequence[str]) -> Matrix:
        """The vectors of texts as queries, with the model's prompt for queries before them."""
        return self._embed(texts, "query", None)

    def _embed(self, texts: Sequence[str], side: str, progress: Progress | None) -> Matrix:
        def embed(block: list[str], first: int) -> Matrix:
            with self._turn:
                refuse_unknown(block, self._known(block), self.name, first=first)
                found = self._encode(block, side)
            return known_vectors(found, block, name=self.name, width=self.width, first=first)

        return embedded(texts, self.width, _TEXTS, embed, progress)

    def _known(self, texts: list[str]) -> Any:
        """Which texts contain a token that the model knows."""
        known = np.array([bool(text.strip()) for text in texts])
        tokenizer = self._model.tokenizer
        silent = set(getattr(tokenizer, "all_special_ids", ()))  # the unknown token and other special tokens
        if silent:
            tokens = tokenizer(texts, add_special_tokens=False, truncation=True)["input_ids"]
            known &= [not silent.issuperset(ids) for ids in tokens]
        return known

    def _encode(self, texts: list[str], side: str) -> Any:
        # The prompt is always given, if only as "": without one the library may put its own default before queries.
        prompt = (self.query_prompt if side == "query" else self.document_prompt) or ""
        encode = getattr(self._model, f"encode_{side}", self._model.encode)  # some have a network for each side
        return encode(texts, prompt=prompt, show_progress_bar=False, convert_to_numpy=True)


def _prompt(model: Any, *sides: str) -> str | None:
    prompts = dict(getattr(model, "prompts", None) or {})
    fallback = prompts.get(getattr(model, "default_prompt_name", None) or "")
    return next((prompts[side] for side in sides if prompts.get(side)), fallback) or None
