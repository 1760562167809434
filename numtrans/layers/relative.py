"""Relative positions inside attention: what every kind has in common, and Shaw's vectors, one a distance.

The other kinds, one number a distance and head (T5, ALiBi), are in relative_bias.py.

Shapes: ``B`` batch, ``H`` heads, ``Tq``, ``Tk`` queries and keys, ``d`` features of a head, ``R`` = 2k + 1 distances.
"""

import numpy as np

from numtrans.backend import get_xp
from numtrans.checks import check_sizes
from numtrans.module import Module, Parameter
from numtrans.reductions import dot_last, rows


class RelativePosition(Module):
    """What attention asks of a relative position. Query i stands at position i + offset of the keys.

    Forward calls `scores`, then, with the weights P, `values`; backward calls `values_backward`, then
    `scores_backward`.
    """

    def scores(self, q, Tk, offset=0):
        """What is added to the scores, broadcastable to (B, H, Tq, Tk). `q` (B, H, Tq, d) is scaled already."""
        raise TypeError(f"{type(self).__name__} does not define scores")

    def scores_backward(self, dS):
        """Given dS (B, H, Tq, Tk), the contribution to the gradient of the scaled `q`, or None if `q` plays no part."""

    def values(self, P, offset=0):
        """What is added to the output (B, H, Tq, d), given the weights P (B, H, Tq, Tk); None for nothing."""

    def values_backward(self, do):
        """Given do (B, H, Tq, d), the contribution to the gradient of P, or None."""


def distances(xp, Tq, Tk, offset=0):
    """Key position minus query position, integers (Tq, Tk): negative is the past, positive the future."""
    return xp.arange(Tk)[None, :] - (xp.arange(Tq)[:, None] + offset)


