"""How the tolerance of a lookup is shared out: each shard is told what is thought of all others, and its part.

A shard that draws rows may be off by a share of the tolerance, so that the squares of all add up to that of the
tolerance: for as many rows in all as may be, in proportion to its mass. To count how far off its answer makes that of
all, it has to know what the others weigh, and about which value. That is what their lists tell before any row is read,
or what they said before; if it is wrong, more rows are read than have to be, or a query is asked again, but what is
stated in the end is told by the answers (merging.py).

Does not ask shards (asking.py).

Shapes: m shards, b queries, p value width.
"""

from collections.abc import Sequence

import numpy as np

from softkv.asking.sampled import Told
from softkv.maths.sampling import Elsewhere

EVENLY = 0.1  # of the squared tolerance is shared out evenly, whatever is thought of the masses
EASED = 0.35  # of the tolerance, of many shards: what chance adds to the error of one is little beside that of all


def shared(told: Sequence[Told | None], items: Sequence[int]) -> list[Elsewhere | None]:
    """What each shard is to be told; nothing if nothing is thought of any.

    Items are shared out by hash: one of which nothing is thought is like the others.
    """
    known = [one for one in told if one is not None]
    if len(told) < 2 or not known:
        return [None] * len(told)
    sizes = [np.log(size) for size in items]
    each = np.mean([one[0] - size for one, size in zip(told, sizes, strict=True) if one is not None], axis=0)
    value = np.mean([one[1] for one in known], axis=0)
    masses = np.stack([each + size if one is None else one[0] for one, size in zip(told, sizes, strict=True)])
    values = np.stack([value if one is None else one[1] for one in told])
    weights = np.exp(masses - masses.max(0))
    shares = (1.0 - EVENLY) * weights / weights.sum(0) + EVENLY / len(told)
    shares *= (1.0 + EASED * (1.0 - len(told) ** -0.5)) ** 2
    found = list[Elsewhere | None]()
    for number, share in enumerate(shares):
        rest = np.delete(weights, number, 0)
        mass = np.maximum(rest.sum(0), np.finfo(np.float64).tiny)
        total = np.einsum("mb,mbp->bp", rest, np.delete(values, number, 0))
        found.append(Elsewhere(np.log(mass) + masses.max(0), total / mass[:, None], share))
    return found
