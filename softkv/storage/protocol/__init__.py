"""How a store is opened (opening.py), read as of one commit (snapshot.py), changed by one (writer.py) and kept whole.

Does not know about SQL: what the catalog says is asked of softkv.storage.catalog.
"""
