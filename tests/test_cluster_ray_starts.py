"""Ray where there is none: the command starts it to stay, with a token that keeps others out, and shards held by it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv.doors.cluster.actors import disk_of
from softkv.doors.cluster.manifest import Manifest, Placed

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.alone]

ROOT = Path(__file__).parent.parent
JOIN = """
import softkv, sys
try:
    softkv.open("ray:" + sys.argv[1], "r", address=sys.argv[2], wait=5)
except softkv.errors.ServerUnreachable as error:
    print(error)
"""


@dataclass(frozen=True)
class Desk:
    """A user who has set nothing for Ray: a home, where Ray keeps what it needs, and a cluster."""

    home: Path
    own: str
    cluster: Path

    @property
    def address(self) -> str:
        """Where Ray is, once it was started."""
        return (Path(self.own) / "ray" / "ray_current_cluster").read_text().strip()

    def run(self, *command: object, **environment: str) -> "subprocess.CompletedProcess[str]":
        """What became of a process of this user."""
        plain = {name: one for name, one in os.environ.items() if not name.startswith("RAY_")}
        given = plain | {"RAY_TMPDIR": self.own, "HOME": str(self.home)} | environment
        ran = [sys.executable, *map(str, command)]
        return subprocess.run(ran, env=given, capture_output=True, text=True, timeout=240)

    def softkv(self, *command: object) -> str:
        """What a command prints that ends well."""
        ran = self.run("-m", "softkv_cli", *command)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def end_ray(self) -> None:
        """End all processes of the Ray that was started here, and no other."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"RAY_TMPDIR={self.own}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A cluster of two shards that the command has Ray hold, where there was none."""
    home = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as own:
        found = Desk(home, own, home / "c")
        try:
            found.softkv("cluster", "create", found.cluster, "--shards", 2, "--kind", "number")
            found.softkv("cluster", "start", found.cluster)
            yield found
        finally:
            found.end_ray()


def test_shards_are_held_until_they_are_stopped(desk: Desk) -> None:
    """They outlive who started them, whoever comes later finds them, and what they held is whole when they are gone."""
    held, processes = f"ray:{desk.cluster}", ("cluster", "processes", desk.cluster)
    desk.softkv("add", "a small room", 540, "--db", held)
    assert '"value": 540.0' in desk.softkv("get", "a small room", "--db", held)
    assert "ok, commit" in desk.softkv("check", "--db", held)
    before = desk.softkv(*processes)
    assert all(Path("/proc", pid).exists() for pid in before.split()[2::3])
    assert desk.softkv(*processes, "--address", desk.address) == before
    desk.softkv("cluster", "stop", desk.cluster)
    assert desk.softkv(*processes).count("does not answer") == 2
    desk.softkv("cluster", "start", desk.cluster, "--address", desk.address)
    assert set(desk.softkv(*processes).split()).isdisjoint(before.split()[2::3])
    desk.softkv("cluster", "stop", desk.cluster, "--address", desk.address)
    with softkv.open(desk.cluster) as db:
        assert dict(db) == {"a small room": 540.0}
        assert db.check().ok


@pytest.mark.parametrize("given", [{}, {"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}], ids=str)
def test_who_has_not_the_token_is_kept_out(given: dict[str, str], desk: Desk, tmp_path: Path) -> None:
    """The token is readable by its user only; another user, with another or without, does not join."""
    token = desk.home / ".ray" / "auth_token"
    assert (token.stat().st_mode & 0o777, len(token.read_text())) == (0o600, 64)
    ran = desk.run("-c", JOIN, desk.cluster, desk.address, HOME=str(tmp_path), **given)
    assert f"Ray at {desk.address} does not answer" in ran.stdout, ran.stderr


def test_a_pod_has_the_resource_that_the_shard_on_its_volume_asks_for() -> None:
    """A shell gets it from what the page says for Kubernetes; each volume is in one pod."""
    yaml: Any = import_module("yaml")
    (page,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8"), re.DOTALL)
    spec = yaml.safe_load(page)["spec"]
    (group,) = spec["workerGroupSpecs"]
    echo = f"printf %s {group['rayStartParams']['resources']}"
    said = subprocess.run(["sh", "-c", echo], capture_output=True, text=True, check=True).stdout
    mounted = group["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"]
    manifest = Manifest.first("films", [Placed("one", f"{mounted}/films-shard-000")], {})
    assert json.loads(said) == {disk_of(manifest, "/cluster/films", 0): 1}
    assert [group[name] for name in ("replicas", "minReplicas", "maxReplicas")] == [1, 1, 1]
    assert spec["authOptions"] == {"mode": "token"}


def test_ray_that_is_not_there_is_said_so(desk: Desk) -> None:
    """The error names its address, once it was looked for."""
    assert "127.0.0.1:1 does not answer" in desk.run("-c", JOIN, desk.cluster, "127.0.0.1:1").stdout
