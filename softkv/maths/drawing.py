"""Random draws that follow from a secret: repeatable with the secret, unpredictable without it.

Does not know whose secret it is (storage/catalog/secret.py), nor what the draws are for (sampling.py).

Shapes: s strata.
"""

import hashlib

import numpy as np

from softkv.ndarrays import Counts


def drawer(secret: bytes, purpose: str, *numbers: int) -> np.random.Generator:
    """A random generator for this purpose and these numbers; any other purpose or numbers give another one.

    >>> drawer(b"secret", "lots", 1).integers(100, size=3).tolist()
    [73, 64, 10]
    """
    text = " ".join([purpose, *map(str, numbers)]).encode()
    digest = hashlib.blake2b(text, key=secret, digest_size=32).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def different(draw: np.random.Generator, counts: Counts, sizes: Counts) -> Counts:
    """Draw different numbers below each count, as many as `sizes` says; every set of them is equally likely."""
    owners, firsts = np.repeat(np.arange(len(sizes)), sizes), counts.cumsum() - counts
    found = np.empty(len(owners), np.int64)
    again = np.arange(len(owners))
    while len(again):
        some = owners[again]
        found[again] = firsts[some] + (draw.random(len(again)) * counts[some]).astype(np.int64)
        kept = np.zeros(len(found), np.bool_)
        kept[np.unique(found, return_index=True)[1]] = True  # what was drawn first; the others are drawn again
        again = np.flatnonzero(~kept)
    return np.sort(found) - np.repeat(firsts, sizes)


def in_runs(draw: np.random.Generator, counts: Counts, sizes: Counts, ahead: Counts, shuffled: Counts) -> Counts:
    """Draw different numbers below each count, where some rows of each, after those `ahead`, lie in random order.

    Rows in random order are taken as a run, which is read in one piece; every set of rows is still equally likely.
    """
    others = counts - shuffled
    apart = draw.hypergeometric(others, shuffled, sizes)
    single, lengths = different(draw, others, apart), sizes - apart
    single += np.where(single >= np.repeat(ahead, apart), np.repeat(shuffled, apart), 0)
    starts, steps = (draw.random(len(counts)) * shuffled).astype(np.int64), np.arange(lengths.sum())
    steps -= np.repeat(lengths.cumsum() - lengths, lengths)
    run = np.repeat(ahead, lengths) + (np.repeat(starts, lengths) + steps) % np.repeat(shuffled, lengths)
    firsts = counts.cumsum() - counts
    found = np.concatenate([single + np.repeat(firsts, apart), run + np.repeat(firsts, lengths)])
    return np.sort(found, kind="stable") - np.repeat(firsts, sizes)  # which is quick where most is in order
