"""What a file says of itself before its first item: format number, kind, widths, number of items, settings.

Every format carries the same header, as JSON. Nothing is sized by it that the file does not bear out.
"""

from dataclasses import dataclass
from typing import Any, TypeGuard

from softkv.errors import BadRecord, FormatTooNew, InputError
from softkv.storage import Layout, Snapshot, ValueKind
from softkv.storage.batch import checked_settings
from softkv.transfer import notation

FORMAT = 1  # the number of the formats that this code writes
LONGEST_HEADER = 1 << 22  # bytes; settings may take a quarter of it
_NAMES = ("format", "kind", "key_width", "value_width", "items", "settings")


@dataclass(frozen=True, slots=True)
class Header:
    """The head of a file. There is no layout when nothing was ever added to the store."""

    items: int
    settings: dict[str, Any]
    layout: Layout | None

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Header":
        """The header of a store's export."""
        return cls(len(snapshot), snapshot.settings, snapshot.layout)

    @classmethod
    def parse(cls, given: bytes, place: str) -> "Header":
        """The header that `{"softkv": {...}}` holds; `place` names it in errors."""
        if len(given) > LONGEST_HEADER:
            raise BadRecord(f"{place}: the header is longer than {LONGEST_HEADER:,} bytes. {_EXPECTED}")
        try:
            found = notation.read(given.decode("utf-8-sig"))
        except ValueError as error:
            raise BadRecord(f"{place}: this is no header ({error}). {_EXPECTED}") from error
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
        if sorted(fields) != sorted(_NAMES):
            raise BadRecord(f"{place}: the header has the fields {sorted(fields)}, not {sorted(_NAMES)}")
        if not _is_count(fields["items"]):
            raise BadRecord(f"{place}: items is {fields['items']!r}, which counts nothing")
        try:
            checked_settings(fields["settings"])
            layout = _layout(fields)
        except (InputError, ValueError) as error:
            raise BadRecord(f"{place}: {error}") from error
        if layout is None and fields["items"]:
            raise BadRecord(f"{place}: the header says {fields['items']} items, but not of what kind and width")
        return cls(fields["items"], fields["settings"], layout)

    def text(self) -> str:
        """The header as JSON."""
        layout = self.layout
        fields = {
            "format": FORMAT,
            "kind": layout.kind.value if layout else None,
            "key_width": layout.key_width if layout else None,
            "value_width": layout.value_width if layout else None,
            "items": self.items,
            "settings": self.settings,
        }
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
