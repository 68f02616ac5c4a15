"""A store as its users see it: `open` gives a SoftKV, a dict that also answers what it was never told.

What changes a store is here; what reads it is reader.py. A handle may be shared by threads; it does not survive a fork.
"""

import os
import threading
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from softkv.asking.embedding import Embedding, Given, Progress
from softkv.asking.profile import Profile, Temperature, checked_temperature
from softkv.asking.view import Findings, View
from softkv.database import intake
from softkv.database.aside import put_back, require_nothing_kept
from softkv.database.reader import Reader, Value
from softkv.database.stamping import stamp
from softkv.database.summary import Info, summary
from softkv.database.upkeep import Upkeep
from softkv.errors import DuplicateKey, InputError, KeyMissing, KeyTextError, ShapeError, StoreError
from softkv.storage import Added, Item, Report, Store
from softkv.storage.locks import opened
from softkv.storage.opening import directory_of


def open(  # noqa: A001 - softkv.open, as in dbm
    path: str | os.PathLike[str],
    mode: str = "c",
    *,
    value: str | None = None,
    compatibility: str | None = None,
    embedder: Given = None,
    temperature: float | None = None,
    force: bool = False,
    wait: float = 0.0,
) -> "SoftKV":
    """Open a store, and make it if there is none.

    >>> import softkv, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "films.softkv")
    >>> with softkv.open(path) as db:
    ...     added = db.add(["a shepherd looks for treasure", "two boats on a river"], ["The Alchemist", "Upstream"])
    ...     db.nearest("a boy searching for gold").texts[0].text
    'The Alchemist'

    Args:
        path: The directory of the store.
        mode: "c" to read and write, and make it if need be; "r" to read; "w" to read and write; "n" to start it anew.
        value: What values are: "number", "vector", "label" or "text". Otherwise the first ones tell; texts are "text".
        compatibility: How queries and keys compare. Otherwise by cosine, or by dot product for bare vectors among which
            is a zero vector.
        embedder: What turns texts into vectors: "static", the name or folder of a model, or a function. Otherwise the
            one the store was made with, or "static".
        temperature: What scores are divided by. Otherwise one is found by rule (see `info`).
        force: Write even on a network file system, where locks and syncs may not hold.
        wait: How many seconds to wait for another process that writes; reading waits for none.
    """
    if not isinstance(wait, (int, float)) or not wait >= 0:
        raise InputError(f"expected wait as a number of seconds, 0 or more, got {wait!r}.")
    wishes = Profile().wishing(value=value, compatibility=compatibility, temperature=temperature, items=0)
    _look_beside(path, mode)
    store = opened(lambda: Store.open(path, mode, force=force, accept=Profile.of), wait)
    try:
        profile = Profile.of(store.settings)
        wanted = profile.wishing(value=value, compatibility=compatibility, temperature=temperature, items=len(store))
        if mode == "r":  # a reader's wishes are its own, and what it does not wish for follows the store
            wanted = wishes
        db = SoftKV(store, Embedding(embedder, store.path), wanted if wanted != profile else None, writes=mode != "r")
    except BaseException:
        store.close()
        raise
    return db


def _look_beside(path: str | os.PathLike[str], mode: str) -> None:
    """Put back what an overwriting `made` was stopped over, or to a reader say where it is."""
    directory = directory_of(path)
    if mode == "r":
        require_nothing_kept(directory)
    elif mode != "n" and not os.path.lexists(directory):
        put_back(directory)


