"""The rooms of the house: who may import whom, and what a bare `import softkv` may cost."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .scales import PLACES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "softkv"

# room -> the rooms it may import, as in the design; a room is a folder or a file of softkv/.
ALLOWED = {
    "errors": set(),
    "kinds": set(),
    "lazily": set(),
    "logs": set(),
    "progress": set(),
    "ndarrays": set(),
    "maths": {"progress", "ndarrays", "errors"},
    "storage": {"lazily", "logs", "kinds", "progress", "ndarrays", "errors"},
    "files": {"storage", "kinds", "logs", "progress", "ndarrays", "errors"},
    "index": {"maths", "progress", "ndarrays", "errors"},
    "embedders": {"maths", "progress", "ndarrays", "errors"},
    "learning": {"portrait", "maths", "progress", "ndarrays", "errors"},
    "guard": {"kinds", "ndarrays", "errors"},
    "portrait": {"errors"},
    "answer": {"portrait", "guard", "maths", "kinds", "errors"},
    "comparison": {"answer", "portrait"},
    "plain": {"answer", "maths", "errors"},
    "asking": {
        "logs",
        "answer",
        "comparison",
        "storage",
        "index",
        "embedders",
        "learning",
        "guard",
        "maths",
        "kinds",
        "progress",
        "ndarrays",
        "errors",
    },
    "page": {"asking", "files", "kinds", "maths", "ndarrays", "plain", "portrait", "storage", "errors"},
    "database": {
        "page",
        "portrait",
        "logs",
        "kinds",
        "asking",
        "answer",
        "files",
        "storage",
        "index",
        "embedders",
        "learning",
        "guard",
        "maths",
        "progress",
        "ndarrays",
        "errors",
        "doors",
    },
    "doors": {
        "lazily",
        "page",
        "database",
        "asking",
        "plain",
        "answer",
        "comparison",
        "portrait",
        "files",
        "storage",
        "guard",
        "learning",
        "maths",
        "kinds",
        "logs",
        "progress",
        "ndarrays",
        "errors",
    },
}
# the rooms of the storage, each with those before it that it may import; its other files lie under or over all of them.
STORAGE = {"disk": set(), "filters": set(), "catalog": {"disk", "filters"}, "protocol": {"disk", "filters", "catalog"}}
UNDER_ALL = {"closing", "layout", "batch", "threads"}
HEAVY = (
    *("torch", "http.client", "ray", "sklearn", "sentence_transformers", "faiss", "sqlalchemy", "rich", "pyarrow"),
    *("langchain_core", "haystack"),
)


def room_of(path: Path, package: Path = PACKAGE) -> str:
    """The room that a source file stands in: the first part of its path inside the package."""
    return path.relative_to(package).parts[0].removesuffix(".py")


def imported_rooms(source: str, path: Path, package: Path = PACKAGE) -> set[str]:
    """The rooms of softkv that a source imports, anywhere in it; "root" for the package itself."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = ("softkv", *path.relative_to(package).parent.parts)
                module = ".".join((*parts[: len(parts) - node.level + 1], *([module] if module else [])))
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "softkv" else [module]
        for name in names:
            parts = tuple(name.split("."))
            if parts[0] == "softkv":
                known = len(parts) > 1 and (parts[1] in ALLOWED)
                rooms.add(parts[1] if known else "root")
    return rooms


def violations(source: str, path: Path) -> set[str]:
    """The rooms that a source imports and may not."""
    room = room_of(path)
    return imported_rooms(source, path) - ALLOWED.get(room, set()) - {room}


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_keep_to_the_table(path: Path) -> None:
    """Every room imports only the rooms that the design allows it."""
    assert room_of(path) in ALLOWED, f"{path} stands in no room of the design"
    assert not violations(path.read_text(encoding="utf-8"), path)


@pytest.mark.parametrize("room", STORAGE)
def test_the_rooms_of_the_storage_stand_on_those_before_them(room: str) -> None:
    """All of them may import what lies under them; the store itself stands on top."""
    imports = imports_of("softkv", PACKAGE)
    inside = {name: others for name, others in imports.items() if name.startswith(f"softkv.storage.{room}.")}
    assert len(inside) > 3
    others = set().union(*inside.values())
    reached = {name.split(".")[2] for name in others if name.startswith("softkv.storage.")}
    assert reached <= {room} | STORAGE[room] | UNDER_ALL
    assert reached & UNDER_ALL


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from softkv.maths.blending import Blend", {"maths"}),
        ("import softkv.index.lists", {"index"}),
        ("from softkv import maths", {"maths"}),
        ("from softkv import open", {"root"}),
        ("import softkv", {"root"}),
        ("from ..maths import blending", {"maths"}),
        ("def f():\n    from softkv.database import SoftKV", {"database"}),
        ("from softkv.storage.disk.arena import Arena\nfrom softkv.errors import ShapeError\nimport numpy", set()),
    ],
)
def test_the_table_is_seen_failing(source: str, found: set[str]) -> None:
    """An import that the table forbids to storage is found, in whatever form it is written."""
    assert violations(source, PACKAGE / "storage" / "store.py") == found


