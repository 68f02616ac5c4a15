"""Write a store to one file."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from softkv.files.exports import disk
from softkv.files.exports.formats import WRITTEN, suffix_of
from softkv.files.exports.header import Header
from softkv.progress import untold
from softkv.storage import Snapshot


def export(
    snapshot: Snapshot,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    settings: dict[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write all live items and the settings of a snapshot to a new file; returns how many items.

    The format is that of the suffix (.jsonl, .parquet, .npz, or .csv, which holds items alone).
    The file appears when it is complete and on the disk; a failure leaves nothing. A file that exists already is
    replaced only with `force`. `settings` are written instead of those of the snapshot, and `files` along with
    them: named bytes, which a load puts into its store as index files. Index files of the store are not looked for.
    `progress` is called with the items done and all there are.
    """
    target = disk.place(path)
    write = WRITTEN[suffix_of(target)]
    header = Header.of(snapshot, settings, files or {})
    disk.require_free(target, store=snapshot.path, force=force)
    with disk.written(target, force=force) as file:
        write(file, snapshot, header, progress or untold)
    return len(snapshot)
