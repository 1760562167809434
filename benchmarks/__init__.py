"""Timings against peers, run by hand: ``python -m benchmarks COMMAND``. Never part of the tests."""
