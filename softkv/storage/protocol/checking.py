"""Check a store against itself.

Compares headers, lengths and checksums of the arenas, every row of the catalog, the record of the dead and the sums.
Never stops at the first finding, never raises for damage, and changes nothing. What it finds out about every row
decides what repairing.py saves.
"""

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softkv import errors
from softkv.errors import IndexDamaged, InputError, NotAStore, SoftKVError, StorageFailed, StoreDamaged, StoreNotFound
from softkv.ndarrays import AnyArray, Flags
from softkv.storage.catalog.catalog import Catalog, Head, Standing
from softkv.storage.catalog.connection import UNREADABLE, Connection
from softkv.storage.catalog.deaths import Deaths
from softkv.storage.catalog.derived import damaged_rows
from softkv.storage.catalog.roster import Roster
from softkv.storage.catalog.secret import secret
from softkv.storage.catalog.tables import seal
from softkv.storage.catalog.tally import Tally
from softkv.storage.disk import files, locks
from softkv.storage.disk.arena import HEADER, Arena, ArenaIdentity
from softkv.storage.layout import GENERATION_NAME, GRANULE, WINDOW, AnyPath, generation_name
from softkv.storage.protocol import index_files, opening
from softkv.storage.protocol.acknowledged import Acknowledged
from softkv.storage.protocol.windows import Problems

_NO_DAMAGE = (StoreNotFound, NotAStore, errors.StorageFull)  # no store, or no space for what reading it takes
_STRIDE = 10_000  # rows of the catalog looked at together
_ADVICE = re.compile(r" `softkv check` tells what is left[^.]*\.")  # in errors; needless in the report of that check


