"""A store behind a URL as its users see it: `softkv.open("http://host:7411/store")`.

Changes are sent under the name of a batch, so that a request whose answer was lost is sent again and carried out once.
Long work is a job of the server, whose progress is reported here; an interrupt here cancels it there.

Does not send requests itself (connection.py); methods that read are in reading.py.
"""

import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from softkv.asking.embedding import AnyEmbedder
from softkv.asking.profile import Profile
from softkv.database import intake
from softkv.database.changes import Changes
from softkv.database.reader import Value
from softkv.database.upkeep import Upkeep
from softkv.doors import hints
from softkv.doors.remote.connection import SILENCE, ServerConnection
from softkv.doors.remote.loading import Unfiled, name_of
from softkv.doors.remote.reading import RemoteReader, RemoteView
from softkv.doors.remote.sending import sendable, sent
from softkv.doors.server.problems import error_of
from softkv.doors.shapes import fits
from softkv.errors import KeyMissing, KeyTextError, NotRemote, OutOfReach, ServerError, ServerUnreachable, SoftKVError
from softkv.kinds import ValueKind
from softkv.progress import Progress, Stages
from softkv.storage import Added, Backup, Report
from softkv.storage.batch import checked_json, checked_key
from softkv.storage.catalog.batches import Stamp
from softkv.storage.closing import Closing

_THERE = "Open it by its path, on the machine where it is, before it is served."
_WORKS = {"build_index", "tune", "fit", "guard", "compact"}
_CALLS = {
    "set_temperature": ("PUT", "temperature"),
    "drop_index": ("DELETE", "index"),
    "forget_fit": ("DELETE", "fit"),
    "forget_guard": ("DELETE", "guard"),
    "abandon_reembedding": ("DELETE", "reembedding"),
}
_JOB = {"state": Literal["waiting", "running", "done", "failed", "cancelled"]}
_ENDED = {**_JOB, "result": Any, "problem": Any}
_PROGRESS = {"stage": str, "done": int, "all": int}


def connected(
    url: str,
    mode: str,
    token: str | None,
    *,
    value: str | None,
    compatibility: str | None,
    temperature: float | None,
    embedder: AnyEmbedder,
    force: bool,
    wait: float,
    alone: bool,
) -> "RemoteStore":
    """The store at a URL; options that can only be used where its files are, are refused.

    A cluster that cannot say what it is, since shards are out of reach, is opened where nothing depends on that.
    """
    if mode not in ("c", "r", "w") or force:
        raise NotRemote(
            f"expected mode 'c', 'r' or 'w', and no force, for a store behind a URL, got {mode!r}. {_THERE}"
        )
    wishes: dict[str, Any] = {"value": value, "compatibility": compatibility, "temperature": temperature}
    connection = ServerConnection(url, token, alone=alone, wait=wait)
    try:
        info = RemoteReader(connection).info()
        with connection.believing():
            kept = Profile(ValueKind(info.value_kind) if info.value_kind else None, info.compatibility)
        wanted = kept.wishing(**wishes, items=info.items)
        if wanted != kept or embedder not in (None, info.embedder):
            raise NotRemote(f"value, compatibility, embedder and temperature are decided where a store is. {_THERE}")
    except BaseException as error:
        if not isinstance(error, OutOfReach) or any(one is not None for one in (*wishes.values(), embedder)):
            connection.close()
            raise
    return RemoteStore(connection, writes=mode != "r")


