"""Add the items of a file to a store, batch by batch: `load` and `softkv add -i`.

A batch is added wholly or not at all, and batches before an error stay.

Does not read files (softkv/files), and embeds nothing itself (intake.py).
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from softkv.asking.profile import Profile
from softkv.database.intake import is_frame
from softkv.database.resuming import UNCLEAR, Unclear, commit_of, told
from softkv.database.trail import Outcome, Trail
from softkv.errors import BadRecord, DuplicateKey, InputError, SoftKVError, StoreError
from softkv.progress import Progress
from softkv.storage import Store
from softkv.storage.catalog.batches import Stamp
from softkv.storage.disk.named import is_url

if TYPE_CHECKING:
    from softkv.files import Columns, Record

SoftKV: TypeAlias = Any  # that of handle.py, which imports this file: importing it here would close a circle

BATCH = 10_000  # records

Names = str | Sequence[str] | None
OnBad = Callable[[BadRecord], None]


class Frame(Protocol):
    """Columns with names, as pandas, polars, pyarrow and duckdb have them."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The columns as a stream of Arrow."""


class RecordsSkipped(UserWarning):
    """Records of a file that cannot be items were skipped, as asked by `skip_bad`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of the records of a file: how many were added, how many of these replaced an item, and so on."""

    count: int
    replaced: int = 0
    ignored: int = 0
    skipped: int = 0


def load(
    self: SoftKV,
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    text: str | None = None,
    value: Names = None,
    payload: Names = None,
    vector: Names = None,
    kind: str | None = None,
    format: str | None = None,  # noqa: A002 - the word for it
    encoding: str | None = None,
    collection: str | None = None,
    values: str | os.PathLike[str] | None = None,
    on_conflict: str = "error",
    skip: int = 0,
    skip_bad: bool | OnBad = False,
    batch: str | None = None,
    progress: Progress | None = None,
) -> Loaded:
    r"""Add the items of a CSV, TSV, JSON, Parquet, Arrow or npz file, in batches, each wholly or not at all.

    Columns that are not named are guessed by their names. What a line holds that cannot be an item is a BadRecord that
    names the line; batches before it are stored, and the error says with which `skip` to go on.

    >>> import softkv, tempfile, os
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "films.csv"), "w") as file:
    ...     written = file.write("title,stars,year\nUpstream,4.5,1990\nThe Well,3,2004\n")
    >>> with softkv.open(os.path.join(folder, "films.softkv")) as db:
    ...     db.load(os.path.join(folder, "films.csv"), key="title", value="stars", payload="year")
    ...     db["The Well"], db.item("The Well").payload
    Loaded(count=2, replaced=0, ignored=0, skipped=0)
    (3.0, {'year': 2004})

    Args:
        self: The store.
        path: The file; its ending tells the format, unless `format` does.
        key: The column of keys.
        text: The column that is embedded in place of the key.
        value: The column of values, or several for vectors.
        payload: Columns to carry along, as one object; of a column `payload`, the object that it holds.
        vector: The column of key vectors, or several of their numbers; otherwise keys or texts are embedded.
        kind: What values are, where the store has not decided it: "number", "vector", "label" or "text".
        format: "csv", "tsv", "jsonl", "json", "parquet", "arrow" or "npz"; or what another program keeps: "llm", the
            file of its embeddings, "chroma", a directory, or "faiss", an index.
        encoding: That of a file of text; otherwise UTF-8.
        collection: Of llm and Chroma, the one to read, where there are several.
        values: The file of items that go with the rows of an index of FAISS.
        on_conflict: What a key that is there already means: "error", "replace" or "ignore".
        skip: Pass over the first so many records.
        skip_bad: Go on after records that cannot be items, and count them; a function is called with the error of each,
            in the place of one warning about all.
        batch: A name for what this file brings. Sent again under it, in the next seven days, the records that are in
            are not added again, and the others follow: no `skip` is needed after a crash. Another file under the name
            is a `BatchMismatch`. The records are compared, not the bytes of the file.
        progress: Called with (records so far, 0): how many there are is known at the end.
    """
    self._store.require_writable()
    columns = _columns(key, text, value, payload, vector)
    loading = Loading(_file(path), on_conflict, skip=skip, skip_bad=skip_bad, batch=batch)
    with closing(loading):
        file = None if values is None else _file(values)
        first = loading.begin(columns, kind or self.value_kind, format, encoding, collection, file)
        wanted = kind or self.value_kind or (first[0].kind if first else None)
        try:
            loading.run(self, progress, wanted)
        except SoftKVError as error:
            if loading.seen > skip or loading.unclear:
                error.args = (f"{error} ({loading.advice('Mend this, and go on with', 'the same batch')})",)
            raise
    loading.warn()
    return loading.done()


