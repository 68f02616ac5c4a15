"""Indexes: derived from a store, disposable, and made again when they are missing.

Reading order: opening.py (which lists to read), calibration.py (the error of estimating the rest) and rehearsal.py (how
it is measured), lists.py (an index) and encoding.py (its bytes), search.py (its lists are read); strata.py, looks.py
and measuring.py (answers by rows drawn at random from lists); planned.py (answers by a plan), for which outline.py and
screening.py tell which rows of the lists to read, and signs.py (rows that are like a query, wherever they lie);
engine.py (FAISS), building.py (arrange rows in lists), shuffling.py (the order of rows in a list), forecast.py (time
and room of a build); late.py (rows added after a build), dividing.py (divide and dissolve lists), verdict.py (whether a
calibration still holds); candidates.py and skeleton.py (other indexes of FAISS).
"""
