"""Objects that are closed at the end of a block, or else when they are no longer referenced."""

from abc import ABC, abstractmethod
from typing import TypeVar

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

    def __del__(self) -> None:
        if not self._closed:
            self.close()
