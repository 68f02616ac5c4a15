"""Answers that know when they do not know: thresholds, p-values, sets and intervals with a promise.

Works on arrays only: does not read stores or run lookups (softkv/database/guarding.py).
"""
