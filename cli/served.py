"""Stores that are served: ask one question without loading the library, and write through a server that holds the lock.

A short command spends most of its time loading the library and the model. A server has both loaded, so a single
question goes to it as plain HTTP and JSON. If it has no answer, the command goes on in the ordinary way, which shows
the error.

Does not start servers (serving.py).
"""

import json
import os
from typing import TYPE_CHECKING, Any

import click

from softkv.doors.shapes import fits
from softkv.storage.disk.named import is_url

if TYPE_CHECKING:
    from softkv.database import SoftKV

SECONDS = 35.0
# The fields of an answer that are printed; those that are None may be missing.
_ANSWER = {
    "scored": int,
    "temperature": float,
    "error_kind": str,
    "contributors": [{"row": int, "weight": float, "score": float}],
}
_ITEMS = {"items": [{"key": str, "value": Any, "payload": Any, "text": str | None, "vector": list[float]}]}
_NUMBERS = ("spread", "log_mass", "effective", "mass", "error", "log_mass_error", "effective_error", "spread_error")
_PERHAPS: dict[str, Any] = {
    **dict.fromkeys((*_NUMBERS, "log_mass_floor"), float | list[float | None] | None),
    **dict.fromkeys(("route", "reason", "contributors_are"), str),
    "distribution": dict[str, float],
    "embedding": list[float],
    "texts": [{"text": str, "weight": float}],
    "is_far": bool,
    "known": bool,
    "familiarity": float,
    "why_unknown": str,
    "promised": dict[str, float | list[float | None] | list[str] | None],
    "next": int | None,
    "rows_read": int,
    "out_of_reach": float,
}


class Told:
    """An answer of a server, with the attributes of an Answer that are printed."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        shares = document.get("distribution")
        self.labels = None if shares is None else tuple(shares)
        self.label = document.get("value")
        self.value = document.get("embedding", self.label) if shares is None else list(shares.values())
        self.texts = None if "texts" not in document else [Told(one) for one in document["texts"]]
        self.contributors = [Told(one) for one in document.get("contributors", ())]

    def __getattr__(self, name: str) -> Any:
        return self._document.get(name)  # None is left out of the document

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python."""
        return dict(self._document)


def require_path(path: str, doing: str) -> str:
    """A path, and not a URL, where only files will do."""
    if is_url(path):
        raise click.UsageError(f"`{doing}` works on files, and not through a server; name the store by its path")
    return path


def asked(path: str, what: str, document: dict[str, Any]) -> Any:
    """The answer of the server of a store; None if there is no server, or it gives none."""
    from urllib.parse import urlsplit

    url, token = _server(path)
    if not url.startswith("http:") or not token:
        return None
    import http.client

    try:
        parts = urlsplit(url)
        client = http.client.HTTPConnection(parts.netloc, timeout=SECONDS)
    except (http.client.HTTPException, ValueError):  # the handle says what is wrong with the URL
        return None
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Softkv-Alone": "1"}
    try:
        client.request("POST", f"/v1{parts.path}/{what}", json.dumps(document, allow_nan=False), headers)
        answer = client.getresponse()
        found: Any = json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        client.close()
    right = fits(found, _ITEMS if what == "items/get" else _ANSWER)
    return found if right and all(fits(found[name], _PERHAPS.get(name, Any)) for name in found) else None


def writing(path: str, *, mode: str = "w", **wishes: Any) -> "SoftKV":
    """The store, open for writing: through its server if it has one, which holds the lock."""
    import softkv

    url, token = _server(path)
    return softkv.open(url, mode, token=token, **wishes) if url else softkv.open(path, mode, **wishes)


def _server(path: str) -> tuple[str, str | None]:
    """The URL of a store and the token for it; empty where it is not served."""
    if is_url(path):
        return path, os.environ.get("SOFTKV_TOKEN")
    from softkv.storage.disk.announced import announced

    found = announced(path)
    return ("", None) if found is None else (found.url, found.token)
