"""Methods that change the items of a store: add, set values, delete, and the methods of a dict.

intake.py reads the arguments of `add`, stamping.py makes the digests of named batches.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from softkv.asking.profile import Profile, Temperature, checked_temperature
from softkv.asking.view import Findings
from softkv.database import intake
from softkv.database.loading import Frame, Names, framed, load
from softkv.database.reader import Value
from softkv.database.stamping import stamp
from softkv.database.upkeep import Upkeep
from softkv.errors import DuplicateKey, InputError, KeyMissing, KeyTextError, KindError, ShapeError, StoreError
from softkv.progress import Progress
from softkv.storage import Added, Item
from softkv.storage.catalog.batches import Stamp


class Changes(Upkeep, MutableMapping[str, Value]):
    """A handle that may change the items of a store."""

    _findings: Findings

    @property
    def path(self) -> str:
        """Where the store is: its directory, or its URL."""
        raise NotImplementedError

    def add(
        self,
        keys: str | Sequence[str | None] | Frame | None = None,
        values: Any = None,
        *,
        vectors: Any = None,
        texts: str | Sequence[str | None] | None = None,
        payloads: Any = None,
        key: str | None = None,
        text: str | None = None,
        value: Names = None,
        payload: Names = None,
        vector: Names = None,
        on_conflict: str = "error",
        batch: str | None = None,
        progress: Progress | None = None,
    ) -> Added:
        """Add one item or many, wholly or not at all; when this returns, they are on the disk.

        Args:
            keys: A text, or a list of them, or a frame of pandas, polars, Arrow or duckdb. Without keys, items are
                called #1, #2, and so on.
            values: What is blended: a number, vector, label or text for each item.
            vectors: The key vectors. Otherwise the keys are embedded,
            texts: or these texts, where they are not None.
            payloads: JSON that is carried along and can be filtered by (`where=`).
            key: The column of a frame that holds keys,
            text: the one that is embedded in place of the key,
            value: that of values, or several for vectors,
            payload: those to carry along, as one object; of a column `payload`, the object that it holds; and
            vector: that of key vectors, or several of their numbers; by default they are guessed, as `load` does.
            on_conflict: What a key that is there already means: "error", "replace" or "ignore".
            batch: A name for this call, such as a UUID. Where it was written under this name before, in the last seven
                days, nothing is written and the result is that of then; so it can be sent again after a lost answer.
                The same name with other content is a `BatchMismatch`.
            progress: Called with (done, all) while many texts are embedded.
        """
        columns = framed(self, keys, (key, text, value, payload, vector), (values, vectors, texts, payloads))
        if columns is not None:
            return self.add(**columns, on_conflict=on_conflict, batch=batch, progress=progress)
        return self._added(intake.given(keys, values, vectors, texts, payloads), on_conflict, batch, progress)

    def _added(self, what: intake.Given, on_conflict: str, batch: str | None, progress: Progress | None) -> Added:
        """The result of `add` with these arguments."""
        with self._changing:
            self._store.require_writable()
            named = self._batch_of(what, batch, on_conflict)
            done = self._store.recorded(named)  # before anything is embedded
            if done is not None:
                return done
            self._store.require_finished()
            kept = start = Profile.of(self._store.settings)
            if not len(self._store):  # a temperature by rule suited the items that were deleted
                self._findings.forget()
                start = replace(kept, temperature=kept.chosen_temperature)
            columns, profile = intake.prepared(what, start, self._store.layout, self._embedding, progress)
            settings = profile.settings() if profile != kept else None
            return self._append(**columns, on_conflict=on_conflict, settings=settings, stamp=named)

    load = load

    def _batch_of(self, what: intake.Given, batch: str | None, on_conflict: str) -> Stamp | None:
        """The name of what `add` was given, with its digest; None when it has no name."""
        given = (what.keys, what.values, what.vectors, what.texts)
        return stamp(batch, "add", on_conflict, *given, payloads=what.payloads)

    def _append(self, *given: Any, **options: Any) -> Added:
        added = self._store.append(*given, **options)
        self._settle()
        return added

    def _delete(self, keys: str | Sequence[str], stamp: Stamp | None = None) -> int:
        deleted = self._store.delete(keys, stamp=stamp)
        self._settle()
        return deleted

    def set_values(
        self,
        keys: str | Sequence[str] | None = None,
        values: Any = None,
        *,
        where: Mapping[str, Any] | None = None,
        payloads: Sequence[Any] | None = None,
        expected: Any = None,
        batch: str | None = None,
    ) -> Added:
        """Give items other values, all of them or none. What they are compared by and their texts stay.

        So do their payloads, unless others are given. Instead of keys, `where` names the items that match a filter, and
        `values` is one value for all of them. Where `expected` is given, only if these are the values that the items
        have by now: a value for each, or one where `values` is one. With a `batch` that was written before, nothing is
        written: see `add`.

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
            if where is None:
                what = intake.given(keys, values, None, None, payloads)
                named = stamp(batch, "set_values", what.keys, what.values, expected, payloads=what.payloads)
            else:
                if payloads is not None:
                    raise InputError("expected payloads with keys, got where=, whose items keep theirs. Give keys.")
                named = stamp(batch, "set_values where", [values], expected, payloads=[_asking(keys, where)])
            done = self._store.recorded(named)
            if done is not None:
                return done
            if where is not None:
                found = _named(self._matching(where))
                if not found:
                    return self._store.append_nothing(named)
                what = intake.given(found, [values] * len(found), None, None, None)
            kept = self._items_with(what.keys or [])
            if expected is not None:
                alone = where is not None or isinstance(keys, str)
                self._require_values(named, kept, _for_each(kept, expected) if alone else expected)
            profile = Profile.of(self._store.settings)
            return self._append(
                [one.vector for one in kept],
                what.values,
                keys=what.keys,
                payloads=[one.payload for one in kept] if what.payloads is None else what.payloads,
                texts=[one.text for one in kept],
                value_vectors=intake.embedded_values(what, profile, self._store.layout, self._embedding),
                on_conflict="replace",
                stamp=named,
            )

    def _require_values(self, _named: Stamp | None, items: Sequence[Item], expected: Any) -> None:
        """Refuse a change if items have other values than `expected`, unless its batch was carried out before."""
        require_values(items, expected)

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

    def delete(
        self,
        keys: str | Iterable[str] | None = None,
        *,
        where: Mapping[str, Any] | None = None,
        batch: str | None = None,
    ) -> int:
        """Delete the items with these keys or `#<number>`s, or those that match a filter; returns how many.

        All of them or none. With a `batch` that was written before, nothing is deleted: see `add`.
        """
        return self._dropped([keys] if isinstance(keys, str) else None if keys is None else list(keys), where, batch)

    def _dropped(self, names: list[Any] | None, where: Mapping[str, Any] | None, batch: str | None) -> int:
        self._store.require_writable()
        with self._changing:
            if where is not None:
                named = stamp(batch, "delete where", payloads=[_asking(names, where)])
                return self._delete(self._matching(where), stamp=named)
            if names is None:
                raise InputError("expected keys, or a filter as where=, got neither. `clear` deletes all items.")
            if batch is None:
                return self._delete(names)
            told = sorted(set(names)) if all(isinstance(name, str) for name in names) else names  # a set has no order
            return self._delete(names, stamp=stamp(batch, "delete", told))

    def _matching(self, where: Mapping[str, Any]) -> list[str]:
        """The names of the items that match a filter, in the order of the store."""
        view = self._view()
        return view.snapshot.names(view.order[view.snapshot.matching(where)[view.order]])

    def pop(self, key: str, *default: Any) -> Any:
        """Remove an item and return its value, or the default, if there is no such item and a default is given."""
        with self._changing:  # or another thread might remove or replace the item meanwhile
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
        self._cleared()

    def _cleared(self, batch: str | None = None) -> int:
        """Delete all items, once under this name; returns how many."""
        with self._changing:
            return self._delete(list(self), stamp=stamp(batch, "clear"))

    def popitem(self) -> tuple[str, Value]:
        """Remove the item that was added last, as dict does; returns its key and value."""
        with self._changing:
            last = self._last()
            self._delete(last.name)
            return last.name, last.value

    def _last(self) -> Item:
        """The item that was added last."""
        snapshot = self._view().snapshot
        row = snapshot.last()
        if row is None:
            raise KeyMissing("the store is empty")
        return snapshot.items([row])[0]

    def set_temperature(self, temperature: float | None) -> None:
        """Remember a temperature; None goes back to the one by rule."""
        with self._changing:
            chosen = None
            if temperature is not None:
                chosen = Temperature(checked_temperature(temperature), "given", len(self))
            self._store.configure(replace(Profile.of(self._store.settings), temperature=chosen).settings())


