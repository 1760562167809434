"""Golden cases of attention and of the positions inside it, in PyTorch."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from golden_file import spec
from recording import case
from torch.func import functional_call
from torch_layers import apply_linear

sdpa = F.scaled_dot_product_attention

# ---- one head's formula


def heads(r, Tq=4, Tk=5, d=3, dv=2, B=2, H=3):
    """Query, key and value."""
    return r.input("query", B, H, Tq, d), r.input("key", B, H, Tk, d), r.input("value", B, H, Tk, dv)


@case("sdpa", "ScaledDotProductAttention")
@case("sdpa_scale", "ScaledDotProductAttention", scale=0.7)
def sdpa_plain(r, scale=None):
    return sdpa(*heads(r), scale=scale)


@case("sdpa_mask", "ScaledDotProductAttention")
def sdpa_mask(r):
    """A mask of its own for each sequence, in which a padded query has no key left."""
    mask = r.mask(2, 1, 4, 5)
    mask[1, 0, 2] = False
    return sdpa(*heads(r), attn_mask=r.keyword("mask", mask))


@case("sdpa_causal", "ScaledDotProductAttention", causal=True)
def sdpa_causal(r, causal):
    return sdpa(*heads(r, Tq=5), is_causal=causal)


@case("sdpa_causal_cached", "ScaledDotProductAttention", causal=True)
@case("sdpa_causal_long_query", "ScaledDotProductAttention", causal=True)
def sdpa_causal_bottom_right(r, causal):
    """The last query meets the last key; PyTorch's own flag would align the first ones."""
    Tq, Tk = (3, 5) if r.name.endswith("cached") else (5, 3)
    seen = torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq)
    padding = r.keyword("mask", r.mask(2, 1, 1, Tk))
    return sdpa(*heads(r, Tq, Tk), attn_mask=seen & padding)


@case("sdpa_one_input", "ScaledDotProductAttention", causal=True)
def sdpa_one_input(r, causal):
    x = r.input("query", 2, 3, 4, 5)
    return sdpa(x, x, x, is_causal=causal)


@case("sdpa_two_inputs", "ScaledDotProductAttention")
def sdpa_two_inputs(r):
    q, k = r.input("query", 2, 3, 4, 5), r.input("key", 2, 3, 5, 5)
    return sdpa(q, k, k)


# ---- torch.nn.MultiheadAttention


def attention_state(r, prefix, d_model):
    """Parameters of a `torch.nn.MultiheadAttention`, drawn as those of numtrans' four linear layers."""
    projections = [f"{prefix}{name}_proj." for name in ("q", "k", "v", "out")]
    W = [r.param(f"{name}W", d_model, d_model) for name in projections]
    b = [r.param(f"{name}b", d_model) for name in projections]
    return {
        "in_proj_weight": torch.cat([w.T for w in W[:3]]),
        "in_proj_bias": torch.cat(b[:3]),
        "out_proj.weight": W[3].T,
        "out_proj.bias": b[3],
    }


def torch_attention(r, d_model, num_heads, inputs, **masks):
    """`torch.nn.MultiheadAttention` of the drawn weights. Its masks are True where attention is forbidden."""
    module = torch.nn.MultiheadAttention(d_model, num_heads, batch_first=True)
    return functional_call(module, attention_state(r, "", d_model), inputs, {"need_weights": False, **masks})[0]


@case("mha_self", "MultiHeadAttention", d_model=6, num_heads=3)
def mha_self(r, d_model, num_heads):
    """Padding at the end of the second sequence, and a third that is nothing but padding."""
    keep = np.arange(5) < np.array([5, 3, 0])[:, None]
    r.keyword("mask", keep[:, None, None, :])
    x = r.input("query", 3, 5, d_model)
    return torch_attention(r, d_model, num_heads, (x, x, x), key_padding_mask=torch.tensor(~keep))


@case("mha_cross", "MultiHeadAttention", d_model=6, num_heads=2)
def mha_cross(r, d_model, num_heads):
    """Three inputs, a padding mask and an attention mask together."""
    keep, allowed = np.arange(5) < np.array([4, 5])[:, None], r.mask(3, 5)
    r.keyword("mask", keep[:, None, None, :] & allowed)
    inputs = [r.input(name, 2, T, d_model) for name, T in (("query", 3), ("key", 5), ("value", 5))]
    masks = dict(key_padding_mask=torch.tensor(~keep), attn_mask=torch.tensor(~allowed))
    return torch_attention(r, d_model, num_heads, tuple(inputs), **masks)