@dataclass(slots=True)
class Report:
    """The result of a check. Findings are damage, or that the store is older than it must be; notes are neither."""

    path: str
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commit: int = 0
    items: int = 0
    windows: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything on the disk agrees with everything else."""
        return not self.findings

    def __str__(self) -> str:
        counts = {"finding": len(self.findings), "item": self.items, "checksum": self.windows}
        found, items, sums = (f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())
        head = f"{self.path}: {'ok' if self.ok else found}, commit {self.commit}, {items}, {sums} compared"
        return "\n".join(
            [head, *(f"  finding: {one}" for one in self.findings), *(f"  note: {one}" for one in self.notes)]
        )


@dataclass(slots=True)
class Survey:
    """A report, and what can still be read: for each row whether all of it is undamaged, and the open files."""

    report: Report
    catalog: Catalog | None = None
    head: Head | None = None
    standing: Standing | None = None
    unfinished: int | None = None  # the generation of a rebuild
    good: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    alive: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))  # live by either record; may outnumber `good`
    arenas: list[Arena] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)

    @property
    def lost(self) -> Flags:
        """For each row, also those beyond the end of the files, whether it is live and damaged."""
        return self.alive & ~np.pad(self.good, (0, len(self.alive) - len(self.good)))

    def close(self) -> None:
        """Close what was opened."""
        for arena in self.arenas:
            arena.close()
        if self.catalog is not None:
            self.catalog.connection.close()


def check(path: AnyPath, *, at_least: int | None = None) -> Report:
    """Check one commit of a store beside writers; raises only where there is none, or no space to read it.

    `at_least` is a commit that it must have reached: an older copy of a store is undamaged, but does not show its age.
    """
    require_commit(at_least)
    found = survey(opening.directory_of(path))
    found.close()
    if at_least is not None and found.report.commit < at_least:
        found.report.findings.append(
            f"it is at commit {found.report.commit}, not at {at_least} or later: it is an older copy, or lost commits"
        )
    return found.report


def require_commit(at_least: int | None) -> None:
    """Refuse to look for what is not the number of a commit."""
    if at_least is not None and (isinstance(at_least, bool) or not isinstance(at_least, int) or at_least < 0):
        raise InputError(f"expected at_least as the number of a commit, got {at_least!r}")


def survey(directory: str) -> Survey:
    """Read all of a store, and go on after damage as far as anything can be read."""
    while True:
        found = Survey(Report(directory))
        acknowledged = Acknowledged.read(directory)
        with _going_on(found.report, but=_NO_DAMAGE):
            found.catalog = opening.connect(directory)
            with found.catalog.connection.reading():
                _survey(found, found.catalog, directory)
        if found.head is not None and (found.standing or not found.head.generation):
            _compare_commits(found.report, acknowledged, found.head, found.standing)
        if found.report.ok or not _overtaken(found):
            for told in (found.report.findings, found.report.notes):
                told[:] = [_ADVICE.sub("", one) for one in told]
            return found
        found.close()


def _compare_commits(report: Report, before: Acknowledged | None, head: Head, standing: Standing | None) -> None:
    """Compare the commit of the catalog with the ones noted in LOCK before the catalog was read, and now."""
    after = Acknowledged.read(report.path)
    found = (before and before.objection(head, standing), after and after.surprise(head))
    report.findings += [objection for objection in found if objection]


@contextmanager
def _going_on(report: Report, *, but: tuple[type[SoftKVError], ...] = ()) -> Iterator[None]:
    """Record damage as a finding, and go on after it."""
    try:
        yield
    except but:
        raise
    except SoftKVError as error:
        report.findings.append(str(error))


def _overtaken(found: Survey) -> bool:
    """Whether files are missing only because a compaction or the end of a rebuild has removed them meanwhile."""
    if found.catalog is None or found.standing is None:
        return False
    try:
        head = found.catalog.head()
        switched = head.generation != found.standing.generation
        return switched or found.catalog.unfinished(head) != found.unfinished
    except SoftKVError:
        return False


def _survey(found: Survey, catalog: Catalog, directory: str) -> None:
    report = found.report
    with _going_on(report):
        lines = catalog.connection.rows("PRAGMA integrity_check(20)")
        report.findings += [f"catalog.sqlite: {line}" for (line,) in lines if line != "ok"]
    head = found.head = catalog.head()
    report.commit = head.number
    with _going_on(report):
        found.unfinished = catalog.unfinished(head)
    with _going_on(report):
        _look_for_leftovers(report, catalog, directory)
    with _going_on(report):
        _survey_beside(report, catalog)
    if not head.generation:
        return
    with _going_on(report):
        _survey_indexes(report, catalog, directory, head)
    standing = found.standing = catalog.standing(head.generation)
    with _going_on(report):
        os.close(files.open_regular(os.path.join(directory, generation_name(head.generation), locks.PIN)))
    place = os.path.join(directory, generation_name(head.generation))
    if os.path.lexists(place) and not files.is_directory(place):
        report.findings.append(f"{generation_name(head.generation)} is no directory, and nothing in it is read")
        return
    found.good = np.ones(_believable_rows(report, catalog, directory, standing), np.bool_)
    try:
        _survey_items(found, catalog, standing)  # first: which items there are is known from their table alone
        _survey_arenas(found, catalog, directory, head, standing)
        if standing.layout.kind.coded:
            _survey_labels(found, catalog)
    except SoftKVError:
        found.good[:] = False  # rows that were not compared may be damaged
        raise
    report.items = int(found.good.sum())
    if report.ok:  # the sums mean nothing where rows are missing
        _survey_sums(found, catalog, standing)
    if found.unfinished is not None:
        with _going_on(report):
            _survey_unfinished(report, catalog, directory, head, found.unfinished)


def _survey_unfinished(report: Report, catalog: Catalog, directory: str, head: Head, number: int) -> None:
    """Survey the rows that a rebuild has written so far, apart from the others: their damage costs no item."""
    standing = catalog.standing(number)
    report.notes.append(f"{generation_name(number)} is an unfinished rebuild; {standing.rows} items are written")
    with closing(Survey(report, standing=standing)) as begun:
        begun.good = np.ones(_believable_rows(report, catalog, directory, standing), np.bool_)
        _survey_arenas(begun, catalog, directory, head, standing)


def _believable_rows(report: Report, catalog: Catalog, directory: str, standing: Standing) -> int:
    """The row count of the catalog, or fewer when no file holds as many: a false count must not size anything."""
    most, held = catalog.most_rows(), 0
    for shape in standing.layout.arenas[:2]:
        path = os.path.join(directory, generation_name(standing.generation), shape.file)
        held = max(held, (os.path.getsize(path) - HEADER) // shape.row_bytes if os.path.isfile(path) else 0)
    if held < standing.rows:
        report.findings.append(f"the catalog counts {standing.rows} rows, but no file holds more than {max(held, 0)}")
    if held >= standing.rows > most:
        report.findings.append(f"the catalog counts {standing.rows} rows, but is too small to hold as many")
    return max(0, min(held, standing.rows, most))


def _granule(report: Report, catalog: Catalog, standing: Standing) -> int:
    """How many bytes each checksum of a generation covers; where that is not known, it follows from their number."""
    try:
        return catalog.granule(standing.generation)
    except UNREADABLE as error:
        report.findings.append(str(error))
        many = len(catalog.known_windows(standing.generation, "keys", 0, 1 << 60))
        return WINDOW if many <= standing.rows * standing.layout.keys.row_bytes // WINDOW else GRANULE


def _survey_beside(report: Report, catalog: Catalog) -> None:
    """Survey what is kept beside the items: batches, the secret, the granules, and derived parts."""
    if catalog.connection.user_version() < 3:
        return
    for table in ("granules", "batches"):
        with _going_on(report):
            odd = _odd_rows(catalog, table)
            if odd:
                report.findings.append(f"{catalog.connection.path}: {len(odd)} rows of {table} are damaged: {odd[:5]}")
    _survey_derived(report, catalog.connection)
    secret(catalog.connection)


def _survey_derived(report: Report, connection: Connection) -> None:
    """Survey derived parts: a store works without them, so their damage is no damage of the store."""
    try:
        odd = damaged_rows(connection)
        if odd:
            report.notes.append(f"{connection.path}: {len(odd)} derived parts are damaged: rows {odd[:5]} of the table")
    except UNREADABLE as error:
        report.notes.append(str(error))


def _odd_rows(catalog: Catalog, table: str) -> list[Any]:
    """The keys of the rows whose checksum is not that of their content."""
    odd: list[Any] = []
    last = -1 << 63
    query = f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {_STRIDE}"
    while rows := catalog.connection.rows(query, (last,)):
        odd += [content[0] for _, *content, found in rows if seal(*content) != found]
        if rows[-1][0] <= last:
            raise StoreDamaged(f"{catalog.connection.path}: the table of {table} leads back to earlier rows.")
        last = rows[-1][0]
    return odd


def _look_for_leftovers(report: Report, catalog: Catalog, directory: str) -> None:
    named = {generation_name(number) for number in catalog.generations()}
    for name in files.list_directory(directory):
        if GENERATION_NAME.match(name) and name not in named:
            report.notes.append(f"{name} is left over from a crash; the next writer removes it")
    for path in index_files.unnamed(directory, catalog):
        report.notes.append(f"{os.path.relpath(path, directory)} is left over; the next writer removes it")


def _survey_indexes(report: Report, catalog: Catalog, directory: str, head: Head) -> None:
    """Survey the index files. They are derived, so their damage is no damage of the store."""
    for name in catalog.index_names(head.generation):
        try:
            found = index_files.find(catalog, directory, head.generation, name, head.number)
            if found is not None:
                found.verify()
        except (IndexDamaged, StorageFailed) as error:
            report.notes.append(f"index file {name!r}: {error}")


def _survey_arenas(found: Survey, catalog: Catalog, directory: str, head: Head, standing: Standing) -> None:
    granule = _granule(found.report, catalog, standing)
    for shape, tail in zip(standing.layout.arenas, standing.tails, strict=True):
        _survey_arena(found, catalog, directory, ArenaIdentity(head.store, standing.generation, shape), granule, tail)


def _survey_arena(
    found: Survey, catalog: Catalog, directory: str, identity: ArenaIdentity, granule: int, tail: int
) -> None:
    shape, report = identity.shape, found.report
    derived = shape.role == "norms"
    findings = report.notes if derived else report.findings
    path = os.path.join(directory, generation_name(identity.generation), shape.file)
    try:
        arena = Arena.open(path, identity, granule)
    except SoftKVError as error:
        findings.append(str(error) + (" It is derived, and will be made again." if derived else ""))
        try:
            arena = Arena.open(path, identity, granule, believe_header=False)
        except SoftKVError:
            arena = Arena.absent(path, shape, granule)
    found.arenas.append(arena)
    assert found.standing is not None
    problems = Problems(arena, catalog, identity.generation, found.standing.rows * shape.row_bytes, tail)
    for start, end, what in problems.among(len(found.good) * shape.row_bytes):
        findings.append(
            f"{path}: bytes {HEADER + start} to {HEADER + end} {what}"
            + (" They are derived, and worked out again." if derived else "")
        )
        if not derived:
            found.good[start // shape.row_bytes : -(-end // shape.row_bytes)] = False
    report.windows += problems.compared


def _survey_items(found: Survey, catalog: Catalog, standing: Standing) -> None:
    """Survey every row of the roster, and the bitmaps of dead rows."""
    report, roster = found.report, Roster(catalog, standing.generation)
    rows = min(standing.rows, catalog.most_rows())
    found.alive = np.zeros(rows, np.bool_)
    try:
        recorded = Deaths().replaced(catalog.deaths(standing, -1)).live(rows)
    except SoftKVError as error:
        report.findings.append(str(error))
        recorded = None
    for start in range(0, rows, _STRIDE):
        stop = min(start + _STRIDE, rows)
        present, sound, alive = roster.survey(start, stop)
        for what, bad in (("missing from the catalog", ~present), ("damaged in the catalog", present & ~sound)):
            if bad.any():
                report.findings.append(f"{_rows(start + np.flatnonzero(bad))} {what}")
        if recorded is not None and (alive != recorded[start:stop])[sound].any():
            unsure = start + np.flatnonzero(sound & (alive != recorded[start:stop]))
            report.findings.append(f"{_rows(unsure)} live in one record and dead in the other")
            sound &= alive == recorded[start:stop]
        good = found.good[start:stop]
        known = present | (np.arange(stop - start) < len(good))  # by the catalog or by a file
        found.alive[start:stop] = known & (alive if recorded is None else recorded[start:stop] | (alive & sound))
        good &= (sound & alive)[: len(good)]


def _survey_labels(found: Survey, catalog: Catalog) -> None:
    """Survey the labels, and mark the rows whose label is damaged."""
    with _going_on(found.report):
        catalog.labels()
    values = found.arenas[1]
    rows = np.flatnonzero(found.good[: values.stored_rows()])  # the disk may fail to read others
    codes = values.rows(min(len(found.good), values.stored_rows()))[rows, 0]
    found.labels = catalog.sound_labels(np.unique(codes).tolist())
    lost = rows[~np.isin(codes, np.fromiter(found.labels, np.int64, len(found.labels)))]
    if len(lost):
        found.report.findings.append(f"{_rows(lost)} the code of a label that is not there")
        found.good[lost] = False


def _survey_sums(found: Survey, catalog: Catalog, standing: Standing) -> None:
    """Survey the sums over the live values, and how many items carry each label."""
    report = found.report
    values = found.arenas[1].rows(standing.rows)
    if standing.layout.kind.coded:
        labels = catalog.labels()
        counts = np.bincount(values[found.good, 0], minlength=len(labels))
        if counts.tolist() != [count for _, _, count in labels]:
            report.findings.append("the counts of labels disagree with the live items")
        _compare(report, standing.tally, Tally.empty().changed_labels(np.zeros_like(counts), counts))
    else:
        actual = Tally.empty(standing.tally.origin)
        for start in range(0, standing.rows, _STRIDE):
            alive = found.good[start : start + _STRIDE]
            actual = actual.plus(values[start : start + _STRIDE][alive])
        _compare(report, standing.tally, actual)


def _compare(report: Report, kept: Tally, actual: Tally) -> None:
    if kept.count != actual.count:
        report.findings.append(f"the sums count {kept.count} values, but {actual.count} items are live")
    slack, scale = 1e-9, max(kept.largest, actual.largest, 1e-300)
    far = np.abs(kept.total - actual.total) > slack * np.sqrt(scale * max(actual.count, 1))
    if abs(kept.squares - actual.squares) > slack * scale or far.any():
        report.findings.append("the sums behind the value scale disagree with the live values")


def _rows(numbers: AnyArray) -> str:
    listed = ", ".join(str(number) for number in numbers[:5].tolist())
    return f"row{'s' if len(numbers) > 1 else ''} {listed}{' ...' if len(numbers) > 5 else ''} ({len(numbers)}):"
