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
    return grown(file, length=file.lengths[0])


def new(file: File) -> bytes:
    """All of it is there."""
    return bytes(file.content)


def grown(file: File, garbage: Random | None = None, length: int = -1) -> bytes:
    """No page is written, but the file has its new length, with zeros or garbage behind what was durable."""
    pages = {number: _unwritten(file, number, garbage) for number in file.pages}
    return file.state(pages, file.lengths[-1] if length < 0 else length)


def without(file: File, number: int, garbage: Random | None, sectors: range = range(PAGE // SECTOR)) -> bytes:
    """All is there but one page, or these sectors of it."""
    return file.state({number: _torn(file.page(number), _unwritten(file, number, garbage), sectors)}, file.lengths[-1])


def only(file: File, number: int) -> bytes:
    """Of all that was written only one page is there, and the length."""
    pages = {one: versions[-1 if one == number else 0] for one, versions in file.pages.items()}
    return file.state(pages, file.lengths[-1])


def as_long_as(file: File, length: int) -> bytes:
    """All pages are there, as far as the file reaches."""
    return file.state({number: versions[-1] for number, versions in file.pages.items()}, length)


def drawn(file: File, random: Random) -> bytes:
    """Every page for itself, and the length."""
    lengths = file.lengths
    length = random.choice(
        [lengths[0], lengths[-1], random.choice(lengths), random.randint(min(lengths), max(lengths))]
    )
    written, torn, garbage = random.random(), random.choice([0, 0, 0.3]), random.choice([None, random])
    pages = {}
    for number, versions in file.pages.items():
        page = versions[-1] if random.random() < written else random.choice([*versions[1:], b""])
        page = page or _unwritten(file, number, garbage)
        if random.random() < torn:
            sectors = [sector for sector in range(PAGE // SECTOR) if random.random() < 0.5]
            page = _torn(page, random.choice([_unwritten(file, number, garbage), *versions[1:]]), sectors)
        pages[number] = page
    return file.state(pages, length)


def memory(file: File, random: Random, stale: bytes | None) -> bytes | None:
    """Of a file written through a memory map nothing is promised: it may be gone, or hold anything."""
    length = max(len(file.content), PAGE)
    return random.choice([None, stale, bytes(file.content), bytes(length), random.randbytes(length)])


def _unwritten(file: File, number: int, garbage: Random | None) -> bytes:
    """The durable version of a page, and what may stand behind the durable end of the file."""
    page, end = file.pages[number][0], max(0, min(PAGE, file.lengths[0] - number * PAGE))
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
    """Lengths that it had, and one between."""
    lengths = set(file.lengths)
    between = [random.randint(min(lengths), max(lengths))] if len(lengths) > 1 else []
    for length in sorted(lengths | set(between)):
        yield Outage(f"{file.name} of {length} bytes", names, new, {file: partial(as_long_as, length=length)})
