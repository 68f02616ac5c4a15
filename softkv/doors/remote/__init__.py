"""Handles on stores that a server owns: `softkv.open("http://...")`."""