def imports_of(package: str, root: Path) -> dict[str, set[str]]:
    """The files of a package that each of its files imports, anywhere in it, by their dotted names."""
    names = {}
    for path in root.rglob("*.py"):
        parts = (package, *path.relative_to(root).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        folder = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = folder[: len(folder) - node.level + 1] if node.level else []
                module = ".".join([*start, *([node.module] if node.module else [])])
                for alias in node.names:
                    inner = f"{module}.{alias.name}"
                    found[name].add(inner if inner in names else module)
        found[name] &= names.keys() - {name}
    return found


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Files that import each other in a circle; empty where there is none."""
    left = dict(imports)
    while True:
        imported = set().union(*left.values())
        ends = [name for name, others in left.items() if name not in imported or not others & left.keys()]
        if not ends:
            return sorted(left)
        for name in ends:
            del left[name]


@pytest.mark.parametrize(("package", "folder"), [("softkv", "softkv"), ("softkv_cli", "cli")])
def test_no_files_import_each_other_in_a_circle(package: str, folder: str) -> None:
    """There is none when they are imported, nor later, nor for a type alone."""
    imports = imports_of(package, ROOT / folder)
    assert len(imports) > 20
    assert circle_in(imports) == []


def test_a_circle_is_seen(tmp_path: Path) -> None:
    """It may be closed at the top of a file, within a function, or through a package."""
    (tmp_path / "room").mkdir()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "room" / "__init__.py").write_text("from house import door\n")
    (tmp_path / "door.py").write_text("def opened():\n    from house.room import key\n    return key\n")
    (tmp_path / "room" / "key.py").write_text("from . import lock\n")
    (tmp_path / "room" / "lock.py").write_text("")
    assert circle_in(imports_of("house", tmp_path)) == []
    (tmp_path / "room" / "lock.py").write_text("from ..door import opened\n")
    assert circle_in(imports_of("house", tmp_path)) == ["house.door", "house.room.key", "house.room.lock"]


def test_thresholds_that_tests_move_are_moved_wherever_they_are_held() -> None:
    """No file imports one by name, at its top, unless it is named among its places."""
    moved, held = {f"softkv.{one}" for places in PLACES.values() for one in places}, {}
    for path in SOURCES:
        name = ".".join(("softkv", *path.relative_to(PACKAGE).with_suffix("").parts))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                held |= {f"{name}.{one.asname or one.name}": f"{node.module}.{one.name}" for one in node.names}
    assert {copy for copy, origin in held.items() if origin in moved} <= moved


KIND_NAMES = {"number", "vector", "label", "text"}


def tells_kinds_apart(source: str) -> bool:
    """Whether a source names a member of the kinds of values, or compares a kind with the name of one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "ValueKind":
            if node.attr.isupper():
                return True
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = {one.value for side in sides for one in getattr(side, "elts", [side]) if hasattr(one, "value")}
            if KIND_NAMES & {text for text in texts if isinstance(text, str)} and "kind" in ast.unparse(node):
                return True
    return False


def test_a_kind_is_asked_for_what_is_so_of_it_not_which_it_is() -> None:
    """Only storage/batch.py tells kinds apart, which finds out the kind of the first values; kinds.py states them."""
    sources = [*SOURCES, *(ROOT / "cli").rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in sources if tells_kinds_apart(path.read_text(encoding="utf-8"))}
    assert found == {"softkv/storage/batch.py"}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("values if kind is ValueKind.LABEL else codes", True),
        ("storage.ValueKind.TEXT", True),
        ('wide = db.value_kind in ("number", "vector")', True),
        ("if 'label' == found.kind: pass", True),
        ("kind.coded and ValueKind(name).narrow and ValueKind.of_first(worded=True)", False),
        ("kind == _constant('text') or kind.axes > 1", False),
    ],
)
def test_telling_kinds_apart_is_seen(source: str, told: bool) -> None:
    """It is, in whatever form it is written."""
    assert tells_kinds_apart(source) == told


def test_one_file_decides_how_a_question_is_answered() -> None:
    """No other makes a route, writes down the name of a way, or compares with one but for what it was told."""
    ways = {"gather", "scan", "calibrated", "measured", "proposed"}  # a bound is asked for, so its name is an option's
    told, made = set(), set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Constant)
                and node.value in ways
                and room_of(path) in ("asking", "database", "index")
            ):
                told.add(str(path.relative_to(PACKAGE)))
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Route":
                made.add(str(path.relative_to(PACKAGE)))
    assert told == made == {"asking/route.py"}


def named_type(node: ast.stmt) -> str | None:
    """The name of the class, alias of a type or type variable that a statement of a module makes."""
    if isinstance(node, ast.ClassDef):
        return node.name
    target = (
        node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
    )
    if not isinstance(target, ast.Name) or not re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id):
        return None
    # An alias of Any stands for the class of this name where importing that would close a circle.
    return None if isinstance(node.value, ast.Name) and node.value.id == "Any" else target.id


