"""The progress of a rebuild that was begun and is not finished; while there is one, nothing else may change.

The unfinished generation is the one that is newer than the current one: the catalog names it, so that it is kept, but
nothing reads from it. Writes nothing.
"""

import shlex
from dataclasses import dataclass
from typing import Any

from softkv.errors import Unfinished
from softkv.storage.catalog.catalog import Catalog, Head
from softkv.storage.catalog.parsing import loaded_settings


@dataclass(frozen=True, slots=True)
class Begun:
    """An unfinished rebuild: the items written so far and in all, and what it was begun with.

    `value_width` is None where values stay as they are, so that the same three arguments resume it.
    """

    done: int
    total: int
    key_width: int
    value_width: int | None
    settings: dict[str, Any]


def begun(catalog: Catalog) -> Begun | None:
    """The progress of the unfinished rebuild; None when there is none."""
    with catalog.connection.reading():
        head = catalog.head()
        number = catalog.unfinished(head)
        if number is None:
            return None
        new, current = catalog.standing(number), catalog.standing(head.generation)
    settings = loaded_settings(new.settings, "the settings of the rebuild")
    value_width = new.layout.value_width if new.layout.kind.embedded else None
    return Begun(new.rows, current.tally.count, new.layout.key_width, value_width, settings)


def require_finished(catalog: Catalog, head: Head, directory: str) -> None:
    """Refuse to change a store while a rebuild is unfinished."""
    found = begun(catalog) if catalog.unfinished(head) is not None else None
    if found is not None:
        raise Unfinished(
            f"{directory}: a rebuild has begun and is not finished ({found.done} of {found.total} items are written), "
            f"so nothing else may change. Use {ways_on(directory)}."
        )


def ways_on(directory: str) -> str:
    """The two ways to end an unfinished rebuild, for messages."""
    again = f"softkv reembed --db {shlex.quote(directory)}"
    return f"`{again}` to go on, or `{again} --abandon` to drop it"
