"""`add`: one item from the command line, or many from a file or another program."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from softkv.errors import BadRecord, SoftKVError
from softkv.kinds import ValueKind
from softkv.portrait import short
from softkv.storage.disk.named import is_url

from . import options, output, served
from .labelled import names_of
from .wording import in_options

if TYPE_CHECKING:
    from softkv.database.loading import Loading
    from softkv.files import Record

SEVERAL = (
    "hint: vectors are compared by cosine or dot product; where their columns are quantities with units, start the "
    "store anew with --compatibility gaussian"
)


@click.command(epilog=options.example('softkv add "The Alchemist" "A shepherd seeks treasure." --db films.softkv'))
@click.argument("key", required=False)
@click.argument("value", required=False)
@options.database
@click.option(
    "-i", "--input", "source", metavar="FILE", help="Many items: CSV, TSV, JSONL, JSON, Parquet, Arrow, npz, or -."
)
@click.option(
    "--from",
    "program",
    nargs=2,
    type=(click.Choice(["llm", "chroma", "faiss"]), str),
    metavar="PROGRAM PATH",
    help="What another program keeps: llm FILE, chroma DIR, or faiss INDEX with --values.",
)
@click.option("--collection", metavar="NAME", help="The collection of llm or Chroma, where there are several.")
@click.option("--values", "values_file", metavar="FILE", help="The items that go with the rows of an index of FAISS.")
@options.file_format
@options.encoding
@click.option("--key", "key_column", metavar="COLUMN", help="The column of keys.")
@click.option(
    "--text", metavar="COLUMN", help="The column that is embedded in place of the key; for one item, the text."
)
@click.option("--value", "value_columns", metavar="COLUMN,...", help="The column of values, or several for vectors.")
@click.option("--payload", metavar="COLUMN,...", help="Columns to carry along; for one item, JSON.")
@click.option("--vector", metavar="COLUMN,...", help="The column or columns of key vectors; for one item, X,Y,...")
@click.option("--kind", type=click.Choice([kind.value for kind in ValueKind]), help="What values are.")
@click.option("--replace", "on_conflict", flag_value="replace", help="A key that is there already gets the new value.")
@click.option("--ignore", "on_conflict", flag_value="ignore", help="A key that is there already stays as it is.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Pass over the first so many records of FILE.")
@click.option("--skip-bad", is_flag=True, help="Report records that cannot be read, and go on.")
@options.batch
@options.model
@options.compatibility
@options.wait
@options.progress_off
def add(
    key: str | None,
    value: str | None,
    path: str,
    source: str | None,
    program: tuple[str, str] | None,
    collection: str | None,
    values_file: str | None,
    file_format: str | None,
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
    batch: str | None,
    model: str | None,
    compatibility: str | None,
    wait: float,
    no_progress: bool,
) -> None:
    """Add the item KEY with this VALUE (missing or `-`: from stdin), or the items of a file.

    The store is made if there is none. A file is added in batches, each wholly or not at all.
    """
    if (source is None) + (key is None) + (program is None) != 2:
        raise click.UsageError("give a KEY and a VALUE, a file with -i, or --from PROGRAM PATH; one of them")
    file_format, source = program or (file_format, source)
    wishes: dict[str, Any] = {"value": kind, "embedder": model, "compatibility": compatibility, "wait": wait}
    conflict = on_conflict or "error"
    if source is None:
        given = _typed(str(key)) if value in (None, "-") else value
        if not given and given != value:
            raise click.UsageError("expected a VALUE after the KEY, or on stdin, got nothing")
        with filling(path, wishes) as db, output.hints():
            added = db.add(
                key,
                options.value_of(str(given), kind or db.value_kind),
                vectors=None if vector is None else options.numbers_of(vector),
                texts=text,
                payloads=None if payload is None else options.json_of(payload),
                on_conflict=conflict,
                batch=batch,
            )
        output.say(_told(added.count - added.replaced, added.replaced, added.ignored))
        return
    from softkv.database.loading import Loading
    from softkv.files import Columns

    columns = Columns(
        key=key_column,
        text=text,
        value=names_of(value_columns),
        payload=None if payload is None else names_of(payload),
        vector=names_of(vector),
    )
    loading = Loading(source, conflict, skip=skip, skip_bad=_passed_over if skip_bad else False, batch=batch)
    held, items = _there(path)
    with closing(loading), output.progress("adding", quiet=no_progress) as moved, output.hints() as hinted:
        with _resumable(loading, skip, batch):
            first = loading.begin(columns, kind or held, file_format, encoding, collection, values_file)
            named = "stdin" if source == "-" else source
            if items and not skip and batch is None and any(one.key is None for one in first):
                output.say(
                    f"hint: the store has {items:,} items, and records without keys are added to them; if an earlier "
                    f"run of {named} was stopped, --skip passes over what it stored"
                )
            if first and not (held or kind):
                wishes["value"] = _guessed(first, named, hinted)
            with filling(path, wishes) as db:
                loading.run(db, moved)
            if len(columns.vector) > 1 and not (items or compatibility or any("gaussian" in one for one in hinted)):
                output.say(SEVERAL)
        done = loading.done()
        skipped = f", skipped {done.skipped:,}" if done.skipped else ""
        output.say(_told(done.count - done.replaced, done.replaced, done.ignored) + skipped)


def _there(path: str) -> tuple[str | None, int]:
    """The kind of values that a store holds, and how many; none if it is not there."""
    import softkv
    from softkv.errors import StoreNotFound

    try:
        with softkv.open(path, "r") as db:
            return db.value_kind, len(db)
    except StoreNotFound:
        return None, 0


@contextmanager
def _resumable(loading: "Loading", skip: int, batch: str | None) -> Iterator[None]:
    """Within the block, an error or Ctrl-C says what is stored and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        go_on = "Go on with" if batch is not None else "Go on with the same command and"
        output.say(f"interrupted. {in_options(loading.advice(go_on, 'the same command'))}")
        raise
    except SoftKVError:
        if loading.seen > skip or loading.unclear:
            go_on = "Mend what the next line says, and go on with"
            output.say(in_options(loading.advice(go_on, "the same command")))
        raise


