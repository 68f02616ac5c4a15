"""What is closed at the end of a block, or else when nobody holds it any more."""

from abc import ABC, abstractmethod
from typing import TypeVar

Own = TypeVar("Own", bound="Closing")


class Closing(ABC):
    """A context manager that closes itself."""

    _closed = True  # until all is there

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; once is enough."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            self.close()
