"""CSV: the items of a store as a table, for spreadsheets, and for `db.load` and `add -i`, which read the same items.

Columns key, text, value, vector and payload, as far as they are needed: `text` where other texts than the keys were
embedded, `vector` (a JSON list) where not all items are texts that were embedded. Values are numbers, texts, or JSON
lists; payloads are JSON.

A table has no header of ours: settings, what was learned and the embeddings of values are not in it, so no store can be
read from one. What a cell cannot hold is refused before anything is written.
"""

import csv
import io
from collections.abc import Iterable
from typing import Any, BinaryIO

from softkv.errors import InputError
from softkv.files.exports.header import Header
from softkv.files.exports.jsonl import as_json
from softkv.files.exports.portions import Portion, Progress, of_snapshot
from softkv.kinds import ValueKind
from softkv.logs import hint
from softkv.storage import Snapshot


class TextsNotCarried(UserWarning):
    """Texts that were embedded are not exported, since other items are bare vectors."""


def write(file: BinaryIO, snapshot: Snapshot, header: Header, progress: Progress) -> None:
    """Write the items of a store."""
    columns = _columns(snapshot)
    file.write(line(columns).encode())
    for portion in of_snapshot(snapshot):
        rows = zip(*(_cells(portion, name) for name in columns), strict=True)
        file.write("".join(map(line, rows)).encode())
        progress(portion.start + len(portion), header.items)


def line(cells: Iterable[Any]) -> str:
    r"""A row of CSV with the \n that ends it; a cell that holds any end of a line is in quotes."""
    text = io.StringIO(newline="")
    # Subtle: before Python 3.13 the csv module quotes only the ends of lines that it writes: with "\n" no lone "\r".
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _columns(snapshot: Snapshot) -> list[str]:
    """The columns that these items need."""
    keyed = embedded = carrying = 0
    alike = True
    for portion in of_snapshot(snapshot):
        _require_cells(portion)
        keys, texts, payloads = (portion.columns[name] for name in ("key", "text", "payload"))
        keyed += sum(key is not None for key in keys)
        embedded += sum(text is not None for text in texts)
        carrying += sum(payload is not None for payload in payloads)
        alike = alike and keys == texts
    items = len(snapshot)
    if 0 < keyed < items:
        raise InputError(
            f"{items - keyed:,} of {items:,} items have no key, and in a table all have one or none. "
            "Export to .jsonl, .npz or .parquet."
        )
    if 0 < embedded < items:
        hint(
            f"{items - embedded:,} of {items:,} items are bare vectors, so all are written as vectors, without the "
            "texts that were embedded; .jsonl, .npz and .parquet keep them",
            TextsNotCarried,
        )
    needed = {
        "key": keyed == items,
        "text": embedded == items and not alike,
        "value": True,
        "vector": embedded < items,
        "payload": carrying > 0,
    }
    return [name for name, is_needed in needed.items() if is_needed]


def _require_cells(portion: Portion) -> None:
    """Refuse a text that is empty: a table has no other way to say that there is none."""
    for name in ("key", "text", "value"):
        column = portion.columns[name]
        if isinstance(column, list) and "" in column:
            raise InputError(
                f"the {name} of item {portion.start + column.index('')} (from 0) is an empty text, which a table "
                "cannot tell from none. Export to .jsonl, .npz or .parquet."
            )


def _cells(portion: Portion, name: str) -> Iterable[Any]:
    column = portion.columns[name]
    return column if isinstance(column, list) and name != "payload" else as_json(column)


def options(columns: list[str], kind: str | None) -> dict[str, str]:
    """The arguments with which `db.load` reads the same items from a table with these columns."""
    named = {"text": "text"} if "text" in columns else {}
    return named if kind in (None, ValueKind.of_first(worded=False)) else {**named, "kind": str(kind)}
