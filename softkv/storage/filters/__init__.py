"""Filters on payloads and values: as users write them (worded.py), as conditions (conditions.py), and in SQL.

Does not know about rows, nor about the catalog; valued.py compares the values it is given.
"""
