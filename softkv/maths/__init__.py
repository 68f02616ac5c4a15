"""Soft lookup as pure functions on arrays: no files, no SQL, no index. NumPy and torch from one source.

To understand attention, read in this order:

    arrays.py         the few array operations needed, spelled once for NumPy and torch
    compatibility.py  how alike are a query and a key?        queries x keys -> scores -> logits
    weighting.py      how much does each row count?           logits -> unnormalised weights of one block
    blending.py       what is the average?                    weights x values -> Blend; Blends merge
    ranking.py        which rows count most?                  a running top-k over blocks
    lookup.py         all of it over all rows                 fold the blocks into one Blend
    heads.py          several learned views at once           one query rewritten into h
"""
