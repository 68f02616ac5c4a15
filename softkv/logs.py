"""What a store does, for those who listen: the standard `logging`, under the name `softkv`, silent otherwise.

A file of the package logs under its own name, such as softkv.asking.asker. DEBUG is for what happens all the time
(commits), INFO for what happens now and then (opening, building an index, a large scan), WARNING for what should not
(recovery, an index that cannot be used).

Says nothing of what items hold.
"""

import logging

logging.getLogger("softkv").addHandler(logging.NullHandler())


def log_of(module: str) -> logging.Logger:
    """The log of a module, by its `__name__`."""
    return logging.getLogger(module)