@case("mha_two_inputs", "MultiHeadAttention", d_model=6, num_heads=2)
def mha_two_inputs(r, d_model, num_heads):
    x, memory = r.input("query", 2, 3, d_model), r.input("key", 2, 5, d_model)
    return torch_attention(r, d_model, num_heads, (x, memory, memory))


@case("mha_causal", "MultiHeadAttention", d_model=6, num_heads=3, causal=True)
def mha_causal(r, d_model, num_heads, causal):
    x = r.input("query", 2, 5, d_model)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    return torch_attention(r, d_model, num_heads, (x, x, x), attn_mask=later, is_causal=causal)


# ---- what it does not have: fewer key-value heads, other head sizes, rotary positions


def split(x, num_heads):
    """(B, T, H * d) -> (B, H, T, d)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


ROTARY = spec("RotaryPositionalEncoding", d_head=4)
INTERLEAVED = spec("RotaryPositionalEncoding", d_head=4, interleaved=True, rotary_dim=2)


@case("mha_grouped", "MultiHeadAttention", d_model=8, num_heads=4, num_kv_heads=2)
@case("mha_multi_query", "MultiHeadAttention", d_model=6, num_heads=3, num_kv_heads=1, bias=False)
@case("mha_head_sizes", "MultiHeadAttention", d_model=5, num_heads=2, d_kv=3, d_v=4)
@case("mha_grouped_head_sizes", "MultiHeadAttention", d_model=5, num_heads=4, num_kv_heads=2, d_kv=3, d_v=2, scale=1.0)
@case("mha_rotary", "MultiHeadAttention", d_model=8, num_heads=2, position=ROTARY)
@case("mha_rotary_grouped", "MultiHeadAttention", d_model=8, num_heads=4, num_kv_heads=2, d_kv=4, causal=True,
      position=INTERLEAVED)  # fmt: skip
def mha_general(r, d_model, num_heads, num_kv_heads=None, d_kv=None, d_v=None, bias=True, causal=False, scale=None,
                position=None):  # fmt: skip
    G, d = num_kv_heads or num_heads, d_kv or d_model // num_heads
    x, memory = r.input("query", 2, 3, d_model), r.input("key", 2, 5, d_model)
    q = split(apply_linear(r, "q_proj.", x, d_model, num_heads * d, bias), num_heads)
    k = split(apply_linear(r, "k_proj.", memory, d_model, G * d, bias), G)
    v = split(apply_linear(r, "v_proj.", memory, d_model, G * (d_v or d), bias), G)
    if position:
        q = rotate(q, torch.arange(3) + 2 * causal, **position["options"])
        k = rotate(k, torch.arange(5), **position["options"])
    mask = r.keyword("mask", r.mask(2, 1, 3, 5))
    if causal:
        mask = mask & torch.ones(3, 5, dtype=torch.bool).tril(2)
    heads = sdpa(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return apply_linear(r, "out_proj.", heads.transpose(1, 2).flatten(2), num_heads * (d_v or d), d_model, bias)


def rotate(x, positions, d_head, interleaved=False, rotary_dim=None, base=10000.0):
    """Each pair of features as a complex number, times e^(i p omega). `positions` (T,) or (B, T)."""
    r = rotary_dim or d_head
    pairs = x[..., :r].unflatten(-1, (-1, 2)) if interleaved else x[..., :r].unflatten(-1, (2, -1)).transpose(-1, -2)
    omega = torch.tensor([base ** (-2 * i / r) for i in range(r // 2)], dtype=torch.float64)
    angle = positions[..., None] * omega
    angle = angle if positions.ndim == 1 else angle[:, None]
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    turned = turned if interleaved else turned.transpose(-1, -2)
    return torch.cat([turned.flatten(-2), x[..., r:]], dim=-1)


@case("rotary_halves", "RotaryPositionalEncoding", d_head=6)
@case("rotary_interleaved", "RotaryPositionalEncoding", d_head=6, interleaved=True)
@case("rotary_partial_offset", "RotaryPositionalEncoding", d_head=7, rotary_dim=4, base=100.0)
@case("rotary_partial_interleaved", "RotaryPositionalEncoding", d_head=7, rotary_dim=4, interleaved=True, max_len=3)
def rotary(r, d_head, max_len=None, **options):
    x, positions = r.input("x", 2, 3, 5, d_head), torch.arange(5)
    if r.name.endswith("offset"):
        r.scalars["positions"] = 11
        positions = positions + 11
    if r.name == "rotary_partial_interleaved":
        positions = r.keyword("positions", r.rng.integers(0, 20, (2, 5)))
    return rotate(x, positions, d_head, **options)


# ---- relative positions, pair by pair


def t5_bucket(distance, num_buckets=32, max_distance=128, bidirectional=True):
    """Raffel et al. (2020), for one distance, key minus query."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first, distance = (num_buckets if distance > 0 else 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    far = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact))
    return first + min(far, num_buckets - 1)


