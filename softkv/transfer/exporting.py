"""Write a store to one file."""

import os
from collections.abc import Callable

from softkv.storage import Snapshot
from softkv.transfer import disk
from softkv.transfer.formats import format_of


def export(
    snapshot: Snapshot,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word for it
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write all live items and the settings of a snapshot to a new file; returns how many items.

    The format is that of the suffix (.jsonl, .parquet, .npz) or the one named. The file appears when it is whole and
    on the disk; what fails leaves nothing. A file that is there already is replaced only with `force`. `progress` is
    called with the items done and all there are.
    """
    target = disk.place(path)
    chosen = format_of(target, format)
    disk.require_free(target, store=snapshot.path, force=force)
    with disk.written(target, force=force) as file:
        chosen.write(file, snapshot, progress or _silent)
    return len(snapshot)


def _silent(done: int, total: int) -> None:
    """Tell nobody."""
