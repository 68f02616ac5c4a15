"""What a disk may hold after the power is lost: the states that would hurt most first, then others by chance.

A state says of every change of names whether it happened, and of every file what is in it: each page in a version that
it had since the last sync, or torn between two of them at the end of a sector; a length that it had, or one between;
and where the file had grown but a page was not written yet, zeros or garbage.

Does not know what lies in the files, but for the names of the catalog's, which the others must never be behind.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.crash.disk import PAGE, SECTOR, Disk, File, NameChange, Tree

Fate = Callable[[File], bytes | None]  # what becomes of a file
_CATALOG = "catalog.sqlite"


# What may become of one file


def old(file: File) -> bytes:
    """Nothing since the last sync is there."""
    return file.state({number: file.versions(number, 0)[0] for number in file.pages}, file.lengths[0])


def new(file: File) -> bytes:
    """All of it is there."""
    return bytes(file.content)


def grown(file: File, garbage: Random | None = None) -> bytes:
    """No page is written, but the file has its new length, with zeros or garbage behind what was durable."""
    return file.state({number: _unwritten(file, number, file.now, garbage) for number in file.pages}, file.lengths[-1])


def without(file: File, number: int, garbage: Random | None, sectors: range = range(PAGE // SECTOR)) -> bytes:
    """All is there but one page, or these sectors of it."""
    page = _torn(file.page(number), _unwritten(file, number, file.now, garbage), sectors)
    return file.state({number: page}, file.lengths[-1])


def only(file: File, number: int) -> bytes:
    """Of all that was written only one page is there, and the length."""
    pages = {one: file.versions(one, file.now)[-1 if one == number else 0] for one in file.pages}
    return file.state(pages, file.lengths[-1])


def as_long_as(file: File, time: int, length: int) -> bytes:
    """All pages are there, as far as the file reached at some time."""
    return file.state({number: file.versions(number, time)[-1] for number in file.pages}, length)


def drawn(file: File, random: Random) -> bytes:
    """Every page for itself, and the length."""
    time = random.choice([0, file.now, random.randint(0, file.now)])
    written, torn, garbage = random.random(), random.choice([0, 0, 0.3]), random.choice([None, random])
    pages = {}
    for number in file.pages:
        versions = [_unwritten(file, number, time, garbage), *file.versions(number, time)[1:]]
        page = versions[-1] if random.random() < written else random.choice(versions)
        if random.random() < torn:
            sectors = [sector for sector in range(PAGE // SECTOR) if random.random() < 0.5]
            page = _torn(page, random.choice(versions), sectors)
        pages[number] = page
    return file.state(pages, _length(file, time, random))


def _length(file: File, time: int, random: Random) -> int:
    """The length at some time, or one on the way to the next where it grows."""
    length = file.lengths[time]
    following = file.lengths[time + 1] if time < file.now else length
    return random.randint(length, following) if following > length and random.random() < 0.5 else length


def memory(file: File, random: Random, stale: bytes | None) -> bytes | None:
    """Of a file written through a memory map nothing is promised: it may be gone, or hold anything."""
    length = max(len(file.content), PAGE)
    return random.choice([None, stale, bytes(file.content), bytes(length), random.randbytes(length)])


def _unwritten(file: File, number: int, time: int, garbage: Random | None) -> bytes:
    """A page of which nothing was written, with what may stand behind the end that the file had."""
    page, end = file.versions(number, time)[0], max(0, min(PAGE, file.cut(number, time)[1] - number * PAGE))
    return page if garbage is None else page[:end] + garbage.randbytes(PAGE - end)


def _torn(page: bytes, other: bytes, sectors: "range | list[int]") -> bytes:
    """A page with these sectors from another version."""
    pieces = [(other if one in sectors else page)[one * SECTOR : (one + 1) * SECTOR] for one in range(PAGE // SECTOR)]
    return b"".join(pieces)


# What may become of all


@dataclass(frozen=True, eq=False)
class Outage:
    """One way to lose the power: the changes of names that happened, and what becomes of files that were not synced."""

    what: str
    happened: tuple[NameChange, ...]
    others: Fate
    fates: Mapping[File, Fate] = field(default_factory=dict)

    def tree(self, disk: Disk, random: Random, stale: bytes | None = None) -> Tree:
        """What is found afterwards. `stale` is what a memory map may have left in its file."""
        contents = {
            file: memory(file, random, stale) if file.mapped else self.fates.get(file, self.others)(file)
            for file in disk.files()
            if file.unsynced
        }
        return disk.tree(self.happened, contents)


def outages(disk: Disk, random: Random, count: int) -> Iterator[Outage]:
    """This many ways to lose the power now: the worst come first, and a third at least is by chance."""
    broad, narrow = list(worst(disk, random)), list(fine(disk, random))
    room = count - count // 3
    if len(broad) + len(narrow) > room:
        random.shuffle(broad)
        random.shuffle(narrow)
        half = max(room // 2, room - len(narrow))
        broad, narrow = broad[:half], narrow[: room - half]
    yield from broad + narrow
    if disk.changes or any(file.unsynced for file in disk.files()):
        for _ in range(count - len(broad) - len(narrow)):
            yield chance(disk, random)


def chance(disk: Disk, random: Random) -> Outage:
    """Any state, all files and changes for themselves."""
    share = random.choice([0.1, 0.5, 0.9, 1.0])
    happened = tuple(change for change in disk.changes if random.random() < share)
    fates = [partial(drawn, random=random)] * 3 + [old, new]
    return Outage("chance", happened, old, {file: random.choice(fates) for file in disk.files()})


def worst(disk: Disk, random: Random) -> Iterator[Outage]:
    """The states that somebody would pick who wants to do harm: whole files and names, one before the other."""
    names, files = tuple(disk.changes), [file for file in disk.files() if file.unsynced and not file.mapped]
    garbage = partial(grown, garbage=random)
    for what, happened, fate in (
        ("all old", (), old),
        ("all new", names, new),
        ("only names new", names, old),
        ("names and lengths new, pages zero", names, grown),
        ("names and lengths new, pages garbage", names, garbage),
        ("only contents new", (), new),
    ):
        yield Outage(what, happened, fate)
    yield from _apart(names, files, garbage)
    for change in names:
        yield Outage(f"only {change.what}", (change,), new)
        yield Outage(f"without {change.what}", tuple(one for one in names if one is not change), new)


def fine(disk: Disk, random: Random) -> Iterator[Outage]:
    """The states in which one page of one file, or its length, is not like the rest."""
    for file in disk.files():
        if file.unsynced and not file.mapped:
            yield from _by_page(file, tuple(disk.changes), random)
            yield from _by_length(file, tuple(disk.changes), random)


def _apart(names: tuple[NameChange, ...], files: list[File], garbage: Fate) -> Iterator[Outage]:
    """Some files new, the others old: the catalog before the rest, each before the others, and the reverse."""
    catalog = [file for file in files if _CATALOG in file.name]
    rest = [file for file in files if file not in catalog]
    groups = [("the catalog", catalog), ("all but the catalog", rest), *((file.name, [file]) for file in files)]
    for what, group in groups:
        ahead: Mapping[File, Fate] = dict.fromkeys(group, new)
        yield Outage(f"only {what} new", names, old, ahead)
        yield Outage(f"only {what} new, others zero", names, grown, ahead)
        yield Outage(f"only {what} new, others garbage", names, garbage, ahead)


def _by_page(file: File, names: tuple[NameChange, ...], random: Random) -> Iterator[Outage]:
    """Each page alone is missed, in part or whole, or is all there is."""
    for number in sorted(file.pages, reverse=True):
        cut, garbage = random.randrange(1, PAGE // SECTOR), random.choice([None, random])
        missed = partial(without, number=number, garbage=garbage)
        fates: list[tuple[str, Fate]] = [
            ("without", missed),
            (f"behind sector {cut} without", partial(missed, sectors=range(cut, PAGE // SECTOR))),
            (f"before sector {cut} without", partial(missed, sectors=range(cut))),
            ("only", partial(only, number=number)),
        ]
        for what, fate in fates:
            yield Outage(f"{what} page {number} of {file.name}", names, new, {file: fate})
        yield Outage(f"alone page {number} of {file.name}", names, old, {file: partial(only, number=number)})


def _by_length(file: File, names: tuple[NameChange, ...], random: Random) -> Iterator[Outage]:
    """The lengths that it had, and some between them."""
    for time in range(len(file.lengths)):
        for length in {file.lengths[time], _length(file, time, random)}:
            fate = partial(as_long_as, time=time, length=length)
            yield Outage(f"{file.name} of {length} bytes", names, new, {file: fate})