def _guessed(first: "Sequence[Record]", source: str, hinted: list[str]) -> str | None:
    """The kind that the file states; also gives hints, before anything is written that only a new store could undo."""
    from softkv.database.intake import look_like_labels

    kind, values = first[0].kind, [one.value for one in first]
    if kind:
        output.say(
            f"hint: {source} is an export of a store, and its values are {kind}s again; its model and what it learned "
            "are for `softkv import`"
        )
    elif isinstance(values[0], str) and not hinted and not look_like_labels(values):
        output.say(
            "hint: values are taken as texts, of which an answer names the likeliest; as labels, by --kind label, each "
            "would have a share"
        )
    return kind


def _passed_over(error: BadRecord) -> None:
    output.say(f"skipped: {in_options(str(error))}")


@contextmanager
def filling(path: str, wishes: dict[str, Any]) -> Iterator[Any]:
    """The store, open for adding; made if there is none, and removed again if nothing could be added."""
    from softkv.storage import Store

    there = is_url(path) or os.path.lexists(path)
    try:
        with served.writing(path, mode="c", **wishes) as db:
            yield db
    except BaseException:
        if not there and os.path.exists(path):
            with Store.open(path) as made:
                empty = made.layout is None
            if empty:
                Store.erase(path)
        raise


def _typed(key: str) -> str:
    """The value on stdin, for which a person at a terminal is asked."""
    if sys.stdin.isatty():
        output.say(f"type the VALUE of {short(key)}, and end it with Enter and Ctrl-D")
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"expected VALUE on stdin as text, got bytes that are not {error.encoding}") from None


def _told(fresh: int, replaced: int, ignored: int) -> str:
    told = [f"added {fresh:,}"]
    told += [f"replaced {replaced:,}"] if replaced else []
    told += [f"ignored {ignored:,} that were there"] if ignored else []
    return ", ".join(told)
