"""A model of a disk: what is durable after some calls of the operating system, and what only may be.

It promises no more than POSIX does. The content of a file is durable once the file was synced, a name once its
directory was, and not before: syncing a file does not make its name durable. Until then every page of a file may be as
it was at any time since the last sync, its length too, and every change of names may have happened or not, in any
order. A rename is one change, and so is cutting a file off: what was cut away is there wholly or gone.

Does not choose among what may be (outages.py). What is written through a memory map is not seen here, so such a file
is never durable.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.crash.calls import Call

PAGE, SECTOR = 4096, 512
DELETED = " (deleted)"  # behind the path of a file that was removed while it was open
_SHARED_WRITABLE = 0x102  # PROT_WRITE, and shared: see Call.flags

Tree = dict[str, bytes | None]  # what lies below a folder: bytes of files, None for directories


@dataclass(eq=False)
class File:
    """A file, whatever it is called: its content now, and what its pages and its length were since the last sync.

    Time is counted in lengths: 0 is the last sync, and every change of the length begins another time.
    """

    name: str  # what it was called last
    content: bytearray = field(default_factory=bytearray)
    lengths: list[int] = field(default_factory=lambda: [0])  # by time
    pages: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)  # versions with their times, oldest first
    shorter: list[int] = field(default_factory=list)  # the times that began with cutting it off
    mapped: bool = False  # whether somebody may write to it through memory

    @property
    def now(self) -> int:
        """The time of the last change."""
        return len(self.lengths) - 1

    @property
    def unsynced(self) -> bool:
        """Whether losing the power may change it."""
        return bool(self.pages) or self.now > 0 or self.mapped

    def write(self, offset: int, data: bytes) -> None:
        """Write, perhaps beyond the end."""
        end = offset + len(data)
        with _Change(self, offset, end):
            self.content.extend(bytes(max(0, end - len(self.content))))
            self.content[offset:end] = data

    def truncate(self, length: int) -> None:
        """Cut off, or fill up with zeros."""
        with _Change(self, min(length, len(self.content)), len(self.content)):
            if length < len(self.content):
                self.shorter.append(len(self.lengths))
            del self.content[length:]
            self.content.extend(bytes(length - len(self.content)))

    def sync(self) -> None:
        """What is there now is durable."""
        self.pages.clear()
        self.shorter.clear()
        self.lengths = [len(self.content)]

    def page(self, number: int) -> bytes:
        """A page as it is now, with zeros behind the end."""
        return bytes(self.content[number * PAGE : (number + 1) * PAGE]).ljust(PAGE, b"\0")

    def versions(self, number: int, time: int) -> list[bytes]:
        """What a changed page may hold when the length is that of this time: the first is what it held unwritten.

        A page is written any time after its change and before it is cut away, but is never seen beyond that.
        """
        since, until = (
            self.cut(number, time)[0],
            min((cut for cut in self._cuts(number) if cut > time), default=1 << 60),
        )
        return [page for written, page in self.pages[number] if since <= written < until] or [bytes(PAGE)]

    def cut(self, number: int, time: int) -> tuple[int, int]:
        """When a page was last cut away or into, at this time or before, and where the file ended then."""
        since = max((cut for cut in self._cuts(number) if cut <= time), default=0)
        return since, self.lengths[since]

    def _cuts(self, number: int) -> list[int]:
        return [time for time in self.shorter if self.lengths[time] < min(self.lengths[time - 1], (number + 1) * PAGE)]

    def state(self, pages: Mapping[int, bytes], length: int) -> bytes:
        """The content with these pages as given, the others as they are, and this length."""
        found = bytearray(self.content).ljust(length, b"\0")
        for number, page in pages.items():
            end = min(length, (number + 1) * PAGE)
            if number * PAGE < end:
                found[number * PAGE : end] = page[: end - number * PAGE]
        return bytes(found[:length])


class _Change:
    """Around a change of these bytes of a file: keeps what was there before, and what is there after."""

    def __init__(self, file: File, start: int, end: int) -> None:
        self._file = file
        self._numbers = range(start // PAGE, -(-end // PAGE)) if end > start else range(0)

    def __enter__(self) -> None:
        for number in self._numbers:
            self._file.pages.setdefault(number, [(0, self._file.page(number))])

    def __exit__(self, *exception: object) -> None:
        if len(self._file.content) != self._file.lengths[-1]:
            self._file.lengths.append(len(self._file.content))
        for number in self._numbers:
            self._file.pages[number].append((self._file.now, self._file.page(number)))


@dataclass(eq=False)
class Directory:
    """A directory: the names in it now, and those that are durable."""

    entries: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)


Node = File | Directory


@dataclass(frozen=True)
class Edit:
    """One name that leads to something from now on, or to nothing."""

    directory: Directory
    name: str
    node: Node | None


@dataclass(frozen=True, eq=False)
class NameChange:
    """A change of names that is not durable yet, and happens wholly or not at all."""

    number: int  # of the call
    what: str
    edits: tuple[Edit, ...]


class Disk:
    """What lies below one folder after some calls. What is there at the beginning is durable."""

    def __init__(self, beginning: Tree | None = None) -> None:
        self.root = Directory()
        self.changes: list[NameChange] = []  # of names, in their order
        self._known: dict[str, Node] = {"": self.root}  # what a path led to last, for those who have it open still
        for path, content in sorted((beginning or {}).items()):
            node: Node = Directory() if content is None else File(path, bytearray(content), lengths=[len(content)])
            parent, name = self._parent(path)
            parent.entries[name] = parent.durable[name] = self._known[path] = node

    def replay(self, calls: Iterable[Call]) -> "Disk":
        """Let these calls happen."""
        for call in calls:
            self.apply(call)
        return self

    def apply(self, call: Call) -> None:
        """Let one call happen; one that failed changed nothing, but for the part that was written."""
        if call.error and call.name != "write":
            return
        apply = getattr(self, f"_{call.name}", None)
        if apply is not None:
            apply(call)

    def files(self) -> list[File]:
        """All files that may be found after the power is lost, each once, in the order of their names."""
        found: dict[File, None] = {}
        waiting: list[Node] = [self.root, *(edit.node for one in self.changes for edit in one.edits if edit.node)]
        seen = set()
        while waiting:
            node = waiting.pop()
            if isinstance(node, File):
                found[node] = None
            elif node not in seen:
                seen.add(node)
                waiting += [*node.entries.values(), *node.durable.values()]
        return sorted(found, key=lambda file: file.name)

    def tree(self, happened: Iterable[NameChange], contents: Mapping[File, bytes | None]) -> Tree:
        """What is found when these changes of names have happened, and files hold this; None is a file that is gone.

        Files of which nothing is said are as they are now.
        """
        names: dict[Directory, dict[str, Node]] = {}
        for change in sorted(happened, key=lambda change: change.number):
            for edit in change.edits:
                entries = names.setdefault(edit.directory, dict(edit.directory.durable))
                entries.pop(edit.name, None)
                if edit.node is not None:
                    entries[edit.name] = edit.node
        found: Tree = {}
        for path, node in _walk(self.root, names, ""):
            if isinstance(node, Directory):
                found[path] = None
            elif (content := contents.get(node, node.content)) is not None:
                found[path] = bytes(content)
        return found

    # What calls do

    def _open(self, call: Call) -> None:
        parent, name = self._parent(call.path)
        found = parent.entries.get(name)
        if found is None and call.flags & os.O_CREAT:
            self._change(call, Edit(parent, name, File(call.path)))
        elif isinstance(found, File) and call.flags & os.O_TRUNC:
            found.truncate(0)

    def _write(self, call: Call) -> None:
        if call.data:
            self._file(call).write(call.offset, call.data)

    def _truncate(self, call: Call) -> None:
        self._file(call).truncate(call.length)

    def _mmap(self, call: Call) -> None:
        if call.flags & _SHARED_WRITABLE == _SHARED_WRITABLE:
            self._file(call).mapped = True

    def _fsync(self, call: Call) -> None:
        node = self._node(call.path)
        if isinstance(node, File):
            node.sync()
            return
        settled = [change for change in self.changes if any(edit.directory is node for edit in change.edits)]
        for change in settled:
            for edit in change.edits:
                edit.directory.durable.pop(edit.name, None)
                if edit.node is not None:
                    edit.directory.durable[edit.name] = edit.node
        self.changes = [change for change in self.changes if change not in settled]

    _fdatasync = _fsync

    def _mkdir(self, call: Call) -> None:
        self._change(call, Edit(*self._parent(call.path), Directory()))

    def _unlink(self, call: Call) -> None:
        self._known[call.path + DELETED] = self._node(call.path)
        self._change(call, Edit(*self._parent(call.path), None))

    _rmdir = _unlink

    def _rename(self, call: Call) -> None:
        node, (parent, name) = self._node(call.path), self._parent(call.target)
        if name in parent.entries:
            self._known[call.target + DELETED] = parent.entries[name]
        self._change(call, Edit(*self._parent(call.path), None), Edit(parent, name, node))
        self._rename_below(call.path, call.target, node)

    # What paths mean

    def _rename_below(self, old: str, new: str, node: Node) -> None:
        self._known[new] = node
        if isinstance(node, File):
            node.name = new
            return
        for name, below in node.entries.items():
            self._rename_below(f"{old}/{name}", f"{new}/{name}", below)

    def _change(self, call: Call, *edits: Edit) -> None:
        for edit in edits:
            edit.directory.entries.pop(edit.name, None)
            if edit.node is not None:
                edit.directory.entries[edit.name] = edit.node
        if len(edits) == 1 and edits[0].node is not None:
            self._known[call.path] = edits[0].node
        to = f" to {call.target}" if call.target else ""
        self.changes.append(NameChange(call.number, f"{call.name} {call.path}{to}", edits))

    def _parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        parent = self._node(above)
        assert isinstance(parent, Directory), path
        return parent, name

    def _node(self, path: str) -> Node:
        node: Node | None = self.root
        for name in path.split("/") if path else []:
            node = node.entries.get(name) if isinstance(node, Directory) else None
        # A file that was renamed or removed may still be open, under the name that it had.
        return node if node is not None else self._known[path]

    def _file(self, call: Call) -> File:
        node = self._node(call.path)
        assert isinstance(node, File), call
        return node


def _walk(
    directory: Directory, names: Mapping[Directory, Mapping[str, Node]], below: str
) -> Iterator[tuple[str, Node]]:
    for name, node in names.get(directory, directory.durable).items():
        path = f"{below}/{name}" if below else name
        yield path, node
        if isinstance(node, Directory):
            yield from _walk(node, names, path)
