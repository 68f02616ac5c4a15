"""Rows in a file, their header, and the checksums that are compared when they are first touched."""

import os
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from softkv.errors import NotAStore, StoreDamaged
from softkv.storage.disk import arena
from softkv.storage.disk.arena import HEADER, Arena, ArenaIdentity, VerifiedRows, extend_windows, flat
from softkv.storage.layout import WINDOW, RowShape
from tests.stores import flip, vectors

WIDTH = 1 << 16  # four rows to a window
SHAPE = RowShape("keys", "keys.f32", "<f4", WIDTH)
IDENTITY = ArenaIdentity("store", 1, SHAPE)


class Shelf:
    """An arena of given rows, with the checksums that a catalog would hold, and a note of which were asked for."""

    def __init__(self, path: Path, rows: np.ndarray, width: int = WIDTH) -> None:
        shape = RowShape("keys", "keys.f32", "<f4", width)
        self.arena, self.cells, self.asked = Arena.create(str(path), ArenaIdentity("store", 1, shape), WINDOW), rows, []
        self.arena.write(0, rows)
        self.verified = VerifiedRows(self.arena, self.expected)
        self.grow(len(rows))

    def grow(self, count: int) -> None:
        """Take note of so many rows."""
        data = self.cells[:count].tobytes()
        self.verified.grow(count, crc32(data[len(data) // WINDOW * WINDOW :]))

    def expected(self, windows: Sequence[int]) -> list[int]:
        """The checksums of complete windows."""
        self.asked += windows
        data = self.cells.tobytes()
        return [crc32(data[window * WINDOW : (window + 1) * WINDOW]) for window in windows]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """They are written in two pieces and read as one."""
    rows = vectors(5, WIDTH)
    arena = Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)
    arena.write(0, rows[:2])
    arena.write(2, rows[2:])
    np.testing.assert_array_equal(arena.rows(5), rows)
    arena.close()


def test_rows_cannot_be_written_through_what_is_read(tmp_path: Path) -> None:
    """There is no writable memory map."""
    arena = Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)
    arena.write(0, vectors(1, WIDTH))
    rows = arena.rows(1)
    assert not rows.flags.writeable
    with pytest.raises(ValueError, match=r"(?i)writeable"):
        rows.flags.writeable = True
    arena.close()


def test_rows_are_written_at_their_number_and_not_at_the_end(tmp_path: Path) -> None:
    """What a crash left behind the committed rows is covered by the next write."""
    rows = vectors(3, WIDTH)
    arena = Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)
    arena.write(0, rows[:2])
    arena.write(1, rows[2:])
    np.testing.assert_array_equal(arena.rows(2), rows[[0, 2]])
    arena.close()


def test_more_rows_than_the_file_has_are_refused(tmp_path: Path) -> None:
    """A map beyond the end of its file would kill the process."""
    arena = Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)
    arena.write(0, vectors(2, WIDTH))
    with pytest.raises(StoreDamaged, match="cut off"):
        arena.rows(3)
    with pytest.raises(StoreDamaged, match="cut off"):
        arena.require_rows(1 << 53)
    arena.close()


def test_rows_stay_readable_after_the_file_is_closed(tmp_path: Path) -> None:
    """An array keeps its map."""
    rows = vectors(2, WIDTH)
    arena = Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)
    arena.write(0, rows)
    read = arena.rows(2)
    arena.close()
    np.testing.assert_array_equal(read, rows)


def test_an_arena_that_is_absent_has_no_rows() -> None:
    """Every read says so, and closing it is nothing."""
    arena = Arena.absent("nowhere", SHAPE, WINDOW)
    assert arena.stored_rows() == 0
    with pytest.raises(StoreDamaged, match="missing"):
        arena.rows(1)
    arena.close()


def test_the_header_can_be_read_by_a_person(tmp_path: Path) -> None:
    """4096 bytes of text, the last line a checksum of what is before it."""
    Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW).close()
    header = (tmp_path / "keys.f32").read_bytes()
    assert len(header) == HEADER
    assert header.startswith(b'softkv arena 1\n{"store": "store", "generation": 1, "role": "keys"')
    assert header.endswith(b"\ncrc32 %08x\n" % crc32(header[:-15]))