class RemoteStore(Closing, RemoteReader, Changes):
    """A soft key-value store that a server owns. Made by `softkv.open`; use it as a context manager, or close it."""

    def __init__(self, connection: ServerConnection, *, writes: bool) -> None:
        super().__init__(connection)
        self._closed, self._changing = False, threading.RLock()
        self._store: Any = Unfiled(RemoteReader(connection), writes=writes)

    def snapshot(self) -> RemoteView:
        """The store as it is now, to read whatever is written meanwhile; it lasts a minute after each use."""
        return self._frozen()

    # Items

    def _write(self, method: str, path: str, document: Any, batch: str | None = None) -> Any:
        """The result of a change, however often it has to be sent."""
        self._store.require_writable()
        return self._ask(method, path, document | {"batch": str(uuid.uuid4()) if batch is None else batch})

    def _sent(self, name: str, told: Any, given: dict[str, Any]) -> Any:
        if name in _WORKS:
            self._store.require_writable()
            return self._job(name, told, given, given.pop("progress", None))
        if name in _CALLS:
            self._store.require_writable()
            return self._ask(*_CALLS[name], given or None, told)
        if name == "set_values":
            return self._write("PATCH", "items", {"values": None, **given}, given.pop("batch", None))
        return super()._sent(name, told, given)

    def _added(self, what: intake.Given, on_conflict: str, batch: str | None, progress: Progress | None) -> Added:
        """The result of adding items, in one request, wholly or not at all; too many for a request are refused."""
        for place, payload in enumerate(what.payloads or []):
            checked_json(payload, f"payload {place}")
        given = {"keys": what.keys, "values": what.values, "vectors": _matrix(what.vectors), "texts": what.texts}
        document = {name: sendable(name, one) for name, one in given.items() if one is not None}
        document |= {"payloads": what.payloads, "on_conflict": on_conflict}
        named: Any = batch  # that of `load` is more than a name
        added: Added = self._write("POST", "items", document, name_of(named) if isinstance(named, Stamp) else batch)
        if progress is not None:
            progress(added.count, added.count)
        return added

    set_values = sent(Changes.set_values)

    def _dropped(self, names: list[Any] | None, where: Mapping[str, Any] | None, batch: str | None) -> int:
        document = {"keys": names, "where": sendable("where", where)}
        return int(self._write("POST", "items/delete", document, batch)["deleted"])

    def pop(self, key: str, *default: Any) -> Any:
        """Remove an item and return its value, or the default, if there is one."""
        try:
            if not isinstance(key, str):
                checked_key(key)
            return self._write("POST", "items/pop", {"key": key})["value"]
        except (KeyMissing, KeyTextError):
            if default:
                return default[0]
            raise

    def setdefault(self, key: str, default: Value = None) -> Value:
        """The value of a key, which is added with this one if it is not there."""
        if key not in self:
            self.add(key, default, on_conflict="ignore")
        return self[key]

    def popitem(self) -> tuple[str, Value]:
        """Remove the item that was added last; returns its key and value."""
        found = self._write("POST", "items/pop", {"key": None})
        return found["key"], found["value"]

    def clear(self) -> None:
        """Delete all items, in one commit."""
        self._write("POST", "items/clear", {})

    set_temperature = sent(Changes.set_temperature)

    # Upkeep

    build_index = sent(Upkeep.build_index)
    tune = sent(Upkeep.tune)
    fit = sent(Upkeep.fit)
    guard = sent(Upkeep.guard)
    compact = sent(Upkeep.compact)
    forecast_index = sent(Upkeep.forecast_index)
    drop_index = sent(Upkeep.drop_index)
    forget_fit = sent(Upkeep.forget_fit)
    forget_guard = sent(Upkeep.forget_guard)
    abandon_reembedding = sent(Upkeep.abandon_reembedding)

    def reembed(self, embedder: AnyEmbedder = None, *, progress: Progress | None = None) -> int:
        """Embed all items again with the model that the server was started with; returns how many."""
        if embedder is not None:
            raise NotRemote("a server embeds with its own model: `softkv serve --model NAME`. Leave out embedder.")
        self._store.require_writable()
        count: int = self._job("reembed", int, {}, _told(progress))
        return count

    def check(self, *, at_least: int | None = None) -> Report:
        """Let the server compare everything on its disk with everything else."""
        found: Report = self._job("check", Report, {"at_least": at_least}, None)
        return found

    def backup(self, directory: None = None, *, force: bool = False, progress: Progress | None = None) -> Backup:
        """Copy the store into the folder for backups that the server was started with."""
        if directory is not None or force:
            raise NotRemote("a server copies into a folder of its own: `softkv serve --backups DIR`. Leave out yours.")
        made: Backup = self._job("backup", Backup, {}, _told(progress))
        return made

    def _job(self, work: str, told: Any, options: dict[str, Any], progress: Stages | None) -> Any:
        """The result of long work of the server, which is cancelled if waiting for it is interrupted."""
        name = uuid.uuid4().hex  # under which it is started once, however often it has to be sent
        where, job = f"jobs/{name}", dict[str, Any](state="waiting")
        try:
            self._ask("POST", "jobs", {"work": work, "options": options, "id": name}, _JOB)
            while job["state"] in ("waiting", "running"):
                with suppress(ServerUnreachable):  # as it may be for a moment, while the work goes on
                    self._watch(f"{where}/events", progress)
                job = self._ended(work, where)
        except ServerUnreachable:
            raise
        except BaseException:
            with suppress(SoftKVError):
                self._ask("DELETE", where, told=_JOB)
            raise
        hints.give(job.get("hints"))
        if job["state"] == "done":
            self._connection.require(fits(job["result"], told))
            return job["result"]
        raise error_of(job["problem"]) if job["problem"] else ServerError(f"{work} was cancelled by somebody else.")

    def _ended(self, work: str, where: str) -> Any:
        """How far a job is, or what came of it; an error where the server knows of none."""
        try:
            return self._ask("GET", where, told=_ENDED)
        except KeyMissing as error:
            raise ServerError(
                f"the server at {self.path} was started anew while `{work}` ran, and cannot tell what came of it. The "
                "store is as before it, or as after it. Call it again."
            ) from error

    def _watch(self, path: str, told: Stages | None) -> None:
        with self._connection.stream(path, silence=SILENCE) as pieces:
            for progress in self._news(pieces):
                if told is not None and progress is not None:
                    told(progress["stage"], progress["done"], progress["all"])

    def _news(self, pieces: Iterator[bytes]) -> Iterator[dict[str, Any] | None]:
        """The progress in the events of a job, as they arrive."""
        begun = b""
        for piece in pieces:
            *lines, begun = (begun + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    with self._connection.believing():
                        progress = json.loads(line[5:])["progress"]
                    self._connection.require(progress is None or fits(progress, _PROGRESS))
                    yield progress

    def close(self) -> None:
        """Close the handle; the server goes on."""
        self._closed = True
        self._connection.close()

    def __repr__(self) -> str:
        return f"<RemoteStore {self.path!r}>"


def _matrix(vectors: Any) -> Any:
    """Vectors as one array if they can be, which takes a fraction of the room of lists."""
    if vectors is None or hasattr(vectors, "dtype"):
        return vectors
    try:
        array = np.asarray(vectors)
    except (TypeError, ValueError, RuntimeError):
        return vectors  # the library says what is wrong with them
    return array if array.dtype.kind in "fiu" else vectors


def _told(progress: Progress | None) -> Stages | None:
    return None if progress is None else lambda _stage, done, whole: progress(done, whole)
