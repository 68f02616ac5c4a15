"""The header of a file, before its first item: format number, kind, widths, number of items, settings, files.

Every format carries the same header, as JSON. No memory is allocated by it that the file's own size does not justify.

Files are named bytes that belong to the settings and do not depend on the order of the rows. A header with files has
format 2; one without has format 1, which older code reads.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from softkv.errors import BadRecord, FormatTooNew, InputError
from softkv.files import notation
from softkv.files.record import Misfit
from softkv.kinds import ValueKind
from softkv.storage import Layout, Snapshot
from softkv.storage.batch import checked_name, checked_settings

FORMAT = 2  # the highest number of the formats that this code reads and writes
MOST_CARRIED = 45 << 20  # bytes of all files together, which take a third more in the header
LONGEST_HEADER = 1 << 26  # bytes; pyarrow reads no longer one from Parquet
_SUSPECT, _MOST_PARTS = 1 << 22, 1 << 20  # bytes from which on values are counted; settings have fewer
_NAMES = ["format", "items", "key_width", "kind", "settings", "value_width"]


@dataclass(frozen=True, slots=True)
class Header:
    """The head of a file. There is no layout when nothing was ever added to the store."""

    items: int
    settings: dict[str, Any]
    layout: Layout | None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, settings: dict[str, Any] | None, files: Mapping[str, bytes]) -> "Header":
        """The header of a store's export, with other settings where they are given."""
        size = sum(map(len, files.values()))
        if size > MOST_CARRIED:
            raise InputError(f"files of {size:,} bytes do not fit into a header, which takes {MOST_CARRIED:,}")
        return cls(len(snapshot), snapshot.settings if settings is None else settings, snapshot.layout, files)

    @classmethod
    def parse(cls, given: bytes, place: str) -> "Header":
        """The header that `{"softkv": {...}}` holds; `place` names it in errors."""
        if len(given) > LONGEST_HEADER:
            raise BadRecord(f"{place}: the header is longer than {LONGEST_HEADER:,} bytes. {_EXPECTED}")
        try:
            text = given.decode("utf-8-sig")
            if len(text) > _SUSPECT and notation.holds_more(text, _MOST_PARTS):
                raise BadRecord(f"{place}: the header holds more than {_MOST_PARTS:,} values. {_EXPECTED}")
            found = notation.parsed(text)
        except (Misfit, UnicodeDecodeError) as why:
            raise BadRecord(f"{place}: this is no header ({why}). {_EXPECTED}") from why
        if not isinstance(found, dict) or list(found) != ["softkv"]:
            raise BadRecord(f"{place}: this is no header. {_EXPECTED}")
        return cls._checked(found["softkv"], place)

    @classmethod
    def _checked(cls, fields: Any, place: str) -> "Header":
        number = fields.get("format") if isinstance(fields, dict) else None
        if not _is_count(number) or number < 1:
            raise BadRecord(f"{place}: the header has no format number. {_EXPECTED}")
        if number > FORMAT:
            raise FormatTooNew(
                f"{place}: the file has format {number}; this softkv reads up to {FORMAT}. "
                "Install a newer one: pip install -U softkv"
            )
        expected = _NAMES if number == 1 else sorted([*_NAMES, "files"])
        if sorted(fields) != expected:
            raise BadRecord(f"{place}: the header has the fields {sorted(fields)}, not {expected}")
        if not _is_count(fields["items"]):
            raise BadRecord(f"{place}: items is {fields['items']!r}, which is not a number of items")
        try:
            checked_settings(fields["settings"])
            layout, files = _layout(fields), _files(fields.get("files", {}))
        except (InputError, ValueError) as error:
            raise BadRecord(f"{place}: {error}") from error
        if layout is None and fields["items"]:
            raise BadRecord(f"{place}: the header says {fields['items']} items, but not of what kind and width")
        return cls(fields["items"], fields["settings"], layout, files)

    def text(self) -> str:
        """The header as JSON."""
        layout = self.layout
        fields: dict[str, Any] = {
            "format": FORMAT if self.files else 1,
            "kind": layout.kind.value if layout else None,
            "key_width": layout.key_width if layout else None,
            "value_width": layout.value_width if layout else None,
            "items": self.items,
            "settings": self.settings,
        }
        if self.files:
            fields["files"] = {name: base64.b64encode(content).decode() for name, content in self.files.items()}
        return notation.written({"softkv": fields})


_EXPECTED = 'An export of a store has {"softkv": {"format": ..., "kind": ..., ...}} there.'


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _layout(fields: dict[str, Any]) -> Layout | None:
    kind, widths = fields["kind"], (fields["key_width"], fields["value_width"])
    if kind is None and widths == (None, None):
        return None
    if kind not in [known.value for known in ValueKind]:
        raise ValueError(f"kind is {kind!r}, not one of {', '.join(known.value for known in ValueKind)}")
    if not all(_is_count(width) for width in widths):
        raise ValueError(f"the widths are {widths[0]!r} and {widths[1]!r}, not two whole numbers")
    return Layout(widths[0], ValueKind(kind), widths[1])


def _files(given: Any) -> dict[str, bytes]:
    if not isinstance(given, dict) or not all(isinstance(content, str) for content in given.values()):
        raise ValueError(f"files is {notation.kind_of(given)}; expected an object of texts in base64")
    return {checked_name(name): _unpacked(name, content) for name, content in given.items()}


def _unpacked(name: str, content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except ValueError as error:
        raise ValueError(f"the file {name!r} is not in base64 ({error})") from error