def alibi_slopes(n):
    """As the authors publish them, for any number of heads."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    below = 2 ** math.floor(math.log2(n))
    return alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: n - below]


def attend_with_bias(r, bias, causal, Tq, Tk, scale=None):
    """Attention with `bias` (H, Tq, Tk) on the scores and, for one query, no key left."""
    mask = r.mask(2, 1, Tq, Tk)
    mask[1, 0, 1] = False
    mask = r.keyword("mask", mask)
    if causal:
        mask = mask & torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq)
    q, k, v = heads(r, Tq, Tk, H=len(bias))
    return sdpa(q, k, v, attn_mask=bias.masked_fill(~mask, -math.inf), scale=scale)


def place(i, j, Tq, Tk, causal):
    """Distance from query i to key j; under a causal mask the last query stands at the last key."""
    return j - (i + (Tk - Tq if causal else 0))


def T5(**options):
    return spec("T5RelativeBias", num_heads=3, **options)


@case("t5_both_sides", "ScaledDotProductAttention", scale=1.0, position=T5(num_buckets=8, max_distance=9))
@case("t5_causal", "ScaledDotProductAttention", causal=True,
      position=T5(num_buckets=6, max_distance=7, bidirectional=False))  # fmt: skip
def t5(r, position, causal=False, scale=None, Tq=7, Tk=11):
    options = {name: value for name, value in position["options"].items() if name != "num_heads"}
    W = r.param("position.W", options["num_buckets"], 3)
    bias = [[W[t5_bucket(place(i, j, Tq, Tk, causal), **options)] for j in range(Tk)] for i in range(Tq)]
    bias = torch.stack([torch.stack(row) for row in bias]).permute(2, 0, 1)
    return attend_with_bias(r, bias, causal, Tq, Tk, scale)


@case("alibi", "ScaledDotProductAttention", position=spec("ALiBi", num_heads=6))
@case("alibi_causal", "ScaledDotProductAttention", causal=True, position=spec("ALiBi", num_heads=4))
def alibi(r, position, causal=False, Tq=3, Tk=5):
    slopes = alibi_slopes(position["options"]["num_heads"])
    bias = [[[-m * abs(place(i, j, Tq, Tk, causal)) for j in range(Tk)] for i in range(Tq)] for m in slopes]
    return attend_with_bias(r, torch.tensor(bias, dtype=torch.float64), causal, Tq, Tk)


@case("shaw", "ScaledDotProductAttention", position=spec("ShawRelativePosition", d_head=3, max_distance=2))
@case("shaw_causal", "ScaledDotProductAttention", causal=True,
      position=spec("ShawRelativePosition", d_head=3, max_distance=1))  # fmt: skip
@case("shaw_keys_only", "ScaledDotProductAttention",
      position=spec("ShawRelativePosition", d_head=3, max_distance=2, use_values=False))  # fmt: skip
def shaw(r, position, causal=False, Tq=4, Tk=5):
    """A vector for every pair of query and key."""
    clip, use_values = position["options"]["max_distance"], position["options"].get("use_values", True)
    q, k, v = heads(r, Tq, Tk, d=3, dv=3)
    distance = torch.tensor([[place(i, j, Tq, Tk, causal) for j in range(Tk)] for i in range(Tq)])
    row = distance.clamp(-clip, clip) + clip
    keys = k[:, :, None] + r.param("position.aK", 2 * clip + 1, 3)[row]  # (B, H, Tq, Tk, d)
    values = v[:, :, None].expand(-1, -1, Tq, -1, -1)
    if use_values:
        values = values + r.param("position.aV", 2 * clip + 1, 3)[row]
    scores = (q[:, :, :, None] * keys).sum(-1) / math.sqrt(3)
    mask = r.keyword("mask", r.mask(2, 1, Tq, Tk) | np.eye(Tq, Tk, dtype=bool))  # one key for each query, causal too
    if causal:
        mask = mask & (distance <= 0)
    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)
    return (weights[..., None] * values).sum(-2)
