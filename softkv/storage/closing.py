"""Objects that are closed at the end of a block, or else when they are no longer referenced."""

import sys
from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from typing import NoReturn, TypeVar

from softkv.errors import InputError

Own = TypeVar("Own", bound="Closing")


class Closing(ABC):
    """A context manager that closes itself."""

    _closed = True  # until it is fully constructed

    @abstractmethod
    def close(self) -> None:
        """Release what is held; calling it again does nothing."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InputError(
            f"a {type(self).__name__} belongs to the process that opened it, and can be neither pickled nor copied. "
            "Hand on its path or URL, and open the store where it is used: softkv.open(path)."
        )

    def __del__(self) -> None:
        if self._closed:
            return
        # While the interpreter ends, parts of it are gone already, and with them what leaves more than a closed file.
        with suppress(Exception) if sys.is_finalizing() else nullcontext():
            self.close()
