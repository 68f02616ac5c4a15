"""Errors of the library as problem documents (RFC 9457), and back.

A document keeps the name of the class, the message and the attributes that programs use (`keys`, `pid`, `after`), so
that a handle on a server raises what a local handle would. Needs no web framework.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from softkv import errors

MEDIA_TYPE = "application/problem+json"
TAG = "urn:softkv:"
# The first that fits counts.
STATUSES: tuple[tuple[type[errors.SoftKVError], int], ...] = (
    (errors.DuplicateKey, 409),
    (errors.BatchMismatch, 409),
    (errors.InputError, 422),
    (errors.KeyMissing, 404),
    (errors.StoreNotFound, 404),
    (errors.Unauthorized, 401),
    (errors.AccessRefused, 403),
    (errors.StoreLocked, 423),
    (errors.SnapshotExpired, 410),
    (errors.Busy, 429),
    (errors.DeadlinePassed, 504),
    (errors.PartlyAdded, 502),
    (errors.OutOfReach, 502),
    (errors.StorageFull, 507),
    (errors.HandleUnusable, 503),
    (errors.MissingExtra, 501),
    (errors.SoftKVError, 500),
)
_CARRIED = ("keys", "pid", "after", "batch")
_SHARDS = ("done", "refused", "unknown", "shards")  # of a cluster, which are named by paths


class Refused(Exception):
    """An error that has a status of its own, such as a body that is too large."""

    def __init__(self, status: int, error: errors.SoftKVError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, error)
        self.status, self.error, self.headers = status, error, dict(headers or {})


def status_of(error: BaseException) -> int:
    """The status of an answer that tells of this error."""
    if isinstance(error, Refused):
        return error.status
    if type(error) is errors.StoreError:  # clients can only cause it by a change that came too late
        return 409
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def document_of(error: BaseException, hidden: Callable[[str], str] = str) -> dict[str, Any]:
    """A problem document; `hidden` removes from its words what is not for clients, such as directories."""
    status = status_of(error)
    told = error.error if isinstance(error, Refused) else error
    if not isinstance(told, errors.SoftKVError):
        told = errors.ServerError("the server could not answer, and its log names the kind of the error.")
    name = type(told).__name__
    document = {"type": TAG + name, "title": _title(told), "status": status, "detail": hidden(str(told)), "error": name}
    carried: dict[str, Any] = {one: getattr(told, one, None) for one in _CARRIED}
    carried |= {one: [*map(hidden, getattr(told, one))] for one in _SHARDS if hasattr(told, one)}
    return document | {one: value for one, value in carried.items() if value is not None}


def reply_to(error: BaseException, hidden: Callable[[str], str] = str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer that tells of an error."""
    document = document_of(error, hidden)
    headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store"}
    if isinstance(error, Refused):
        headers |= error.headers
    if "after" in document:
        headers["retry-after"] = str(max(1, round(document["after"])))
    return document["status"], headers, json.dumps(document).encode()


def error_of(document: Any) -> errors.SoftKVError:
    """The error that a problem document describes, of the class of the library that it names.

    >>> raise error_of({"error": "KeyMissing", "detail": "there is no item 'a'", "status": 404})
    Traceback (most recent call last):
    softkv.errors.KeyMissing: there is no item 'a'
    """
    told = document if isinstance(document, dict) else {}
    kind, detail = getattr(errors, str(told.get("error")), None), str(told.get("detail", "the server told no reason"))
    if not isinstance(kind, type) or not issubclass(kind, errors.SoftKVError) or kind is errors.MissingExtra:
        return errors.ServerError(detail)  # an extra that the server lacks need not be installed here
    made = kind(detail)
    for name in (*_CARRIED, *_SHARDS):
        if name in told and hasattr(made, name):
            setattr(made, name, tuple(told[name]) if isinstance(told[name], list) else told[name])
    return made


def _title(error: errors.SoftKVError) -> str:
    return (type(error).__doc__ or "").split(". ")[0].split(";")[0].rstrip(".")
