"""A soft key-value store: attention as a dictionary lookup, kept on disk, with an error bar.

Public names only. They are looked up on first use, so that `import softkv` costs nothing and needs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softkv import errors as errors
    from softkv.answer import Answer as Answer
    from softkv.answer import Answers as Answers
    from softkv.comparison import Comparison as Comparison
    from softkv.database import SoftKV as SoftKV
    from softkv.database import import_from as import_from
    from softkv.database import open as open
    from softkv.database import repair as repair
    from softkv.database import restore as restore
    from softkv.embedders import register as register
    from softkv.maths.compatibility import additive as additive
    from softkv.maths.compatibility import bilinear as bilinear
    from softkv.maths.heads import Heads as Heads
    from softkv.plain import soft_lookup as soft_lookup

__version__ = "0.1.0"

_HOMES = {
    "Answer": ("softkv.answer", "Answer"),
    "Answers": ("softkv.answer", "Answers"),
    "Comparison": ("softkv.comparison", "Comparison"),
    "Heads": ("softkv.maths.heads", "Heads"),
    "errors": ("softkv.errors", None),
    "SoftKV": ("softkv.database", "SoftKV"),
    "additive": ("softkv.maths.compatibility", "additive"),
    "bilinear": ("softkv.maths.compatibility", "bilinear"),
    "import_from": ("softkv.database", "import_from"),
    "open": ("softkv.database", "open"),
    "register": ("softkv.embedders", "register"),
    "repair": ("softkv.database", "repair"),
    "restore": ("softkv.database", "restore"),
    "soft_lookup": ("softkv.plain", "soft_lookup"),
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'softkv' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found: object = import_module(module)
    return found if attribute is None else getattr(found, attribute)


def __dir__() -> list[str]:
    return __all__
