"""Errors as problem documents, and back: of the same class, in the same words, with what programs ask of them."""

import json
from typing import Any

import pytest

from softkv import errors
from softkv.doors.server.problems import Refused, document_of, error_of, reply_to, status_of

from .test_errors import defined

STATUSES = {
    "DuplicateKey": 409,
    "BatchMismatch": 409,
    "InputError": 422,
    "KeyTextError": 422,
    "KeyMissing": 404,
    "StoreNotFound": 404,
    "Unauthorized": 401,
    "AccessRefused": 403,
    "WritingUnsupported": 403,
    "StoreLocked": 423,
    "SnapshotExpired": 410,
    "Busy": 429,
    "DeadlinePassed": 504,
    "PartlyAdded": 502,
    "OutOfReach": 502,
    "NotRemote": 422,
    "StorageFull": 507,
    "HandleClosed": 503,
    "StoreError": 409,
    "StoreDamaged": 500,
    "EmbedderNotFound": 500,
    "SoftKVError": 500,
}


@pytest.mark.parametrize("name", sorted(set(defined()) - {"MissingExtra"}))
def test_every_error_comes_back_as_it_was(name: str) -> None:
    """A server and a handle on it exchange it as JSON."""
    error = defined()[name]("expected 3, got 4")
    found = error_of(json.loads(reply_to(error)[2]))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("name", STATUSES)
def test_every_error_has_a_status(name: str) -> None:
    """It is that of the nearest class that has one."""
    assert status_of(defined()[name]("words")) == STATUSES[name]


@pytest.mark.parametrize(
    "error",
    [errors.DuplicateKey("twice", ["a", "\ud800"]), errors.StoreLocked("locked", 17), errors.Busy("busy", 2.5)],
    ids=repr,
)
def test_what_programs_ask_of_an_error_comes_along(error: Any) -> None:
    """The keys, the process and the seconds do."""
    found = error_of(json.loads(reply_to(error)[2]))
    assert (type(found), vars(found)) == (type(error), vars(error))


def test_a_busy_server_says_in_http_when_to_try_again() -> None:
    """It says so in whole seconds, at least one."""
    assert reply_to(errors.Busy("busy", 2.4))[1]["retry-after"] == "2"
    assert reply_to(errors.Busy("busy", 0.1))[1]["retry-after"] == "1"
    assert "retry-after" not in reply_to(errors.Busy("busy"))[1]


def test_a_status_of_its_own_goes_with_any_error() -> None:
    """An error with a status and headers of its own keeps them; its class and words are those of the error."""
    status, headers, body = reply_to(Refused(413, errors.InputError("too large"), {"connection": "close"}))
    assert (status, headers["connection"], headers["content-type"]) == (413, "close", "application/problem+json")
    told = json.loads(body)
    assert (told["status"], told["error"], told["detail"]) == (413, "InputError", "too large")


def test_words_are_told_without_what_is_hidden() -> None:
    """Directories of the server are hidden, for example."""
    error = errors.StoreDamaged("/srv/fruit/catalog.sqlite is damaged")
    assert document_of(error, lambda text: text.replace("/srv/", ""))["detail"] == "fruit/catalog.sqlite is damaged"


def test_what_is_no_error_of_the_library_keeps_its_words_to_itself() -> None:
    """Clients are told that it happened, not what."""
    document = document_of(RuntimeError("a secret"))
    assert (document["status"], document["error"]) == (500, "ServerError")
    assert "secret" not in json.dumps(document)


@pytest.mark.parametrize(
    "document",
    [None, [], "text", {}, {"error": "SystemExit"}, {"error": "Sequence"}, {"error": ["KeyMissing"]}, {"error": None}],
    ids=repr,
)
def test_a_document_that_names_no_error_is_a_server_error(document: Any) -> None:
    """A server, or something between, may have sent anything."""
    assert type(error_of(document)) is errors.ServerError


def test_what_the_server_lacks_is_not_to_be_installed_here() -> None:
    """What the server lacks is no ImportError at the client, where it is not to be installed."""
    error = errors.MissingExtra("build_index", package="faiss-cpu", extra="cpu")
    assert status_of(error) == 501
    found = error_of(document_of(error))
    assert type(found) is errors.ServerError
    assert str(found) == str(error)
