"""Which column means what: those asked for by name, the others by the names that people give them.

What is guessed is guessed from names alone, or from places in a table of two columns; when that does not settle it,
the error lists the columns there are. Does not look at the cells below the names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from softkv.files.cells import looks_like_number
from softkv.files.record import Columns, Misfit, listed, shown


@dataclass(frozen=True, slots=True)
class Words:
    """The names by which columns are known, the likelier first; upper case or not."""

    key: tuple[str, ...] = ("key", "id", "name", "title")
    text: tuple[str, ...] = ()
    value: tuple[str, ...] = ("value", "label", "y", "target")
    document: tuple[str, ...] = ("payload",)
    vector: tuple[str, ...] = ("vector", "embedding")


SINGULAR = Words()
PLURAL = Words(
    key=("keys", "ids", "names", "titles", *SINGULAR.key),
    text=("texts", "text"),
    value=("values", "labels", "targets", *SINGULAR.value),
    document=("payloads", "payload"),
    vector=("vectors", "embeddings", *SINGULAR.vector),
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The columns that are read; `document` holds whole payloads as JSON, `payload` names the parts of one."""

    key: str | None
    text: str | None
    value: tuple[str, ...]
    payload: tuple[str, ...]
    document: str | None
    vector: tuple[str, ...]

    def used(self) -> list[str]:
        """The columns that have a role, each once."""
        single = [name for name in (self.key, self.text, self.document) if name is not None]
        return list(dict.fromkeys([*single, *self.value, *self.payload, *self.vector]))


def choose(names: Sequence[str], columns: Columns, words: Words = SINGULAR, *, table: bool = False) -> Roles:
    """Give the columns their roles, or say which are missing; in a table their order means something too."""
    _require(names, columns)
    free = _Free(names, columns.named())
    vector = columns.vector or free.take_all(words.vector)
    document = None if columns.payload else free.take(words.document)
    text = free.take(words.text) if columns.text is None else columns.text
    key = free.take(words.key) if columns.key is None else columns.key
    value = columns.value or free.take_all(words.value)
    placed = table and (key is None or not value)
    if table and key is None:
        key = free.take_first(or_second=bool(value))
    if not value and len(names) == 2:
        value = free.take_rest()
    roles = Roles(key, text, value, columns.payload or (), document, vector)
    _require_once(names, roles)
    if placed:
        _require_names(names)
    return _sufficient(roles, names, need_value=words is SINGULAR or bool(free.left()))


class _Free:
    """The columns without a role so far."""

    def __init__(self, names: Sequence[str], taken: Sequence[str]) -> None:
        self._names, self._taken = names, set(taken)

    def left(self) -> list[str]:
        return [name for name in self._names if name not in self._taken]

    def take(self, words: Sequence[str]) -> str | None:
        """The column that goes by the first of these words."""
        left = self.left()
        found = next((name for word in words for name in left if name.casefold() == word), None)
        if found is not None:
            self._taken.add(found)
        return found

    def take_all(self, words: Sequence[str]) -> tuple[str, ...]:
        found = self.take(words)
        return () if found is None else (found,)

    def take_first(self, *, or_second: bool) -> str | None:
        """The first column, or the second of two; another one that happens to be free would be chance."""
        left = self.left()
        if not left or (left[0] != self._names[0] and not (or_second and len(self._names) == 2)):
            return None
        self._taken.add(left[0])
        return left[0]

    def take_rest(self) -> tuple[str, ...]:
        left = tuple(self.left())
        self._taken |= set(left)
        return left if len(left) == 1 else ()


def _require(names: Sequence[str], columns: Columns) -> None:
    missing = [name for name in columns.named() if name not in names]
    if missing:
        near = [name for name in names if name.casefold() == missing[0].casefold()]
        hint = f" (is it {shown(near[0])}?)" if near else ""
        raise Misfit(f"there is no column {shown(missing[0])}{hint}; the columns are {listed(list(names))}")


def _require_once(names: Sequence[str], roles: Roles) -> None:
    twice = [name for name in roles.used() if names.count(name) > 1]
    if twice:
        raise Misfit(f"the column {shown(twice[0])} stands {names.count(twice[0])} times; rename all but one")


def _require_names(names: Sequence[str]) -> None:
    """A table without a header would lose its first row to it; a number among the names gives that away."""
    odd = [name for name in names if looks_like_number(name)]
    if odd:
        raise Misfit(
            f"the first line must name the columns, but {shown(odd[0])} looks like a number; "
            "put a line such as key,value above it"
        )


def _sufficient(roles: Roles, names: Sequence[str], *, need_value: bool) -> Roles:
    if need_value and not roles.value:
        wide = [mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]]
        hint = f" (they seem to be separated by {wide[0]!r}; commas are expected)" if wide else ""
        raise Misfit(f"which column holds the values? Give value=; the columns are {listed(list(names))}{hint}")
    if roles.key is None and roles.text is None and not roles.vector:
        raise Misfit(f"which column holds the keys? Give key=, text= or vector=; there are {listed(list(names))}")
    return roles
