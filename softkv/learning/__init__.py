"""Learn a temperature (tuning.py) or a metric (fitting.py) from the items of a store; measure answers (measures.py).

Works on arrays only: does not read stores (database/).
"""
