"""Indexes: derived from a store, disposable, and made again when they are missing.

Reading order: opening.py (which lists to read), calibration.py (how wrong the rest is) and rehearsal.py (how that is
found out), lists.py (an index) and encoding.py (its bytes), search.py (an answer by it); engine.py (FAISS), building.py
(rows arranged in lists), candidates.py (any other index of FAISS).
"""
