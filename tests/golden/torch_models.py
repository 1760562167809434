"""Golden cases of encoder and decoder layers, their stacks and the whole models, in PyTorch."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from golden_file import spec
from recording import case
from torch.func import functional_call
from torch_attention import alibi_slopes, attention_state, rotate, split, t5_bucket
from torch_layers import FUNCTIONS, apply_gated, apply_linear, sinusoids

# ---- parameters of PyTorch's modules, drawn under numtrans' names


def under(prefix, state):
    """`state` with `prefix` before each name."""
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def norm_state(r, name, d_model):
    return {"weight": r.param(f"{name}gamma", d_model), "bias": r.param(f"{name}beta", d_model)}


def linear_state(r, name, d_in, d_out):
    return {"weight": r.param(f"{name}W", d_in, d_out).T, "bias": r.param(f"{name}b", d_out)}


def layer_state(r, prefix, d_model, d_ff, cross):
    """Parameters of a `torch.nn.TransformerEncoderLayer`, or with `cross` of a `TransformerDecoderLayer`."""
    attentions = {"self_attn.": "self_attention.", **({"multihead_attn.": "cross_attention."} if cross else {})}
    state = {}
    for torch_name, name in attentions.items():
        state |= under(torch_name, attention_state(r, f"{prefix}{name}sublayer.", d_model))
    network = f"{prefix}feedforward.sublayer."
    state |= under("linear1.", linear_state(r, f"{network}linear1.", d_model, d_ff))
    state |= under("linear2.", linear_state(r, f"{network}linear2.", d_ff, d_model))
    for i, name in enumerate([*attentions.values(), "feedforward."], 1):
        state |= under(f"norm{i}.", norm_state(r, f"{prefix}{name}norm.", d_model))
    return state


def stack_state(r, prefix, num_layers, d_model, d_ff, cross, closing_norm):
    """Parameters of a `torch.nn.TransformerEncoder` or `TransformerDecoder`."""
    state = {}
    for i in range(num_layers):
        state |= under(f"layers.{i}.", layer_state(r, f"{prefix}layers.{i}.", d_model, d_ff, cross))
    return state | (under("norm.", norm_state(r, f"{prefix}norm.", d_model)) if closing_norm else {})


def torch_layer(d_model, num_heads, d_ff, cross, norm_placement="post", feedforward="relu"):
    """The module whose parameters `layer_state` draws."""
    constructor = torch.nn.TransformerDecoderLayer if cross else torch.nn.TransformerEncoderLayer
    return constructor(
        d_model, num_heads, d_ff, dropout=0.0, activation=FUNCTIONS[feedforward], batch_first=True,
        norm_first=norm_placement == "pre",
    )  # fmt: skip


def torch_stack(num_layers, d_model, num_heads, d_ff, cross, norm_placement="post", feedforward="relu"):
    """The module whose parameters `stack_state` draws; pre-norm has a closing norm."""
    layer = torch_layer(d_model, num_heads, d_ff, cross, norm_placement, feedforward)
    norm = torch.nn.LayerNorm(d_model) if norm_placement == "pre" else None
    if cross:
        return torch.nn.TransformerDecoder(layer, num_layers, norm)
    return torch.nn.TransformerEncoder(layer, num_layers, norm, enable_nested_tensor=False)


# ---- encoder and decoder layers and stacks

SIZES = dict(d_model=6, num_heads=2, d_ff=7)
KEEP = np.arange(5) < np.array([5, 3])[:, None]  # two sequences of 5, of which the second ends in padding
MEMORY_KEEP = KEEP[::-1].copy()  # for a decoder the other one


def later(T):
    """PyTorch's causal mask: True = forbidden."""
    return torch.ones(T, T, dtype=torch.bool).triu(1)


