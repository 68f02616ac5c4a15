"""What may be asked of payloads and values: as users write it (worded.py), as it is meant (conditions.py), in SQL.

Does not know about rows, nor about the catalog; valued.py compares the cells it is given.
"""
