"""Tests: sentences about behaviour, in the file named after the module."""
