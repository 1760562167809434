"""Processes: each works through some rows of the batch, over parameters and gradients in shared memory.

Each has an interpreter of its own, so that also the Python code of the layers runs on all cores. Nothing of the model
travels: a worker is a fork of this process, whose parameters lie in memory that both see.
"""

import contextlib
import multiprocessing
import sys

from numtrans.backend import backend_name
from numtrans.errors import ConfigError
from numtrans.parallel.forks import Fork, shared_like, state
from numtrans.parallel.pieces import check_targets, divisor, piece_gradients, split_batch, whole_batch_modules
from numtrans.parallel.pool import Pool
from numtrans.parallel.threads import Shards, available_cores, one_blas_thread, plus
from numtrans.parallel.twins import Shard, all_parts


class Processes(Shards):
    """The gradient of a batch as the sum over its shards, a process each; as `Shards`, whose threads they replace.

    This process works through the first shard. The others start with training and end with it, or with the first
    error. While they run, the parameters lie in shared memory; then the values go back into the arrays of before.

    Parameters
    ----------
    model, loss : Module
    workers : int, optional
        Number of shards; by default the cores of this process, or 1 if a part of the model needs the whole batch.
    micro_batches : int, default 1
        Pieces that each shard works through one after another, to need less memory.

    Raises
    ------
    ConfigError
        If the platform is not Linux, the model is on the GPU, or `workers` is more than 1 and a part of the model needs
        the whole batch (`BatchNorm`).
    WorkerError
        If a process was killed. An error that is raised in a process is raised here as itself, with the place there as
        its cause.

    Notes
    -----
    In each step the workers are told the counters of the random numbers, training modes, buffers and which parameters
    are frozen. Where a module holds something else than in the step before (another part, another setting), they start
    anew. A change inside of what a module holds (an entry of a dict) reaches them when training begins.
    """

    def __init__(self, model, loss, workers=None, micro_batches=1):
        if not sys.platform.startswith("linux"):
            raise ConfigError(f"Processes: workers are forks, which {sys.platform} does not do safely; use threads")
        if workers is None:
            workers = 1 if whole_batch_modules(all_parts(model, loss)[0]) else available_cores()
        super().__init__(model, loss, workers, micro_batches)
        self.forks, self._open, self._before, self._shared = [], False, [], []

    def __enter__(self):
        self._open = True
        self.begin()
        return self

    def __exit__(self, *error):
        self._open = False
        self.end()

    def gradients(self, inputs, targets, *, first=0, whole=None):
        """As `Shards.gradients`. Outside ``with`` the workers start and end with the call."""
        if not self._open:
            with self:
                return self.gradients(inputs, targets, first=first, whole=whole)
        check_targets(self.loss, targets)
        self.follow()
        pieces = split_batch(inputs, targets, self.workers * self.micro_batches)
        if whole is None:
            whole = divisor(self.loss, targets) if len(pieces) > 1 else {}
        workers = min(self.workers, len(pieces))
        own, *theirs = (pieces[len(pieces) * i // workers : len(pieces) * (i + 1) // workers] for i in range(workers))
        shard = self.shards[0]
        counters = [module.counter for module in shard.dropouts]
        try:
            for fork, those in zip(self.forks, theirs):
                fork.send(those, counters, first, whole, state(shard))
            buffers = shard.buffers()
            with one_blas_thread() if workers > 1 else contextlib.nullcontext():
                loss = sum([piece_gradients(shard, piece, counters, first, whole) for piece in own])
                answers = [fork.receive() for fork, _ in zip(self.forks, theirs)]
                if workers > 1:
                    shard.check_buffers(buffers)
                self._add([given for _, given in answers])
            shard.look()  # what a forward itself has changed was so in the workers, too
        except BaseException:
            self.end()
            raise
        return sum((part for part, _ in answers), loss)

    def _add(self, given):
        """Add the gradients of the workers to those of the model; `given` says of which parameters there are any."""

        def add(i):
            parameter = self.shards[0].parameters[i]
            for fork, those in zip(self.forks, given):
                if those[i]:
                    gradient = fork.gradients[i]
                    parameter.grad = plus(parameter.grad, gradient.copy() if parameter.grad is None else gradient)

        self.pool.map(add, range(len(self.shards[0].parameters)))

    def begin(self):
        """Put the parameters into shared memory and start the workers."""
        if not self.shards[0].is_current():
            self.shards = [Shard(self.model, self.loss)]
            self.check_split()
        parameters = self.shards[0].parameters
        device = backend_name(parameters[0].data)
        if device != "numpy":
            raise ConfigError(f"Processes: shared memory holds arrays of numpy, and the model is on {device}")
        if self.workers > 1 and multiprocessing.current_process().daemon:
            raise ConfigError("Processes: this process is a daemon, which may not start others; use threads")
        self._before = [parameter.data for parameter in parameters]
        unlike = {id(array): array for array in self._before}  # two parameters over one array stay so
        places = dict(zip(unlike, shared_like(list(unlike.values()))))
        self._shared = [places[id(array)] for array in self._before]
        for parameter, array in zip(parameters, self._shared):
            array[...] = parameter.data
            parameter.data = array
        try:
            for _ in range(self.workers - 1):
                self.forks.append(Fork(self.shards[0], self.forks))
        except BaseException:
            self.end()
            raise
        self.pool = Pool(self.workers)  # for the sum and the optimizer; its threads come after the forks

    def follow(self):
        """See to changes since the last step: other arrays are copied, for other parts the workers start anew."""
        parameters = self.shards[0].parameters
        fitting = self.shards[0].is_current() and all(
            (parameter.data.shape, parameter.data.dtype) == (array.shape, array.dtype)
            for parameter, array in zip(parameters, self._shared)
        )
        if not fitting or not self._shared:
            self.end()
            self.begin()
        for i, (parameter, array) in enumerate(zip(self.shards[0].parameters, self._shared)):
            if parameter.data is not array:
                self._before[i], array[...] = parameter.data, parameter.data
                parameter.data = array

    def end(self):
        """End the workers and put the parameters back where they were."""
        for fork in self.forks:
            fork.end()
        for parameter, before, array in zip(self.shards[0].parameters, self._before, self._shared):
            if parameter.data is array and (before.flags.writeable or not parameter.requires_grad):
                if before.flags.writeable:  # else it is frozen, and of a file that is mapped into memory
                    before[...] = array
                parameter.data = before
        self.pool.end()
        self.forks, self._before, self._shared, self.pool = [], [], [], Pool(1)