@case("encoder_layer_post_relu", "EncoderLayer", norm_placement="post", feedforward="relu", **SIZES)
@case("encoder_layer_post_gelu", "EncoderLayer", norm_placement="post", feedforward="gelu", **SIZES)
@case("encoder_layer_pre_relu", "EncoderLayer", norm_placement="pre", feedforward="relu", **SIZES)
@case("encoder_layer_pre_gelu", "EncoderLayer", norm_placement="pre", feedforward="gelu", **SIZES)
@case("encoder_layer_causal", "EncoderLayer", causal=True, **SIZES)
def encoder_layer(r, d_model, num_heads, d_ff, causal=False, **options):
    r.keyword("mask", KEEP[:, None, None, :])
    masks = dict(src_key_padding_mask=torch.tensor(~KEEP), src_mask=later(5) if causal else None)
    module = torch_layer(d_model, num_heads, d_ff, cross=False, **options)
    state = layer_state(r, "", d_model, d_ff, cross=False)
    return functional_call(module, state, r.input("x", 2, 5, d_model), masks)


def decoder_inputs(r, d_model, own_mask):
    """Target, memory, and PyTorch's masks: the first memory is padded, the second target hides its second token."""
    inputs = r.input("tgt", 2, 4, d_model), r.input("memory", 2, 5, d_model)
    masks = dict(tgt_mask=later(4), memory_key_padding_mask=torch.tensor(~MEMORY_KEEP))
    r.keyword("memory_mask", MEMORY_KEEP[:, None, None, :])
    if own_mask:
        seen = np.array([[True] * 4, [True, False, True, True]])
        masks["tgt_key_padding_mask"] = torch.tensor(~seen)
        r.keyword("tgt_mask", np.tri(4, dtype=bool) & seen[:, None, None, :])
    return inputs, masks


@case("decoder_layer_post_relu", "DecoderLayer", norm_placement="post", feedforward="relu", **SIZES)
@case("decoder_layer_post_gelu_mask", "DecoderLayer", norm_placement="post", feedforward="gelu", **SIZES)
@case("decoder_layer_pre_relu_mask", "DecoderLayer", norm_placement="pre", feedforward="relu", **SIZES)
@case("decoder_layer_pre_gelu", "DecoderLayer", norm_placement="pre", feedforward="gelu", **SIZES)
def decoder_layer(r, d_model, num_heads, d_ff, **options):
    inputs, masks = decoder_inputs(r, d_model, own_mask=r.name.endswith("mask"))
    module = torch_layer(d_model, num_heads, d_ff, cross=True, **options)
    return functional_call(module, layer_state(r, "", d_model, d_ff, cross=True), inputs, masks)


@case("encoder_post", "Encoder", num_layers=2, **SIZES)
@case("encoder_pre", "Encoder", num_layers=2, norm_placement="pre", feedforward="gelu_tanh", **SIZES)
def encoder(r, num_layers, d_model, num_heads, d_ff, norm_placement="post", feedforward="relu"):
    r.keyword("mask", KEEP[:, None, None, :])
    module = torch_stack(num_layers, d_model, num_heads, d_ff, False, norm_placement, feedforward)
    state = stack_state(r, "", num_layers, d_model, d_ff, cross=False, closing_norm=norm_placement == "pre")
    masks = dict(src_key_padding_mask=torch.tensor(~KEEP))
    return functional_call(module, state, r.input("x", 2, 5, d_model), masks)


@case("decoder_post_mask", "Decoder", num_layers=2, **SIZES)
@case("decoder_pre", "Decoder", num_layers=2, norm_placement="pre", feedforward="gelu", **SIZES)
def decoder(r, num_layers, d_model, num_heads, d_ff, norm_placement="post", feedforward="relu"):
    inputs, masks = decoder_inputs(r, d_model, own_mask=r.name.endswith("mask"))
    module = torch_stack(num_layers, d_model, num_heads, d_ff, True, norm_placement, feedforward)
    state = stack_state(r, "", num_layers, d_model, d_ff, cross=True, closing_norm=norm_placement == "pre")
    return functional_call(module, state, inputs, masks)


