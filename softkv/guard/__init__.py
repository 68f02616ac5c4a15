"""Answers that know when they do not know: thresholds, p-values, sets and intervals with a promise.

Nothing but arrays: does not read stores and asks nothing (softkv/database/guarding.py).
"""
