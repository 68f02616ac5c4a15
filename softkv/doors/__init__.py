"""Ways into softkv from other libraries, such as sklearn.py and torch.py. Of the rest only `open` goes through one.

Reading order: held.py (items in memory or on a path), sklearn.py and promising.py (its intervals and sets); memory.py
(rows as tensors), taken.py (those of a store), weighing.py and query_parts.py (a lookup to be learned from, some
queries at a time) and torch.py; document_stores.py (what stores of documents have in common), langchain.py and
haystack.py; wire.py (questions and results as bytes), shapes.py (whether a result has the shape it should) and
hints.py, which a server and the handles on it share.
"""