class SoftKV(Upkeep, MutableMapping[str, Value]):
    """A soft key-value store. Made by `softkv.open`; use it as a context manager, or close it."""

    def __init__(self, store: Store, embedding: Embedding, wanted: Profile | None, *, writes: bool) -> None:
        self._store, self._embedding, self._writes = store, embedding, writes
        # Two locks, so that lookups go on while texts are embedded for an `add`. This one is taken first.
        self._changing = threading.RLock()
        self._lock = threading.RLock()
        self._findings = Findings()
        self._seen: View | None = None
        self._wanted = None if writes else wanted
        if wanted is not None and writes:
            store.configure(wanted.settings())

    @property
    def path(self) -> str:
        """The directory of the store."""
        return self._store.path

    def _view(self) -> View:
        with self._lock:
            commit = self._store.refresh()
            if self._seen is None or self._seen.snapshot.commit != commit:
                # Subtle: the old view is not closed. Another thread may be reading it; it goes when they all have.
                self._seen = self._new_view()
            return self._seen

    def _new_view(self) -> View:
        view = View(self._store.snapshot(), self._findings)
        if self._wanted is not None:
            view.profile = replace(
                view.profile,
                compatibility=view.profile.compatibility or self._wanted.compatibility,
                temperature=self._wanted.temperature or view.profile.temperature,
            )
        return view

    # Changing

    def add(
        self,
        keys: str | Sequence[str | None] | None = None,
        values: Any = None,
        *,
        vectors: Any = None,
        texts: str | Sequence[str | None] | None = None,
        payloads: Any = None,
        on_conflict: str = "error",
        batch: str | None = None,
        progress: Progress | None = None,
    ) -> Added:
        """Add one item or many, wholly or not at all; when this returns, they are on the disk.

        Args:
            keys: A text, or a list of them. Without keys, items are called #1, #2, and so on.
            values: What is blended: a number, vector, label or text for each item.
            vectors: The key vectors. Otherwise the keys are embedded,
            texts: or these texts, where they are not None.
            payloads: JSON that is carried along and can be filtered by (`where=`).
            on_conflict: What a key that is there already means: "error", "replace" or "ignore".
            batch: A name for this call, such as a UUID. Where it was written under this name before, in the last seven
                days, nothing is written and the result is that of then; so it can be sent again after a lost answer.
                The same name with other content is a `BatchMismatch`.
            progress: Called with (done, all) while many texts are embedded.
        """
        with self._changing:
            what = intake.given(keys, values, vectors, texts, payloads)
            self._store.require_writable()
            given = (what.keys, what.values, what.vectors, what.texts)
            named = stamp(batch, "add", on_conflict, *given, payloads=what.payloads)
            done = self._store.recorded(named)  # before anything is embedded
            if done is not None:
                return done
            kept = Profile.of(self._store.settings)
            start = kept if len(self._store) else self._afresh(kept)
            ready = intake.prepared(what, start, self._store.layout, self._embedding, progress)
            return self._store.append(
                ready.vectors,
                ready.values,
                keys=ready.keys,
                payloads=ready.payloads,
                texts=ready.texts,
                value_vectors=ready.value_vectors,
                on_conflict=on_conflict,
                settings=ready.profile.settings() if ready.profile != kept else None,
                stamp=named,
            )

    def _afresh(self, kept: Profile) -> Profile:
        """Without the temperature by rule: it suited items that are gone."""
        self._findings.forget()
        return replace(kept, temperature=kept.chosen_temperature)

    def set_values(self, keys: Sequence[str], values: Any, *, expected: Any = None, batch: str | None = None) -> Added:
        """Give items other values, all of them or none. What they are compared by, their texts and payloads stay.

        Where `expected` is given, only if these are the values that the items have by now. With a `batch` that was
        written before, nothing is written: see `add`.

        >>> import softkv, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "rents.softkv")
        >>> with softkv.open(path) as db:
        ...     added = db.add("two rooms by the park", 900, payloads={"year": 2020})
        ...     added = db.set_values(["two rooms by the park"], [940])
        ...     db["two rooms by the park"], db.item("two rooms by the park").payload
        (940.0, {'year': 2020})
        """
        self._store.require_writable()
        with self._changing:
            what = intake.given(keys, values, None, None, None)
            named = stamp(batch, "set_values", what.keys, what.values, expected)
            done = self._store.recorded(named)
            if done is not None:
                return done
            kept = self._items_with(what.keys or [])
            if expected is not None:
                _require_values(kept, expected)
            profile = Profile.of(self._store.settings)
            return self._store.append(
                [one.vector for one in kept],
                what.values,
                keys=what.keys,
                payloads=[one.payload for one in kept],
                texts=[one.text for one in kept],
                value_vectors=intake.embedded_values(what, profile, self._store.layout, self._embedding),
                on_conflict="replace",
                stamp=named,
            )

    def _items_with(self, keys: Sequence[str | None]) -> list[Item]:
        """The items with these keys, all of them."""
        named = [key for key in keys if key is not None]
        if len(named) < len(keys):
            raise KeyTextError("expected the keys of items that are there, got None among them.")
        snapshot = self._view().snapshot
        rows = snapshot.find_many(named)
        missing = [key for key, row in zip(named, rows, strict=True) if row < 0]
        if missing:
            raise KeyMissing(f"no item has the key {missing[0]!r} ({len(missing)} of {len(named)} keys are missing)")
        return snapshot.items(rows)

    def __setitem__(self, key: str, value: Value) -> None:
        self.add(key, value, on_conflict="replace")

    def __delitem__(self, key: str) -> None:
        self.delete([key])

    def delete(self, keys: str | Iterable[str], *, batch: str | None = None) -> int:
        """Delete the items with these keys or `#<number>`s, all of them or none; returns how many.

        With a `batch` that was written before, nothing is deleted: see `add`.
        """
        names = [keys] if isinstance(keys, str) else list(keys)
        with self._changing:
            named = sorted(set(names)) if all(isinstance(name, str) for name in names) else names  # a set has no order
            return self._store.delete(names, stamp=stamp(batch, "delete", named))

    def pop(self, key: str, *default: Any) -> Any:
        """Remove an item and return its value, or the default, if there is no such item and a default is given."""
        with self._changing:  # or another thread might take the same item, or replace it meanwhile
            if default and key not in self:
                return default[0]
            value = self[key]
            self.delete([key])
            return value

    def setdefault(self, key: str, default: Value = None) -> Value:
        """The value of a key, which is added with this one if it is not there."""
        with self._changing:
            if key not in self:
                self[key] = default
            return self[key]

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Add or replace many items at once: in one commit, not one each as MutableMapping would."""
        items = dict(other, **more)
        if items:
            self.add(list(items), list(items.values()), on_conflict="replace")

    def clear(self) -> None:
        """Delete all items, in one commit."""
        with self._changing:
            self._store.delete(list(self))

    def popitem(self) -> tuple[str, Value]:
        """Remove the item that was added last, as dict does; returns its key and value."""
        with self._changing:
            order = self._store.in_order()
            if not len(order):
                raise KeyMissing("the store is empty")
            (last,) = self._store.items(order[-1:])
            self._store.delete(last.name)
            return last.name, last.value

    def set_temperature(self, temperature: float | None) -> None:
        """Remember a temperature; None goes back to the one by rule."""
        with self._changing:
            chosen = None
            if temperature is not None:
                chosen = Temperature(checked_temperature(temperature), "given", len(self))
            self._store.configure(replace(Profile.of(self._store.settings), temperature=chosen).settings())

    # Upkeep

    def snapshot(self) -> "StoreView":
        """The store as it is now, to read for as long as it is open, whatever is written meanwhile."""
        with self._lock:
            return StoreView(self._new_view(), self._embedding)

    def info(self) -> Info:
        """What the store is: items, widths, kind, how it compares, its embedder, its temperature, its size on disk."""
        begun = self._store.unfinished
        unfinished = None if begun is None else f"{begun.done:,} of {begun.total:,} items embedded anew"
        return summary(self._view(), self.path, unfinished)

    def check(self) -> Report:
        """Compare everything on the disk with everything else."""
        return self._store.check()

    def close(self) -> None:
        """Finish. What was acknowledged is on the disk already; a writer also leaves a temperature that suits."""
        with self._changing, self._lock:
            try:
                self._leave_temperature()
            finally:
                self._seen = None
                self._store.close()

    def _leave_temperature(self) -> None:
        """Remember the temperature by rule, when there is none yet or the store has outgrown it.

        A store without one is as good, only slower to ask first; so what keeps us from writing it is no error here.
        """
        if not self._writes:
            return
        with suppress(StoreError):
            if self._store.unfinished is not None:
                return  # nothing may be written, so nothing need be found
            view = self._view()
            kept, items = view.profile, len(view.snapshot)
            if items and kept.compatibility and not (kept.temperature and kept.temperature.suits(items)):
                wanted = replace(kept, temperature=view.temperature(kept.compatibility))
                self._seen = None
                self._store.configure(wanted.settings())

    def __enter__(self) -> "SoftKV":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SoftKV {self.path!r}>"


def _require_values(items: Sequence[Item], expected: Any) -> None:
    if len(items) != len(expected):
        raise ShapeError(f"expected a value to compare with for each of {len(items)} keys, got {len(expected)}.")
    if len({item.row for item in items}) < len(items):
        raise DuplicateKey("expected each key once where values are compared, got one of them twice.")
    for item, value in zip(items, expected, strict=True):
        held = np.asarray(item.value)
        if not np.array_equal(held, np.asarray(value, held.dtype if held.dtype.kind == "f" else None)):
            raise StoreError(f"the value of {item.name!r} is another by now, so nothing was written. Read it again.")


class StoreView(Reader):
    """A store as of one commit, to read. Close it, or use it as a context manager, so that old files can go."""

    def __init__(self, view: View, embedding: Embedding) -> None:
        self._kept, self._embedding = view, embedding

    def _view(self) -> View:
        return self._kept

    @property
    def commit(self) -> int:
        """The number of the commit that is seen."""
        return self._kept.snapshot.commit

    def close(self) -> None:
        """Let old files go."""
        self._kept.snapshot.close()

    def __enter__(self) -> "StoreView":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