@pytest.mark.parametrize("offset", [0, 20, 60, 2_000, HEADER - 3])
def test_a_damaged_header_is_refused(tmp_path: Path, offset: int) -> None:
    """The bit that fell over may lie anywhere, in the blank part as well."""
    Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW).close()
    flip(tmp_path / "keys.f32", offset)
    with pytest.raises(StoreDamaged, match="header is damaged"):
        Arena.open(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)


@pytest.mark.parametrize("length", [0, 1, HEADER - 1])
def test_a_header_that_was_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    """The message says how much of it there is."""
    Arena.create(str(tmp_path / "keys.f32"), IDENTITY, WINDOW).close()
    os.truncate(tmp_path / "keys.f32", length)
    with pytest.raises(StoreDamaged, match=f"{length} of 4096 bytes"):
        Arena.open(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)


@pytest.mark.parametrize(
    "other",
    [
        ArenaIdentity("another", 1, SHAPE),
        ArenaIdentity("store", 2, SHAPE),
        ArenaIdentity("store", 1, RowShape("values", "keys.f32", "<f4", WIDTH)),
        ArenaIdentity("store", 1, RowShape("keys", "keys.f32", "<f8", WIDTH)),
        ArenaIdentity("store", 1, RowShape("keys", "keys.f32", "<f4", WIDTH + 1)),
    ],
)
def test_the_arena_of_somebody_else_is_refused(tmp_path: Path, other: ArenaIdentity) -> None:
    """Another store, generation, role, type or width; the message says what the header says."""
    Arena.create(str(tmp_path / "keys.f32"), other, WINDOW).close()
    with pytest.raises(StoreDamaged, match=r"the header says .* but the catalog expects"):
        Arena.open(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)


def test_a_link_in_the_place_of_an_arena_is_refused(tmp_path: Path) -> None:
    """A link in the place of an arena is refused, even one to a good arena."""
    Arena.create(str(tmp_path / "real"), IDENTITY, WINDOW).close()
    (tmp_path / "keys.f32").symlink_to(tmp_path / "real")
    with pytest.raises(NotAStore):
        Arena.open(str(tmp_path / "keys.f32"), IDENTITY, WINDOW)


def test_checksums_do_not_depend_on_how_the_bytes_arrived() -> None:
    """Pieces of any size give the checksums of the windows, as zlib computes them over the whole."""
    data = np.random.default_rng(0).bytes(3 * WINDOW + 12_345)
    whole = [(window, crc32(data[window * WINDOW : (window + 1) * WINDOW])) for window in range(3)]
    for seed in range(5):
        sizes = np.random.default_rng(seed).integers(0, 700_000, 100)
        length = tail = 0
        finished = []
        for size in [*sizes.tolist(), len(data)]:
            piece = data[length : length + size]
            complete, tail = extend_windows(length, tail, memoryview(piece), WINDOW)
            finished += complete
            length += len(piece)
        assert finished == whole
        assert tail == crc32(data[3 * WINDOW :])


