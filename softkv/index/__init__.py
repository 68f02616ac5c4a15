"""Indexes: derived from a store, disposable, and made again when they are missing.

Reading order: opening.py (which lists to read), calibration.py (how wrong the rest is) and rehearsal.py (how that is
found out), lists.py (an index) and encoding.py (its bytes), search.py (an answer by it); strata.py and measuring.py
(an answer by rows that are drawn); engine.py (FAISS), building.py (rows arranged in lists), shuffling.py (in which
order within each), forecast.py (what that takes); late.py (rows that come afterwards), dividing.py (lists arranged
anew), verdict.py (whether the calibration still holds); candidates.py and skeleton.py (any other index of FAISS).
"""