def test_no_name_stands_for_two_types() -> None:
    """No two classes, aliases or type variables have one name, but for what only the readers of files call so."""
    found: dict[str, list[str]] = {}
    for path in [*SOURCES, *(ROOT / "cli").rglob("*.py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            name = named_type(node)
            if name is not None:
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: len([one for one in places if "softkv/files/" not in one]) for name, places in twice.items()} == (
        dict.fromkeys(twice, 1)
    ), twice


def loaded_after(statement: str) -> set[str]:
    """The heavy modules that a statement loads in a new interpreter."""
    script = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.slow
def test_importing_softkv_loads_nothing_heavy() -> None:
    """`import softkv` and the errors load no torch, faiss, sqlalchemy, sklearn or rich."""
    assert loaded_after("import softkv; softkv.errors; dir(softkv)") == set()


@pytest.mark.slow
def test_a_store_is_asked_without_the_formats_of_files() -> None:
    """They are loaded by those who read or write a file."""
    script = "import sys, softkv.database; print(*[name for name in sys.modules if name.startswith('softkv.files')])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.slow
def test_the_help_of_the_command_loads_nothing_heavy() -> None:
    """`softkv --help` loads no torch, faiss, sqlalchemy, sklearn or rich."""
    statement = "import softkv_cli.main as m\ntry: m.softkv(['--help'])\nexcept SystemExit: pass\nprint()"
    assert (
        loaded_after(f"import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()):\n    exec({statement!r})")
        == set()
    )


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    ("door", "library"),
    [("sklearn", "sklearn"), ("torch", "torch"), ("langchain", "langchain_core"), ("haystack", "haystack")],
)
def test_a_door_loads_its_own_library_and_no_other(door: str, library: str) -> None:
    """What that library itself takes along, such as pyarrow, may be loaded."""
    loaded = loaded_after(f"import softkv.doors.{door}")
    assert library in loaded
    others = {"torch", "sklearn", "faiss", "rich", "sentence_transformers", "ray", "langchain_core", "haystack"}
    assert not loaded & (others - {library}) - loaded_after(f"import {library}")


def test_nobody_goes_through_a_door_from_inside() -> None:
    """Neither the library nor the command imports one; the table above keeps the rooms from it, this the others.

    But `softkv serve` and `softkv cluster` are commands of doors, commands ask what is served, and `open` finds
    the handle on a store behind a URL in one.
    """
    outside = [*(ROOT / "cli").rglob("*.py"), *(ROOT / "data").glob("*.py"), PACKAGE / "__init__.py"]
    through = {path.name for path in outside if "doors" in path.read_text(encoding="utf-8")}
    assert through == {"clustering.py", "raying.py", "serving.py", "served.py"}
    assert [room for room, allowed in ALLOWED.items() if "doors" in allowed] == ["database"]
    inside = [
        path.name for path in SOURCES if room_of(path) != "doors" and "doors." in path.read_text(encoding="utf-8")
    ]
    assert inside == ["opening.py"]


@pytest.mark.slow
def test_the_check_for_heavy_modules_is_seen_failing() -> None:
    """A statement that does load one of them is found out."""
    assert loaded_after("import softkv.storage.filters.searching") == {"sqlalchemy"}


@pytest.mark.slow
def test_only_a_filter_loads_what_composes_it(tmp_path: Path) -> None:
    """Items are added, deleted, read, compacted and checked by statements of our own, and looked up by key."""
    path = str(tmp_path / "s")
    begin = f"from softkv.storage import Store\nstore = Store.open({path!r}, 'c')\n"
    work = (
        "store.append([[1.0], [2.0]], [1.0, 2.0], keys=['a', 'b'], payloads=[{'n': 1}, None])\n"
        "store.delete('b')\nstore.compact()\nassert store.get('a').payload and store.check().ok\nstore.close()"
    )
    assert loaded_after(begin + work) == set()
    assert loaded_after(f"import softkv\nwith softkv.open({path!r}, 'r') as db: db['a']") == set()
    assert loaded_after(begin + "store.matching({'n': 1})") == {"sqlalchemy"}


def test_names_of_the_root_are_lazy_and_listed() -> None:
    """Every public name is found, and one that is not public is an AttributeError as usual."""
    import softkv

    for name in softkv.__all__:
        assert getattr(softkv, name) is not None
    assert set(softkv.__all__) == set(dir(softkv))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = softkv.nonsense  # type: ignore[attr-defined]


def test_a_reading_order_names_every_file_of_its_folder() -> None:
    """The docstring of a package that gives one names all its modules, and none that there is not."""
    told = 0
    for package in PACKAGE.rglob("__init__.py"):
        words = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        if "Reading order:" in words:
            told += 1
            files = {path.name for path in package.parent.glob("*.py")} - {"__init__.py"}
            assert set(re.findall(r"\w+\.py\b", words)) == files, package
    assert told >= 7


def test_no_file_hides_a_second_room() -> None:
    """No source is longer than 400 lines."""
    sources = [*SOURCES, *(ROOT / "cli").rglob("*.py"), *(ROOT / "data").glob("*.py")]
    assert [path.name for path in sources if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []
