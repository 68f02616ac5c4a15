"""How a store is opened (opening.py), read as of one commit (snapshot.py), changed (writer.py), checked and copied.

Does not know about SQL: the catalog is read and written by softkv.storage.catalog.
"""
