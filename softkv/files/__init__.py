r"""Turn a file, or what stands on stdin, into records, lazily.

Reading order: record.py (columns and records), limits.py (how large the parts of a file may be), source.py
(which file, in which format), decoding.py (bytes → text), lines.py (text → lines), notation.py (strict JSON), roles.py
(which column means what), fields.py (columns that have a type → records), then one file per format, each of which gives
columns: rows.py, cells.py (texts → what has a type) and delimited.py (CSV, TSV), objects.py (JSON lines), document.py
(JSON), parquet.py, arrow.py, arrays.py (npz, npy), indexes.py (FAISS), collections.py (llm, Chroma) and exported.py
(what `softkv export` wrote); reader.py joins them. exports/ writes whole stores, and reads them back with these
readers.

Does not embed texts, open a store, or look for duplicate keys.

>>> import tempfile, os
>>> path = os.path.join(tempfile.mkdtemp(), "films.csv")
>>> with open(path, "w") as file:
...     _ = file.write("title,score\nAlien,8.5\n007,7\n")
>>> [(record.line, record.key, record.value) for record in records(path)]
[(2, 'Alien', 8.5), (3, '007', 7.0)]
"""

from softkv.files.limits import FIRST_BATCH
from softkv.files.reader import batches, records
from softkv.files.record import Columns, Record
from softkv.files.source import FORMATS

__all__ = ["FIRST_BATCH", "FORMATS", "Columns", "Record", "batches", "records"]
