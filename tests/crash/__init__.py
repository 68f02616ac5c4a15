"""Processes that are killed, stopped and forked while they use a store. Repeat a run with the seed it printed."""
