"""Options that several commands share, and what a process does once before it computes."""

import argparse
from pathlib import Path


def backend(command):
    """The option of the array library."""
    command.add_argument("--backend", choices=("numpy", "cupy"), default="numpy", help="CPU or GPU (default numpy)")


def common(command):
    """Options that `demo` and `train` share."""
    backend(command)
    command.add_argument("--seed", type=nonnegative, default=0, help="seed of all random numbers (default %(default)s)")
    command.add_argument(
        "--workers", type=positive, help="threads that share the rows of each batch (default: the cores, if the model "
        "is large enough to gain from it)"
    )  # fmt: skip
    command.add_argument(
        "--threads", type=positive, default=1,
        help="threads of the matrix products when there is one worker (default 1)",
    )  # fmt: skip
    command.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default runs/...)")


def positive(text):
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return value


def nonnegative(text):
    """A whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 or more")
    return value


def share(text):
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 0 to 1")
    return value


def prepare(backend, threads):
    """What the process does once before training: find the backend, keep freed memory, set the threads of the BLAS."""
    from threadpoolctl import threadpool_limits

    from numtrans.backend import load_backend
    from numtrans.memory import keep_freed_memory

    load_backend(backend)
    keep_freed_memory()
    threadpool_limits(threads, "blas")
