"""Relative positions as one number a distance and head, added to the scores: T5's is learned, ALiBi's is fixed.

Shapes: ``B`` batch, ``H`` heads, ``Tq``, ``Tk`` queries and keys, ``n`` = Tq + Tk - 1 distances that occur.
"""

import numpy as np

from numtrans.backend import get_xp, load_backend
from numtrans.checks import check_sizes
from numtrans.errors import ConfigError, ShapeError
from numtrans.layers.relative import RelativePosition, distances
from numtrans.module import Parameter


class T5RelativeBias(RelativePosition):
    r"""A learned number for each head and each bucket of distances, added to the scores.

    .. math::

        S_{hij} \mathrel{+}= W_{b(j - i), h}, \qquad dW_{bh} = \sum_{i, j : b(j - i) = b} dS_{hij}

    Near distances have a bucket of their own, far ones share buckets that widen with the logarithm (`relative_bucket`).
    One entry of W is read at many places, so its gradient is the sum over those places, over the
    batch, and over all layers that share the module. The sum runs along the diagonals first, one a distance, and then
    over the distances in a bucket.

    T5 does not divide its scores by the root of d. In an encoder `bidirectional` is true, in a decoder false.

    Parameters
    ----------
    num_heads : int
        Number of heads ``H``.
    num_buckets : int, default 32
        Rows of the table. Bidirectional, half of them are for the future.
    max_distance : int, default 128
        From here on all distances share the last bucket.
    bidirectional : bool, default True
        False for causal attention: all buckets are for the past, and the future counts as distance 0.
    rng : numpy.random.Generator, optional
        Draws the start values, normal with mean 0 and standard deviation 0.02. A fresh one by default.

    Attributes
    ----------
    W : Parameter (num_buckets, H)

    References
    ----------
    Raffel et al. (2020), Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer,
    section 2.1, arXiv:1910.10683.
    """

    def __init__(self, num_heads, num_buckets=32, *, max_distance=128, bidirectional=True, rng=None):
        super().__init__()
        check_sizes(self, num_heads=num_heads, num_buckets=num_buckets, max_distance=max_distance)
        one_side = num_buckets // 2 if bidirectional else num_buckets
        if one_side < 2 or (bidirectional and num_buckets % 2) or max_distance <= one_side // 2:
            raise ConfigError(
                f"{type(self).__name__}: num_buckets must be at least 2, or at least 4 and even when bidirectional, "
                f"and max_distance must exceed the {one_side // 2} exact distances; got num_buckets={num_buckets}, "
                f"max_distance={max_distance}, bidirectional={bidirectional}"
            )
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        rng = np.random.default_rng() if rng is None else rng
        self.W = Parameter(rng.normal(0.0, 0.02, (num_buckets, num_heads)).astype(np.float32))

    def forward(self, Tq, Tk, offset=0):
        """The bias (H, Tq, Tk)."""
        xp = get_xp(self.W.data)
        # 1. the bucket of each distance that occurs: -(Tq - 1) - offset ... Tk - 1 - offset
        distance = np.arange(1 - Tq, Tk) - offset  # (n,)
        bucket = xp.asarray(relative_bucket(distance, self.num_buckets, self.max_distance, self.bidirectional))
        self.save(bucket, Tq, Tk)
        # 2. read the table once a distance
        by_distance = xp.take(self.W.data.T, bucket, axis=1)  # (H, n)
        # 3. lay the distances out along the diagonals
        return xp.take(by_distance, distances(xp, Tq, Tk) + Tq - 1, axis=1)  # (H, Tq, Tk)

    def backward(self, dbias):
        """Given the gradient (H, Tq, Tk) of the bias, add to that of the table; there is no input to pass one to."""
        bucket, Tq, Tk = self.saved()
        self.check_dy(dbias, (self.num_heads, Tq, Tk), self.W.data)
        xp = get_xp(dbias)
        # 3. one value filled a diagonal: sum along it
        by_distance = sum_diagonals(dbias)  # (H, n)
        # 2. one entry served all distances of its bucket: sum them, by a product with a matrix of 0 and 1
        member = (bucket == xp.arange(self.num_buckets)[:, None]).astype(dbias.dtype)  # (num_buckets, n)
        self.W.add_grad(member @ by_distance.T)  # (num_buckets, H)

    def scores(self, q, Tk, offset=0):
        """The bias (H, Tq, Tk), for `q` (B, H, Tq, d)."""
        check_heads(self, q)
        self.check_floating("q", q, self.W.data)
        return self.forward(q.shape[-2], Tk, offset)

    def scores_backward(self, dS):
        """Given dS (B, H, Tq, Tk), add dW (num_buckets, H)."""
        self.backward(dS.sum(axis=0))  # every sequence of the batch got the same bias


