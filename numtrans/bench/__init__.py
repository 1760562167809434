"""Timings of numtrans against peers, in turns: what ``numtrans bench`` and the folder ``benchmarks/`` share.

Nothing of it is imported by ``import numtrans``.
"""

from numtrans.bench.turns import Contestant, ContestantError, Worker, compete, median_seconds, peak_memory, ratio

__all__ = ["Contestant", "ContestantError", "Worker", "compete", "median_seconds", "peak_memory", "ratio"]
