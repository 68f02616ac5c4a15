"""What is drawn at random follows from a secret: who knows it can draw again, and nobody else can foresee the draw.

Does not know whose secret it is (storage/catalog/secret.py).
"""

import hashlib

import numpy as np


def drawer(secret: bytes, purpose: str, *numbers: int) -> np.random.Generator:
    """A generator for one purpose, and for what these numbers name; for others it is another.

    >>> drawer(b"secret", "lots", 1).integers(100, size=3).tolist()
    [73, 64, 10]
    """
    text = " ".join([purpose, *map(str, numbers)]).encode()
    digest = hashlib.blake2b(text, key=secret, digest_size=32).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
