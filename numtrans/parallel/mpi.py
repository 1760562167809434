"""MPI: each rank, a process here or on another machine, works through some rows of the batch.

Every rank holds a replica of the model and of the optimizer. The batch is a function of the step, so each makes it by
itself and takes its rows; only gradients travel. MPI gives all ranks the same sum, bit for bit, so equal replicas that
all step by it stay equal.
"""

import hashlib
import importlib.util
import os
import sys
import zlib

import numpy as np

from numtrans.backend import backend_name
from numtrans.errors import ConfigError, WorkerError
from numtrans.parallel.pieces import check_targets, divisor, split_batch
from numtrans.parallel.threads import Shards, plus
from numtrans.parallel.twins import all_parts

SMALL = 1 << 16  # bytes: gradients below it travel together, for a message has a cost of its own; larger ones in place
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # what mpirun of Open MPI, and of MPICH and Intel MPI, tells its processes
COMMAND = "mpirun -n 4 python -m mpi4py -m numtrans train ..."
INSTALL = 'pip install "numtrans[mpi]", and an MPI library: that of the system, or pip install mpich'


class Ranks(Shards):
    r"""The gradient of a batch as the sum over the ranks of MPI.

    .. math:: \nabla L = \sum_r \nabla L_r, \qquad L_r = \frac{1}{n} \sum_{t \in r} \ell_t

    where ``n`` counts the targets of the whole batch. Within a rank the rows are shared by threads, as in `Shards`.
    All ranks call every method, in the same order.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    model, loss : Module
    workers : int, default 1
        Threads of each rank.
    micro_batches : int, default 1
        Pieces that each thread works through one after another, to need less memory.

    Raises
    ------
    ConfigError
        If `comm` is none, a part of the model needs the whole batch (`BatchNorm`), the model is on the GPU, or Python
        was not started as ``python -m mpi4py``, which ends all ranks when one fails: the others would wait for it
        forever.
    WorkerError
        If the ranks do not hold the same parameters, or do not see the same batch.
    """

    def __init__(self, comm, model, loss, workers=None, micro_batches=1):
        if not comm or not hasattr(comm, "size") or getattr(comm, "is_inter", False):
            raise ConfigError(f"Ranks: comm is {comm!r}, expected one of mpi4py such as MPI.COMM_WORLD")
        self.comm, self.rank, self.ranks = comm, comm.rank, comm.size
        super().__init__(model, loss, 1 if workers is None else workers, micro_batches)
        if comm.size > 1 and "mpi4py.run" not in sys.modules:
            raise ConfigError(f"Ranks: an error in one rank must end all of them; start with `{COMMAND}`")

    def __enter__(self):
        device = backend_name(self.model.parameters()[0].data)
        if device != "numpy":
            raise ConfigError(f"Ranks: MPI sums arrays of numpy, and the model is on {device}")
        return self

    def __exit__(self, error, *rest):
        super().__exit__(error, *rest)
        if error is None:
            self.comm.Barrier()  # now the files of rank 0 are written

    def gradients(self, inputs, targets):
        """Forward and backward of a batch, the same on each rank. Adds to the gradients of the parameters.

        Returns
        -------
        numpy.float64
            The loss of the whole batch.
        """
        check_targets(self.loss, targets)
        pieces, parameters = split_batch(inputs, targets, self.ranks), all_parts(self.model, self.loss)[1]
        earlier = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        # 1. the rows of this rank; none if the batch has fewer rows than there are ranks
        loss = 0.0
        if self.rank < len(pieces):
            piece, whole = pieces[self.rank], divisor(self.loss, targets)
            loss = super().gradients(piece.inputs, piece.targets, first=piece.first, whole=whole)
        # 2. the loss, a check of the batch, and how many ranks have a gradient of each parameter
        check = float(_checksum(inputs, targets))
        head = np.array([loss, check, *(parameter.grad is not None for parameter in parameters)], np.float64)
        self._sum(head)
        if head[1] != self.ranks * check:  # sums of 32-bit numbers are exact in float64
            raise WorkerError(
                f"rank {self.rank}: its batch is not that of the other ranks. All must have the same data and the same "
                "seed, and batch(step) must depend on the step alone"
            )
        # 3. the gradients; a parameter that no rank has a gradient of is left alone, as in one process
        due = [parameter for parameter, count in zip(parameters, head[2:]) if count]
        for parameter in due:
            gradient = np.zeros_like(parameter.data) if parameter.grad is None else parameter.grad
            parameter.grad = np.asarray(gradient, order="C")
        self._sum_all([parameter.grad for parameter in due])
        for parameter, gradient in zip(parameters, earlier):
            parameter.grad = plus(parameter.grad, gradient)
        # 4. a rank without rows has drawn no masks: its counters follow those of rank 0
        if len(pieces) < self.ranks:
            state = self.model.random_state()
            counters = np.array(list(state.values()), np.int64)
            self.comm.Bcast(counters)
            self.model.load_random_state(dict(zip(state, counters.tolist())))
        return head[0]

    def agree(self, *flags):
        """Each of `flags`, true on all ranks if it is true on one."""
        count = np.array(flags, np.int64)
        self._sum(count)
        return tuple(bool(n) for n in count)

    def compare(self, when=""):
        """Raise `WorkerError` unless parameters, buffers, keys and counters are the same, bit for bit, on all ranks."""
        if others := self._unlike(_digest(self.model)):
            raise WorkerError(
                f"the model of rank {', '.join(map(str, others))} is not that of rank 0 {when}: all ranks need "
                "the same seed, the same files, the same NumPy and the same kind of processor"
            )

    def agree_on(self, settings):
        """Raise `WorkerError` unless `settings`, a dict whose names are the same on all ranks, are so, too.

        Ranks that do not agree when to save or to stop would wait for each other forever.
        """
        for name, value in settings.items():
            if others := self._unlike(hashlib.blake2b(repr(value).encode(), digest_size=16).digest()):
                ranks, here = ", ".join(map(str, others)), repr(value)[:80]
                raise WorkerError(
                    f"rank {ranks} has other settings than rank 0, in {name} (here {here}); "
                    "start all ranks with the same command, the same program and the same files"
                )

    def _unlike(self, digest):
        """The ranks whose `digest`, some bytes, is not that of rank 0."""
        digests = np.empty((self.ranks, len(digest)), np.uint8)
        self.comm.Allgather(np.frombuffer(digest, np.uint8), digests)
        return [rank for rank in range(self.ranks) if (digests[rank] != digests[0]).any()]

    def _sum_all(self, arrays):
        """Put the sum over the ranks in place of each array."""
        small = {}
        for array in arrays:
            if array.nbytes < SMALL:
                small.setdefault(array.dtype, []).append(array)
            else:
                self._sum(array)
        for those in small.values():
            packed = np.concatenate([array.reshape(-1) for array in those])
            self._sum(packed)
            ends = np.cumsum([array.size for array in those])
            for array, part in zip(those, np.split(packed, ends[:-1])):
                array[...] = part.reshape(array.shape)

    def _sum(self, array):
        from mpi4py import MPI

        self.comm.Allreduce(MPI.IN_PLACE, array)


