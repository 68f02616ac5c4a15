"""`softkv cluster`, and the other commands on the directory of a cluster."""

import json
import shutil
from pathlib import Path

import pytest
from softkv_cli.main import COMMANDS

import softkv

from .commands import ran

TEXTS = [f"{where} is the {what} {number}" for number in range(8) for where in ("where", "how far") for what in "abc"]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A cluster of three shards, of numbers by texts."""
    path = tmp_path / "c"
    assert ran("cluster", "create", path, "--shards", 3, "--kind", "number").code == 0
    rows = [json.dumps({"key": text, "value": number, "payload": {"n": number}}) for number, text in enumerate(TEXTS)]
    (tmp_path / "items.jsonl").write_text("\n".join(rows))
    assert ran("add", "-i", tmp_path / "items.jsonl", "-d", path) == (0, "", "added 48\n")
    return path


def test_a_cluster_is_made_as_was_asked(tmp_path: Path) -> None:
    """It has so many shards on these disks, a kind, a way to compare and a temperature."""
    (tmp_path / "disk").mkdir()
    options = ("--shards", 2, "--disk", tmp_path / "disk", "--value", "label", "--compatibility", "dot", "-T", 0.5)
    assert ran("cluster", "create", tmp_path / "c", *options) == (0, "", f"made {tmp_path / 'c'}, of 2 shards\n")
    assert len(list((tmp_path / "disk").iterdir())) == 2
    assert ran("add", "a sofa", "furniture", "-d", tmp_path / "c").code == 0
    told = json.loads(ran("info", "-d", tmp_path / "c").out)
    assert [told[name] for name in ("value_kind", "compatibility", "temperature")] == ["label", "dot", 0.5]
    assert ran("cluster", "create", tmp_path / "c").code == 1


def test_the_status_tells_of_each_shard(cluster: Path) -> None:
    """It has any form; of one that does not answer it tells why."""
    told = json.loads(ran("cluster", "status", cluster, "--json").out)
    assert (told["epoch"], [one["reachable"] for one in told["shards"]]) == (3, [True] * 3)
    assert sum(one["items"] for one in told["shards"]) == 48
    shutil.rmtree(cluster / "shard-001")
    table = ran("cluster", "status", cluster, terminal=True)
    assert [line.split()[0] for line in table.out.splitlines()[2:5]] == ["shard-000", "shard-001", "shard-002"]
    assert table.err.startswith("shard-001 does not answer: shard 1 of")
    assert ran("cluster", "status", cluster, "--plain").out == "shard-000\nshard-001\nshard-002\n"
    assert ran("cluster", "status", cluster.parent).code == 1


def test_a_cluster_is_checked_backed_up_and_restored(cluster: Path, tmp_path: Path) -> None:
    """Commands of its own do so, and those that a store has."""
    commit = json.loads(ran("info", "-d", cluster).out)["commit"]
    for check in (("check", "-d", cluster), ("cluster", "check", cluster)):
        done = ran(*check)
        assert done.code == 0
        assert f"ok, commit {commit}, 48 items" in done.out
    assert ran("check", "-d", cluster, "--at-least", commit + 1).code == 1
    assert f"48 items as of commit {commit}" in ran("backup", tmp_path / "b", "-d", cluster).err
    assert f"48 items as of commit {commit}" in ran("cluster", "backup", cluster, tmp_path / "b").err
    refused = ran("add", "a", 1, "-d", tmp_path / "b")
    assert (refused.code, f"softkv restore {tmp_path / 'b'} --db NEW" in refused.err) == (1, True)
    (tmp_path / "disk").mkdir()
    restores = (
        ("restore", tmp_path / "b", "-d", tmp_path / "one", "--disk", tmp_path / "disk"),
        ("cluster", "restore", tmp_path / "b", tmp_path / "two"),
    )
    for restore in restores:
        assert f"48 items as of commit {commit}" in ran(*restore).err
    assert len(list((tmp_path / "disk").iterdir())) == 3
    shutil.rmtree(cluster / "shard-001")
    done = ran("cluster", "check", cluster)
    assert (done.code, "finding: shard-001" in done.out) == (1, True)
    done = ran("check", "-d", cluster, "--repair-to", tmp_path / "new")
    assert (done.code, "lost: 'all items of shard-001'" in done.out) == (0, True)
    assert ran("cluster", "check", tmp_path / "new").code == 0


def test_the_other_commands_take_a_cluster_for_a_store(cluster: Path, tmp_path: Path) -> None:
    """Each of them is run as somebody would use it."""
    done = {
        " ".join(map(str, command)): ran(*command, "-d", cluster).code
        for command in [
            ("add", "a lake", "7", "--batch", "one"),
            ("query", "a lake", "--explain"),
            ("query", "a lake", "-k", 2),
            ("query", "a lake", "--hard"),
            ("query", "a lake", "--where", '{"n": {"$gte": 20}}'),
            ("query", "a lake", "--partial"),
            ("compare", "a lake"),
            ("compare", "--eval", tmp_path / "items.jsonl"),
            ("get", "a lake"),
            ("set", "8", "a lake"),
            ("list", "--limit", 3),
            ("delete", "a lake"),
            ("path",),
            ("info",),
            ("tune",),
            ("guard", "--on-average", "--wrong-at-most", 0.5),
            ("guard", "--drop"),
            ("fit",),
            ("fit", "--drop"),
            ("index", "build", "--lists", 2),
            ("index", "status"),
            ("index", "drop"),
            ("compact",),
            ("export", tmp_path / "all.jsonl"),
            ("export", tmp_path / "all.csv"),
            ("page", "-o", tmp_path / "page.html"),
        ]
    }
    assert not {command: code for command, code in done.items() if code}
    otherwise = "backup", "check", "cluster", "import", "reembed", "restore", "serve", "mcp"  # tried by other tests
    assert {command.split()[0] for command in done} | {*otherwise, "bench", "demo", "models"} == set(COMMANDS)
    assert ran("import", tmp_path / "all.jsonl", "-d", tmp_path / "s").err.startswith("imported 48 items")
    refused = ran("import", tmp_path / "all.jsonl", "-d", cluster)
    assert (refused.code, "`softkv add -i` adds a file to it" in refused.err) == (1, True)
    with softkv.open(tmp_path / "s", "r") as store, softkv.open(cluster, "r") as db:
        assert dict(store) == dict(db)
        assert db.check().ok
    refused = ran("reembed", "-m", "static", "-d", cluster)
    assert (refused.code, "Export it into one store" in refused.err) == (1, True)


def test_shards_that_do_not_answer_can_be_left_out_of_an_answer(cluster: Path) -> None:
    """The option is named where they are missed, and the answer says that they are left out."""
    shutil.rmtree(cluster / "shard-001")
    refused = ran("query", "where", "-d", cluster)
    assert refused.code == 1
    assert "shard 1 of" in refused.err
    assert "`softkv query --partial`" in refused.err
    told = json.loads(ran("query", "where", "--partial", "-d", cluster).out)
    assert told["out_of_reach"] == pytest.approx(85 / 256)
    assert ran("query", "where", "--partial", "--hard", "-d", cluster).code == 2
