"""Scaled dot-product attention.

Shapes: ``B`` batch, ``H`` heads, ``G`` key-value heads, ``Tq`` queries, ``Tk`` keys, ``d`` features of a query and a
key, ``dv`` of a value.
"""

from numtrans.backend import get_xp
from numtrans.checks import check_number, is_count
from numtrans.errors import ConfigError, ShapeError
from numtrans.layers.blockwise_attention import Tiles, blockwise_attention_backward, blockwise_attention_forward
from numtrans.layers.dropout import Dropout
from numtrans.layers.heads import add_product, empty_by_token, join_blocks, matmul_heads, stack_groups, sum_by_input
from numtrans.layers.masks import causal_bias, checked_mask, mask_bias, mask_part, window_bias
from numtrans.layers.softmax import softmax_
from numtrans.module import Module
from numtrans.reductions import dot_last

ROWS = 64  # queries of a causal block; half of the scores of fewer are not worth another round of calls
TILE, MANY_SCORES = 512, 1 << 24  # default of block_size, used for more scores than MANY (64 MiB) and TILE^2 a head


class ScaledDotProductAttention(Module):
    r"""Average of the values, weighted by how well each key answers the query.

    .. math::

        S = \frac{Q K^\top}{\sqrt{d}}, \qquad P = \mathrm{softmax}(S), \qquad O = P V

    A masked score is :math:`-\infty`, so its weight is exactly 0. Backward, row by row of :math:`S`:

    .. math::

        dV = P^\top dO, \qquad dP = dO\, V^\top, \qquad dS = P \odot (dP - \textstyle\sum_k dP \odot P), \qquad
        dQ = \frac{dS\, K}{\sqrt d}, \qquad dK = \frac{dS^\top Q}{\sqrt d}

    If the components of q and k are independent with variance 1, :math:`q \cdot k` has variance :math:`d`: the scale
    keeps the scores at variance 1 and the softmax away from saturation, where its gradient vanishes.

    With fewer key-value heads than heads, ``H / G`` neighboring heads share one key and one value (grouped queries):
    their queries are laid one below the other, so that one product serves the group and its backward is the sum.

    Parameters
    ----------
    dropout : float, default 0.0
        Share of the weights that is dropped in training.
    causal : bool, default False
        No query sees a later key. The last query meets the last key, also when ``Tq != Tk``.
    scale : float, optional
        Factor of the scores, :math:`1/\sqrt{d}` by default (T5 uses 1).
    window : int, optional
        With `causal`, a query sees the latest `window` keys only, its own among them: :math:`i - w < j \le i`.
    position : RelativePosition, optional
        Adds its term to the scores, and to the output if it has one (Shaw, T5, ALiBi).
    rng : numpy.random.Generator, optional
        Draws the key of the dropout mask.
    block_size : int, optional
        Work in tiles of so many queries by as many keys (`numtrans.layers.blockwise_attention`): memory linear in the
        tokens, no `attention_weights`, no `position`. By default 512 above 512^2 scores a head and 2^24; 0 for never.

    Attributes
    ----------
    attention_weights : array (B, H, Tq, Tk) or None
        ``P`` of the latest forward, before dropout. `clear` drops it.

    Notes
    -----
    A query with no key left to attend gets output 0 and gradient 0. More than 64 causal queries are taken in blocks.

    References
    ----------
    Vaswani et al. (2017), Attention is all you need, arXiv:1706.03762, section 3.2.1; Ainslie et al. (2023),
    arXiv:2305.13245 (grouped queries); Jiang et al. (2023), Mistral 7B, arXiv:2310.06825 (window).
    """

    transient = ("blocks",)

    def __init__(self, dropout=0.0, causal=False, scale=None, *, window=None, position=None, block_size=None, rng=None):
        super().__init__()
        name = type(self).__name__
        if scale is not None:
            check_number(name, "scale", scale, "a positive number", lambda c: c > 0)
        if window is not None and not (causal and is_count(window)):
            raise ConfigError(f"{name}: window is {window!r} with causal={causal}, expected an integer > 0, and causal")
        if block_size is not None and (not is_count(block_size, 0) or (block_size and position is not None)):
            raise ConfigError(
                f"{name}: block_size is {block_size!r} with position={position}, expected an integer of at least 1, "
                "or 0 for no tiles; tiles do not go with relative positions"
            )
        self.causal, self.scale, self.window, self.position = causal, scale, window, position
        self.block_size = block_size
        self.dropout = Dropout(dropout, rng=rng)
        self.blocks = None  # of the latest forward: queries, number of keys they meet, weights

    @property
    def attention_weights(self):
        """Weights (B, H, Tq, Tk) of the latest forward, before dropout; None after `clear` and with tiles."""
        return None if self.blocks is None else join_blocks(self.blocks)

    def forward(self, query, key=None, value=None, mask=None, offset=None, causal=None):
        """Attend from `query` (B, H, Tq, d) to `key` (B, G, Tk, d), `value` (B, G, Tk, dv): (B, H, Tq, dv).

        `key` defaults to `query` and `value` to `key`; backward then returns one gradient for each array given.
        `mask` is boolean, True = may attend, and broadcasts to (B, H, Tq, Tk). `offset` is the place of the first query
        among the keys, for relative positions: by default ``Tk - Tq`` if causal, else 0. `causal` is for this call.
        """
        given = 1 + (key is not None) + (value is not None)
        key = query if key is None else key
        value = key if value is None else value
        self.check_inputs(query, key, value)
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        (B, H, Tq, _), (G, Tk), xp = query.shape, key.shape[1:3], get_xp(query)
        mask = None if mask is None else checked_mask(mask, query, (B, H, Tq, Tk), type(self).__name__)
        causal = self.causal if causal is None else causal
        offset = offset if offset is not None else Tk - Tq if causal else 0
        if size := self.tile_size(B, H, Tq, Tk):
            tiles = Tiles((B, H, Tq, Tk), size, causal, self.window, mask, self.dropout)
            O, L = blockwise_attention_forward(query, key, value, scale, tiles)
            self.blocks = None
            self.save(query, key, value, tiles, (O, L), scale, given)
            return O
        q = query * scale
        O = empty_by_token(xp, (B, H, Tq, value.shape[-1]), q.dtype)
        blocks, dropped = [], []
        for rows, seen in self.row_blocks(Tq, Tk, causal):
            n = rows.stop - rows.start
            # 1. scores; the scale on q, the smaller array
            S = (stack_groups(q[:, :, rows], G) @ key[:, :, :seen].swapaxes(-1, -2)).reshape(B, H, n, seen)
            if self.position is not None:
                S += self.position.scores(q, Tk, offset)
            # 2. masks
            if causal and n > 1:  # the last query of the block sees every key, and so does each but the last n
                S[..., max(seen - n, 0) :] += causal_bias(xp, n, min(seen, n), S.dtype)
            if self.window is not None and seen > self.window:
                S += window_bias(xp, n, seen, self.window, S.dtype)
            if mask is not None:
                S += mask_bias(mask_part(mask, rows, slice(seen)), S, type(self).__name__)
            # 3. weights, in place
            P = softmax_(S)
            D = self.dropout(P)
            # 4. average
            matmul_heads(stack_groups(D, G), value[:, :, :seen], out=O[:, :, rows])
            blocks.append((rows, seen, P))
            dropped.append(D)
        if self.position is not None:
            relative = self.position.values(D, offset)
            O = O if relative is None else O + relative
        self.blocks = blocks
        self.save(q, key, value, blocks, dropped, scale, given)
        return O

    def backward(self, dO):
        """Given dO (B, H, Tq, dv), return one gradient for each array that forward was given."""
        q, key, value, blocks, dropped, scale, given = self.saved()
        self.check_dy(dO, (*q.shape[:-1], value.shape[-1]), q)
        if isinstance(blocks, Tiles):
            gradients = blockwise_attention_backward(dO, q, key, value, scale, blocks, *dropped)
            return sum_by_input(*gradients, given)
        G, xp = key.shape[1], get_xp(dO)
        dquery, dkey, dvalue = (empty_by_token(xp, x.shape, x.dtype) for x in (q, key, value))
        for (rows, seen, P), D in zip(reversed(blocks), reversed(dropped), strict=True):
            dO_groups = stack_groups(dO[:, :, rows], G)                     # (B, G, H / G * n, dv)
            # 4. O = D V (+ relative values)
            add_product(dvalue, stack_groups(D, G).swapaxes(-1, -2), dO_groups)
            dD = (dO_groups @ value[:, :, :seen].swapaxes(-1, -2)).reshape(D.shape)  # (B, H, n, seen)
            if self.position is not None:
                relative = self.position.values_backward(dO)
                dD = dD if relative is None else dD + relative
            # 3. D = dropout(P), P = softmax(S); a masked weight is 0 and so is its gradient
            dS = self.dropout.backward(dD)
            dS -= dot_last(dS, P)
            dS *= P
            # 1. S = q K^T (+ relative scores), q = scale * query
            dS_groups = stack_groups(dS, G)                                 # (B, G, H / G * n, seen)
            matmul_heads(dS_groups, key[:, :, :seen], out=dquery[:, :, rows])
            add_product(dkey, dS_groups.swapaxes(-1, -2), stack_groups(q[:, :, rows], G))
        if self.position is not None:
            relative = self.position.scores_backward(dS)
            if relative is not None:
                dquery += relative
        dquery *= scale
        return sum_by_input(dquery, dkey, dvalue, given)

    def tile_size(self, B, H, Tq, Tk):
        """`block_size`, or what is chosen without it for so many scores; 0 for the plain form."""
        # few scores a head, of a large batch, would be slower in tiles
        many = Tq * Tk > TILE**2 and B * H * Tq * Tk > MANY_SCORES and self.position is None
        return self.block_size if self.block_size is not None else TILE if many else 0

    def row_blocks(self, Tq, Tk, causal):
        """Slices of queries, each with the number of keys that it meets: a causal block none after its last query's."""
        whole = not causal or self.position is not None or (self.dropout.training and self.dropout.p > 0)
        n = max(Tq, 1) if whole else ROWS
        blocks = [slice(start, min(start + n, Tq)) for start in range(0, max(Tq, 1), n)]
        return [(rows, max(rows.stop + Tk - Tq, 0)) for rows in blocks]

    def check_inputs(self, query, key, value):
        """Raise unless the three fit together."""
        name = type(self).__name__
        for label, array in (("query", query), ("key", key), ("value", value)):
            self.check_floating(label, array, query)
            if array.ndim != 4:
                raise ShapeError(f"{name}: {label} has shape {tuple(array.shape)}, expected (batch, heads, tokens, d)")
        (B, H, _, d), G = query.shape, key.shape[1]
        if key.shape[0] != B or G < 1 or H % G or key.shape[-1] != d:
            raise ShapeError(
                f"{name}: key has shape {tuple(key.shape)}, expected ({B}, G, Tk, {d}) with a number of heads G that "
                f"divides {H}, for query {tuple(query.shape)}"
            )
        if value.shape[:-1] != key.shape[:-1]:
            raise ShapeError(
                f"{name}: value has shape {tuple(value.shape)}, expected {(*key.shape[:-1], 'dv')} for the keys"
            )