def framed(db: SoftKV, frame: Any, names: Sequence[Names], beside: Sequence[Any]) -> dict[str, Any] | None:
    """The columns of a frame as arguments of `add`; None if it is no frame.

    `names` are those of the key, text, value, payload and vector; `beside` are the arguments for which they stand.
    """
    if not is_frame(frame):
        if any(one is not None for one in names):
            raise InputError(
                "expected a frame of pandas, polars or Arrow for key=, text=, value=, payload= and vector=, which name "
                f"its columns, got {type(frame).__name__}. Give lists as keys, values, texts=, payloads= and vectors=."
            )
        return None
    if any(one is not None for one in beside):
        raise InputError("expected the items of a frame in its columns, got others beside it. Name key=, value=, ...")
    from softkv.files.arrow import of_frame

    found = list(of_frame(frame, _columns(*names), db.value_kind))
    parts = {f"{name}s": _column(found, name) for name in ("key", "text", "vector", "payload")}
    return parts | {"values": [one.value for one in found]}


class Loading:
    """The records of a file, and how many of them are in the store so far."""

    def __init__(self, source: str, on_conflict: str, *, skip: int, skip_bad: bool | OnBad, batch: str | None) -> None:
        if type(skip) is not int or skip < 0:
            raise InputError(f"expected skip as a number of records, 0 or more, got {skip!r}.")
        self.source, self.seen = source, skip
        self.unclear: Unclear | None = None
        self._on_conflict, self._skip, self._skip_bad = on_conflict, skip, skip_bad
        self._trail = None if batch is None else Trail(batch, on_conflict, skip)
        self._outcome, self._bad = Outcome(), 0
        self._odd = ""  # the first that was passed over
        self._found: Generator[Record, None, None] | None = None
        self._first: list[Record] = []
        self._rest: Iterator[list[Record]] = iter(())
        self._parts: Iterator[Sequence[Record]] = iter(())  # of batches, as they are added

    def begin(
        self,
        columns: "Columns",
        kind: str | None,
        form: str | None,
        encoding: str | None,
        collection: str | None = None,
        values: str | None = None,
    ) -> "list[Record]":
        """Read the first batch, before anything is written; it is empty if there is no record."""
        from softkv.files import batches, records

        on_bad = self._pass_over if self._skip_bad else None
        beside: dict[str, Any] = {"collection": collection, "values": values, "encoding": encoding}
        found = records(self.source, format=form, columns=columns, kind=kind, on_bad=on_bad, **beside)
        self._found, self._rest = found, batches(found, BATCH)
        self.seen = sum(1 for _ in islice(found, self._skip))
        self._first = next(self._rest, [])
        if self._first and self._first[0].value is None:
            raise BadRecord(
                f"{self._named()}: there are vectors but no values, and an item has both. Save them in one .npz: "
                "numpy.savez(path, vectors=..., values=...)."
            )
        return self._first

    def run(self, db: SoftKV, progress: Progress | None, kind: str | None = None) -> None:
        """Add all records; what was added stays whatever happens."""
        with _holding(db, kind, self._first[0].compared if self._first else None):
            batches: Iterator[list[Record]] = chain([self._first] if self._first else [], self._rest)
            if self._trail is not None:
                self._outcome, batches = self._trail.beyond(db._store, batches)
                self.seen += self._outcome.records
            self._parts = chain.from_iterable(_portions(db, one) for one in batches)
            for batch in self._parts:
                self._add(db, batch, progress)
                if progress is not None:
                    progress(self.seen, 0)
            if self._trail is not None:
                self._trail.end(db._store, self._outcome)

    def close(self) -> None:
        """Close the file."""
        if self._found is not None:
            self._found.close()

    def _pass_over(self, error: BadRecord) -> None:
        """Count a record that cannot be an item, and report it if asked to."""
        self._bad += 1
        self._report(error)

    def _report(self, error: BadRecord) -> None:
        self._odd = self._odd or str(error)
        if callable(self._skip_bad):
            self._skip_bad(error)

    def warn(self) -> None:
        """Warn of the first record that was skipped, unless each was reported."""
        if self._odd and not callable(self._skip_bad):
            message = f"{self.done().skipped:,} records were passed over; the first: {self._odd}"
            warnings.warn(message, RecordsSkipped, stacklevel=3)

    def advice(self, go_on: str, again: str) -> str:
        """How much of the file is in the store, and how to go on; with a name that is `again`, whatever is there."""
        if self._trail is not None:
            onward = f"{go_on} {again}."
        elif self.unclear is not None:
            onward = self.unclear.onward(self.seen, self._on_conflict)
        else:
            onward = f"{go_on} skip={self.seen}."
        return f"{told(self.seen, self.unclear)} {onward}"

    def done(self) -> Loaded:
        """The result so far."""
        found = self._outcome
        return Loaded(found.fresh + found.replaced, found.replaced, found.ignored, self._bad + found.repeated)

    def _add(self, db: SoftKV, batch: "Sequence[Record]", progress: Progress | None) -> None:
        before, seen = commit_of(db), self.seen + len(batch)
        try:
            self._write(db, batch, progress)
            self.seen = seen
        except (KeyboardInterrupt, *UNCLEAR) as error:
            if before is None or not isinstance(error, KeyboardInterrupt):
                self.unclear = Unclear.after(error, batch, before)
            elif commit_of(db) != before:  # it came when the batch was on the disk already
                self.seen = seen
            raise

    def _write(self, db: SoftKV, batch: "Sequence[Record]", progress: Progress | None) -> None:
        if self._trail is not None:
            self._trail.take(batch)
        good, before = list(batch), replace(self._outcome, records=self._outcome.records + len(batch))
        while good:
            try:
                passed = replace(before, repeated=before.repeated + len(batch) - len(good))
                self._outcome = self._written(db, good, passed, progress)
                return
            except DuplicateKey as error:
                good = self._without_repeated(db, good, error)
            except InputError as error:
                lines = f"line {good[0].line}" if len(good) == 1 else f"lines {good[0].line} to {good[-1].line}"
                error.args = (f"{error} (In {self._named()}, {lines}.)",)
                raise
        self._outcome = replace(before, repeated=before.repeated + len(batch))

    def _written(self, db: SoftKV, good: "Sequence[Record]", before: Outcome, progress: Progress | None) -> Outcome:
        stamp = None if self._trail is None else self._trail.stamp(before, self._outcome.records)
        # Told within a batch, too: a slow model makes it worth seeing.
        told = None if progress is None else lambda done, _of: progress(self.seen + done, 0)
        added = _added(db, good, self._on_conflict, told, stamp)
        if self._trail is not None and stamp is not None:
            self._trail.follow(stamp)
        return before.plus(added.count, added.replaced, added.ignored)

    def _named(self) -> str:
        return "stdin" if self.source == "-" else self.source

    def _without_repeated(self, db: SoftKV, batch: "Sequence[Record]", error: DuplicateKey) -> "list[Record]":
        """The records whose keys are new; the others are reported, or the first of them is an error."""
        repeated = _repeated(batch, set(error.keys))
        named = [BadRecord(f"{self._named()}:{one.line}: the key {one.key!r} is there already") for one in repeated]
        if not self._skip_bad:
            before = self._stored_before(db, batch) if self.seen == self._skip else 0
            again = (
                f", and so are those of the first {before:,} records. If an earlier run stored them, go on with "
                f"skip={before}. If not, give"
                if before > 1
                else ". Give"
            )
            raise BadRecord(
                f"{named[0]}{again} it another, or use on_conflict='replace', on_conflict='ignore' or skip_bad=True."
            ) from error
        for bad in named:
            self._report(bad)
        places = {id(one) for one in repeated}
        return [one for one in batch if id(one) not in places]

    def _stored_before(self, db: SoftKV, first: "Sequence[Record]") -> int:
        """How many records at the beginning of the file have keys of the store; 0 if one before them has no key."""
        known: set[str] = set()
        for batch in chain([first], self._parts):
            keys = [one.key for one in batch if one.key is not None]
            if len(keys) < len(batch):
                return 0
            for key, value in zip(keys, db.get_many(keys), strict=True):
                if value is None or key in known:
                    return self._skip + len(known)
                known.add(key)
        return self._skip + len(known)


