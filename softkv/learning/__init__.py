"""What a store learns from its own items: the temperature that suits them.

Does not read stores (database/) and needs nothing but arrays.
"""
