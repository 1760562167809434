"""One comparison with each module of PyTorch, from one configuration: output, gradients of inputs and parameters."""

import numpy as np
import torch
import torch.nn.functional as F
from huggingface import compare, copy_weights, generic_weights
from parity.names import of_seq2seq, of_torch

from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from numtrans.layers import LayerNorm, MultiHeadAttention, ScaledDotProductAttention, causal_mask
from numtrans.models import Transformer, TransformerConfig
from numtrans.module import Module

FUNCTIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def rng_of(c):
    return np.random.default_rng(c["seed"])


def leaf(rng, *shape):
    """Normal values: an array, and a tensor that gets a gradient."""
    x = rng.standard_normal(shape)
    return x, torch.tensor(x, requires_grad=True)


def real_tokens(rng, kind, B, T):
    """Which tokens are real, (B, T): all of them (None), or but the last ones, or any, but always the first one."""
    if kind == "none":
        return None
    if kind == "padding":
        return np.arange(T) < rng.integers(1, T + 1, (B, 1))
    return (rng.random((B, T)) < 0.6) | (np.arange(T) == 0)


def hidden(real):
    """PyTorch's padding mask: True = hidden."""
    return None if real is None else torch.tensor(~real)


def keys(real):
    """The same as ours, (B, 1, 1, T): True = may attend."""
    return None if real is None else real[:, None, None, :]


def later(Tq, Tk=None):
    """PyTorch's causal mask: True = hidden."""
    return torch.tensor(~causal_mask(Tq, Tk))


def check_attention_function(c):
    """`torch.nn.functional.scaled_dot_product_attention`, with grouped queries, and queries that have no key left."""
    rng, B, G, H = rng_of(c), c["B"], c["groups"], c["heads"] * c["groups"]
    q, tq = leaf(rng, B, H, c["T"], c["d"])
    k, tk = leaf(rng, B, G, c["Tk"], c["d"])
    v, tv = leaf(rng, B, G, c["Tk"], c["dv"])
    mask = rng.random((B, 1, c["T"], c["Tk"])) < 0.6 if c["mask"] == "any" else None
    if c["mask"] == "padding":
        mask = keys(real_tokens(rng, "padding", B, c["Tk"]))
    whole = causal_mask(c["T"], c["Tk"]) if c["causal"] else np.ones((1, 1), bool)
    whole = torch.tensor(whole if mask is None else whole & mask)
    y = F.scaled_dot_product_attention(tq, tk, tv, attn_mask=whole, scale=c["scale"], enable_gqa=True)
    model = ScaledDotProductAttention(causal=c["causal"], scale=c["scale"])
    compare(torch, model, model(q, k, v, mask), torch.nn.Module(), y, dict, inputs=(tq, tk, tv))


def check_multi_head_attention(c):
    """`torch.nn.MultiheadAttention`, as self-attention or with other keys and values."""
    rng, B, H, T, D = rng_of(c), c["B"], c["heads"], c["T"], c["heads"] * c["d"]
    theirs = torch.nn.MultiheadAttention(D, H, bias=c["bias"], batch_first=True)
    theirs = generic_weights(torch, theirs, c["seed"])
    ours = MultiHeadAttention(D, H, bias=c["bias"], causal=c["causal"])
    names = of_torch(ours)
    copy_weights(ours, theirs, names)
    Tk = T if c["inputs"] == 1 else max(T, c["Tk"]) if c["causal"] else c["Tk"]
    arrays, leaves = zip(*[leaf(rng, B, n, D) for n in (T, Tk, Tk)[: c["inputs"]]])
    real = real_tokens(rng, c["mask"], B, Tk)
    y, weights = theirs(
        leaves[0], leaves[min(1, c["inputs"] - 1)], leaves[-1], key_padding_mask=hidden(real),
        attn_mask=later(T, Tk) if c["causal"] else None, need_weights=c["weights"],
    )  # fmt: skip
    found = ours(*arrays, mask=keys(real))
    if weights is not None:  # theirs is the mean over the heads
        np.testing.assert_allclose(ours.attention_weights.mean(1), weights.detach().numpy(), rtol=1e-9, atol=1e-15)
    compare(torch, ours, found, theirs, y, names, inputs=leaves)


def check_encoder_layer(c):
    """`torch.nn.TransformerEncoderLayer`."""
    rng, B, T, D = rng_of(c), c["B"], c["T"], c["heads"] * c["d"]
    theirs = torch.nn.TransformerEncoderLayer(D, c["heads"], c["d_ff"], **torch_options(c))
    theirs = generic_weights(torch, theirs, c["seed"])
    ours = EncoderLayer(D, c["heads"], c["d_ff"], causal=c["causal"], **options(c))
    names = of_torch(ours)
    copy_weights(ours, theirs, names)
    x, tx = leaf(rng, B, T, D)
    real = real_tokens(rng, c["mask"], B, T)
    y = theirs(tx, src_mask=later(T) if c["causal"] else None, src_key_padding_mask=hidden(real))
    compare(torch, ours, ours(x, keys(real)), theirs, y, names, inputs=(tx,))


def check_decoder_layer(c):
    """`torch.nn.TransformerDecoderLayer`."""
    rng, B, T, Tk, D = rng_of(c), c["B"], c["T"], c["Tk"], c["heads"] * c["d"]
    theirs = torch.nn.TransformerDecoderLayer(D, c["heads"], c["d_ff"], **torch_options(c))
    theirs = generic_weights(torch, theirs, c["seed"])
    ours = DecoderLayer(D, c["heads"], c["d_ff"], **options(c))
    names = of_torch(ours)
    copy_weights(ours, theirs, names)
    (x, tx), (memory, tmemory) = leaf(rng, B, T, D), leaf(rng, B, Tk, D)
    real, real_memory = real_tokens(rng, c["target_mask"], B, T), real_tokens(rng, c["mask"], B, Tk)
    y = theirs(
        tx, tmemory, tgt_mask=later(T), tgt_key_padding_mask=hidden(real), memory_key_padding_mask=hidden(real_memory)
    )
    mask = None if real is None else causal_mask(T) & keys(real)
    found = ours(x, memory, tgt_mask=mask, memory_mask=keys(real_memory))
    compare(torch, ours, found, theirs, y, names, inputs=(tx, tmemory))