@contextmanager
def _holding(db: SoftKV, kind: str | None, compared: str | None) -> Iterator[None]:
    """Set the kind and the compatibility of an empty store; undo that if adding fails before the first."""
    kept, items = Profile.of(db._store.settings), len(db)
    compared = None if kept.compatibility or items or is_url(db.path) else compared
    wanted = kept.wishing(value=kind, compatibility=compared, temperature=None, items=items)
    if wanted != kept:
        db._store.configure(wanted.settings())
    try:
        yield
    except BaseException:
        with suppress(StoreError):
            if wanted != kept and db._store.layout is None:
                db._store.configure(kept.settings())
        raise


def _portions(db: SoftKV, batch: "Sequence[Record]") -> "Iterable[Sequence[Record]]":
    """A batch, divided if it would not fit into a request."""
    return [batch] if isinstance(db._store, Store) else db._store.portions(batch)


def _added(
    db: SoftKV, batch: "Sequence[Record]", on_conflict: str, progress: Progress | None, stamp: Stamp | None
) -> Any:
    return db.add(
        _column(batch, "key"),
        [one.value for one in batch],
        vectors=_column(batch, "vector"),
        texts=_column(batch, "text"),
        payloads=_column(batch, "payload"),
        on_conflict=on_conflict,
        batch=stamp,
        progress=progress,
    )


