"""Training on several cores: the batch is split, and the gradients of its pieces are summed.

The layers know nothing of it. What makes the sum that of the whole batch: the loss of each piece is divided by the
number of targets of the whole, and dropout draws the part of its mask that belongs to the rows of the piece.
"""

from numtrans.errors import ConfigError
from numtrans.parallel.mpi import Ranks
from numtrans.parallel.pieces import Piece, split_batch
from numtrans.parallel.processes import Processes
from numtrans.parallel.threads import Shards, available_cores

__all__ = ["Piece", "Processes", "Ranks", "Shards", "available_cores", "make_workers", "split_batch"]


def make_workers(model, loss, workers=None, micro_batches=1, kind="threads", comm=None):
    """What works out the gradients for a `Trainer`.

    Parameters
    ----------
    model, loss : Module
    workers : int, optional
    micro_batches : int, default 1
    kind : {"threads", "processes"}, default "threads"
    comm : mpi4py.MPI.Comm, optional

    Returns
    -------
    Shards, Processes, or with a communicator Ranks

    Raises
    ------
    ConfigError
        If there is no such kind, or processes are asked for within ranks of MPI, whose memory must not be forked.
    """
    if kind not in ("threads", "processes"):
        raise ConfigError(f"worker_kind is {kind!r}, expected 'threads' or 'processes'")
    if comm is not None and kind == "processes":
        raise ConfigError("worker_kind 'processes' has no meaning with MPI: start more ranks, or use threads")
    if comm is not None:
        return Ranks(comm, model, loss, workers, micro_batches)
    return (Processes if kind == "processes" else Shards)(model, loss, workers, micro_batches)
