"""Training on several cores: the batch is split, and the gradients of its pieces are summed.

The layers know nothing of it. What makes the sum that of the whole batch: the loss of each piece is divided by the
number of targets of the whole, and dropout draws the part of its mask that belongs to the rows of the piece.
"""

from numtrans.errors import ConfigError
from numtrans.parallel.mpi import Ranks
from numtrans.parallel.pieces import Piece, split_batch
from numtrans.parallel.threads import Shards, available_cores

__all__ = ["Piece", "Ranks", "Shards", "available_cores", "make_workers", "split_batch"]


def make_workers(model, loss, workers=None, micro_batches=1, kind="threads", comm=None):
    """What works out the gradients for a `Trainer`: `Shards`, or with a communicator of MPI `Ranks`."""
    if kind != "threads":
        raise ConfigError(f"worker_kind is {kind!r}, expected 'threads'")
    if comm is not None:
        return Ranks(comm, model, loss, workers, micro_batches)
    return Shards(model, loss, workers, micro_batches)
