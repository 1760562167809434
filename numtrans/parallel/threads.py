"""Threads: each works through some rows of the batch, with a model of its own over the same parameters."""

import contextlib
import os
import threading

from threadpoolctl import ThreadpoolController

from numtrans.backend import backend_name
from numtrans.checks import check_count
from numtrans.parallel.pieces import can_split, check_split, check_targets, divisor, piece_gradients, split_batch
from numtrans.parallel.pool import Pool
from numtrans.parallel.twins import GradientSum, Shard

SMALLEST_STEP = 100_000_000  # FLOPs of a step below which handing work over costs more than it saves


def available_cores():
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Shards:
    r"""The gradient of a batch as the sum over its shards, a thread each.

    .. math:: \nabla L = \sum_s \nabla L_s, \qquad L_s = \frac{1}{n} \sum_{t \in s} \ell_t

    where ``n`` counts the targets of the whole batch. Each thread runs whole forward and backward passes with one
    thread of the BLAS, so that what is no product runs on all cores, too; NumPy lets go of the interpreter while it
    computes. The sum is taken in the order of the shards, whichever was faster.

    Parameters
    ----------
    model, loss : Module
    workers : int, optional
        Number of shards. By default the cores of this process; but 1 where the batch cannot be split (a part of the
        model takes statistics over the batch, an input has no batch axis), on the GPU, and when a step is too small to
        gain from it.
    micro_batches : int, default 1
        Pieces that each shard works through one after another, to need less memory.

    Raises
    ------
    ConfigError
        If a number is not an integer above 0; if `workers` or `micro_batches` is more than 1 and a part of the model
        needs the whole batch (`BatchNorm`), or has something that cannot be copied for another thread.

    Notes
    -----
    Each thread has a copy of the model over the same parameters and buffers. It is made again when a module holds
    something else than before: another part, another setting. A change inside of what a module holds (an entry of a
    dict) is not seen, nor is a module that a lambda refers to copied.
    """

    rank, ranks = 0, 1  # of MPI, see `Ranks`: here there is one

    def __init__(self, model, loss, workers=None, micro_batches=1):
        owner = type(self).__name__
        check_count(owner, "workers", 1 if workers is None else workers)
        check_count(owner, "micro_batches", micro_batches)
        self.model, self.loss, self.workers, self.micro_batches = model, loss, workers, micro_batches
        self.pool, self.shards, self.totals = Pool(1), [Shard(model, loss)], []
        self.check_split()

    def __enter__(self):
        """Begin training; other kinds of workers start here and end in ``__exit__``."""
        return self

    def __exit__(self, *error):
        self.pool.end()
        self.pool, self.shards, self.totals = Pool(1), self.shards[:1], []

    def check_split(self):
        """Raise `ConfigError` if the batch is to be split and must not be."""
        workers = max(self.workers or 1, self.ranks)
        if workers > 1 or self.micro_batches > 1:
            check_split(self.shards[0], workers)

    def gradients(self, inputs, targets, *, first=0, whole=None):
        """Forward and backward of a batch. Adds to the gradients of the parameters and returns the loss.

        Parameters
        ----------
        inputs : array, or tuple of what the model takes
        targets : array
        first : int, default 0
            The number of the first row, when these are rows of a larger batch.
        whole : dict, optional
            What `divisor` returned for the targets of that larger batch.
        """
        check_targets(self.loss, targets)
        if not self.shards[0].is_current():
            self.shards, self.totals = [Shard(self.model, self.loss)], []
            self.check_split()
        workers = self.number_of_shards(inputs, targets)
        pieces = split_batch(inputs, targets, workers * self.micro_batches)
        if whole is None:
            whole = divisor(self.loss, targets) if len(pieces) > 1 else {}
        workers = min(workers, len(pieces))
        counters = [module.counter for module in self.shards[0].dropouts]
        shards = self.shards if workers == 1 else self.prepare(workers)

        def work(i):
            own = pieces[len(pieces) * i // workers : len(pieces) * (i + 1) // workers]
            return sum([piece_gradients(shards[i], piece, counters, first, whole) for piece in own])

        with one_blas_thread() if workers > 1 else contextlib.nullcontext():
            loss = sum(self.pool.map(work, range(workers)))
        if workers > 1:
            self.collect(shards)
        return loss

    def prepare(self, workers):
        """The twins for `workers` threads, up to date with the model."""
        if workers > self.pool.workers:
            self.pool.end()
            self.pool = Pool(workers)
        if not self.totals:
            self.totals = [GradientSum(parameter) for parameter in self.shards[0].parameters]
        while len(self.shards) <= workers:
            self.shards.append(self.shards[0].twin(len(self.shards) - 1, self.totals))
        for total in self.totals:
            total.begin(workers)
        for shard in self.shards[1 : workers + 1]:
            shard.follow(self.shards[0])
        return self.shards[1 : workers + 1]

    def collect(self, shards):
        """Give the model the sums of the gradients of `shards`, and the counters of the random numbers."""
        for shard in shards:
            shard.check_buffers(self.shards[0].buffers())
        for parameter, total in zip(self.shards[0].parameters, self.totals, strict=True):
            parameter.grad = plus(parameter.grad, total.end())
        for module, twin in zip(self.shards[0].dropouts, shards[0].dropouts, strict=True):
            module.counter = twin.counter

    def step(self, optimizer):
        """``optimizer.step()``, with the parameters shared out among the threads."""
        if self.pool.workers == 1:
            optimizer.step()
        else:
            with one_blas_thread():
                optimizer.step(self.pool.map)

    def agree(self, *flags):
        """`flags` as all ranks see them."""
        return flags

    def compare(self, when=""):
        """See that all ranks hold the same parameters."""

    def agree_on(self, settings):
        """See that all ranks have the same settings."""

    def clear(self):
        """Drop what forwards have saved."""
        for shard in self.shards:
            shard.clear()
        for total in self.totals:
            total.begin(0)

    def number_of_shards(self, inputs, targets):
        """Number of shards for a batch."""
        if self.workers is not None:
            return self.workers
        parameters = self.shards[0].parameters
        flops = 6 * targets.size * sum(parameter.data.size for parameter in parameters)
        if flops < SMALLEST_STEP or backend_name(parameters[0].data) != "numpy":
            return 1
        return available_cores() if can_split(self.shards[0], inputs, targets) else 1


def plus(total, gradient):
    """``total + gradient``, in place, where None is none of them."""
    if total is None or gradient is None:
        return gradient if total is None else total
    total += gradient
    return total


_blas = {"lock": threading.Lock(), "users": 0, "controller": None, "limit": None}


@contextlib.contextmanager
def one_blas_thread():
    """A context in which the BLAS uses one thread, because there are several of ours.

    The number is one of the process. So the first of several contexts at once sets it, and the last one puts it back.
    """
    with _blas["lock"]:
        if _blas["users"] == 0:
            _blas["controller"] = _blas["controller"] or ThreadpoolController()
            _blas["limit"] = _blas["controller"].limit(limits=1, user_api="blas")
        _blas["users"] += 1
    try:
        yield
    finally:
        with _blas["lock"]:
            _blas["users"] -= 1
            if _blas["users"] == 0:
                _blas["limit"].restore_original_limits()
