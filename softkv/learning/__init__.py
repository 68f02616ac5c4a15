"""What a store learns from its own items, a temperature or a metric; and how good answers are (measures.py).

Does not read stores (database/) and needs nothing but arrays.
"""
