"""Share the tolerance of a lookup among shards: each gets its part, and estimates of all other shards.

A shard that draws rows may be off by a part of the tolerance; the squares of all parts add up to that of the tolerance.
The fewest rows are read if the parts are in proportion to mass. To know how its error moves the answer of all, a shard
needs the mass and the value of the others. These are estimated by their lists before any row is read, or taken from
their last answers; if they are wrong, more rows are read than needed, or a query is asked again, but the stated error
follows from the answers (merging.py).

Does not ask shards (asking.py).

Shapes: m shards, b queries, p value width.
"""

from collections.abc import Sequence

import numpy as np

from softkv.asking.sampled import Foretold
from softkv.maths.sampling import Elsewhere

EVENLY = 0.1  # the share of the squared tolerance that is shared out evenly, whatever the masses
EASED = 0.35  # the share of the tolerance added for many shards, where chance in one matters little


def shared(told: Sequence[Foretold | None], items: Sequence[int]) -> list[Elsewhere | None]:
    """What each shard is told; None if there is no estimate of any.

    Items are shared out by hash: a shard without an estimate is assumed to be like the others.
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