@case("encoder_alibi", "Encoder", num_layers=2, position="alibi", **SIZES)
@case("encoder_t5", "Encoder", num_layers=2, position="t5", **SIZES)
def encoder_bias(r, num_layers, d_model, num_heads, d_ff, position):
    """PyTorch takes the bias, the same in both layers, as an additive mask, one for each sequence and head."""
    x = r.input("x", 2, 5, d_model)
    distance = torch.tensor([[j - i for j in range(5)] for i in range(5)])
    if position == "alibi":
        bias = torch.stack([-slope * distance.abs().double() for slope in alibi_slopes(num_heads)])
    else:  # one table, so one gradient
        table = r.param("layers.0.self_attention.sublayer.attention.position.W", 32, num_heads)
        bias = table[distance.clone().apply_(t5_bucket)].permute(2, 0, 1)
    module = torch_stack(num_layers, d_model, num_heads, d_ff, cross=False)
    state = stack_state(r, "", num_layers, d_model, d_ff, cross=False, closing_norm=False)
    return functional_call(module, state, x, dict(mask=bias.repeat(2, 1, 1)))


# ---- the encoder-decoder


def config(name, **options):
    return spec(name, dropout=0.0, **options)


SEQ2SEQ = dict(**SIZES, num_encoder_layers=2, num_decoder_layers=2)


@case("transformer_post_tied_output", "Transformer",
      config=config("TransformerConfig", src_vocab_size=8, tgt_vocab_size=9, **SEQ2SEQ))  # fmt: skip
@case("transformer_pre_one_table", "Transformer",
      config=config("TransformerConfig", src_vocab_size=9, tgt_vocab_size=9, tie_embeddings=True, norm_placement="pre",
                    feedforward="gelu", position="learned", max_len=6, **SEQ2SEQ))  # fmt: skip
@case("transformer_untied", "Transformer",
      config=config("TransformerConfig", src_vocab_size=8, tgt_vocab_size=9, tie_output=False, pad_id=None,
                    **SEQ2SEQ))  # fmt: skip
def transformer(r, config):
    c = config["options"]
    src, tgt, masks = seq2seq_inputs(r, c)
    source = r.param("src_embedding.embedding.E", c["src_vocab_size"], c["d_model"])
    x = embed(r, "src_embedding.", src, source, c)
    target = source
    if not c.get("tie_embeddings"):
        target = r.param("tgt_embedding.embedding.E", c["tgt_vocab_size"], c["d_model"])
    y = embed(r, "tgt_embedding.", tgt, target, c)
    pre = c.get("norm_placement") == "pre"
    widths = c["d_model"], c["num_heads"], c["d_ff"]
    options = "pre" if pre else "post", c.get("feedforward", "relu")
    encoder, decoder = torch_stack(2, *widths, False, *options), torch_stack(2, *widths, True, *options)
    state = stack_state(r, "encoder.", 2, c["d_model"], c["d_ff"], cross=False, closing_norm=pre)
    memory = functional_call(encoder, state, x, dict(src_key_padding_mask=masks["memory_key_padding_mask"]))
    state = stack_state(r, "decoder.", 2, c["d_model"], c["d_ff"], cross=True, closing_norm=pre)
    h = functional_call(decoder, state, (y, memory), masks)
    if c.get("tie_output", True):
        return h @ target.T
    return apply_linear(r, "output.", h, c["d_model"], c["tgt_vocab_size"])


def seq2seq_inputs(r, c):
    """Token ids with repetitions, the second source padded: by pad_id 0, or by masks of its own if there is none."""
    src = r.rng.integers(1, c["src_vocab_size"], (2, 5))
    src[~KEEP] = 0
    src, tgt = r.constant("src", src), r.ids("tgt", (2, 4), c["tgt_vocab_size"], start=1)
    masks = dict(memory_key_padding_mask=torch.tensor(~KEEP), tgt_mask=later(4))
    if "pad_id" in c:
        seen = np.array([[True] * 4, [True, False, True, True]])
        r.keyword("src_mask", KEEP)
        r.keyword("tgt_mask", seen[:, None, None, :])
        masks["tgt_key_padding_mask"] = torch.tensor(~seen)
    return src, tgt, masks


