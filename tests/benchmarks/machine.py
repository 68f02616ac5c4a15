"""What a benchmark prints above its table: the machine, the versions, the day."""

from softkv_cli.machine import machine

__all__ = ["machine"]