class ALiBi(RelativePosition):
    r"""A penalty that grows linearly with the distance, at a fixed slope for each head. Nothing is learned.

    .. math::

        S_{hij} \mathrel{-}= m_h \, |i - j|

    Under a causal mask only j <= i is left and the bias is -m (i - j), as published; without one the penalty is the
    same on both sides. It is 0 on the diagonal and never positive. The slopes are those of `slopes`. Being a constant,
    the bias gets no gradient, and that of the scores passes through as it is.

    Parameters
    ----------
    num_heads : int
        Number of heads ``H``, any.

    References
    ----------
    Press, Smith and Lewis (2022), Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation, arXiv:2108.12409.
    """

    def __init__(self, num_heads):
        super().__init__()
        check_sizes(self, num_heads=num_heads)
        self.num_heads = num_heads
        self.slopes = slopes(num_heads)

    def forward(self, Tq, Tk, offset=0, like=None):
        """The bias (H, Tq, Tk), with the backend and dtype of the array `like`; NumPy and float32 without one."""
        xp, dtype = (load_backend("numpy"), np.float32) if like is None else (get_xp(like), like.dtype)
        self.save((self.num_heads, Tq, Tk))
        distance = xp.abs(distances(xp, Tq, Tk, offset)).astype(dtype)  # (Tq, Tk)
        return xp.asarray(-self.slopes, dtype=dtype)[:, None, None] * distance  # (H, Tq, Tk)

    def backward(self, dbias):
        """The bias is a constant: nothing to add, nothing to pass on."""
        (shape,) = self.saved()
        self.check_dy(dbias, shape, None)

    def scores(self, q, Tk, offset=0):
        """The bias (H, Tq, Tk), for `q` (B, H, Tq, d)."""
        check_heads(self, q)
        self.check_floating("q", q)
        return self.forward(q.shape[-2], Tk, offset, like=q)

    def scores_backward(self, dS):
        """Nothing to do: the bias is a constant."""
        self.saved()


def relative_bucket(distance, num_buckets=32, max_distance=128, bidirectional=True):
    """The bucket of each distance (key minus query; NumPy integers, any shape), as in T5.

    Of the buckets of one direction, half are exact, one a distance. The others split the range up to `max_distance`
    evenly in the logarithm, and the last takes all that is farther.
    """
    if bidirectional:
        num_buckets //= 2
        first = num_buckets * (distance > 0)  # the future has the second half
        distance = np.abs(distance)
    else:
        first = 0
        distance = np.maximum(-distance, 0)
    exact = num_buckets // 2
    # 0 at the last exact distance, 1 at max_distance
    fraction = np.log(np.maximum(distance, exact) / exact) / np.log(max_distance / exact)
    far = exact + (fraction * (num_buckets - exact)).astype(np.int64)
    return first + np.where(distance < exact, distance, np.minimum(far, num_buckets - 1))


def slopes(num_heads):
    """ALiBi's slopes (H,), NumPy float64.

    For a power of two n: 2^(-8/n), 2^(-16/n), ..., 2^-8. For another number: the slopes of the power of two below it,
    then every other one (the first, third, ...) of the series of twice that power.
    """
    power = 2 ** (int(num_heads).bit_length() - 1)  # the largest power of two <= num_heads
    main = 2.0 ** (-8 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4 / power * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([main, between])[:num_heads]


def sum_diagonals(x):
    """Sum along each diagonal: (H, Tq, Tk) -> (H, n), at place c the sum of x[:, i, j] with j - i = c - (Tq - 1).

    Rows are laid, last one first, into a wider array of zeros; reading that with rows one shorter shifts each by one
    more than the row above, so that diagonals become columns.
    """
    xp = get_xp(x)
    H, Tq, Tk = x.shape
    wide = xp.zeros((H, Tq, Tq + Tk), x.dtype)
    wide[:, :, :Tk] = x[:, ::-1]
    n = max(Tq + Tk - 1, 0)  # 0 for no tokens at all
    return wide.reshape(H, Tq * (Tq + Tk))[:, : Tq * n].reshape(H, Tq, n).sum(axis=1)


def check_heads(module, q):
    """Raise unless `q` is (B, H, Tq, d) with the module's number of heads."""
    if q.ndim != 4 or q.shape[1] != module.num_heads:
        raise ShapeError(
            f"{type(module).__name__}: q has shape {tuple(q.shape)}, expected (B, num_heads={module.num_heads}, Tq, d)"
        )
