"""The names of files by which processes find and keep off each other.

Does not touch the disk.
"""

LOCK, PIN = "LOCK", "PIN"
SERVER = "SERVER"  # in which the server of a store says how to reach it, while it is the writer
