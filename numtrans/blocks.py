"""Encoder and decoder layers, and stacks of them.

Shapes: ``B`` batch, ``T`` tokens (``Tt`` of the target, ``Ts`` of the memory), ``D`` = d_model.
"""

from numtrans.checks import check_sizes
from numtrans.errors import ConfigError
from numtrans.layers.feedforward import make_feedforward
from numtrans.layers.kv_cache import StackCache
from numtrans.layers.multi_head_attention import MultiHeadAttention
from numtrans.layers.normalization import make_norm
from numtrans.layers.relative import ShawRelativePosition
from numtrans.layers.relative_bias import ALiBi, T5RelativeBias
from numtrans.layers.residual import Residual
from numtrans.layers.rotary import RotaryPositionalEncoding
from numtrans.module import Module

RELATIVE_POSITIONS = ("rope", "shaw", "t5", "alibi")


def attention_position(name, d_head, num_heads, *, bidirectional, rng=None):
    """The position module that attention takes, by name: one of ``RELATIVE_POSITIONS``, or None for None."""
    if name is None:
        return None
    if name == "rope":
        return RotaryPositionalEncoding(d_head)
    if name == "shaw":
        return ShawRelativePosition(d_head, 16, rng=rng)
    if name == "t5":
        return T5RelativeBias(num_heads, bidirectional=bidirectional, rng=rng)
    if name == "alibi":
        return ALiBi(num_heads)
    raise ConfigError(f"unknown relative position {name!r}, expected one of {', '.join(RELATIVE_POSITIONS)}")


class EncoderLayer(Module):
    r"""Self-attention, then a feed-forward network, each with its residual and norm.

    .. math::

        h = \mathrm{Residual}(\mathrm{SelfAttention})(x), \qquad y = \mathrm{Residual}(\mathrm{FeedForward})(h)

    Parameters
    ----------
    d_model, num_heads, d_ff : int
        Width, heads, width of the feed-forward network.
    num_kv_heads, d_kv, scale : optional
        Key-value heads (grouped-query attention), features of a head, factor of the scores, as in
        `MultiHeadAttention`.
    dropout : float, default 0.0
        Used on each sublayer's output, the attention weights and the hidden units.
    norm_placement : {"post", "pre"}, default "post"
        Vaswani et al. (2017) or GPT-2 and later.
    norm : {"layer", "rms"}, default "layer"
    norm_eps : float, optional
        ``eps`` of the norms; by default that of the class.
    feedforward : str, default "relu"
        An activation or a gated unit (``"swiglu"``); see `numtrans.layers.feedforward`.
    bias : bool, default True
        Whether linear layers have biases.
    causal : bool, default False
        No token sees a later one: a layer of a decoder-only model.
    window : int, optional
        With `causal`, a token sees the latest `window` tokens only, itself among them (Jiang et al. 2023,
        arXiv:2310.06825).
    position : Module, optional
        Rotary or relative positions for the attention.
    block_size : int, optional
        Tiles of the attention, as in `ScaledDotProductAttention`.
    rng : numpy.random.Generator, optional
        Draws the weights.
    """

    def __init__(
        self, d_model, num_heads, d_ff, *, num_kv_heads=None, d_kv=None, scale=None, dropout=0.0,
        norm_placement="post", norm="layer", norm_eps=None, feedforward="relu", bias=True, causal=False, window=None,
        position=None, block_size=None, rng=None,
    ):  # fmt: skip
        super().__init__()
        attention = MultiHeadAttention(
            d_model, num_heads, num_kv_heads, d_kv, scale=scale, dropout=dropout, bias=bias, causal=causal,
            window=window, position=position, block_size=block_size, rng=rng,
        )  # fmt: skip
        network = make_feedforward(feedforward, d_model, d_ff, dropout=dropout, bias=bias, rng=rng)

        def residual(sublayer):
            return Residual(sublayer, make_norm(norm, d_model, norm_eps), norm_placement, dropout=dropout, rng=rng)

        self.self_attention, self.feedforward = residual(attention), residual(network)

    def forward(self, x, mask=None, cache=None):
        """`x` (B, T, D) -> y (B, T, D). `mask` and `cache`, a `KVCache`, as in `MultiHeadAttention`."""
        x = self.self_attention(x, mask=mask, **given(cache))               # (B, T, D)
        return self.feedforward(x)                                          # (B, T, D)

    def backward(self, dy):
        """Given dy (B, T, D), return dx (B, T, D)."""
        return self.self_attention.backward(self.feedforward.backward(dy))


