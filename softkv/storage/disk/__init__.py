"""Bytes on the disk, made durable: files.py (primitives), locks.py and place.py, arena.py (rows) and numbers.py.

Does not know about the catalog, nor about commits.
"""
