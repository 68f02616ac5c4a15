"""What README shows of a cluster whose shards die: its lines are run as they stand there, and print what it says."""

import os
import re
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
APART = """
import functools
print = functools.partial(print, file=open("said.txt", "w", encoding="utf-8"))  # Ray's threads write to stdout as well
"""
AGAIN = """
db.close()
with softkv.open("ray:rents", "r") as db:
    print(len(db), db["a room with a view"])
"""


@pytest.mark.slow
@pytest.mark.ci
def test_a_shard_is_killed_between_two_questions_and_answers_the_third(tmp_path: Path) -> None:
    """The second is answered in part, with what is out of reach; and all is there when Ray has begun anew."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Larger than a machine\n")[1].split("\n## ")[0]
    (code,), (shown,) = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "text"))
    environment = os.environ | {"RAY_AUTH_TOKEN": secrets.token_hex(16), "RAY_AUTH_MODE": "token"}
    given: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240}
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as own:  # where no other Ray is found
        environment["RAY_TMPDIR"] = own
        ran = subprocess.run([sys.executable, "-c", APART + code + AGAIN], env=environment, **given)
    assert ran.returncode == 0, ran.stderr
    said = (tmp_path / "said.txt").read_text(encoding="utf-8").splitlines()
    assert said == [*shown.splitlines(), "4 900.0"]
    assert said[1:3] != said[4:6]
    assert [line for line in said if "out of reach" in line] == said[5:6]
