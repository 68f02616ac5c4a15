"""What the crash tests share: the process that forks recorded children, started once."""

from collections.abc import Iterator

import pytest

from tests.crash import recorder


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[recorder.Nursery]:
    """Forks children whose calls are recorded; see recorder.py."""
    if reason := recorder.why_not():
        pytest.skip(reason)
    started = recorder.Nursery(tmp_path_factory.mktemp("recorder"))
    yield started
    started.close()
