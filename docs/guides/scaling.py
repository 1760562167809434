"""Milliseconds of a training step, shared in different ways, in turns; steps that waited for a core do not count.

    python docs/guides/scaling.py S
    mpirun -n 2 python -m mpi4py docs/guides/scaling.py S
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.losses import CrossEntropyLoss
from numtrans.memory import keep_freed_memory
from numtrans.models import GPT, GPTConfig
from numtrans.optim import AdamW, clip_grad_norm
from numtrans.parallel import available_cores, make_workers
from numtrans.parallel.mpi import world

SIZES = {  # layers, width, heads, tokens of a row, rows of a batch, vocabulary
    "tiny": (1, 16, 2, 8, 4, 20), "S": (4, 128, 4, 64, 12, 65), "M": (6, 384, 6, 256, 8, 65),
    "L": (12, 768, 12, 64, 4, 50257),
}  # fmt: skip


class Steps:
    """Training steps of a GPT of `size`; `parallel` are arguments of `make_workers`."""

    def __init__(self, size, **parallel):
        layers, width, heads, self.tokens, self.rows, self.vocab = SIZES[size]
        config = GPTConfig(self.vocab, max_len=self.tokens, d_model=width, num_heads=heads, num_layers=layers)
        self.model = GPT(config, rng=0)
        self.optimizer = AdamW(self.model.parameters(), lr=1e-4)
        self.workers = make_workers(self.model, CrossEntropyLoss(), **parallel)
        self.number, self.milliseconds, self.waited = 0, [], []

    def step(self):
        self.number += 1
        ids = np.random.default_rng(self.number).integers(self.vocab, size=(self.rows, self.tokens + 1))
        start = time.perf_counter()
        self.model.zero_grad()
        self.workers.gradients(ids[:, :-1], ids[:, 1:])
        clip_grad_norm(self.model.parameters(), 1.0)
        self.workers.step(self.optimizer)
        self.workers.clear()
        self.milliseconds.append(1000 * (time.perf_counter() - start))


    def median(self):
        """Median of the steps that did not wait for a core, and how many did not; of all, if all did."""
        both = list(zip(self.milliseconds, self.waited))[1:]
        kept = [taken for taken, waited in both if waited < 0.05 * taken]
        return statistics.median(kept or self.milliseconds), len(kept)


def waiting():
    """Milliseconds for which this process and its workers have been ready to run and have had no core (Linux)."""
    total, here = 0, Path("/proc/self/task")
    if here.is_dir():
        workers = (here / str(os.getpid()) / "children").read_text().split()
        for process in ("self", *workers):
            for thread in Path(f"/proc/{process}/task").iterdir():
                total += int((thread / "schedstat").read_text().split()[1])
    return total / 1e6


def alone_and_shared(size):
    """Who takes turns in this process, or in these ranks of MPI; the first is one core alone."""
    comm, cores = world(), available_cores()
    contestants = {"one core": Steps(size, workers=1)}
    if comm is not None:
        contestants[f"{comm.size} ranks of MPI"] = Steps(size, comm=comm)
    else:
        contestants[f"{cores} threads"] = Steps(size, workers=cores)
        if sys.platform.startswith("linux"):
            contestants[f"{cores} processes"] = Steps(size, workers=cores, kind="processes")
    return contestants, comm


def wait_for_all(comm):
    """A barrier at which ranks sleep: most of them wait busily, and here one core works alone meanwhile."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def measure(size, seconds=20.0):
    """Take turns for so many seconds; returns name -> `Steps.median`, on other ranks than 0 nothing."""
    contestants, comm = alone_and_shared(size)
    for steps in contestants.values():
        steps.workers.__enter__()
    stop, more = time.perf_counter() + seconds, True
    while more:
        for i, steps in enumerate(contestants.values()):
            before = waiting()
            if comm is None or comm.rank == 0 or i > 0:
                steps.step()
            waited = waiting() - before
            if comm is not None:
                wait_for_all(comm)
            steps.waited.append(waited if comm is None else max(comm.allgather(waited)))
        more = time.perf_counter() < stop or steps.number < 3
        more = more if comm is None else comm.bcast(more)
    for steps in contestants.values():
        steps.workers.__exit__(None, None, None)
    if comm is not None and comm.rank:
        return {}
    return {name: steps.median() for name, steps in contestants.items()}


def report(medians):
    """A line for each: milliseconds, and how many times as fast as one core, if there are steps that did not wait."""
    for name, (value, kept) in medians.items():
        one, counted = medians["one core"]
        times = f"{one / value:6.2f}" if kept and counted else f"{'-':>6}"
        steps = f"{kept} steps" if kept else "every step waited for a core"
        print(f"{name:16} {value:8.1f} ms {times} times as fast ({steps})")


def positive(text):
    """A number above 0, for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES, help="the model that is trained")
    parser.add_argument("seconds", nargs="?", type=positive, default=20.0, help="how long (default %(default)s)")
    arguments = parser.parse_args(argv)
    keep_freed_memory()
    threadpool_limits(1, "blas")
    report(measure(arguments.size, arguments.seconds))


if __name__ == "__main__":
    main()
