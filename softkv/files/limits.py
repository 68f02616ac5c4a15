"""Limits for files: lengths beyond which a record is refused instead of read.

The limits of the store are among them, so that errors can name the line in the file.
"""

from softkv.kinds import LONGEST_TEXT as LONGEST_TEXT
from softkv.storage.batch import DEEPEST_PAYLOAD as DEEPEST_PAYLOAD
from softkv.storage.batch import EXACT_INTEGER as EXACT_INTEGER
from softkv.storage.batch import LARGEST_NUMBER as LARGEST_NUMBER
from softkv.storage.batch import LONGEST_KEY as LONGEST_KEY
from softkv.storage.batch import LONGEST_PAYLOAD as LONGEST_PAYLOAD

LARGEST_CELL = 3.4028234663852886e38  # of a vector: the largest float32

LONGEST_RECORD = 1 << 25  # characters of one line, row or element: the longest text, its key and its payload fit in
BLOCK = 1 << 20  # bytes that are read at a time
FIRST_BATCH = 10_000  # rows that decide whether a column of texts is one of numbers
