r"""Attention in tiles of the scores: no array of all queries by all keys, forward or backward.

For one head, with :math:`S = c\, Q K^\top`, :math:`P = \mathrm{softmax}(S)` and :math:`O = P V`:

**Forward.** The softmax of a row can be summed up key by key. For any reference :math:`m_i`,

.. math::

    l_i = \sum_j e^{S_{ij} - m_i}, \qquad o_i = \sum_j e^{S_{ij} - m_i} v_j, \qquad O_i = o_i / l_i

and a tile of keys adds its terms. If its scores lie too far above :math:`m_i`, the reference moves up by :math:`u`, and
what has been summed is multiplied by :math:`e^{-u}` (online softmax). Only :math:`O` and the logarithm of the sum of
exponentials, :math:`L_i = m_i + \log l_i`, are kept.

**Backward.** :math:`P_{ij} = e^{S_{ij} - L_i}` is computed again, tile by tile, and

.. math::

    dV = P^\top dO, \quad dP = dO\, V^\top, \quad dS = P \odot (dP - \Delta), \quad
    \Delta_i = \sum_j dP_{ij} P_{ij} = \sum_a dO_{ia} \sum_j P_{ij} V_{ja} = \sum_a dO_{ia} O_{ia}

so that the sum over the keys, which no tile has, comes from the output.

With dropout the average is :math:`O = s\,(P \odot M) V`, M the mask and s the factor :math:`1 / (1 - p)`; then
:math:`dP = s\, (dO\, V^\top) \odot M`, and :math:`\Delta` is as before.

A constant for each row costs no pass over the tile: the products are :math:`[c\,q, -m]\,[k, 1]^\top`, one column more.

Shapes: ``B`` batch, ``H`` heads, ``G`` key-value heads, ``Tq`` queries, ``Tk`` keys, ``d`` features of a query and a
key, ``dv`` of a value, ``n`` and ``c`` queries and keys of a tile.

References: Milakov and Gimelshein (2018), Online normalizer calculation for softmax, arXiv:1805.02867; Rabe and Staats
(2021), Self-attention does not need O(n^2) memory, arXiv:2112.05682; Dao et al. (2022), FlashAttention,
arXiv:2205.14135.
"""

import itertools

import numpy as np

from numtrans.backend import get_xp
from numtrans.layers.heads import empty_by_token
from numtrans.layers.masks import causal_bias, mask_bias, mask_part, window_bias
from numtrans.reductions import dot_last

# a score may lie this far above the reference: e^20 times the number of keys is far from overflow, but not in float16
HEADROOM, HEADROOM_FLOAT16 = 20.0, 0.0


