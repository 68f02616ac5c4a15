"""What SQLite keeps of a store: connection.py, tables.py and catalog.py, then one file for each thing kept there.

Does not know about arenas, nor when something is committed.
"""
