"""Methods that read a store through its server, at its newest commit or as of a snapshot.

Lookups are answered there; iterations fetch page by page, all of one commit.

Does not send requests itself (connection.py), and changes nothing (handle.py).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice, takewhile
from types import NoneType
from typing import Any, Literal, NoReturn

from softkv.answer import Answer, Answers
from softkv.asking.given import place_of, require_one
from softkv.database.reader import Reader, Value
from softkv.database.summary import Info
from softkv.doors.remote.columns import RemoteColumns
from softkv.doors.remote.connection import ServerConnection, quoted
from softkv.doors.remote.sending import sent
from softkv.errors import NotRemote, SoftKVError
from softkv.files.exports import disk
from softkv.files.exports.formats import suffix_of
from softkv.maths.heads import Heads
from softkv.ndarrays import AnyArray
from softkv.page import FIELDS, write
from softkv.storage import Added, Item
from softkv.storage.batch import checked_key
from softkv.storage.closing import Closing

ROOM, OF_CHARACTER = 8 << 20, 6  # bytes of the keys of a request, about; and of a character in JSON, at most
_TOLD: dict[str, Any] = {  # the type of the answer, by path
    "brief": {"items": int, "value_kind": Literal["number", "vector", "label", "text", None]},
    "info": Info,
    "snapshots": {"snapshot": str, "commit": int},
    "items": Added,
    "items/delete": {"deleted": int},
    "items/clear": {"deleted": int},
    "items/pop": {"key": str, "value": Any},
}


class RemoteReader(Reader):
    """A store to read through its server: a Mapping, and the ways to look things up."""

    def __init__(self, connection: ServerConnection, headers: Mapping[str, str] | None = None) -> None:
        self._connection, self._headers = connection, headers or {}

    @property
    def path(self) -> str:
        """The URL of the store."""
        return self._connection.url

    def _ask(self, method: str, path: str, document: Any = None, told: Any = None) -> Any:
        return self._connection.ask(method, path, told or _TOLD[path], document, headers=self._headers)

    def _sent(self, name: str, told: Any, given: dict[str, Any]) -> Any:
        """What the server says to these arguments of a method, which returns what is `told` by its annotation."""
        if name == "compare":
            require_one("query" in given)
        if told is Any:
            told = Answer if "query" in given else Answers
        progress = given.pop("progress", None)
        found = self._ask("POST", name, given, told)
        if progress is not None:
            progress(name, 1, 1)
        return found

    def _view(self) -> NoReturn:
        raise NotRemote("this works on the files of a store. Open it by its path, on the machine where it is.")

    def _frozen(self) -> "RemoteView":
        """The store as of one commit."""
        return RemoteView(self._connection)

    lookup = sent(Reader.lookup)
    nearest = sent(Reader.nearest)
    compare = sent(Reader.compare)
    self_attention = sent(Reader.self_attention)
    evaluate = sent(Reader.evaluate)
    scene = sent(Reader.scene)

    # By key

    def __getitem__(self, key: str) -> Value:
        return self._got({"keys": [key]})[0][0]

    def _got(self, wanted: dict[str, Any]) -> tuple[list[Any], list[bool]]:
        """The value or item of each of some keys, and whether it is missing; all of one commit, page by page."""
        for key in wanted["keys"]:
            if not isinstance(key, str):
                checked_key(key)
        whole, keys, found, missing = "whole" in wanted, wanted["keys"], list[Any](), list[bool]()
        what = {"items": list[Item | None]} if whole else {"values": list[Any] | AnyArray}
        reader: RemoteReader = self
        while len(found) < len(keys):
            asked = _fitting(keys, len(found))
            page = reader._ask("POST", "items/get", wanted | {"keys": asked}, {**what, "missing": list[bool]})
            some = page["items" if whole else "values"]
            self._connection.require(0 < len(some) == len(page["missing"]) <= len(asked))
            if len(found) + len(some) < len(keys) and reader is not (frozen := reader._frozen()):
                reader = frozen  # the first page is asked for again: there may have been a commit since
                continue
            found.extend(some)
            missing.extend(page["missing"])
        return found, missing

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default, also for what could not be a key."""
        return self.get_many([key], default)[0]

    def _found(self, keys: list[Any]) -> dict[str, Value]:
        texts = [key for key in keys if isinstance(key, str)]
        told = zip(texts, *self._got({"keys": texts, "default": None}), strict=True)
        return {key: value for key, value, missing in told if not missing}

    def _pairs(self) -> Iterator[tuple[str, Value]]:
        return ((one["key"], one["value"]) for one in self._selected())

    def _each_value(self) -> Iterator[Value]:
        return (value for _, value in self._pairs())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key, self) is not self

    def __iter__(self) -> Iterator[str]:
        return (one["key"] for one in self._selected())

    def __len__(self) -> int:
        return int(self._ask("GET", "brief")["items"])

    def item(self, key: str) -> Item:
        """Everything about the item with this key or `#<number>`: value, payload, key vector, embedded text."""
        found: Item = self._got({"keys": [key], "whole": True})[0][0]
        return found

    def select(
        self, where: Mapping[str, Any] | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[Item]:
        """The items in their order whose payload matches `where`, from the one at `start` to that before `stop`."""
        first, last = place_of(start, "start") or 0, place_of(stop, "stop")
        if first < 0 or (last is not None and last < 0):  # counted from the end, which only the server knows
            return iter(list(self._selected(where=where, whole=True))[first:last])
        return self._selected(where=where, start=first, stop=last, whole=True)

    def _selected(self, *, start: int = 0, **wanted: Any) -> Iterator[Any]:
        """Items page by page, all of the commit that is the newest when this is called."""
        view, given = self._frozen(), {name: one for name, one in wanted.items() if one is not None}
        told = {"items": [Item if "whole" in wanted else {"key": str, "value": Any}], "next": int | None}

        def fetch(place: int) -> Any:
            return view._ask("POST", "items/select", given | {"start": place}, told)

        return (one for page in view._connection.pages(start, fetch) for one in page["items"])

    def columns(self) -> RemoteColumns:
        """All items as arrays, block by block, for models that take them up whole."""
        view = self._frozen()
        return RemoteColumns.behind(view._connection, partial(view._ask, "POST", "columns"))

    # About the store

    @property
    def value_kind(self) -> str | None:
        """What values are: "number", "vector", "label" or "text"; None while nothing has decided it."""
        kind: str | None = self._ask("GET", "brief")["value_kind"]
        return kind

    def info(self) -> Info:
        """What the store is: items, widths, kind, how it compares, its embedder, its temperature; its path is a URL."""
        found: Info = self._ask("GET", "info")
        return replace(found, path=self.path)

    def export(
        self, path: str | os.PathLike[str], *, force: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Write everything to one local file, .jsonl, .parquet, .npz or .csv; returns how many items."""
        target = disk.place(path)
        suffix = suffix_of(target)
        disk.require_free(target, store=None, force=force)
        frozen = self._frozen()
        count, where = len(frozen), f"export?format={suffix[1:]}"
        with frozen._connection.stream(where, frozen._headers) as pieces, disk.written(target, force=force) as file:
            for piece in pieces:
                file.write(piece)
        if progress is not None:
            progress(count, count)
        return count

    def page(
        self,
        path: str | os.PathLike[str],
        items: int = 2000,
        queries: Any = (),
        *,
        heads: Heads | None = None,
        force: bool = False,
    ) -> int:
        """Write a local HTML file that shows how lookups come about, as `page` of a local handle does."""
        found = self.scene(items, queries, heads=heads) | {"name": self.path}
        scene = {name: found[name] for name in FIELDS if name in found}
        self._connection.require(isinstance(scene.get("numbers"), list))
        write({"scenes": [scene]}, path, store=None, force=force)
        return len(scene["numbers"])


def _fitting(keys: list[Any], start: int) -> list[Any]:
    """The keys from one on that fit into a request, one at least."""
    sizes = accumulate(OF_CHARACTER * len(key) + 4 for key in islice(keys, start, None))
    return keys[start : start + max(1, sum(1 for _ in takewhile(ROOM.__ge__, sizes)))]


class RemoteView(Closing, RemoteReader):
    """A store as of one commit, on loan for a minute after each use. Close it, or use it as a context manager."""

    def __init__(self, connection: ServerConnection) -> None:
        found = connection.ask("POST", "snapshots", _TOLD["snapshots"])
        self._name, self.commit, self._closed = quoted(found["snapshot"]), found["commit"], False
        super().__init__(connection, {"Softkv-Snapshot": self._name})

    def _frozen(self) -> "RemoteView":
        return self

    def close(self) -> None:
        """Let the server close the snapshot; nothing is left to do if it did so already, or has ended."""
        if not self._closed:
            self._closed = True
            with suppress(SoftKVError):
                self._ask("DELETE", f"snapshots/{self._name}", told=NoneType)

    def __del__(self) -> None:
        if not self._closed:
            self._connection.left.append(self._name)  # the next request releases it: nothing may be sent from here
