"""Names of embedders."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softkv.embedders import DEFAULT, Listed, find, names, register, registry
from softkv.embedders.static import BUNDLED
from softkv.errors import EmbedderError, EmbedderNotFound, KindError, MissingExtra

from .test_brought import Halves, letters


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a test registers or finds is forgotten after it."""
    registered, found = dict(registry._registered), dict(registry._found)
    yield
    for kept, before in ((registry._registered, registered), (registry._found, found)):
        kept.clear()
        kept.update(before)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that brings three embedders."""
    (tmp_path / "probe_of_softkv.py").write_text(
        "def sizes(texts):\n    return [[len(text), 1] for text in texts]\n"
        "from tests.test_brought import Halves\n"
        "broken = 7\n",
        encoding="utf-8",
    )
    folder = tmp_path / "probe_of_softkv-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: probe-of-softkv\nVersion: 1.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(
        "[softkv.embedders]\nsizes = probe_of_softkv:sizes\nclass = probe_of_softkv:Halves\n"
        "broken = probe_of_softkv:broken\ngone = probe_of_softkv:gone\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_the_default_is_bundled_and_loaded_once() -> None:
    """One name gives one object, also to threads that ask at the same time."""
    registry._found.clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(find, [DEFAULT] * 32))
    assert len({id(one) for one in found}) == 1
    assert (found[0].name, found[0].width) == ("static", 256)


def test_a_registered_name_is_found() -> None:
    """A function and an object are found by the names they were given, which are the names that stores remember."""
    register("my letters", letters)
    register("other", Halves())
    assert find("my letters").documents(["tea"]).tolist() == [[1, 1, 0, 1]]
    assert (find("my letters").name, find("other").name, find("other").query_prompt) == ("my letters", "other", "ask: ")


def test_a_name_registered_again_means_the_new_one() -> None:
    """A cell of a notebook may be run twice."""
    register("mine", letters)
    assert find("mine").width == 4
    register("mine", lambda texts: [[1.0] for _ in texts])
    assert find("mine").width == 1


@pytest.mark.parametrize("name", ["", "  ", 7])
def test_a_name_must_be_a_name(name: str) -> None:
    """Nothing is registered under an empty name."""
    with pytest.raises(KindError, match="expected a name"):
        register(name, letters)


def test_the_bundled_name_is_taken() -> None:
    """Stores that remember it must go on finding it."""
    with pytest.raises(EmbedderError, match="bundled"):
        register("static", letters)


def test_packages_bring_embedders(plugin: None) -> None:
    """An entry point may be a function, or a class of embedders; they are found and listed by its name."""
    assert find("sizes").documents(["tea"]).tolist() == [[3, 1]]
    assert (find("class").name, find("class").width) == ("class", 4)
    assert Listed("sizes", "entry point probe_of_softkv:sizes", None, None) in names()


@pytest.mark.parametrize(("name", "error"), [("broken", KindError), ("gone", EmbedderError)])
def test_a_package_that_brings_something_else_is_named(plugin: None, name: str, error: type[Exception]) -> None:
    """What an entry point cannot keep is said, and other embedders work on."""
    with pytest.raises(error):
        find(name)
    assert find("sizes").width == 2


def test_a_folder_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a static embedder is opened, once however it is written, and named by its absolute path."""
    place = tmp_path / "here"
    place.symlink_to(BUNDLED)
    monkeypatch.chdir(tmp_path)
    assert find("here").name == str(place)
    assert find(str(BUNDLED)) is find("here")
    assert find(os.path.join(".", "here")) is find("here")


def test_a_folder_called_static_does_not_stand_in_for_the_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name means the same in every working directory."""
    (tmp_path / "static").mkdir()
    monkeypatch.chdir(tmp_path)
    registry._found.clear()
    assert find("static").width == 256


def test_a_folder_without_an_embedder_is_refused(tmp_path: Path) -> None:
    """The error says what was expected in there."""
    with pytest.raises(EmbedderNotFound, match=r"model\.json"):
        find(str(tmp_path))


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    """A path to one of the files is told from a name."""
    with pytest.raises(EmbedderNotFound, match="Pass the folder"):
        find(str(BUNDLED / "model.json"))


@pytest.mark.parametrize("name", ["os:system", f"{__name__}:letters"])
def test_functions_are_not_imported_by_name(name: str) -> None:
    """A name may come out of somebody else's store: it never makes a module run."""
    with pytest.raises(EmbedderNotFound, match="not imported by name"):
        find(name)


def test_a_model_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sentence-transformers an unknown name ends with the pip line, and names what is there."""
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    register("mine", letters)
    with pytest.raises(MissingExtra, match=r"static.*mine.*pip install 'softkv\[text\]'"):
        find("all-MiniLM-L12-v2")


def test_the_list_says_what_there_is() -> None:
    """The bundled one comes first; each says where it comes from and whether it can be used."""
    register("mine", letters)
    listed = names()
    assert listed[0] == Listed("static", "bundled", 256, None)
    assert Listed("mine", "registered", 4, None) in listed
    packaged = [one for one in listed if one.name == "all-MiniLM-L6-v2"]
    assert [(one.origin, one.extra) for one in packaged] == [("packaged", None)]


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder", "~/no-such-folder"])
def test_a_path_that_is_not_there_is_no_name_of_a_model(name: str) -> None:
    """Nothing to install would mend it, and no network is asked."""
    with pytest.raises(EmbedderNotFound, match="there is no folder"):
        find(name)
