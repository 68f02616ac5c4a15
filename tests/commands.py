"""The `softkv` command inside the test's own process: what it prints, where, and how it ends."""

import atexit
import gc
import io
import sys
from typing import NamedTuple

import pytest
from softkv_cli.main import main


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Stream(io.TextIOWrapper):
    """A stream in memory that may be a terminal."""

    def __init__(self, text: str = "", *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        """Whether a person is looking."""
        return self._terminal

    def text(self) -> str:
        """All that was written."""
        return bytes(self.buffer.getvalue()).decode()  # type: ignore[attr-defined]


def ran(*arguments: object, stdin: str = "", terminal: bool = False, watched: bool = False, columns: int = 120) -> Ran:
    """Run `softkv` with these arguments, with stdout on a terminal or piped, and stderr on one where `watched`."""
    out, err = Stream(terminal=terminal), Stream(terminal=watched)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["softkv", *map(str, arguments)])
        patch.setattr(sys, "stdin", Stream(stdin))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setenv("COLUMNS", str(columns))
        patch.delenv("SOFTKV_DB", raising=False)
        with pytest.raises(SystemExit) as ended:
            main()
    atexit.unregister(gc.freeze)  # a command ends without a collection; of this process libraries expect one
    return Ran(int(ended.value.code or 0), out.text(), err.text())