def _asking(keys: object, where: Mapping[str, Any]) -> dict[str, Any]:
    """A filter in the place of keys; refused if it matches everything."""
    if keys is not None:
        raise InputError("expected keys or where=, got both. Give one of them.")
    if not where:
        raise InputError("where={} matches all items; expected a filter that asks something. `clear` deletes all.")
    return {name: _as_json(one) for name, one in where.items()}


def _as_json(part: Any) -> Any:
    """A part of a filter, with lists for tuples and plain numbers for those of NumPy."""
    if isinstance(part, Mapping):
        return {name: _as_json(one) for name, one in part.items()}
    if isinstance(part, (list, tuple)):
        return [_as_json(one) for one in part]
    return part.item() if isinstance(part, np.generic) else part


def _named(keys: list[str]) -> list[str]:
    """The keys of items; refused if one has none, since only items with keys can be given other values."""
    nameless = [key for key in keys if key.startswith("#")]
    if nameless:
        raise KeyTextError(
            f"item {nameless[0]} has no key ({len(nameless)} of {len(keys)} that match have none), and only items with "
            "keys are given other values. Delete it, and add it with a key."
        )
    return keys


def _for_each(items: Sequence[Item], expected: Any) -> Any:
    """Expected values, one for each item, where one may be given for all of them."""
    try:
        one = np.ndim(expected) == np.ndim(items[0].value)
    except (TypeError, ValueError):  # lists within it differ in length
        one = False
    return [expected] * len(items) if one else expected


def require_values(items: Sequence[Item], expected: Any) -> None:
    """Refuse if items have other values than these, or if there is not one for each item."""
    if not intake.is_column(expected):
        raise ShapeError(
            f"expected a list of values to compare with, one for each of {len(items)} keys, got {expected!r:.60}."
        )
    if len(items) != len(expected):
        raise ShapeError(f"expected a value to compare with for each of {len(items)} keys, got {len(expected)}.")
    if len({item.row for item in items}) < len(items):
        raise DuplicateKey("expected each key once where values are compared, got one of them twice.")
    for item, value in zip(items, expected, strict=True):
        held = np.asarray(item.value)
        try:
            sought = np.asarray(value, held.dtype if held.dtype.kind == "f" else None)
        except (TypeError, ValueError, OverflowError) as error:
            raise KindError(f"expected values like those of the store to compare with, got {value!r:.60}.") from error
        if not np.array_equal(held, sought):
            raise StoreError(f"the value of {item.name!r} is another by now, so nothing was written. Read it again.")
