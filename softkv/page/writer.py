"""Join the page's files and its data into one document that needs no network, and whose policy forbids using one.

Scripts and styles stand in the document itself, since a browser loads no modules from files; the policy names them by
their hashes, so that nothing else runs, whatever the data hold.

Does not choose what is shown (scene.py).
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from softkv.errors import InputError
from softkv.files.exports import disk

SCRIPTS = ("maths", "wording", "state", "drawing", "panels", "views", "tour", "live", "main")  # in this order


def document(content: Mapping[str, Any] | None) -> str:
    """The page with this content; without content, the page that requests it from a server."""
    parts = {"policy": policy(live=content is None), "style": _style(), "script": _script(), "data": _data(content)}
    # In one pass, so that data which look like a place to fill in are left alone.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("page.html"))


def write(content: Mapping[str, Any], path: str | os.PathLike[str], *, store: str | None, force: bool) -> None:
    """Write the page to a file, completely or not at all; a path inside the store's directory is refused."""
    target = disk.place(path)
    disk.require_free(target, store=store, force=force)
    with disk.written(target, force=force) as file:
        file.write(document(content).encode())


@cache
def policy(*, live: bool) -> str:
    """The content security policy: only the page's own style and script, an icon, and if it is live its own server."""
    allowed = [f"script-src '{_hash(_script())}'", f"style-src '{_hash(_style())}'", "img-src data:"]
    allowed += ["connect-src 'self'"] if live else []
    return "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])


def _data(content: Mapping[str, Any] | None) -> str:
    """JSON for a script element, escaped so that it cannot end the element or begin a comment."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    except (TypeError, ValueError) as error:
        raise InputError(f"a page carries texts and finite numbers, and this would not: {error}") from error


@cache
def _script() -> str:
    body = "\n".join(_file(f"{name}.js") for name in SCRIPTS)
    return f"(() => {{\n'use strict';\n{body}\n}})();"


@cache
def _style() -> str:
    return _file("page.css")


@cache
def _file(name: str) -> str:
    return files("softkv.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