class Stacks(Module):
    """Our encoder and decoder with the closing norms that `torch.nn.Transformer` has after post-norm layers too."""

    def __init__(self, c, layers):
        super().__init__()
        sizes = c["heads"] * c["d"], c["heads"], c["d_ff"]
        self.encoder, self.decoder = Encoder(layers[0], *sizes, **options(c)), Decoder(layers[1], *sizes, **options(c))
        self.encoder.norm, self.decoder.norm = (LayerNorm(sizes[0], eps=c["eps"]) for _ in range(2))

    def forward(self, src, tgt, src_mask, tgt_mask):
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, src_mask)

    def backward(self, dy):
        dtgt, dmemory = self.decoder.backward(dy)
        return self.encoder.backward(dmemory), dtgt


def check_transformer(c):
    """`torch.nn.Transformer`."""
    rng, B, T, Tk, D = rng_of(c), c["B"], c["T"], c["Tk"], c["heads"] * c["d"]
    layers = c["encoder_layers"], c["decoder_layers"]
    theirs = torch.nn.Transformer(D, c["heads"], *layers, c["d_ff"], **torch_options(c))
    theirs = generic_weights(torch, theirs, c["seed"])
    ours = Stacks(c, layers)
    names = of_torch(ours)
    copy_weights(ours, theirs, names)
    (src, tsrc), (tgt, ttgt) = leaf(rng, B, Tk, D), leaf(rng, B, T, D)
    real, real_target = real_tokens(rng, c["mask"], B, Tk), real_tokens(rng, c["target_mask"], B, T)
    y = theirs(
        tsrc, ttgt, tgt_mask=later(T), src_key_padding_mask=hidden(real), memory_key_padding_mask=hidden(real),
        tgt_key_padding_mask=hidden(real_target),
    )  # fmt: skip
    mask = None if real_target is None else causal_mask(T) & keys(real_target)
    compare(torch, ours, ours(src, tgt, keys(real), mask), theirs, y, names, inputs=(tsrc, ttgt))


def options(c):
    """Of our layers."""
    return dict(norm_placement=c["norm"], feedforward=c["activation"], norm_eps=c["eps"])


def torch_options(c):
    """The same of PyTorch's."""
    return dict(
        dropout=0.0, activation=FUNCTIONS[c["activation"]], norm_first=c["norm"] == "pre", layer_norm_eps=c["eps"],
        batch_first=True,
    )  # fmt: skip


class Seq2Seq(torch.nn.Module):
    """The model of Vaswani et al. (2017) around `torch.nn.Transformer`: scaled tables, sinusoids, tied output."""

    def __init__(self, src_vocab, tgt_vocab, d_model, num_heads, layers, d_ff, norm, max_len=64):
        super().__init__()
        self.src, self.tgt = torch.nn.Embedding(src_vocab, d_model), torch.nn.Embedding(tgt_vocab, d_model)
        self.stacks = torch.nn.Transformer(
            d_model, num_heads, layers, layers, d_ff, dropout=0.0, norm_first=norm == "pre", batch_first=True
        )
        if norm == "post":
            self.stacks.encoder.norm = self.stacks.decoder.norm = None
        frequencies = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        angle = torch.arange(max_len)[:, None] * frequencies
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d_model]
        self.register_buffer("positions", table, persistent=False)

    def embed(self, table, ids):
        return table(ids) * table.embedding_dim**0.5 + self.positions[: ids.shape[1]]

    def forward(self, src, tgt):
        h = self.stacks(
            self.embed(self.src, src), self.embed(self.tgt, tgt), tgt_mask=later(tgt.shape[1]),
            src_key_padding_mask=src == 0, memory_key_padding_mask=src == 0,
        )  # fmt: skip
        return h @ self.tgt.weight.T


def seq2seq(c):
    """(ours, theirs, names): `numtrans.models.Transformer` and `Seq2Seq` with the same weights."""
    D = c["heads"] * c["d"]
    sizes = c["heads"], c["encoder_layers"], c["d_ff"], c["norm"]
    theirs = generic_weights(torch, Seq2Seq(c["vocab"], c["vocab"] + 2, D, *sizes), c["seed"])
    ours = Transformer(TransformerConfig(
        c["vocab"], c["vocab"] + 2, D, c["heads"], c["d_ff"], c["encoder_layers"], c["encoder_layers"],
        norm_placement=c["norm"], dropout=0.0,
    ))  # fmt: skip
    names = of_seq2seq(ours)
    copy_weights(ours, theirs, names)
    return ours, theirs, names


def check_seq2seq(c):
    """The whole model, from token ids to logits."""
    ours, theirs, names = seq2seq(c)
    rng = rng_of(c)
    src = rng.integers(1, c["vocab"], (c["B"], c["Tk"]))
    tgt = rng.integers(1, c["vocab"] + 2, (c["B"], c["T"]))
    real = real_tokens(rng, c["mask"], c["B"], c["Tk"])
    src = src if real is None else np.where(real, src, 0)
    y = theirs(torch.tensor(src), torch.tensor(tgt))
    compare(torch, ours, ours(src, tgt), theirs, y, names)