class ShawRelativePosition(RelativePosition):
    r"""A learned vector for each distance, added to the keys and to the values.

    With :math:`r(i, j) = clip(j - i, -k, k) + k`, key minus query, an index into tables of 2k + 1 rows:

    .. math::

        S_{ij} = q_i \cdot (k_j + a^K_{r(i,j)}), \qquad o_i = \sum_j P_{ij} (v_j + a^V_{r(i,j)})

    The content terms are attention's own; here are the two others. Neither makes a vector for every pair: the
    query meets each of the R rows once, and the result is looked up (`gather`); the weights are summed by distance
    first (`collect`), and those sums weight the rows:

    .. math::

        S^{rel} = G(q {a^K}^\top), \qquad o^{rel} = G^\top(P) \, a^V, \qquad
        G(U)_{ij} = U_{i, r(i,j)}, \qquad G^\top(P)_{ir} = \sum_{j : r(i,j) = r} P_{ij}

    G is linear and :math:`G^\top` is its transpose, as
    :math:`\sum_{ij} P_{ij} G(U)_{ij} = \sum_{ir} G^\top(P)_{ir} U_{ir}`, so each is the backward of the other.
    With a sum over batch, heads and queries for the tables:

    .. math::

        dq = G^\top(dS) \, a^K, \quad da^K = G^\top(dS)^\top q, \qquad
        dP = G(do \, {a^V}^\top), \quad da^V = G^\top(P)^\top do

    Parameters
    ----------
    d_head : int
        Number of features ``d`` of one head. All heads share the tables.
    max_distance : int
        The clip ``k``: farther keys count as being this far.
    rng : numpy.random.Generator, optional
        Draws the start values, normal with mean 0 and standard deviation 0.02. A fresh one by default.
    use_values : bool, default True
        Whether there is a table for the values too.

    Attributes
    ----------
    aK, aV : Parameter (2k + 1, d)
        Rows for distances -k ... k. `aV` is missing without `use_values`.

    References
    ----------
    Shaw, Uszkoreit and Vaswani (2018), Self-Attention with Relative Position Representations, arXiv:1803.02155.
    """

    def __init__(self, d_head, max_distance, *, rng=None, use_values=True):
        super().__init__()
        check_sizes(self, d_head=d_head, max_distance=max_distance)
        self.d_head, self.max_distance, self.use_values = d_head, max_distance, use_values
        rng = np.random.default_rng() if rng is None else rng
        shape = (2 * max_distance + 1, d_head)
        self.aK = Parameter(rng.normal(0.0, 0.02, shape).astype(np.float32))
        if use_values:
            self.aV = Parameter(rng.normal(0.0, 0.02, shape).astype(np.float32))

    def scores(self, q, Tk, offset=0):
        """The term (B, H, Tq, Tk) of the scores, for the scaled `q` (B, H, Tq, d)."""
        self.check_last_axis(q, self.d_head, name="q", like=self.aK.data, label="d_head")
        self.save(q, Tk, offset)
        # 1. each query times the row of each distance
        qa = q @ self.aK.data.T  # (B, H, Tq, R)
        # 2. look up the distance of each key
        return self.gather(qa, Tk, offset)  # (B, H, Tq, Tk)

    def scores_backward(self, dS):
        """Given dS (B, H, Tq, Tk), return dq (B, H, Tq, d) and add daK (R, d)."""
        q, Tk, offset = self.saved()
        self.check_dy(dS, q.shape[:-1] + (Tk,), q)
        # 2. sum over the keys at each distance
        dqa = self.collect(dS, offset)  # (B, H, Tq, R)
        # 1. qa = q @ aK.T
        self.aK.add_grad(rows(dqa).T @ rows(q))  # (R, d)
        return dqa @ self.aK.data  # dq, (B, H, Tq, d)

    def values(self, P, offset=0):
        """The term (B, H, Tq, d) of the output, for weights P (B, H, Tq, Tk)."""
        if not self.use_values:
            return None
        self.check_floating("P", P, self.aV.data)
        # 1. the weight that each query gives to each distance
        w = self.collect(P, offset)  # (B, H, Tq, R)
        self.save(w, P.shape[-1], offset)
        # 2. weighted sum of the rows
        return w @ self.aV.data  # (B, H, Tq, d)

    def values_backward(self, do):
        """Given do (B, H, Tq, d), return dP (B, H, Tq, Tk) and add daV (R, d)."""
        if not self.use_values:
            return None
        w, Tk, offset = self.saved()
        self.check_dy(do, w.shape[:-1] + (self.d_head,), w)
        # 2. o = w @ aV
        self.aV.add_grad(rows(w).T @ rows(do))  # (R, d)
        dw = do @ self.aV.data.T  # (B, H, Tq, R)
        # 1. each key adds to one distance
        return self.gather(dw, Tk, offset)  # dP, (B, H, Tq, Tk)

    def forward(self, q, Tk, offset=0):
        """The scores alone, so that their backward can be checked without attention around them."""
        return self.scores(q, Tk, offset)

    def backward(self, dS):
        """Given dS (B, H, Tq, Tk), what `scores_backward` returns."""
        return self.scores_backward(dS)

    def index(self, xp, Tq, Tk, offset=0):
        """r(i, j): the row of the tables for each query and key, integers (Tq, Tk)."""
        k = self.max_distance
        return xp.clip(distances(xp, Tq, Tk, offset), -k, k) + k

    def gather(self, u, Tk, offset=0):
        """G: u (..., Tq, R) -> (..., Tq, Tk), entry (i, j) is u at row i and distance r(i, j)."""
        xp = get_xp(u)
        Tq, R = u.shape[-2:]
        flat = xp.arange(Tq)[:, None] * R + self.index(xp, Tq, Tk, offset)  # place of (i, r) in a row of Tq * R
        return xp.take(u.reshape(u.shape[:-2] + (Tq * R,)), flat, axis=-1)

    def collect(self, p, offset=0):
        """The transpose of G: p (..., Tq, Tk) -> (..., Tq, R), the sum over the keys at each distance."""
        xp = get_xp(p)
        k, (Tq, Tk) = self.max_distance, p.shape[-2:]
        w = xp.empty(p.shape[:-1] + (2 * k + 1,), p.dtype)
        # A distance between the ends occurs at most once in a row, at key j = i + offset + distance: look it up,
        # and take 0 if there is no such key
        i = xp.arange(Tq)[:, None]
        j = i + offset + xp.arange(1 - k, k)[None, :]  # (Tq, R - 2), distances 1 - k ... k - 1
        inside = (j >= 0) & (j < Tk)
        flat = i * Tk + xp.clip(j, 0, Tk - 1)
        w[..., 1:-1] = xp.take(p.reshape(p.shape[:-2] + (Tq * Tk,)), flat, axis=-1)
        w[..., 1:-1] *= inside
        # The two ends take all keys beyond them: sum
        distance = distances(xp, Tq, Tk, offset)
        w[..., :1] = dot_last(p, (distance <= -k).astype(p.dtype))
        w[..., -1:] = dot_last(p, (distance >= k).astype(p.dtype))
        return w
