"""Threads: each works through some rows of the batch, with a model of its own over the same parameters."""

import contextlib
import os

from threadpoolctl import ThreadpoolController

from numtrans.backend import backend_name
from numtrans.parallel.pieces import can_split, check_split, divisor, piece_gradients, split_batch
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
        If `workers` is more than 1 and a part of the model needs the whole batch (`BatchNorm`).
    """

    rank, ranks = 0, 1  # of MPI, see `Ranks`: here there is one

    def __init__(self, model, loss, workers=None, micro_batches=1):
        if workers is not None and workers > 1:
            check_split(model)
        self.model, self.loss, self.workers, self.micro_batches = model, loss, workers, micro_batches
        self.pool, self.shards, self.totals, self._blas = Pool(1), [Shard(model, loss)], [], None

    def __enter__(self):
        """Begin training; other kinds of workers start here and end in ``__exit__``."""
        return self

    def __exit__(self, *error):
        pass

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
        if not self.shards[0].is_current():
            self.shards, self.totals = [Shard(self.model, self.loss)], []
        workers = self.number_of_shards(inputs, targets)
        pieces = split_batch(inputs, targets, workers * self.micro_batches)
        if whole is None:
            whole = divisor(self.loss, targets) if len(pieces) > 1 else {}
        workers = min(workers, len(pieces))
        counters = [module.counter for module in self.shards[0].dropouts]
        shards = self.shards if workers == 1 else self.prepare(workers)

        def work(i):
            own = pieces[len(pieces) * i // workers : len(pieces) * (i + 1) // workers]
            return sum(piece_gradients(shards[i], piece, counters, first, whole) for piece in own)

        with self.one_blas_thread(workers):
            loss = sum(self.pool.map(work, range(workers)))
        if workers > 1:
            self.collect()
        return loss

    def prepare(self, workers):
        """The twins for `workers` threads, up to date with the model."""
        if workers > self.pool.workers:
            self.pool = Pool(workers)
        if not self.totals:
            self.totals = [GradientSum() for _ in self.shards[0].parameters]
        while len(self.shards) <= workers:
            self.shards.append(self.shards[0].twin(len(self.shards) - 1, self.totals))
        for total in self.totals:
            total.begin(workers)
        for shard in self.shards[1 : workers + 1]:
            shard.follow(self.shards[0])
        return self.shards[1 : workers + 1]

    def collect(self):
        """Give the model the sums of the gradients, and the counters of the random numbers."""
        for parameter, total in zip(self.shards[0].parameters, self.totals, strict=True):
            gradient = total.end()
            if gradient is not None:
                parameter.add_grad(gradient)
        for module, twin in zip(self.shards[0].dropouts, self.shards[1].dropouts, strict=True):
            module.counter = twin.counter

    def step(self, optimizer):
        """``optimizer.step()``, with the parameters shared out among the threads."""
        with self.one_blas_thread(self.pool.workers):
            optimizer.step(self.pool.map)

    def agree(self, *flags):
        """`flags` as all ranks see them."""
        return flags

    def compare(self, when=""):
        """See that all ranks hold the same parameters."""

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

    def one_blas_thread(self, workers):
        """A context in which the BLAS uses one thread, if there are several of ours."""
        if workers == 1:
            return contextlib.nullcontext()
        if self._blas is None:
            self._blas = ThreadpoolController()
        return self._blas.limit(limits=1, user_api="blas")
