"""Indexes: derived from a store, disposable, and made again when they are missing."""