class DecoderLayer(Module):
    r"""Causal self-attention, attention to the encoder's output, then a feed-forward network.

    .. math::

        h = \mathrm{Residual}(\mathrm{SelfAttention})(x), \qquad c = \mathrm{Residual}(\mathrm{CrossAttention})(h, m),
        \qquad y = \mathrm{Residual}(\mathrm{FeedForward})(c)

    Queries come from the target, keys and values from the memory ``m``. The norm of the cross-attention's residual
    sees the target only. Parameters as for `EncoderLayer`.
    """

    def __init__(
        self, d_model, num_heads, d_ff, *, num_kv_heads=None, d_kv=None, scale=None, dropout=0.0,
        norm_placement="post", norm="layer", norm_eps=None, feedforward="relu", bias=True, position=None,
        block_size=None, rng=None,
    ):  # fmt: skip
        super().__init__()

        def attention(position):
            return MultiHeadAttention(
                d_model, num_heads, num_kv_heads, d_kv, scale=scale, dropout=dropout, bias=bias, position=position,
                block_size=block_size, rng=rng,
            )  # fmt: skip

        def residual(sublayer):
            return Residual(sublayer, make_norm(norm, d_model, norm_eps), norm_placement, dropout=dropout, rng=rng)

        self.self_attention = residual(attention(position))
        self.cross_attention = residual(attention(None))
        self.feedforward = residual(make_feedforward(feedforward, d_model, d_ff, dropout=dropout, bias=bias, rng=rng))

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, cache=None):
        """Decode `tgt` (B, Tt, D) with `memory` (B, Ts, D). Self-attention is causal unless `tgt_mask` is given.

        `cache` is a pair of `KVCache`: one that grows, for self-attention, and a fixed one.
        """
        own, cross = (None, None) if cache is None else cache
        x = self.self_attention(tgt, mask=tgt_mask, causal=tgt_mask is None, **given(own))  # (B, Tt, D)
        x = self.cross_attention(x, memory, mask=memory_mask, **given(cross))  # (B, Tt, D)
        return self.feedforward(x)                                          # (B, Tt, D)

    def backward(self, dy):
        """Return ``(dtgt, dmemory)``."""
        dx, dmemory = self.cross_attention.backward(self.feedforward.backward(dy))
        return self.self_attention.backward(dx), dmemory


class Encoder(Module):
    """`num_layers` encoder layers, and a closing norm if they are pre-norm.

    A pre-norm stack leaves the sum of all sublayers unnormalized, hence the closing norm; a post-norm stack ends with
    one. Parameters as for `EncoderLayer`, and:

    Parameters
    ----------
    num_layers : int
        Number of layers.
    position : {None, "rope", "shaw", "t5", "alibi"} or Module, optional
        Positions inside attention. T5's bias is one table for all layers, as published, and so is a module that is
        given.
    """

    def __init__(self, num_layers, d_model, num_heads, d_ff, *, norm_placement="post", norm="layer", norm_eps=None,
                 position=None, causal=False, rng=None, **layer_options):  # fmt: skip
        super().__init__()
        check_sizes(self, num_layers=num_layers, d_model=d_model, num_heads=num_heads)
        positions = stack_positions(position, num_layers, d_model, num_heads, bidirectional=not causal, rng=rng)
        self.layers = [
            EncoderLayer(
                d_model, num_heads, d_ff, norm_placement=norm_placement, norm=norm, norm_eps=norm_eps, position=place,
                causal=causal, rng=rng, **layer_options,
            )
            for place in positions
        ]  # fmt: skip
        self.norm = make_norm(norm, d_model, norm_eps) if norm_placement == "pre" else None
        self.causal = causal

    def forward(self, x, mask=None, cache=None):
        """`x` (B, T, D) -> y (B, T, D). `mask` as in `MultiHeadAttention`.

        With a `cache` from `make_cache`, `x` are the tokens after those that it holds, and `mask` broadcasts to
        (B, H, T, cache.length + T); within `no_grad` only.
        """
        for layer, part in zip(self.layers, claim(cache, self), strict=True):
            x = layer(x, mask, **given(part))                               # (B, T, D)
        return x if self.norm is None else self.norm(x)

    def make_cache(self, capacity=64):
        """An empty `StackCache` with room for `capacity` tokens; it grows when more come."""
        if not self.causal:
            raise ConfigError("Encoder: a cache needs causal=True: without it earlier tokens see later ones and change")
        return StackCache(len(self.layers), capacity=capacity)

    def backward(self, dy):
        """Given dy (B, T, D), return dx (B, T, D)."""
        dx = dy if self.norm is None else self.norm.backward(dy)
        for layer in reversed(self.layers):
            dx = layer.backward(dx)
        return dx