def processes_started():
    """Number of processes like this one that mpirun has started; 1 without it."""
    given = [os.environ.get(name, "") for name in SIZES]
    return max([1, *(int(text) for text in given if text.isdecimal())])


def check_alone(command):
    """Raise `ConfigError` if mpirun has started several processes for a `command` that does not share its work."""
    if (started := processes_started()) > 1:
        raise ConfigError(
            f"numtrans {command}: mpirun started {started} processes, which would all do the same and write the same "
            "files. Of the commands only train shares its work; run this one without mpirun"
        )


def world():
    """``MPI.COMM_WORLD`` if mpirun has started several processes like this one, else None.

    mpi4py is asked only if it was loaded before: ``python -m mpi4py`` does so.

    Raises
    ------
    ConfigError
        If mpirun has started several processes and they are not run by mpi4py: each would train by itself.
    """
    started = processes_started()
    if "mpi4py.run" in sys.modules:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ImportError(f"mpi4py finds no MPI library ({error}). It needs one: {INSTALL}") from error
        return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None
    if started > 1:
        missing = "" if importlib.util.find_spec("mpi4py") else f" It needs mpi4py: {INSTALL}."
        raise ConfigError(f"mpirun started {started} processes, each of which would train by itself. "
                          f"Start them as `{COMMAND}`.{missing}")  # fmt: skip
    return None


def _checksum(inputs, targets):
    """32 bits that tell a batch from others."""
    total = 0
    for x in (*(inputs if isinstance(inputs, tuple) else (inputs,)), targets):
        total = zlib.crc32(np.asarray(x, order="C") if isinstance(x, np.ndarray) else type(x).__name__.encode(), total)
    return total


def _digest(model):
    """Bytes that tell the state of `model` from others: all that makes its next step."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {parameter.data.shape} {parameter.requires_grad}".encode())
        digest.update(np.asarray(parameter.data, order="C"))
    for name, buffer in model.named_buffers():
        digest.update(name.encode())
        digest.update(np.asarray(buffer, order="C"))
    keys = [getattr(module, "key", None) for module in model.modules()]
    digest.update(f"{model.random_state()} {keys}".encode())
    return digest.digest()