def _repeated(batch: "Sequence[Record]", keys: set[str]) -> "list[Record]":
    """The records whose keys are taken: by the store, or by a record before them in the batch."""
    counts = Counter(one.key for one in batch)
    seen: set[str | None] = set()
    found = []
    for one in batch:
        if one.key in keys and (counts[one.key] == 1 or one.key in seen):
            found.append(one)
        seen.add(one.key)
    return found


def _column(batch: "Sequence[Record]", name: str) -> list[Any] | None:
    column = [getattr(one, name) for one in batch]
    return None if all(entry is None for entry in column) else column


def _columns(key: Names, text: Names, value: Names, payload: Names, vector: Names) -> "Columns":
    from softkv.files import Columns

    carried = None if payload is None else _names(payload)
    return Columns(_name(key), _name(text), _names(value), carried, _names(vector))


def _name(given: Names) -> str | None:
    if not isinstance(given, (str, type(None))):
        raise InputError(f"expected the name of a column as a text, got {given!r}.")
    return given


def _names(given: Names) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given or ()
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"expected the names of columns as texts, got {given!r}.")
    return tuple(names)


def _file(path: str | os.PathLike[str]) -> str:
    """The path as a text; "-" is a file of this name, and not stdin."""
    given = os.fsdecode(path)
    return os.path.join(os.curdir, given) if given == "-" else given
