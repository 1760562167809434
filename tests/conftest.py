"""Lies here so that pytest puts tests/ on the import path: every test file can import helpers.py."""
