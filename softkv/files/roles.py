"""Which column has which role: by the caller's names for them, and otherwise by usual column names.

Roles are guessed from names alone, or from positions in a table of two columns; when that is not enough, the error
lists the columns there are. Does not look at the cells below the names.
"""

from collections.abc import Sequence
from dataclasses import replace

from softkv.files.cells import looks_like_number
from softkv.files.record import Columns, Misfit, listed, shown

# The usual names of columns, the likelier first, in any case. Roles choose their columns in this order.
SINGULAR: dict[str, tuple[str, ...]] = {
    "vector": ("vector", "embedding"),
    "document": ("payload",),
    "text": (),
    "key": ("key", "id", "name", "title"),
    "value": ("value", "label", "y", "target"),
}
PLURAL: dict[str, tuple[str, ...]] = {
    "vector": ("vectors", "embeddings", *SINGULAR["vector"]),
    "document": ("payloads", "payload"),
    "text": ("texts", "text"),
    "key": ("keys", "ids", "names", "titles", *SINGULAR["key"]),
    "value": ("values", "labels", "targets", *SINGULAR["value"]),
}


def choose(
    names: Sequence[str], columns: Columns, words: dict[str, tuple[str, ...]] = SINGULAR, *, table: bool = False
) -> Columns:
    """Give the columns their roles, or say which are missing; in a table the order of columns is used too."""
    _require(names, columns)
    # Whole payloads are what such a column holds where it is guessed, and so where it is named, too.
    if columns.payload and len(columns.payload) == 1 and columns.payload[0].casefold() in words["document"]:
        columns = replace(columns, payload=None, document=columns.payload[0])
    left = [name for name in names if name not in columns.named()]
    roles = replace(columns, payload=columns.payload or ())
    for role, known in words.items():
        found = next((name for word in known for name in left if name.casefold() == word), None)
        if found is not None and not getattr(roles, role) and not (role == "document" and roles.payload):
            roles = _given(roles, role, found)
            left = [name for name in left if name != found]
    placed = table and (roles.key is None or not roles.value)
    # The first column, or the second of two: any other free column would be a wild guess.
    if table and roles.key is None and left and (left[0] == names[0] or (roles.value and len(names) == 2)):
        roles = _given(roles, "key", left.pop(0))
    if not roles.value and len(names) == 2:
        roles, left = _given(roles, "value", left[0]) if len(left) == 1 else roles, []
    _require_once(names, roles)
    if placed:
        _require_names(names)
    if not columns.answered:
        roles = replace(roles, value=())
    return _sufficient(roles, names, need_value=columns.answered and (words is SINGULAR or bool(left)))


def _given(roles: Columns, role: str, name: str) -> Columns:
    given = {role: (name,) if role in ("value", "vector") else name}
    return replace(roles, **given)  # type: ignore[arg-type]


def _require(names: Sequence[str], columns: Columns) -> None:
    missing = [name for name in columns.named() if name not in names]
    if missing:
        near = [name for name in names if name.casefold() == missing[0].casefold()]
        hint = f" (is it {shown(near[0])}?)" if near else ""
        raise Misfit(f"there is no column {shown(missing[0])}{hint}; the columns are {listed(list(names))}")


def _require_once(names: Sequence[str], roles: Columns) -> None:
    twice = [name for name in roles.named() if names.count(name) > 1]
    if twice:
        raise Misfit(f"the column {shown(twice[0])} stands {names.count(twice[0])} times; rename all but one")


def _require_names(names: Sequence[str]) -> None:
    """Refuse a table without a header, whose first row would be lost: a number among the names shows that."""
    odd = [name for name in names if looks_like_number(name)]
    if odd:
        raise Misfit(
            f"the first line must name the columns, but {shown(odd[0])} looks like a number; "
            "put a line such as key,value above it"
        )


def _sufficient(roles: Columns, names: Sequence[str], *, need_value: bool) -> Columns:
    if need_value and not roles.value:
        wide = [mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]]
        hint = f" (they seem to be separated by {wide[0]!r}; commas are expected)" if wide else ""
        raise Misfit(f"which column holds the values? Give value=; the columns are {listed(list(names))}{hint}")
    if roles.key is None and roles.text is None and not roles.vector:
        raise Misfit(f"which column holds the keys? Give key=, text= or vector=; there are {listed(list(names))}")
    return roles