class Decoder(Module):
    """`num_layers` decoder layers, and a closing norm if they are pre-norm. Parameters as for `Encoder`."""

    def __init__(self, num_layers, d_model, num_heads, d_ff, *, norm_placement="post", norm="layer", norm_eps=None,
                 position=None, rng=None, **layer_options):  # fmt: skip
        super().__init__()
        check_sizes(self, num_layers=num_layers, d_model=d_model, num_heads=num_heads)
        positions = stack_positions(position, num_layers, d_model, num_heads, bidirectional=False, rng=rng)
        self.layers = [
            DecoderLayer(
                d_model, num_heads, d_ff, norm_placement=norm_placement, norm=norm, norm_eps=norm_eps, position=place,
                rng=rng, **layer_options,
            )
            for place in positions
        ]  # fmt: skip
        self.norm = make_norm(norm, d_model, norm_eps) if norm_placement == "pre" else None

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, cache=None):
        """`tgt` (B, Tt, D), `memory` (B, Ts, D) -> y (B, Tt, D). Masks as in `DecoderLayer`.

        With a `cache` from `make_cache`, `tgt` are the tokens after those that it holds, and `tgt_mask` broadcasts to
        (B, H, Tt, cache.length + Tt); keys and values of `memory` are those of the first call. Within `no_grad` only.
        """
        x = tgt
        for layer, part in zip(self.layers, claim(cache, self), strict=True):
            x = layer(x, memory, tgt_mask, memory_mask, **given(part))      # (B, Tt, D)
        return x if self.norm is None else self.norm(x)

    def make_cache(self, capacity=64):
        """An empty `StackCache` with room for `capacity` target tokens; it grows when more come."""
        return StackCache(len(self.layers), cross=True, capacity=capacity)

    def backward(self, dy):
        """Return ``(dtgt, dmemory)``; every layer reads the memory, so its gradient is the sum over layers."""
        dx = dy if self.norm is None else self.norm.backward(dy)
        dmemory = None
        for layer in reversed(self.layers):
            dx, dm = layer.backward(dx)
            dmemory = dm if dmemory is None else dmemory + dm
        return dx, dmemory


def given(cache):
    """The argument ``cache``, left out when there is none: parts of one's own then need not know it."""
    return {} if cache is None else {"cache": cache}


def claim(cache, stack):
    """Yield the caches of the layers of `stack`, each None without a cache. Raises as `StackCache.claim`.

    To be read to its end, where the cache is released (``zip`` with ``strict=True`` does): a forward that breaks off
    before leaves a cache that is refused.
    """
    if cache is None:
        yield from [None] * len(stack.layers)
        return
    cache.claim(stack)
    yield from cache.layers
    cache.release()


def stack_positions(name, num_layers, d_model, num_heads, *, bidirectional, rng):
    """One position module for each layer: the same one, or for Shaw's one with tables of its own."""
    if isinstance(name, Module):
        return [name] * num_layers

    def make():
        return attention_position(name, d_model // num_heads, num_heads, bidirectional=bidirectional, rng=rng)

    return [make() for _ in range(num_layers)] if name == "shaw" else [make()] * num_layers

