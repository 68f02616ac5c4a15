"""What a process has held in memory at most, asked from within."""

import resource
import sys


def peak() -> int:
    """The most bytes this process has held since its program began.

    Not ru_maxrss on Linux: there a new program starts with the peak of the process that started it.
    """
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
