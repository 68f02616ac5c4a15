"""Find embedders by name.

A name is looked for among those that were registered, the bundled model, the entry points of installed packages
(group "softkv.embedders"), folders, and the models of sentence-transformers, in this order. Loaded embedders are kept.

Does not import a function by its name: the name may come from somebody else's store, and code named in a store is never
run.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softkv.embedders.brought import FunctionEmbedder, ObjectEmbedder, brought
from softkv.embedders.embedder import Embedder
from softkv.embedders.fetching import CONFIG, MODULES, PACKAGED, fetch, packaged
from softkv.embedders.onnx import MODEL, Onnx
from softkv.embedders.static import BUNDLED, CARD, Static
from softkv.embedders.transformer import Transformer
from softkv.errors import EmbedderError, EmbedderNotFound, KindError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT = "static"
GROUP = "softkv.embedders"
EXTRA = "text"

_registered: dict[str, Embedder] = {}
_found: dict[str, Embedder] = {}
_turn = threading.RLock()  # so that threads load a model once; reentrant, since an entry point may call find


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the list of embedders."""

    name: str
    origin: str  # "bundled", "registered", "entry point ...", "packaged"
    width: int | None  # None: known only once it is loaded
    extra: str | None  # the extra of softkv that it needs and that is not installed


def find(given: str | Callable[[Sequence[str]], Any] | Embedder) -> Embedder:
    """The embedder of this name or in this folder, or one made of a function or an object.

    >>> find("static").width
    256
    >>> letters = find(lambda texts: [[text.count("a"), text.count("e")] for text in texts])
    >>> letters.documents(["a tale", "needle"])
    array([[2., 1.],
           [0., 3.]], dtype=float32)
    """
    if isinstance(given, (Static, Onnx, Transformer, FunctionEmbedder, ObjectEmbedder)):
        return given
    if not isinstance(given, str):
        return brought(given)
    if given in _registered:
        return _registered[given]
    kept = os.path.realpath(given) if os.path.isdir(given) and given != DEFAULT else given
    if kept not in _found:
        with _turn:
            if kept not in _found:
                _found[kept] = _load(given)
    return _found[kept]


def register(name: str, embedder: Callable[[Sequence[str]], Any] | Embedder) -> None:
    """Register a function or an object as an embedder under a name, in this process. Stores record the name.

    >>> register("vowels", lambda texts: [[sum(text.count(vowel) for vowel in "aeiou")] for text in texts])
    >>> find("vowels").queries(["treasure"])
    array([[4.]], dtype=float32)
    """
    if not isinstance(name, str) or not name.strip():
        raise KindError(f"expected a name for the embedder, got {name!r}. Pass a text that is not empty.")
    if name == DEFAULT:
        raise EmbedderError(f"{name!r} is the name of the bundled embedder. Register yours under another one.")
    _registered[name] = brought(embedder, name)


def names() -> list[Listed]:
    """The embedders with a name of their own; other names are of folders or models of sentence-transformers."""
    registered = [Listed(name, "registered", one.width, None) for name, one in list(_registered.items())]
    bundled = Listed(DEFAULT, "bundled", Static.load(BUNDLED, DEFAULT).width, None)
    plugins = [Listed(name, f"entry point {one.value}", None, None) for name, one in _entry_points().items()]
    extra = None if find_spec("sentence_transformers") is not None else EXTRA
    shipped = [
        Listed(name, "packaged", None, extra) for name in PACKAGED if "/" not in name and packaged(name) is not None
    ]
    return [bundled, *registered, *plugins, *shipped]


def _load(name: str) -> Embedder:
    if name == DEFAULT:
        return Static.load(BUNDLED, DEFAULT)
    plugins = _entry_points()
    if name in plugins:
        return _plugged(name, plugins[name])
    if os.path.isdir(name):
        return _opened(name)
    if name.startswith((".", "/", "~")) and not os.path.exists(name):
        raise EmbedderNotFound(
            f"there is no folder {name}. Check the path (the shell knows ~, softkv does not). If a store names it, say "
            "where the model lies now: embedder=, or --model in the command."
        )
    if os.path.exists(name):
        raise EmbedderNotFound(f"{name} is a file, expected the folder of an embedder. Pass the folder.")
    if ":" in name:
        raise EmbedderNotFound(
            f"there is no embedder {name!r}. This is the name of a function, and functions are not imported by name: "
            f"pass the function itself, or register it first: softkv.register({name!r}, function)."
        )
    return Transformer(name, fetch(name, [DEFAULT, *_registered, *plugins]))


def _opened(folder: str) -> Embedder:
    folder = os.path.abspath(folder)  # stores record it, and may be opened from other directories
    if (Path(folder) / CARD).is_file() and not (Path(folder) / MODULES).exists():
        return (Onnx if (Path(folder) / MODEL).is_file() else Static).load(Path(folder), folder)
    if any((Path(folder) / file).is_file() for file in (MODULES, CONFIG)):
        return Transformer(folder, fetch(folder))
    raise EmbedderNotFound(
        f"the folder {folder} holds no embedder: expected {CARD} of a static one or one in ONNX, or {MODULES} of a "
        f"model of sentence-transformers. Pass such a folder."
    )


def _plugged(name: str, plugin: "EntryPoint") -> Embedder:
    try:
        loaded = plugin.load()
        given = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise EmbedderError(
            f"the embedder {name!r} of the entry point {plugin.value} cannot be loaded ({type(error).__name__}: "
            f"{error}). Repair or remove the package that brings it."
        ) from error
    return brought(given, name)


def _entry_points() -> dict[str, "EntryPoint"]:
    from importlib.metadata import entry_points  # as slow to import as the tokenizer

    return {one.name: one for one in entry_points(group=GROUP)}
