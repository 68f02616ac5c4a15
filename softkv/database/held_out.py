"""Which items take no part in learning, so that a guard can be calibrated on them: a share, by a hash of their names.

The hash does not depend on the store. So the items of a smaller share are among those of a larger one, an item stays
held out or not whatever is added, and `tune` and `fit` hold out the same items at different times.

Does not learn (training.py) nor calibrate (guarding.py).
"""

import math
from hashlib import blake2b

import numpy as np

from softkv.asking.profile import REAL
from softkv.asking.view import View
from softkv.errors import InputError
from softkv.ndarrays import Flags

HOLD_OUT = 0.2  # unless another share is asked for
SALT = b"held out"  # so that the hash differs from other hashes of the same names


def checked_hold_out(given: object) -> float:
    """The share of items that take no part in learning."""
    if isinstance(given, bool) or not isinstance(given, REAL) or not 0 <= given <= 0.5:
        raise InputError(
            f"expected hold_out to be a share of the items from 0 to 0.5, got {given!r}. With 0 all items take part, "
            "and there can be no guard."
        )
    return float(given)


def held_out(view: View, share: float, last: float = math.inf) -> Flags:
    """Which rows take no part, by the hash of their keys, or of their numbers where they have none.

    None above `last`: an item that came later may have been learned from, deleted, and added again.
    """
    found: Flags = np.zeros(view.snapshot.rows, np.bool_)
    if share:
        rows, most = np.flatnonzero(view.snapshot.live), int(share * (1 << 64))
        names = view.snapshot.names(rows)
        found[rows] = [
            int.from_bytes(blake2b(name.encode(), digest_size=8, salt=SALT).digest(), "big") < most
            and not (name.startswith("#") and int(name[1:]) > last)
            for name in names
        ]
    return found


def last_number(view: View) -> int:
    """The highest number of an item without a key, or 0; those of items to come are higher."""
    names = view.snapshot.names(np.flatnonzero(view.snapshot.live))
    return max((int(name[1:]) for name in names if name.startswith("#")), default=0)
