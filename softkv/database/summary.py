"""What a store is, in a few figures.

Reads no rows, except to find a temperature when none is remembered.
"""

import os
from dataclasses import asdict, dataclass
from typing import Any

from softkv.database.view import View


@dataclass(frozen=True, slots=True)
class Info:
    """A store in a few figures; widths, kind and temperature are None while it is empty."""

    path: str
    items: int
    dead_rows: int  # rows that compaction would leave behind
    commit: int
    value_kind: str | None
    key_width: int | None
    value_width: int | None
    value_scale: float
    compatibility: str | None
    embedder: str | None
    temperature: float | None
    temperature_from: str | None  # "rule", "given" or "tuned", and from how many items
    bytes_on_disk: int
    unfinished: str | None = None  # a change of embedder that has begun

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python."""
        return asdict(self)

    def __str__(self) -> str:
        shown = {name.replace("_", " "): value for name, value in asdict(self).items() if value is not None}
        wide = max(map(len, shown))
        return "\n".join(f"{name.ljust(wide)}  {_figure(value)}" for name, value in shown.items())


def summary(view: View, path: str, unfinished: str | None = None) -> Info:
    """The figures of a store as of one commit."""
    snapshot, profile, layout = view.snapshot, view.profile, view.snapshot.layout
    compared = profile.compatibility if len(snapshot) else None
    found = view.temperature(compared) if compared else profile.chosen_temperature
    return Info(
        path=path,
        items=len(snapshot),
        dead_rows=snapshot.rows - len(snapshot),
        commit=snapshot.commit,
        value_kind=None if view.kind is None else view.kind.value,
        key_width=layout.key_width if layout else None,
        value_width=layout.value_width if layout else None,
        value_scale=snapshot.value_scale,
        compatibility=profile.compatibility,
        embedder=profile.embedder.name if profile.embedder else None,
        temperature=found.value if found else None,
        temperature_from=f"{found.origin}, from {found.items:,} items" if found else None,
        bytes_on_disk=_size(path),
        unfinished=unfinished,
    )


def _size(path: str) -> int:
    """The bytes of all files under a directory; those that go meanwhile count nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _figure(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
