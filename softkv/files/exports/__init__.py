"""A whole store as one file, and back: what comes back is what was there, bit for bit.

Reading order: header.py (what a file says of itself), portions.py (items as columns), decimals.py (float32 as short
decimals), jsonl.py, npz.py and parquet.py (the formats), delimited.py (CSV, items alone),
formats.py (which is which), disk.py (whole files or none), exporting.py and importing.py.

Does not embed, score or choose items. The formats themselves are described in docs/transfer.md.

>>> import tempfile, os
>>> from pathlib import Path
>>> from softkv.storage import Store
>>> folder = tempfile.mkdtemp()
>>> path = os.path.join(folder, "fruit.jsonl")
>>> with Store.open(os.path.join(folder, "fruit.softkv"), "c") as store:
...     _ = store.append([[1.0, 0.1], [0.0, 1.0]], [0.5, 2.0], keys=["apple", "pear"], payloads=[{"red": True}, None])
...     with store.snapshot() as snapshot:
...         export(snapshot, path)
2
>>> print(Path(path).read_text(encoding="utf-8").splitlines()[1])
{"key":"apple","value":0.5,"vector":[1,0.1],"payload":{"red":true}}
>>> with Store.open(os.path.join(folder, "again.softkv"), "c") as again:
...     load(path, again), list(again.keys()), again.get("apple").payload
(2, ['apple', 'pear'], {'red': True})
"""

from softkv.files.exports.exporting import export
from softkv.files.exports.formats import FORMATS
from softkv.files.exports.importing import load

__all__ = ["FORMATS", "export", "load"]
