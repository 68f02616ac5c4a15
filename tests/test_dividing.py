"""Lists that are refined: most rows stay where they are."""

import numpy as np

from softkv.index.building import list_count
from softkv.index.dividing import divided

ROWS, EACH, WIDTH = 2400, 24, 6


def refined(owners: np.ndarray, made_of: np.ndarray, keys: np.ndarray) -> list[list[int]]:
    """The rows of each list."""
    done: list[int] = []
    order, offsets = divided(
        lambda some: keys[some],
        np.arange(len(owners)),
        owners,
        made_of,
        backend="cpu",
        progress=lambda _stage, so_far, _total: done.append(so_far),
    )
    assert done[-1] == len(owners)
    assert sorted(order.tolist()) == list(range(len(owners)))
    return [one.tolist() for one in np.split(order, offsets[1:-1])]


def test_lists_that_are_what_they_were_stay() -> None:
    """Lists that lost some rows stay, and neighbours stay neighbours; empty lists are left out."""
    keys = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    owners = np.arange(ROWS) // EACH
    owners[: 2 * EACH] = 2
    found = refined(owners, np.full(ROWS // EACH, 3 * EACH), keys)
    assert found == [list(range(3 * EACH)), *(list(range(a, a + EACH)) for a in range(3 * EACH, ROWS, EACH))]


def test_a_list_that_has_doubled_is_divided_and_rows_of_no_list_get_some() -> None:
    """Where their keys lie decides into which list they go."""
    rng = np.random.default_rng(1)
    keys = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    owners = np.arange(ROWS) // EACH
    owners[:240], owners[-240:] = 0, -1
    keys[:120, 0] += 50.0
    keys[-120:, 1] += 50.0
    found = refined(owners, np.full(ROWS // EACH, EACH), keys)
    average = ROWS / list_count(ROWS)
    for part, low in ((found[: len(found) // 2], 0), (found[len(found) // 2 :], ROWS - 240)):
        divided_ones = [one for one in part if low <= one[0] < low + 240]
        assert len(divided_ones) > 0.5 * 240 / average
        assert all(len({(row - low) // 120 for row in one}) == 1 for one in divided_ones)
    assert all(one == list(range(one[0], one[0] + EACH)) for one in found if 240 <= one[0] < ROWS - 240)
