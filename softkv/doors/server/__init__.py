"""Stores served over HTTP by one process, their owner, to many users (`softkv serve`)."""
