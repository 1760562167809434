"""Multi-head attention.

Shapes: ``B`` batch, ``Tq`` queries, ``Tk`` keys, ``D`` = d_model, ``H`` heads, ``G`` key-value heads, ``d`` features of
a head.
"""

from numtrans.checks import check_sizes
from numtrans.errors import ConfigError, ShapeError
from numtrans.layers.attention import ScaledDotProductAttention
from numtrans.layers.kv_cache import check_no_grad
from numtrans.layers.last_query import attend_to_cache
from numtrans.layers.linear import Linear
from numtrans.layers.rotary import RotaryPositionalEncoding
from numtrans.layers.side_by_side import map_together
from numtrans.module import Module


class MultiHeadAttention(Module):
    r"""Attention in ``H`` subspaces at once.

    .. math::

        \mathrm{head}_h = \mathrm{Attention}(x_q W^Q_h,\; x_k W^K_h,\; x_v W^V_h), \qquad
        y = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_H)\, W^O

    The heads are blocks of columns of four `Linear` layers: splitting and merging moves an axis and computes nothing.
    With fewer key-value heads than heads, ``H / G`` neighboring heads share one key and one value (grouped-query
    attention; multi-query for ``G = 1``), whose gradient is the sum over the heads that use it; see
    `ScaledDotProductAttention`.

    Parameters
    ----------
    d_model : int
        Features ``D`` of the inputs and the output.
    num_heads : int
        Heads ``H``.
    num_kv_heads : int, optional
        Key-value heads ``G``, a divisor of ``H``; ``H`` by default.
    d_kv : int, optional
        Features of a query and a key in one head; ``D / H`` by default.
    d_v : int, optional
        Features of a value in one head; `d_kv` by default.
    dropout : float, default 0.0
        Share of the attention weights that is dropped in training.
    bias : bool, default True
        Whether the four linear layers have biases.
    causal : bool, default False
        No query sees a later key.
    scale : float, optional
        Factor of the scores, :math:`1/\sqrt{d}` by default.
    window : int, optional
        With `causal`, a query sees the latest `window` keys only.
    position : RotaryPositionalEncoding or RelativePosition, optional
        Rotates queries and keys, or adds its term to the scores.
    block_size : int, optional
        Tiles of the scores, as in `ScaledDotProductAttention`.
    rng : numpy.random.Generator, optional
        Draws the weights.

    Raises
    ------
    ConfigError
        If ``num_heads`` does not divide ``d_model`` (without ``d_kv``), or ``num_kv_heads`` not ``num_heads``.

    References
    ----------
    Vaswani et al. (2017), arXiv:1706.03762, section 3.2.2; Shazeer (2019), arXiv:1911.02150 (multi-query);
    Ainslie et al. (2023), arXiv:2305.13245 (grouped-query).
    """

    def __init__(
        self, d_model, num_heads, num_kv_heads=None, d_kv=None, *, d_v=None, dropout=0.0, bias=True, causal=False,
        scale=None, window=None, position=None, block_size=None, rng=None,
    ):  # fmt: skip
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_sizes(self, d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_heads(d_model, num_heads, num_kv_heads, d_kv)
        d_kv = d_model // num_heads if d_kv is None else d_kv
        d_v = d_kv if d_v is None else d_v
        check_sizes(self, d_kv=d_kv, d_v=d_v)
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads
        self.q_proj = Linear(d_model, num_heads * d_kv, bias, rng=rng)
        self.k_proj = Linear(d_model, num_kv_heads * d_kv, bias, rng=rng)
        self.v_proj = Linear(d_model, num_kv_heads * d_v, bias, rng=rng)
        self.out_proj = Linear(num_heads * d_v, d_model, bias, rng=rng)
        rotary = isinstance(position, RotaryPositionalEncoding)
        self.rotary = position if rotary else None
        self.attention = ScaledDotProductAttention(
            dropout, causal, scale, window=window, position=None if rotary else position, block_size=block_size, rng=rng
        )

    @property
    def attention_weights(self):
        """Weights (B, H, Tq, Tk) of the latest forward, before dropout; None with tiles (see `block_size`)."""
        return self.attention.attention_weights

    def forward(self, query, key=None, value=None, mask=None, cache=None, causal=None):
        """Attend from `query` (B, Tq, D) to `key` and `value` (B, Tk, D); the output is (B, Tq, D).

        `key` defaults to `query` (self-attention) and `value` to `key`; backward returns one gradient for each array
        given. `mask` is boolean, True = may attend, and broadcasts to (B, H, Tq, Tk). With a `cache`, see
        `forward_cached`. `causal` replaces, for this call, that of the constructor.
        """
        if cache is not None:
            return self.forward_cached(query, key, value, mask, cache, causal)
        given = 1 + (key is not None) + (value is not None)
        key = query if key is None else key
        value = key if value is None else value
        self.check_inputs(query, key, value)
        # 1. project and split
        q = split_heads(self.q_proj(query), self.num_heads)                 # (B, H, Tq, d)
        k = split_heads(self.k_proj(key), self.num_kv_heads)                # (B, G, Tk, d)
        v = split_heads(self.v_proj(value), self.num_kv_heads)              # (B, G, Tk, dv)
        # 2. rotate by position; with a causal mask the last query has the place of the last key
        if self.rotary is not None:
            shift = key.shape[1] - query.shape[1] if (self.attention.causal if causal is None else causal) else 0
            q = self.rotary(q, max(shift, 0))
            k = self.rotary(k, max(-shift, 0))
        # 3. share and 4. attend, 5. merge and project
        self.save(given)
        return self.out_proj(merge_heads(self.attention(q, k, v, mask, causal=causal)))    # (B, Tq, D)

    def backward(self, dy):
        """Given dy (B, Tq, D), return one gradient for each array that forward was given."""
        (given,) = self.saved()
        # 5., 4. and 3.: a shared key and value collect from their group
        dheads = split_heads(self.out_proj.backward(dy), self.num_heads)    # (B, H, Tq, dv)
        dq, dk, dv = self.attention.backward(dheads)                        # (B, H, Tq, d), (B, G, Tk, d), (.., dv)
        # 2. in reverse order
        if self.rotary is not None:
            dk = self.rotary.backward(dk)
            dq = self.rotary.backward(dq)
        # 1. the inputs; one array used for several collects the sum
        dvalue = self.v_proj.backward(merge_heads(dv))                      # (B, Tk, D)
        dkey = self.k_proj.backward(merge_heads(dk))
        dquery = self.q_proj.backward(merge_heads(dq))                      # (B, Tq, D)
        if given == 1:
            return dquery + dkey + dvalue
        return (dquery, dkey + dvalue) if given == 2 else (dquery, dkey, dvalue)

    def forward_cached(self, query, key, value, mask, cache, causal=None):
        """As forward, for tokens that follow those whose keys and values `cache` holds; within `no_grad` only.

        Self-attention (no `key`): the Tq tokens stand at places ``cache.length`` and after, are added to the cache and
        see all of it, so `mask` broadcasts to (B, H, Tq, cache.length + Tq). Cross-attention, with a fixed cache: keys
        and values of `key` are computed by the first call, and later ones use them.
        """
        check_no_grad(type(self).__name__)
        source = query if key is None else key
        self.check_inputs(query, source, source if value is None else value)
        self.check_cache(cache, source, key)
        start = 0 if cache.fixed else cache.length
        if cache.fixed and cache.keys is not None:
            q, (k, v) = self.q_proj(query), cache.views()                   # (B, Tq, H d), (B, G, Tk, d), (.., dv)
        else:
            if key is None and value is None:
                q, k, v = map_together(query, *self.siblings())             # (B, Tq, H d), (B, Tq, G d), (.., G dv)
            else:
                q, k, v = self.q_proj(query), self.k_proj(source), self.v_proj(source if value is None else value)
            k, v = split_heads(k, self.num_kv_heads), split_heads(v, self.num_kv_heads)
            k, v = cache.append(k if self.rotary is None else self.rotary(k, start), v)
        q = split_heads(q, self.num_heads)                                  # (B, H, Tq, d)
        q = q if self.rotary is None else self.rotary(q, start)
        return self.out_proj(merge_heads(attend_to_cache(self.attention, q, k, v, mask, start, causal)))

    def siblings(self):
        """The linear layers that share one input in self-attention, see `lay_out_weights`."""
        return self.q_proj, self.k_proj, self.v_proj

    def check_cache(self, cache, source, key):
        """Raise unless `cache` is of the kind that the call needs, and of its batch."""
        if cache.fixed != (key is not None):
            raise ConfigError(
                f"MultiHeadAttention: got a cache with fixed={cache.fixed}, expected {key is not None}: a fixed one "
                "for cross-attention, which is given a key, one that grows for self-attention"
            )
        positioned = self.rotary is not None or self.attention.position is not None
        if cache.fixed and (positioned or self.attention.causal):
            raise ConfigError(
                "MultiHeadAttention: a fixed cache with positions or a causal mask, expected neither: the place of the "
                "queries among the keys is not known"
            )
        if cache.keys is None:
            return
        if cache.keys.shape[0] != len(source) or (cache.fixed and cache.length != source.shape[1]):
            tokens = f" of {cache.length} tokens" if cache.fixed else ""
            raise ShapeError(
                f"MultiHeadAttention: the cache holds a batch of {cache.keys.shape[0]}{tokens}, got shape "
                f"{tuple(source.shape)}. A cache belongs to one batch of sequences; make another."
            )

    def check_inputs(self, query, key, value):
        """Raise unless the three are (B, T, d_model) and fit together."""
        for label, x in (("query", query), ("key", key), ("value", value)):
            if x is query and label != "query":
                continue
            self.check_last_axis(x, self.d_model, label, self.q_proj.W.data)
            if x.ndim != 3:
                raise ShapeError(
                    f"MultiHeadAttention: {label} has shape {tuple(x.shape)}, expected (batch, tokens, d_model)"
                )
        if key.shape[0] != query.shape[0] or value.shape[:2] != key.shape[:2]:
            raise ShapeError(
                f"MultiHeadAttention: key has shape {tuple(key.shape)} and value {tuple(value.shape)}, expected the "
                f"same tokens and the batch of query {tuple(query.shape)}"
            )


def check_heads(d_model, num_heads, num_kv_heads, d_kv):
    """Raise `ConfigError` unless the head counts divide."""
    if d_kv is None and d_model % num_heads:
        raise ConfigError(
            f"MultiHeadAttention: d_model={d_model} is not divisible by num_heads={num_heads}; choose another "
            "number of heads, or give d_kv"
        )
    if num_heads % num_kv_heads:
        raise ConfigError(f"MultiHeadAttention: num_heads={num_heads} is not divisible by num_kv_heads={num_kv_heads}")


def split_heads(x, num_heads):
    """(B, T, H * d) -> (B, H, T, d), a view: first the axes, then the swap, or a head would mix tokens."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    """(B, H, T, d) -> (B, T, H * d), the inverse of `split_heads`."""
    B, H, T, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * d)
