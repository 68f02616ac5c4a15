"""The directories beside a store while another takes its place, and what an interruption leaves of them.

    .<name>.made-<token>    the new store: is being filled, or waits to be moved to <name>
    .<name>.kept-<token>    the old one: was at <name>, and is removed once the new one has its place

Both have the same token: a kept store whose new one is still there has not been replaced.

Does not fill stores (making.py).
"""

import hashlib
import os
import re
from contextlib import suppress

from softkv.errors import StoreError, StoreNotFound
from softkv.storage import Store
from softkv.storage.protocol.leftovers import remove_unborn

LONGEST = 100  # bytes of the name of a store that are used, so that the rest fits as well


def beside(path: str, what: str, token: str) -> str:
    """The directory of the store that is "made" for a path, or "kept" of it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{_stem(name)}.{what}-{token}")


def put_back(path: str) -> None:
    """Move a kept store back to a path where nothing is, and remove what else an interruption has left beside it."""
    kept, made = (_tokens(path, what) for what in ("kept", "made"))
    for token in sorted(kept):
        if not os.path.lexists(path):
            Store.move(beside(path, "kept", token), path)
        elif token in made:
            made.discard(token)  # another store has taken the path: both stay, for people to look at
        else:
            _remove(beside(path, "kept", token))
    for token in made:
        _remove(beside(path, "made", token))
    folder, name = os.path.split(path)
    with suppress(StoreError):  # whoever opens the store says what is wrong with the folder
        remove_unborn(folder, _stem(name))


def require_nothing_kept(path: str) -> None:
    """Raise an error that names the store which an interruption has left beside its path, if there is one."""
    kept = () if os.path.lexists(path) else sorted(_tokens(path, "kept"))
    if kept:
        raise StoreNotFound(
            f"there is no store at {path}: what should have replaced it was stopped, and it is beside, as "
            f"{beside(path, 'kept', kept[0])}. Open it with mode 'w', which moves it back."
        )


def _tokens(path: str, what: str) -> set[str]:
    folder, name = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(_stem(name))}\.{what}-([0-9a-f]{{8}})\Z")
    try:
        names = os.listdir(folder or ".")
    except OSError:  # whoever opens the store says what is wrong
        return set()
    return {found[1] for found in map(ours.match, names) if found}


def _remove(store: str) -> None:
    with suppress(StoreError):  # somebody is at work there, or it is no store yet
        Store.erase(store)


def _stem(name: str) -> str:
    coded = os.fsencode(name)
    return name if len(coded) <= LONGEST else hashlib.sha256(coded).hexdigest()[:32]
