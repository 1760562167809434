"""Token embedding. Shapes: ``...`` any axes of the ids (batch, tokens), ``V`` vocabulary, ``D`` features."""

import numpy as np

from numtrans.backend import backend_name, get_xp, to_device
from numtrans.checks import check_sizes
from numtrans.errors import DtypeError, IndexRangeError, ShapeError
from numtrans.module import Module, Parameter
from numtrans.reductions import rows

# rows of a table, above which a sort beats the product with a one-hot matrix; entries of that matrix, for the GPU
ONE_HOT_LIMIT, DEVICE_ONE_HOT_LIMIT = 128, 1 << 22


class Embedding(Module):
    r"""Look up one row of a table for each token.

    .. math::

        y_t = s\, E_{i_t}, \qquad dE_v = s \sum_{t :\, i_t = v} dy_t, \qquad s = \sqrt{D} \text{ or } 1

    A token that occurs several times collects the sum over its places: an assignment by index would keep the last.

    Parameters
    ----------
    vocab_size, d_model : int
        Rows ``V`` and columns ``D`` of the table.
    scale : bool, default False
        Multiply by :math:`\sqrt{D}`, as in Vaswani et al. (2017), section 3.4, before positions are added.
    std : float, optional
        Standard deviation of the initial table; :math:`D^{-1/2}` by default.
    rng : numpy.random.Generator, optional
        Draws the table. A new unseeded one by default.

    Raises
    ------
    IndexRangeError
        If an id is negative or not below ``vocab_size``. NumPy would take a negative one from the end and CuPy would
        wrap one that is too large. Ids that are already on the GPU are read back for this check, so pass NumPy ids.
    DtypeError
        If the ids are not integers.
    """

    def __init__(self, vocab_size, d_model, scale=False, *, std=None, rng=None):
        super().__init__()
        check_sizes(self, vocab_size=vocab_size, d_model=d_model)
        self.vocab_size, self.d_model = vocab_size, d_model
        self.scale = d_model**0.5 if scale else 1.0
        rng = np.random.default_rng() if rng is None else rng
        std = d_model**-0.5 if std is None else std
        self.E = Parameter((std * rng.standard_normal((vocab_size, d_model))).astype(np.float32))

    def forward(self, ids):
        """Integer `ids` (...) -> y (..., D)."""
        ids = self.check_ids(ids)
        self.save(ids)
        y = self.E.data.take(ids, axis=0)                                   # (..., D)
        if self.scale != 1.0:
            y *= self.scale
        return y

    def backward(self, dy):
        """Given dy (..., D), add to the gradient of E; ids have none, so None is returned."""
        (ids,) = self.saved()
        self.check_dy(dy, (*ids.shape, self.d_model), self.E.data)
        # y = s * E[ids]
        dy, ids = rows(dy), ids.reshape(-1)                                 # (N, D), (N,)
        if self.scale != 1.0:
            dy = dy * self.scale
        if get_xp(dy) is np and self.vocab_size > ONE_HOT_LIMIT:
            present, sums = segment_sums(dy, ids)
            self.E.add_grad(sums, present)                                  # only the rows that occur
        else:
            self.E.add_grad(sum_by_id(dy, ids, self.vocab_size))            # (V, D)

    def check_ids(self, ids):
        """`ids` on the backend of the table, after the checks named above."""
        ids = as_array(ids, "Embedding")
        if ids.dtype.kind not in "iu":
            raise DtypeError(f"Embedding: ids have dtype {ids.dtype}, expected integers")
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size):
            wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise IndexRangeError(f"Embedding: id {wrong} out of range, expected 0 <= id < V={self.vocab_size}")
        if backend_name(ids) == "cupy":
            get_xp(ids, self.E.data)  # ids on the GPU and a table on the CPU are a mistake, to be named
        ids = ids.astype("int64") if ids.dtype.kind == "u" else ids  # NumPy 2.0 takes no unsigned indices
        return to_device(ids, backend_name(self.E.data))


def as_array(ids, owner, name="ids"):
    """`ids` as an array; raise if they are lists of unequal lengths."""
    if hasattr(ids, "dtype"):
        return ids
    try:
        return np.asarray(ids)
    except ValueError as error:
        raise ShapeError(
            f"{owner}: {name} of rows of unequal lengths, expected (batch, tokens); fill them up, see pad_batch"
        ) from error


def sum_by_id(dy, ids, n):
    """Rows of `dy` (N, D) summed by their id: row ``v`` of the (n, D) result is the sum of ``dy[ids == v]``.

    A NaN in `dy` may reach every row, as the product adds 0 times NaN.
    """
    xp = get_xp(dy, ids)
    if n <= ONE_HOT_LIMIT or (xp is not np and n * ids.size <= DEVICE_ONE_HOT_LIMIT):
        one_hot = (ids[:, None] == xp.arange(n)).astype(dy.dtype)           # (N, V)
        return one_hot.T @ dy
    total = xp.zeros((n, dy.shape[1]), dy.dtype)
    if xp is not np:
        xp.add.at(total, ids, dy)
        return total
    present, sums = segment_sums(dy, ids)
    total[present] = sums
    return total


def segment_sums(dy, ids):
    """The ids that occur, each once, and the sum of the rows of `dy` (N, D) for each of them.

    A sort, and sums over the runs of equal ids: ``np.add.at`` would do, but takes five to nine times as long.
    """
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))[: ids.size])
    return ids[first], np.add.reduceat(dy[order], first, axis=0)
