"""Stores in which every edge is near: checksum windows and bitmaps of the dead that hold only a few rows."""

import pytest

from softkv.storage import arena, checking, compaction, deaths, generation


def shrink(monkeypatch: pytest.MonkeyPatch, *, window: int = 64, block: int = 16) -> None:
    """Let windows have this many bytes and bitmaps this many rows, until the test is over."""
    for module in (arena, checking, compaction, generation):
        monkeypatch.setattr(module, "WINDOW", window)
    monkeypatch.setattr(deaths, "BLOCK", block)
    monkeypatch.setattr(deaths, "BLOCK_BYTES", block // 8)
