"""Two contestants in turns, so that what else the machine does meets both."""

import statistics
import time


def interleaved(contestants, rounds):
    """Seconds of each contestant in each round.

    Parameters
    ----------
    contestants : dict
        Name -> function without arguments. Each runs once before the clock starts.
    rounds : int

    Returns
    -------
    dict
        Name -> list of seconds, one a round.
    """
    for function in contestants.values():
        function()
    seconds = {name: [] for name in contestants}
    for turn in range(rounds):
        order = list(contestants)
        for name in order if turn % 2 == 0 else reversed(order):
            start = time.perf_counter()
            contestants[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(seconds, name, peer):
    """Median over the rounds of the time of `name` as a share of that of `peer`."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[peer]))
