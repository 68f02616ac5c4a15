"""How much of a file is believed: lengths beyond which a record is refused instead of read.

The first five are those of the store (storage/batch.py), so that what is refused there is named here by its line. They
stand here a second time because importing the store loads SQLAlchemy; a test compares them.
"""

LONGEST_KEY = 1 << 16  # bytes of UTF-8
LONGEST_LABEL = 1 << 16
LONGEST_TEXT = 1 << 24
LONGEST_PAYLOAD = 1 << 20
DEEPEST_PAYLOAD = 64
EXACT_INTEGER = 1 << 53  # the largest count that float64 holds without rounding
LARGEST_NUMBER = 1e150
LARGEST_CELL = 3.4028234663852886e38  # of a vector: the largest float32

LONGEST_RECORD = 1 << 25  # characters of one line, row or element: the longest text, its key and its payload fit in
BLOCK = 1 << 20  # bytes that are read at a time
FIRST_BATCH = 10_000  # rows that decide whether a column of texts is one of numbers
