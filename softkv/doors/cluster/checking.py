"""Check a cluster: each shard, whether it agrees with the manifest, and whether each key is in the right shard.

Reports all findings, and changes nothing.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from softkv.doors.cluster.manifest import Manifest
from softkv.doors.cluster.places import unnamed
from softkv.doors.cluster.shard import Shard
from softkv.errors import SoftKVError
from softkv.storage import Report, Snapshot
from softkv.storage.batch import shown
from softkv.storage.protocol.checking import require_commit

_STRIDE = 10_000  # names of items read at a time
_LEFT = re.compile(r"manifest-\d{10}\.json\.[0-9a-f]+\Z")


def examined(path: str, manifest: Manifest, shards: Sequence[Shard], *, at_least: int | None = None) -> Report:
    """The reports of all shards, with findings that only show across shards."""
    require_commit(at_least)
    report, whole = Report(path, commit=manifest.changes), dict[int, Snapshot]()
    for number, shard in enumerate(shards):
        name = manifest.shards[number].path
        try:
            own: Report = shard.upkeep("check")
            whole[number] = shard.view().snapshot
        except (SoftKVError, OSError) as error:
            report.findings.append(f"{name}: {error.__cause__ or error}")
            continue
        report.commit, report.items = report.commit + own.commit, report.items + own.items
        report.windows += own.windows
        report.findings += [f"{name}: {finding}" for finding in own.findings]
        report.notes += [f"{name}: {note}" for note in own.notes]
        if whole[number].settings != manifest.settings_of_shards:
            report.notes.append(f"{name}: other settings than the cluster has, until the next writer or backup")
    report.findings += [*_unlike(manifest, whole), *_strays(manifest, whole)]
    report.notes += list(_leftovers(path, manifest))
    if at_least is not None and report.commit < at_least:
        report.findings.append(f"the cluster is at commit {report.commit}, but {at_least} was acknowledged")
    return report


def _unlike(manifest: Manifest, whole: Mapping[int, Snapshot]) -> Iterator[str]:
    """Shards whose items could never be averaged with those of the first that has any."""
    layouts = [(manifest.shards[number].path, one.layout) for number, one in whole.items() if one.layout is not None]
    for path, layout in layouts[1:]:
        if layout != layouts[0][1]:
            yield f"{path}: has {layout}, but {layouts[0][0]} {layouts[0][1]}"


def _strays(manifest: Manifest, whole: Mapping[int, Snapshot]) -> Iterator[str]:
    """Keys in a shard that does not have their bucket, so that they are not found by key."""
    met = set[str]()
    for number, one in whole.items():
        try:
            strays = [key for key in _keys(one) if manifest.shard_of(key) != number]
        except SoftKVError:
            continue  # its own check has found that
        twice = [key for key in strays if key in met or key in whole.get(manifest.shard_of(key), ())]
        met.update(strays)
        if strays:
            yield (
                f"{manifest.shards[number].path}: {len(strays):,} items have keys of other shards, such as "
                f"{shown(strays[0])}, by which nobody finds them there; {len(twice):,} of these keys are in another as "
                "well. Add the others to the cluster, and delete these items from the shard by its path."
            )


def _keys(snapshot: Snapshot) -> Iterator[str]:
    order = snapshot.in_order()
    for start in range(0, len(order), _STRIDE):
        names = snapshot.names(order[start : start + _STRIDE])
        yield from (name for name in names if not name.startswith("#"))


def _leftovers(path: str, manifest: Manifest) -> Iterator[str]:
    """Remains of interrupted processes: manifests that do not count, and shards that no manifest names."""
    for name in filter(_LEFT.match, sorted(os.listdir(path))):
        yield f"{os.path.join(path, name)} was left by a process that was stopped, and may be removed"
    for place, _ in unnamed(path, manifest):
        yield f"{place} is none of the shards. The next process that writes removes it, once it is not read any more."
