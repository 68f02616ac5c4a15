"""Putting items in: `add`, one from the command line or many from a file."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from softkv.errors import BadRecord, DuplicateKey, InputError, SoftKVError

from . import options, output

if TYPE_CHECKING:
    from softkv.files import Record

BATCH = 10_000


@click.command(epilog=options.example('softkv add "The Alchemist" "A shepherd seeks treasure." --db films.softkv'))
@click.argument("key", required=False)
@click.argument("value", required=False)
@options.database
@click.option(
    "-i", "--input", "source", metavar="FILE", help="Many items: CSV, TSV, JSONL, JSON, Parquet, npy, npz, or -."
)
@click.option("--format", "format_", help="The format of FILE, when its name does not tell.")
@click.option("--encoding", default="utf-8-sig", show_default=True, help="The encoding of FILE.")
@click.option("--key", "key_column", metavar="COLUMN", help="The column of keys.")
@click.option(
    "--text", metavar="COLUMN", help="The column that is embedded in place of the key; for one item, the text."
)
@click.option("--value", "value_columns", metavar="COLUMN,...", help="The column of values, or several for vectors.")
@click.option("--payload", metavar="COLUMN,...", help="Columns to carry along; for one item, JSON.")
@click.option("--vector", metavar="COLUMN,...", help="The column or columns of key vectors; for one item, X,Y,...")
@click.option("--kind", type=click.Choice(["number", "vector", "label", "text"]), help="What values are.")
@click.option("--replace", "on_conflict", flag_value="replace", help="A key that is there already gets the new value.")
@click.option("--ignore", "on_conflict", flag_value="ignore", help="A key that is there already stays as it is.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Pass over the first so many records of FILE.")
@click.option("--skip-bad", is_flag=True, help="Report records that cannot be read, and go on.")
@options.model
@options.compatibility
@options.wait
@options.progress_off
def add(
    key: str | None,
    value: str | None,
    path: str,
    source: str | None,
    format_: str | None,
    encoding: str,
    key_column: str | None,
    text: str | None,
    value_columns: str | None,
    payload: str | None,
    vector: str | None,
    kind: str | None,
    on_conflict: str | None,
    skip: int,
    skip_bad: bool,
    model: str | None,
    compatibility: str | None,
    wait: float,
    no_progress: bool,
) -> None:
    """Add the item KEY with this VALUE (read from stdin when it is missing or `-`), or the items of a file.

    The store is made if there is none. A file is added in batches, each wholly or not at all.
    """
    if (source is None) == (key is None):
        raise click.UsageError("give a KEY and a VALUE, or a file with -i; one of the two")
    wishes: dict[str, Any] = {"value": kind, "embedder": model, "compatibility": compatibility, "wait": wait}
    conflict = on_conflict or "error"
    if source is None:
        given = sys.stdin.read().rstrip("\n") if value in (None, "-") else value
        with filling(path, wishes) as db, output.hints():
            added = db.add(
                key,
                _value(str(given), kind or db.value_kind),
                vectors=None if vector is None else options.numbers_of(vector),
                texts=text,
                payloads=None if payload is None else options.json_of(payload),
                on_conflict=conflict,
            )
        output.say(_told(added.count - added.replaced, added.replaced, added.ignored))
        return
    from softkv.files import Columns, records

    columns = Columns(
        key=key_column,
        text=text,
        value=_names(value_columns),
        payload=None if payload is None else _names(payload),
        vector=_names(vector),
    )
    adding = Adding(path, source, wishes, conflict, skip=skip, skip_bad=skip_bad)
    found = records(
        source,
        format=format_,
        columns=columns,
        kind=kind or adding.kind,
        encoding=encoding,
        on_bad=adding.pass_over if skip_bad else None,
    )
    with output.progress("adding", quiet=no_progress) as moved, output.hints() as hinted:
        adding.run(found, hinted, moved)


class Adding:
    """The items of a file on their way into a store, batch by batch."""

    def __init__(
        self, path: str, source: str, wishes: dict[str, Any], on_conflict: str, *, skip: int, skip_bad: bool
    ) -> None:
        self.path, self.wishes, self.on_conflict = path, wishes, on_conflict
        self.skip, self.skip_bad = skip, skip_bad
        self.source = "stdin" if source == "-" else source
        self.seen = self.fresh = self.replaced = self.ignored = self.bad = 0
        self.kind, self.items = self._there()
        self._batches: Iterator[list[Record]] = iter(())

    def _there(self) -> tuple[str | None, int]:
        """The kind of values that the store holds, and how many; none if it is not there."""
        import softkv
        from softkv.errors import StoreNotFound

        try:
            with softkv.open(self.path, "r") as db:
                return db.value_kind, len(db)
        except StoreNotFound:
            return None, 0

    def pass_over(self, error: BadRecord) -> None:
        """Report a record that cannot be read."""
        self.bad += 1
        output.say(f"skipped: {error}")

    def run(self, found: "Iterator[Record]", hinted: list[str], moved: output.Progress | None) -> None:
        """Add all records; what was added stays whatever happens."""
        from softkv.files import batches

        self.seen = sum(1 for _ in islice(found, self.skip))
        self._batches = batches(found, BATCH)
        try:
            first = next(self._batches, [])
            self._announce(first, hinted)
            with filling(self.path, self.wishes) as db:
                for batch in chain([first] if first else [], self._batches):
                    # A slow model is seen to move within a batch too.
                    self._add(db, batch, moved and partial(_moved_on, moved, self.seen))
                    if moved is not None:
                        moved(self.seen, 0)
        except KeyboardInterrupt:
            output.say(f"interrupted. {self._stored()} Go on with the same command and --skip {self.seen}.")
            raise
        except SoftKVError:
            if self.seen > self.skip:
                output.say(f"{self._stored()} Mend what the next line says, and go on with --skip {self.seen}.")
            raise
        output.say(_told(self.fresh, self.replaced, self.ignored) + (f", skipped {self.bad:,}" if self.bad else ""))

    def _announce(self, first: "Sequence[Record]", hinted: list[str]) -> None:
        """Say, before anything is written, what the command does not show and a new store would be needed to undo."""
        from softkv.database.intake import look_like_labels

        if self.items and not self.skip and any(one.key is None for one in first):
            output.say(
                f"hint: the store has {self.items:,} items, and records without keys are added to them; if an earlier "
                f"run of {self.source} was stopped, --skip passes over what it stored"
            )
        if not first or self.kind or self.wishes["value"]:
            return
        values, self.wishes["value"] = [one.value for one in first], first[0].kind
        if first[0].kind:
            output.say(
                f"hint: {self.source} is an export of a store, and its values are {first[0].kind}s again; its model "
                "and what it learned are for `softkv import`"
            )
        elif isinstance(values[0], str) and not hinted and not look_like_labels(values):
            output.say(
                "hint: values are taken as texts, of which an answer names the likeliest; as labels, by --kind label, "
                "each would have a share"
            )

    def _stored(self) -> str:
        return f"The first {self.seen:,} records are stored."

    def _add(self, db: Any, batch: "Sequence[Record]", progress: output.Progress | None) -> None:
        before, seen = self._commit(), self.seen + len(batch)
        try:
            self._write(db, batch, progress)
            self.seen = seen
        except KeyboardInterrupt:
            if self._commit() > before:  # it came when the batch was on the disk already
                self.seen = seen
            raise

    def _commit(self) -> int:
        from softkv.storage import Store

        with Store.open(self.path) as store:
            return store.commit

    def _write(self, db: Any, batch: "Sequence[Record]", progress: output.Progress | None) -> None:
        good = list(batch)
        while good:
            try:
                added = _added(db, good, self.on_conflict, progress)
            except DuplicateKey as error:
                good = self._without_repeated(good, error)
                continue
            except InputError as error:
                lines = f"line {good[0].line}" if len(good) == 1 else f"lines {good[0].line} to {good[-1].line}"
                error.args = (f"{error} (In {self.source}, {lines}.)",)
                raise
            self.fresh += added.count - added.replaced
            self.replaced += added.replaced
            self.ignored += added.ignored
            break

    def _without_repeated(self, batch: "Sequence[Record]", error: DuplicateKey) -> "list[Record]":
        """The records whose keys are new, the others reported; or the refusal of the first of those."""
        repeated = _repeated(batch, set(error.keys))
        named = [BadRecord(f"{self.source}:{one.line}: the key {one.key!r} is there already") for one in repeated]
        if not self.skip_bad:
            before = self._stored_before(batch) if self.seen == self.skip else 0
            again = (
                f", and so are those of the first {before:,} records. If an earlier run stored them, go on with --skip "
                f"{before}. If not, give"
                if before > 1
                else ". Give"
            )
            raise BadRecord(f"{named[0]}{again} it another, or use --replace, --ignore or --skip-bad.") from error
        for bad in named:
            self.pass_over(bad)
        places = {id(one) for one in repeated}
        return [one for one in batch if id(one) not in places]

    def _stored_before(self, first: "Sequence[Record]") -> int:
        """With how many records the file begins whose keys are in the store; 0 where one without a key hides it."""
        from softkv.storage import Store

        known: set[str] = set()
        with Store.open(self.path) as store:
            for batch in chain([first], self._batches):
                keys = [one.key for one in batch if one.key is not None]
                if len(keys) < len(batch):
                    return 0
                for key, row in zip(keys, store.find_many(keys), strict=True):
                    if row < 0 or key in known:
                        return self.skip + len(known)
                    known.add(key)
        return self.skip + len(known)


@contextmanager
def filling(path: str, wishes: dict[str, Any]) -> Iterator[Any]:
    """The store, open for adding; made if there is none, and gone again if that is all that came of it."""
    import softkv
    from softkv.storage import Store

    there = os.path.lexists(path)
    try:
        with softkv.open(path, **wishes) as db:
            yield db
    except BaseException:
        if not there and os.path.exists(path):
            with Store.open(path) as made:
                empty = made.layout is None
            if empty:
                Store.erase(path)
        raise


def _moved_on(moved: output.Progress, seen: int, done: int, _of: int) -> None:
    moved(seen + done, 0)


def _added(db: Any, batch: "Sequence[Record]", on_conflict: str, progress: output.Progress | None) -> Any:
    return db.add(
        _column(batch, "key"),
        [one.value for one in batch],
        vectors=_column(batch, "vector"),
        texts=_column(batch, "text"),
        payloads=_column(batch, "payload"),
        on_conflict=on_conflict,
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


def _names(given: str | None) -> tuple[str, ...]:
    return () if given is None else tuple(name.strip() for name in given.split(","))


def _value(given: str, kind: str | None) -> Any:
    """A value on the command line: a number if it can be one, unless it is to be something else."""
    if kind == "vector":
        return options.numbers_of(given)
    if kind in ("text", "label"):
        return given
    for number in (int, float):  # an integer stays one, so that one too large to be kept is refused and not rounded
        try:
            return number(given)
        except ValueError:
            continue
    if kind == "number":
        raise InputError(f"expected a number as the value, as this store holds, got {given!r}.")
    return given


def _told(fresh: int, replaced: int, ignored: int) -> str:
    told = [f"added {fresh:,}"]
    told += [f"replaced {replaced:,}"] if replaced else []
    told += [f"ignored {ignored:,} that were there"] if ignored else []
    return ", ".join(told)