def embed(r, prefix, ids, table, c):
    """Scaled embeddings plus positions."""
    x = F.embedding(ids, table) * math.sqrt(c["d_model"])
    if c.get("position") == "learned":
        return x + r.param(f"{prefix}position.W", c["max_len"], c["d_model"])[: ids.shape[1]]
    return x + sinusoids(ids.shape[1], c["d_model"])


# ---- the decoder-only model, from single operations


@case("gpt", "GPT", config=config("GPTConfig", vocab_size=9, max_len=6, d_model=6, num_heads=3, num_layers=2))
def gpt(r, config):
    """GPT-2: pre-norm, tanh GELU, learned positions, output tied to the table."""
    D, ids = 6, r.ids("ids", (2, 5), 9)
    table = r.param("embedding.embedding.E", 9, D)
    x = F.embedding(ids, table) + r.param("embedding.position.W", 6, D)[:5]
    for i in range(2):
        prefix = f"layers.layers.{i}."
        x = x + causal_attention(r, f"{prefix}self_attention.sublayer.", layer_norm(r, f"{prefix}self_attention.", x))
        h = layer_norm(r, f"{prefix}feedforward.", x)
        h = F.gelu(apply_linear(r, f"{prefix}feedforward.sublayer.linear1.", h, D, 4 * D), approximate="tanh")
        x = x + apply_linear(r, f"{prefix}feedforward.sublayer.linear2.", h, 4 * D, D)
    return layer_norm(r, "layers.", x) @ table.T


def layer_norm(r, prefix, x):
    D = x.shape[-1]
    return F.layer_norm(x, (D,), r.param(f"{prefix}norm.gamma", D), r.param(f"{prefix}norm.beta", D))


def causal_attention(r, prefix, x, num_heads=3, num_kv_heads=3, bias=True, turn=lambda x: x):
    """Self-attention that sees no later token; `turn` rotates queries and keys."""
    D = x.shape[-1]
    width = D // num_heads * num_kv_heads
    q = split(apply_linear(r, f"{prefix}q_proj.", x, D, D, bias), num_heads)
    k = split(apply_linear(r, f"{prefix}k_proj.", x, D, width, bias), num_kv_heads)
    v = split(apply_linear(r, f"{prefix}v_proj.", x, D, width, bias), num_kv_heads)
    heads = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
    return apply_linear(r, f"{prefix}out_proj.", heads.transpose(1, 2).flatten(2), D, D, bias)


@case("gpt_as_llama", "GPT",
      config=config("GPTConfig", vocab_size=9, d_model=8, num_heads=4, num_kv_heads=2, num_layers=2, d_ff=7, norm="rms",
                    feedforward="swiglu", position="rope", bias=False, tie_output=False))  # fmt: skip
def gpt_as_llama(r, config):
    """Llama's choices: RMSNorm, rotary positions, grouped queries, SwiGLU, no biases, an output of its own."""
    x = F.embedding(r.ids("ids", (2, 5), 9), r.param("embedding.embedding.E", 9, 8))

    def norm(name, x):
        return F.rms_norm(x, (8,), r.param(f"{name}norm.gamma", 8), 1e-6)

    def turn(x):
        return rotate(x, torch.arange(5), d_head=2)

    for i in range(2):
        attention, network = f"layers.layers.{i}.self_attention.", f"layers.layers.{i}.feedforward."
        x = x + causal_attention(r, f"{attention}sublayer.", norm(attention, x), 4, 2, False, turn)
        x = x + apply_gated(r, f"{network}sublayer.", norm(network, x), 8, 7, "silu")
    return apply_linear(r, "output.", norm("layers.", x), 8, 9, bias=False)