def blockwise_attention_forward(query, key, value, scale, tiles):
    """The output of attention, tile by tile.

    Parameters
    ----------
    query : array (B, H, Tq, d)
    key : array (B, G, Tk, d)
    value : array (B, G, Tk, dv)
    scale : float
        Factor ``c`` of the scores.
    tiles : Tiles
        Which scores there are.

    Returns
    -------
    O : array (B, H, Tq, dv)
    L : array (B, H, Tq, 1)
        Logarithm of the sum of ``exp(S)`` over the keys, for `blockwise_attention_backward`.
    """
    xp, dtype = get_xp(query), query.dtype
    (B, H, Tq, _), share, dv = query.shape, query.shape[1] // key.shape[1], value.shape[-1]
    O, L = empty_by_token(xp, (B, H, Tq, dv), dtype), xp.empty((B, H, Tq, 1), dtype)
    scores, product = Room(xp, dtype, tiles.rows, tiles.columns), Room(xp, dtype, tiles.rows, dv)
    ones, headroom = xp.ones(tiles.columns, dtype), HEADROOM_FLOAT16 if dtype == "float16" else HEADROOM
    for b, h in np.ndindex(B, H):
        k, v = with_column(key[b, h // share], 1), xp.ascontiguousarray(value[b, h // share])  # (Tk, d + 1), (Tk, dv)
        for rows in tiles.queries:
            q = with_column(query[b, h, rows] * scale, 0)                   # (n, d + 1): [c q, -m]
            m, l, o = (xp.zeros((len(q), width), dtype) for width in (1, 1, dv))
            started = False  # whether every query has met a key; on a GPU never, as to ask would be to wait for it
            for i, j, n, c in tiles.of_queries[rows.start]:
                r = slice(i.start - rows.start, i.stop - rows.start)
                # 1. scores, less the reference, and 2. masks
                S = xp.matmul(q[r], k[j].T, out=scores.array(n, c))         # (n, c)
                tiles.hide(S, b, h, i, j)
                # 3. if a score lies far above the reference, it moves; the others of a tile with a NaN may be far above
                if not started or not S.max() <= headroom:
                    top = S.max(axis=-1, keepdims=True)
                    u = xp.where(xp.isfinite(top) & ((top > 0) | (l[r] == 0)), top, 0)
                    m[r] += u
                    S -= u
                    q[r, -1:] -= u
                    shrink = xp.exp(-xp.maximum(u, 0))
                    l[r] *= shrink
                    o[r] *= shrink
                # 4. the terms of this tile
                P = xp.exp(S, out=S)
                l[r] += (P @ ones[:c])[:, None]
                started = started or (xp is np and bool((l != 0).all()))
                o[r] += xp.matmul(tiles.drop(P, b, h, i, j), v[j], out=product.array(n, dv))
            # 5. the average
            l = xp.where(l == 0, 1, l)  # a query without keys: 0 / 1
            O[b, h, rows] = o * (tiles.kept / l)
            L[b, h, rows] = m + xp.log(l)
    return O, L


def blockwise_attention_backward(dO, query, key, value, scale, tiles, O, L):
    """Given dO (B, H, Tq, dv), and what `blockwise_attention_forward` was given and returned: dquery, dkey, dvalue.

    The loops are the other way round, keys outside: two of the three sums are then as small as a tile.
    """
    xp, dtype = get_xp(dO), dO.dtype
    (B, H, Tq, d), G, dv = query.shape, key.shape[1], value.shape[-1]
    dquery, dkey, dvalue = (empty_by_token(xp, x.shape, dtype) for x in (query, key, value))
    scores, gradients = (Room(xp, dtype, tiles.rows, tiles.columns) for _ in range(2))
    product = Room(xp, dtype, max(tiles.rows, tiles.columns), max(d, dv))
    delta = dot_last(dO, O)                                                 # (B, H, Tq, 1)
    for b, g in np.ndindex(B, G):
        group = range(g * (H // G), (g + 1) * (H // G))  # the heads that share this key
        queries = {h: with_column(query[b, h] * scale, -L[b, h]) for h in group}  # (Tq, d + 1): [c q, -L]
        dOs = {h: with_column(dO[b, h] * tiles.kept, -delta[b, h] * tiles.whole) for h in group}  # 5. [dO, -delta]
        dq = {h: xp.zeros((Tq, d), dtype) for h in group}
        for keys in tiles.keys:
            k, v = with_column(key[b, g, keys], 1), with_column(value[b, g, keys], 1)  # (c, d + 1), (c, dv + 1)
            dk, dv_ = xp.zeros((len(k), d), dtype), xp.zeros((len(k), dv), dtype)
            for h, (i, j, n, c) in itertools.product(group, tiles.of_keys[keys.start]):
                q, dOi = queries[h][i], dOs[h][i]
                # P = exp(S - L): 1., 2. and 4. once more
                S = xp.matmul(q, k[:c].T, out=scores.array(n, c))            # (n, c)
                tiles.hide(S, b, h, i, j)
                P = xp.exp(S, out=S)
                # 4. o += drop(P) v
                dP = xp.matmul(dOi, v[:c].T, out=gradients.array(n, c))
                if not tiles.whole:  # what is dropped has no dP, but a delta
                    dP = tiles.drop(dP, b, h, i, j)
                    dP -= delta[b, h, i]
                # 3. and 1. S = c q k^T
                dS = xp.multiply(dP, P, out=dP)
                dq[h][i] += xp.matmul(dS, k[:c, :-1], out=product.array(n, d))
                dk[:c] += xp.matmul(dS.T, q[:, :-1], out=product.array(c, d))
                P = tiles.drop(P, b, h, i, j)
                dv_[:c] += xp.matmul(P.T, dOi[:, :-1], out=product.array(c, dv))
            dkey[b, g, keys], dvalue[b, g, keys] = dk, dv_
        for h in group:
            dquery[b, h] = dq[h] * scale
    return dquery, dkey, dvalue


class Tiles:
    """The tiles of the scores (B, H, Tq, Tk), `size` queries by `size` keys: which are needed, what is hidden in them.

    Parameters
    ----------
    shape : (int, int, int, int)
    size : int
    causal : bool
    window : int or None
        As in `ScaledDotProductAttention`.
    mask : boolean array or None
        Broadcasts to `shape`; True = may attend.
    dropout : Dropout
        Draws the mask of the weights, tile by tile.
    """

    smallest = 128  # queries of a tile that is not cut

    def __init__(self, shape, size, causal, window, mask, dropout):
        self.causal, self.window, self.mask = causal, window, mask
        (*_, Tq, Tk), self.shift = shape, shape[-1] - shape[-2]
        self.rows, self.columns = min(size, Tq), min(size, Tk)  # of the largest tile
        self.queries = [slice(start, min(start + size, Tq)) for start in range(0, Tq, size)]
        self.keys = [slice(start, min(start + size, Tk)) for start in range(0, Tk, size)]
        self.keep = dropout.next_parts(shape)
        self.of_queries = {i.start: [t for j in self.keys for t in self.cut(i, j)] for i in self.queries}
        self.of_keys = {j.start: [t for i in self.queries for t in self.cut(i, j)] for j in self.keys}
        self.whole = self.keep is None
        self.kept = 1 if self.whole else 1 / (1 - dropout.p)

    def cut(self, i, j):
        """What is needed of the scores of the slices `i` and `j`, in tiles whose keys begin as `j` does.

        A tile is (slice of queries, slice of keys, n, c). Where the diagonal runs through it, it is cut in halves: the
        first queries meet fewer keys.
        """
        last = i.stop + self.shift if self.causal else j.stop  # one past the key that the last query sees last
        if last <= j.start or (self.window is not None and j.stop <= i.start + self.shift - self.window + 1):
            return []
        middle = (i.start + i.stop) // 2
        if self.causal and middle - i.start >= self.smallest and middle + self.shift < j.stop:
            return self.cut(slice(i.start, middle), j) + self.cut(slice(middle, i.stop), j)
        j = slice(j.start, min(j.stop, last))
        return [(i, j, i.stop - i.start, j.stop - j.start)]

    def hide(self, S, b, h, i, j):
        """Put -inf into the scores S (n, c) of a tile where the query may not see the key."""
        xp, (n, c) = get_xp(S), S.shape
        seen = i.stop + self.shift - j.start  # keys that the last query sees; each before it sees one less
        if self.causal and seen - n + 1 < c:
            S += causal_bias(xp, n, seen, S.dtype)[:, :c]
        if self.window is not None and seen > self.window:
            S += window_bias(xp, n, c, self.window + c - seen, S.dtype)
        if self.mask is not None:
            part = mask_part(self.mask, slice(b, b + 1), slice(h, h + 1), i, j)
            if xp is not np or not part.all():
                S += mask_bias(part, S[None, None], "Tiles")[0, 0]

    def drop(self, P, b, h, i, j):
        """`P` (n, c), with zeros where dropout has them in this tile."""
        if not self.whole:
            P *= self.keep(get_xp(P), (slice(b, b + 1), slice(h, h + 1), i, j))[0, 0]
        return P


class Room:
    """Memory for tiles, used again and again: products are written into it.

    Parameters
    ----------
    xp : module
    dtype : dtype
    rows, columns : int
        The size of the largest tile.
    """

    def __init__(self, xp, dtype, rows, columns):
        self.flat, self.arrays = xp.empty(rows * columns, dtype), {}

    def array(self, n, c):
        """An array (n, c) in this memory, the same one for each call."""
        if (n, c) not in self.arrays:
            self.arrays[n, c] = self.flat[: n * c].reshape(n, c)
        return self.arrays[n, c]


def with_column(x, column):
    """[x, column]: (n, d) -> (n, d + 1)."""
    y = get_xp(x).empty((x.shape[0], x.shape[1] + 1), x.dtype)
    y[:, :-1] = x
    y[:, -1:] = column
    return y
