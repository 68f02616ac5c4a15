"""Soft lookup as pure functions on arrays: no files, no SQL, no index. NumPy and torch from one source.

To understand attention, read in this order:

    library.py        the few array operations needed, in NumPy; tensors.py has them in torch
    compatibility.py  how alike are a query and a key?        queries x keys -> scores -> logits
    weighting.py      how much does each row count?           logits -> unnormalised weights of one block
    blending.py       what is the average?                    weights x values -> Blend; Blends merge
    ranking.py        which rows count most?                  a running top-k over blocks
    lookup.py         all of it over all rows                 fold the blocks into one Blend
    heads.py          several learned views at once           one query rewritten into h

and, where there are too many rows to read them all:

    nearfield.py      some runs of rows, one by one           runs -> Blend, and the heaviest rows
    farfield.py       what the other rows add, with bounds    statistics of lists -> Blend, bounds
    summaries.py      the statistics of lists                 what is kept of the rows of a list
    moments.py        how they are measured                   rows -> lists; lists without some rows
    abreast.py        lists of several stores                 combined as if they were those of one
    forms.py          any compatibility as a dot product      keys and queries as lists see them
"""
