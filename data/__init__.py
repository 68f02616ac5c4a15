"""Small worked examples, one folder each. Installed as `softkv_examples`."""

from pathlib import Path


def example(name: str) -> Path:
    """The folder of one worked example."""
    return Path(__file__).parent / name
