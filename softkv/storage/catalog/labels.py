"""Labels and their codes: a code never changes its label, the number of live items that carry it does.

Readers use LabelBook; the writer also keeps LabelCounts. Neither writes anything.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from softkv.errors import StoreDamaged
from softkv.ndarrays import Codes, Counts
from softkv.storage.catalog.catalog import Catalog
from softkv.storage.catalog.tally import Tally

LabelEntry = tuple[int, str, int]  # code, label, live items


class LabelBook:
    """The texts of label codes, read once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._labels: list[str] = []

    def label(self, code: int) -> str:
        """The label that a code stands for."""
        if code >= len(self._labels):
            with self._catalog.connection.reading():  # not in the middle of a commit, which may be rolled back
                self._labels = [label for _, label, _ in self._catalog.labels()]
        if not 0 <= code < len(self._labels):
            raise StoreDamaged(f"a row has label code {code}, which no label has. Run `softkv check`.")
        return self._labels[code]


def require_counts(labels: Iterable[LabelEntry], tally: Tally, path: str) -> None:
    """Refuse labels that do not fit the sums: if some are missing, new labels would get their codes."""
    counts = np.array([count for _, _, count in labels], np.float64)
    if counts.sum() != tally.count or not np.isclose(float(counts @ counts), tally.squares, rtol=1e-9):
        raise StoreDamaged(
            f"{path}: the labels count {int(counts.sum())} live items, but there are {tally.count}, or they carry "
            "other labels. Run `softkv check`."
        )


class LabelCounts:
    """Codes and live items of all labels, as of the newest commit."""

    def __init__(self, rows: Iterable[LabelEntry]) -> None:
        self._codes: dict[str, int] = {}
        self._counts: dict[int, int] = {}
        self._labels: list[str] = []
        self.apply(rows)

    def apply(self, rows: Iterable[LabelEntry]) -> None:
        """Update the counts from rows that were committed."""
        for code, label, count in rows:
            if label not in self._codes:
                self._codes[label] = code
                self._labels.append(label)
            self._counts[code] = count

    def changes(self, born: Sequence[str], died: Codes, tally: Tally) -> tuple[Codes, list[LabelEntry], Tally]:
        """The codes of the labels added, the table rows that change by labels added and removed, and the new sums."""
        fresh = dict.fromkeys(label for label in born if label not in self._codes)
        codes = {label: len(self._labels) + position for position, label in enumerate(fresh)}
        incoming = np.array([self._codes.get(label, codes.get(label, -1)) for label in born], np.int32)
        touched = np.union1d(incoming, died)
        before = np.array([self._counts.get(code, 0) for code in touched.tolist()], np.int64)
        after = before + _counted(incoming, touched) - _counted(died, touched)
        names = self._labels + list(fresh)
        rows = [(code, names[code], count) for code, count in zip(touched.tolist(), after.tolist(), strict=True)]
        return incoming, rows, tally.changed_labels(before, after)


def _counted(codes: Codes, among: Codes) -> Counts:
    """How often each of the sorted codes `among` occurs in `codes`."""
    return np.bincount(np.searchsorted(among, codes), minlength=len(among)).astype(np.int64)