def test_a_window_that_is_just_full_leaves_no_unfinished_one() -> None:
    """The boundary belongs to the window before it."""
    assert extend_windows(WINDOW - 1, crc32(bytes(WINDOW - 1)), memoryview(b"\0"), WINDOW) == (
        [(0, crc32(bytes(WINDOW)))],
        0,
    )
    assert extend_windows(WINDOW, 0, memoryview(b""), WINDOW) == ([], 0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checksums of neighbours are asked for, so that those that are asked for are those that are compared."""
    monkeypatch.setattr(arena, "_NEIGHBOURS", 1)


@pytest.mark.usefixtures("alone")
def test_only_the_windows_that_are_touched_are_verified(tmp_path: Path) -> None:
    """Reading row 5 of 16 compares the checksum of window 1 of 4, and of no other; a second time, of none."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(18, WIDTH))
    assert shelf.asked == []
    np.testing.assert_array_equal(shelf.verified.take(np.array([5])), shelf.cells[[5]])
    assert shelf.asked == [1]
    np.testing.assert_array_equal(shelf.verified.block(4, 12), shelf.cells[4:12])
    assert shelf.asked == [1, 2]
    shelf.verified.take(np.array([5, 9, 17, 4]))
    assert shelf.asked == [1, 2]
    shelf.arena.close()


def test_a_flipped_bit_is_an_error_where_it_is_touched_and_only_there(tmp_path: Path) -> None:
    """The message names the file and the bytes."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(18, WIDTH))
    flip(tmp_path / "keys.f32", HEADER + 2 * WINDOW + 17)
    np.testing.assert_array_equal(shelf.verified.block(0, 8), shelf.cells[:8])
    for _ in range(2):  # it does not become true by asking again
        with pytest.raises(StoreDamaged, match=r"keys.f32: bytes 2101248 to 3149824 do not match their checksum"):
            shelf.verified.take(np.array([8]))
    np.testing.assert_array_equal(shelf.verified.block(12, 18), shelf.cells[12:])
    shelf.arena.close()


def test_a_flipped_bit_in_the_unfinished_window_is_an_error(tmp_path: Path) -> None:
    """The end of the file is protected like the rest."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(5, WIDTH))
    flip(tmp_path / "keys.f32", HEADER + WINDOW + 3)
    with pytest.raises(StoreDamaged, match="do not match"):
        shelf.verified.verify_end()
    shelf.arena.close()


def test_windows_that_changed_places_are_an_error(tmp_path: Path) -> None:
    """Every byte is there, but not where it belongs."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(8, WIDTH))
    shelf.arena.write(0, shelf.cells[4:8])
    shelf.arena.write(4, shelf.cells[0:4])
    for row in (0, 4):
        with pytest.raises(StoreDamaged, match="do not match"):
            shelf.verified.take(np.array([row]))
    shelf.arena.close()


def test_rows_that_are_added_are_verified_on_their_own(tmp_path: Path) -> None:
    """The unfinished window is continued where it was left; what was verified before is not read again."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(7, WIDTH))
    shelf.verified = VerifiedRows(shelf.arena, shelf.expected)
    shelf.grow(2)
    shelf.verified.block(0, 2)
    shelf.arena.write(0, np.zeros((1, WIDTH), np.float32))  # behind its back, after it was verified
    shelf.grow(3)
    np.testing.assert_array_equal(shelf.verified.take(np.array([2])), shelf.cells[[2]])
    shelf.grow(7)
    assert shelf.asked == []
    shelf.verified.take(np.array([3]))
    assert shelf.asked == [0]
    shelf.arena.close()


def test_windows_that_lie_apart_are_compared_together(tmp_path: Path) -> None:
    """One that has grown is continued where it was left, and the one that is damaged is named."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(18, WIDTH))
    shelf.verified = VerifiedRows(shelf.arena, shelf.expected)
    shelf.grow(17)
    shelf.verified.take(np.array([16]))
    shelf.arena.write(16, np.zeros((1, WIDTH), np.float32))  # behind its back, after it was verified
    shelf.grow(18)
    np.testing.assert_array_equal(shelf.verified.take(np.array([17, 0])), shelf.cells[[17, 0]])
    flip(tmp_path / "keys.f32", HEADER + 3 * WINDOW + 5)
    with pytest.raises(StoreDamaged, match=f"bytes {HEADER + 3 * WINDOW} to {HEADER + 4 * WINDOW} do not match"):
        shelf.verified.take(np.array([17, 4, 13]))
    np.testing.assert_array_equal(shelf.verified.take(np.array([8, 4])), shelf.cells[[8, 4]])
    shelf.arena.close()


def test_only_checksums_of_windows_that_lie_apart_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours are asked for along with windows that lie close together, and kept."""
    monkeypatch.setattr(arena, "_NEIGHBOURS", 2)
    shelf = Shelf(tmp_path / "keys.f32", vectors(34, WIDTH))
    for wanted, asked in (([1, 9, 17], [0, 2, 4]), ([5], [0, 1]), ([26, 30], [6, 7]), ([33, 21], [4, 5])):
        shelf.asked = []
        np.testing.assert_array_equal(shelf.verified.take(np.array(wanted)), shelf.cells[wanted])
        assert shelf.asked == asked
    shelf.arena.close()


def test_a_number_that_cannot_be_is_found_among_windows_that_lie_apart(tmp_path: Path) -> None:
    """Its window is named, though its checksum is right; what lies between them is not looked at."""
    cells = vectors(18, WIDTH)
    cells[[6, 13], 5] = np.nan
    shelf = Shelf(tmp_path / "keys.f32", cells)
    shelf.verified = VerifiedRows(shelf.arena, shelf.expected, lambda numbers: bool(np.isfinite(numbers).all()))
    shelf.grow(18)
    np.testing.assert_array_equal(shelf.verified.take(np.array([0, 9, 17])), cells[[0, 9, 17]])
    with pytest.raises(StoreDamaged, match=f"bytes {HEADER + 3 * WINDOW} to {HEADER + 4 * WINDOW} hold numbers"):
        shelf.verified.take(np.array([0, 13, 17]))
    shelf.arena.close()


def test_what_is_noted_twice_or_too_late_changes_nothing(tmp_path: Path) -> None:
    """A thread that comes late with an older count does not shorten the rows."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(3, WIDTH))
    shelf.grow(2)
    np.testing.assert_array_equal(shelf.verified.block(0, 3), shelf.cells)
    shelf.arena.close()


@pytest.mark.usefixtures("alone")
def test_rows_wider_than_a_window_are_verified_whole(tmp_path: Path) -> None:
    """A row of two and a half windows fails by its middle as well as by its ends."""
    width = 5 * WINDOW // 8
    shelf = Shelf(tmp_path / "keys.f32", vectors(4, width), width)
    shelf.verified.take(np.array([1]))
    assert shelf.asked == [2, 3, 4]
    flip(tmp_path / "keys.f32", HEADER + 6 * WINDOW + 5)
    with pytest.raises(StoreDamaged, match="do not match"):
        shelf.verified.take(np.array([2]))
    np.testing.assert_array_equal(shelf.verified.block(0, 2), shelf.cells[:2])
    shelf.arena.close()


def test_rows_of_an_odd_width_are_verified_across_a_boundary(tmp_path: Path) -> None:
    """A row that lies in two windows is held to both."""
    width = 100_003
    shelf = Shelf(tmp_path / "keys.f32", vectors(6, width), width)
    assert 2 * width * 4 < WINDOW < 3 * width * 4
    shelf.verified.take(np.array([2]))
    assert shelf.asked == [0, 1]
    shelf.arena.close()


def test_no_rows_are_verified_when_none_are_asked_for(tmp_path: Path) -> None:
    """An empty question has an empty answer, of the right shape."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(3, WIDTH))
    assert shelf.verified.take(np.empty(0, np.int64)).shape == (0, WIDTH)
    assert shelf.verified.block(2, 2).shape == (0, WIDTH)
    shelf.arena.close()


def test_rows_that_grow_while_they_are_read_are_not_taken_for_damage(tmp_path: Path) -> None:
    """Another thread takes note of new rows between the mapping and the comparing of the old ones."""
    shelf = Shelf(tmp_path / "keys.f32", vectors(3, WIDTH))
    shelf.verified = VerifiedRows(shelf.arena, shelf.expected)
    shelf.grow(2)
    mapped = shelf.arena.rows

    def interrupted(count: int) -> np.ndarray:
        shelf.arena.rows = mapped  # type: ignore[method-assign]
        rows = mapped(count)
        shelf.grow(3)
        return rows

    shelf.arena.rows = interrupted  # type: ignore[method-assign]
    np.testing.assert_array_equal(shelf.verified.block(0, 2), shelf.cells[:2])
    shelf.arena.close()


def test_the_bytes_of_rows_are_seen_without_a_copy() -> None:
    """Checksums and writes look at the caller's own array."""
    rows = vectors(3, 4)
    assert flat(rows) == rows.tobytes()
    assert np.shares_memory(np.frombuffer(flat(rows), np.uint8), rows)


def test_a_header_that_cannot_be_written_leaves_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for an hour must not use up the files that a process may open."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    before = os.listdir("/dev/fd")
    for number in range(3):
        with pytest.raises(OSError, match="No space"):
            Arena.create(str(tmp_path / str(number)), IDENTITY, WINDOW)
    assert len(os.listdir("/dev/fd")) == len(before)
