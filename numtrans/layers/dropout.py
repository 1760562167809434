"""Dropout with a counter-based random generator."""

import math

import numpy as np

from numtrans.backend import get_xp
from numtrans.checks import check_number
from numtrans.layers.dropout_mask import keep_mask, keep_part
from numtrans.module import Module


class Dropout(Module):
    r"""Set a share ``p`` of the entries to zero and scale up the rest; the identity in evaluation.

    .. math::

        y = x \odot m / (1 - p), \qquad dx = dy \odot m / (1 - p), \qquad m \sim \mathrm{Bernoulli}(1 - p)

    The mask is a function of (``key``, ``counter``, place in the array) alone: the same on NumPy and CuPy, and drawn
    again when ``counter`` is set back (`Module.random_state`), as a gradient check and a resumed run need it.

    Parameters
    ----------
    p : float
        Probability of a zero, ``0 <= p < 1``.
    rng : numpy.random.Generator, optional
        Draws ``key``, so that no two dropout layers of a model share a mask.

    Attributes
    ----------
    counter : int
        Number of masks drawn so far.
    rows : (int, int) or None
        When the input is a part of a batch: the number of its first row in the batch, and how many rows it has. The
        mask is then that part of the batch's mask, so that a batch may be worked through in parts.

    References
    ----------
    Srivastava et al. (2014), Dropout, JMLR 15. Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3.
    """

    def __init__(self, p, *, rng=None):
        super().__init__()
        check_number(type(self).__name__, "p", p, "0 <= p < 1", lambda p: 0 <= p < 1)
        self.p = p
        rng = np.random.default_rng() if rng is None else rng
        self.key = int(rng.integers(1 << 32))
        self.counter, self.rows = 0, None

    def forward(self, x):
        """`x` (...) -> y (...)."""
        self.check_floating("input", x)
        if not self.training or self.p == 0:
            self.save(x.shape, None)
            return x
        self.counter += 1
        keep = keep_mask(get_xp(x), x.shape, self.p, self.key, self.counter, self.place(x.shape))
        self.save(x.shape, keep)
        y = x * keep
        y *= 1 / (1 - self.p)
        return y

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        shape, keep = self.saved()
        self.check_dy(dy, shape, dy)
        if keep is None:
            return dy
        # y = x * keep / (1 - p)
        dx = dy * keep
        dx *= 1 / (1 - self.p)
        return dx

    def next_parts(self, shape):
        """The next mask, for an input of `shape` that is never there as a whole; None if nothing is dropped.

        A function of the namespace and of a slice for each axis, which draws that part of the mask that `forward` would
        have drawn.
        """
        if not self.training or self.p == 0:
            return None
        self.counter += 1
        counter, start = self.counter, self.place(shape)
        return lambda xp, index: keep_part(xp, shape, index, self.p, self.key, counter, start)

    def place(self, shape):
        """Index of the first entry of an input of `shape` among those of the whole batch."""
        first, count = self.rows or (0, 1)
        split = shape and shape[0] == count > 0  # else it is no part of the batch, but the same in each part
        return first * (math.prod(shape) // count) if split else 0
