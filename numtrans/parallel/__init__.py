"""Training on several cores: the batch is split, and the gradients of its pieces are summed.

The layers know nothing of it. What makes the sum that of the whole batch: the loss of each piece is divided by the
number of targets of the whole, and dropout draws the part of its mask that belongs to the rows of the piece.
"""

from numtrans.parallel.pieces import Piece, split_batch
from numtrans.parallel.threads import Shards, available_cores

__all__ = ["Piece", "Shards", "available_cores", "split_batch"]
