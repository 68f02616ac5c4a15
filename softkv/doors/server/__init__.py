"""Serve stores over HTTP: one process owns them, for many users (`softkv serve`)."""
