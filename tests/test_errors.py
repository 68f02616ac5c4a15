"""The exception tree."""

import inspect
import pickle
import re

import pytest

from softkv import errors


def drawn() -> dict[str, set[str]]:
    """The bases of each class as the docstring draws them."""
    bases: dict[str, set[str]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?(?:\s{2,}.*)?$", line)
        if found:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            bases[found[2]] = {above[depth - 1] if depth else "Exception"} | ({found[3]} if found[3] else set())
    return bases


def defined() -> dict[str, type[Exception]]:
    """The classes of the module."""
    classes = {name: one for name, one in vars(errors).items() if inspect.isclass(one)}
    return {name: one for name, one in classes.items() if one.__module__ == errors.__name__}


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    """What the docstring draws and what Python knows are the same tree."""
    assert drawn() == {name: {base.__name__ for base in one.__bases__} for name, one in defined().items()}


@pytest.mark.parametrize("name", sorted(set(defined()) - {"MissingExtra"}))
def test_an_error_prints_its_message_and_nothing_else(name: str) -> None:
    """KeyError would quote the message and OSError would number it; ours print it as it is."""
    assert str(defined()[name]("expected 3, got 4")) == "expected 3, got 4"


def test_an_error_without_a_message_prints_nothing() -> None:
    """Printing never fails."""
    assert str(errors.KeyMissing()) == ""


def test_a_duplicate_key_names_the_keys() -> None:
    """The keys stand apart from the message, for programs."""
    assert errors.DuplicateKey("twice", ["a", "b"]).keys == ("a", "b")


def test_a_locked_store_names_its_holder() -> None:
    """The process number stands apart from the message, for programs."""
    assert errors.StoreLocked("locked", 17).pid == 17
    assert errors.StoreLocked("locked").pid is None


def test_a_busy_server_says_when_to_try_again() -> None:
    """The seconds stand apart from the message, for programs."""
    assert errors.Busy("busy", 2.0).after == 2.0
    assert errors.Busy("busy").after is None


def test_a_missing_extra_says_what_to_type() -> None:
    """The message ends with the exact pip line."""
    message = str(errors.MissingExtra("text", package="sentence-transformers", extra="text"))
    assert message.endswith("pip install 'softkv[text]'")


def test_errors_survive_pickling() -> None:
    """A pool of processes hands errors on with their messages and what they carry."""
    for error in (
        errors.MissingExtra("this", package="faiss-cpu", extra="cpu"),
        errors.DuplicateKey("twice", ["a"]),
        errors.StoreLocked("locked", 7),
        errors.Busy("busy", 2.0),
        errors.KeyMissing("no such key"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
