"""A corpus of hostile stores, files and requests, made by code; ../test_hostile.py says what must become of each."""
