"""Stores in which every edge is near: checksum windows and bitmaps of the dead that hold only a few rows."""

import pytest

from softkv.storage.catalog import catalog, deaths, migrations
from softkv.storage.disk import arena
from softkv.storage.protocol import checking, generation, windows


def shrink(monkeypatch: pytest.MonkeyPatch, *, window: int = 64, block: int = 16) -> None:
    """Let old windows have this many bytes, new ones half, and bitmaps this many rows, until the test is over."""
    for module in (arena, catalog, checking, generation, migrations, windows):
        monkeypatch.setattr(module, "WINDOW", window)
    for module in (checking, generation):
        monkeypatch.setattr(module, "GRANULE", window // 2)
    monkeypatch.setattr(deaths, "BLOCK", block)
    monkeypatch.setattr(deaths, "BLOCK_BYTES", block // 8)
