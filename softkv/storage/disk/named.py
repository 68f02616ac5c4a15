"""Tell what a path or URL names: a store that this process opens, a served one, or a cluster of several.

Opens nothing, and imports nothing that takes time: commands use it before they know what they need.
"""

import os
import re

_HOST = re.compile(r"[\w.-]+:\d+/\w")  # host and port, before the name of a store
MANIFEST = re.compile(r"manifest-[0-9]{10}\.json\Z")  # a file that lists the stores of a cluster

HELD = "ray:"


def is_url(path: object) -> bool:
    """Whether a store is named by the URL at which it is served, and not by its path."""
    return isinstance(path, str) and path.startswith(("http://", "https://"))


def is_held(path: object) -> bool:
    """Whether this is "ray:" and the directory of a cluster, whose shards are held by processes of their own."""
    return isinstance(path, str) and path.startswith(HELD)


def is_bare_url(path: object) -> bool:
    """Whether this is no path that exists here, and would be a URL with http:// before it."""
    named = isinstance(path, str) and _HOST.match(path)
    return bool(named) and not os.path.isdir(os.path.dirname(str(path)))


def is_cluster(directory: str) -> bool:
    """Whether there is a manifest in a directory, as in that of a cluster of stores."""
    try:
        return any(MANIFEST.match(name) for name in os.listdir(directory))
    except OSError:
        return False
