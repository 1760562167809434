"""Every component with inputs that prove its gradient: odd sizes, more keys than queries, a query with nothing to see.

`numtrans gradcheck` walks this list. A component is a name, a module, its inputs and keyword arguments, and whether it
is analytic, so that complex-step differentiation applies as well.
"""

from dataclasses import dataclass, field

import numpy as np

from numtrans import layers as nl
from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.models import (
    BERT,
    GPT,
    T5,
    BERTConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    T5Config,
    Transformer,
    TransformerConfig,
    ViT,
    ViTConfig,
)  # fmt: skip

B, TQ, TK, D, H, F, V = 2, 3, 5, 12, 4, 10, 11
SMALL = 6, 2, 5  # d_model, heads and d_ff of stacks and models, in which every coordinate costs a run of the whole


@dataclass(frozen=True)
class Component:
    """One line of `numtrans gradcheck`."""

    name: str
    module: object
    inputs: tuple
    kwargs: dict = field(default_factory=dict)
    analytic: bool = True


def components(seed=0):
    """All components, in the order of their files."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape)

    def heads(T, d=3):
        return normal(B, H, T, d)

    x, query, memory = normal(B, TK, D), normal(B, TQ, D), normal(B, TK, D)
    ids = rng.integers(V, size=(B, TK))
    ids[:, -1] = ids[:, 0]  # a token that occurs twice
    attention_mask = attention_rows()
    tokens = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    pads = tokens[:, None, None, :]
    found = [
        Component("Linear", nl.Linear(D, F, rng=rng), (x,)),
        Component("Linear without bias", nl.Linear(D, F, bias=False, rng=rng), (x,)),
        Component("TiedLinear", nl.TiedLinear(nl.Embedding(V, D, rng=rng).E), (x,)),
        Component("Embedding", nl.Embedding(V, D, rng=rng), (ids,)),
        Component("Embedding, scaled", nl.Embedding(V, D, scale=True, rng=rng), (ids,)),
        Component("ReLU", nl.ReLU(), (x,), analytic=False),
        Component("GELU", nl.GELU(), (x,)),
        Component("GELU, tanh form", nl.GELU("tanh"), (x,)),
        Component("SiLU", nl.SiLU(), (x,)),
        Component("Sigmoid", nl.Sigmoid(), (x,)),
        Component("Tanh", nl.Tanh(), (x,)),
        Component("Identity", nl.Identity(), (x,)),
        Component("Dropout", nl.Dropout(0.3, rng=rng), (x,)),
        Component("Softmax", nl.Softmax(), (x,)),
        Component("Softmax, axis 1", nl.Softmax(axis=1), (x,)),
        Component("LogSoftmax", nl.LogSoftmax(), (x,)),
        Component("LayerNorm", nl.LayerNorm(D), (x,)),
        Component("LayerNorm without bias", nl.LayerNorm(D, bias=False), (x,)),
        Component("RMSNorm", nl.RMSNorm(D), (x,)),
        Component("BatchNorm", nl.BatchNorm(D), (x,)),
        Component("BatchNorm, masked", nl.BatchNorm(D), (x,), {"mask": tokens}),
        Component("BatchNorm, evaluation", nl.BatchNorm(D).eval(), (x,)),
        Component("SinusoidalPositionalEncoding", nl.SinusoidalPositionalEncoding(D), (x,)),
        Component("LearnedPositionalEncoding", nl.LearnedPositionalEncoding(D, TK + 2, rng=rng), (x,)),
        Component(
            "LearnedPositionalEncoding, positions",
            nl.LearnedPositionalEncoding(D, 4, rng=rng),
            (x,),
            {"offset": np.array([[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]])},
        ),
        Component("RotaryPositionalEncoding", nl.RotaryPositionalEncoding(6), (heads(TQ, 6),)),
        Component("Rotary, interleaved", nl.RotaryPositionalEncoding(6, interleaved=True), (heads(TQ, 6), 2)),
        Component("Rotary, partial width", nl.RotaryPositionalEncoding(6, rotary_dim=4), (heads(TQ, 6),)),
        Component("ShawRelativePosition", nl.ShawRelativePosition(3, 2, rng=rng), (heads(TQ), TK)),
        Component("T5RelativeBias", nl.T5RelativeBias(H, 8, max_distance=9, rng=rng), (TQ, TK)),
    ]
    qkv = heads(TQ), heads(TK), heads(TK, 4)
    for name, options in {
        "ScaledDotProductAttention": {},
        "Attention, causal": {"causal": True},
        "Attention, sliding window": {"causal": True, "window": 2},
        "Attention, dropout": {"dropout": 0.2},
        "Attention in tiles": {"block_size": 2},
        "Attention in tiles, causal": {"causal": True, "block_size": 2},
        "Attention in tiles, window and dropout": {"causal": True, "window": 2, "dropout": 0.2, "block_size": 2},
    }.items():
        attention = nl.ScaledDotProductAttention(**options, rng=rng)
        found.append(Component(name, attention, qkv, {"mask": attention_mask}))
    for name, inputs, options in multi_head_cases(query, memory, rng):
        module = nl.MultiHeadAttention(D, H, rng=rng, **options)
        mask = attention_mask if len(inputs) > 1 else pads
        found.append(Component(name, module, inputs, {"mask": mask}))
    found += [
        Component("FeedForward", nl.FeedForward(D, F, rng=rng), (x,), analytic=False),
        Component("FeedForward, GELU", nl.FeedForward(D, F, "gelu", rng=rng), (x,)),
        Component("SwiGLU", nl.SwiGLU(D, F, rng=rng), (x,)),
        Component("GEGLU", nl.GEGLU(D, F, rng=rng), (x,)),
        Component("ReGLU", nl.ReGLU(D, F, rng=rng), (x,), analytic=False),
        Component("Bilinear", nl.GatedFeedForward(D, F, "identity", rng=rng), (x,)),
    ]
    target, narrow = normal(B, TQ, SMALL[0]), normal(B, TK, SMALL[0])
    for placement in ("pre", "post"):
        style = {"norm_placement": placement, "feedforward": "gelu", "rng": rng}
        residual = nl.Residual(nl.FeedForward(D, F, "gelu", rng=rng), nl.LayerNorm(D), placement, dropout=0.1, rng=rng)
        both = {"tgt_mask": None, "memory_mask": attention_mask}
        found += [
            Component(f"Residual, {placement}-norm", residual, (x,)),
            Component(f"EncoderLayer, {placement}-norm", EncoderLayer(*SMALL, **style), (narrow,), {"mask": pads}),
            Component(f"DecoderLayer, {placement}-norm", DecoderLayer(*SMALL, **style), (target, narrow), both),
            Component(f"Encoder, {placement}-norm", Encoder(2, *SMALL, **style), (narrow,), {"mask": pads}),
            Component(f"Decoder, {placement}-norm", Decoder(2, *SMALL, **style), (target, narrow), both),
        ]
    wrapped = nl.Checkpoint(EncoderLayer(*SMALL, feedforward="gelu", dropout=0.2, rng=rng))
    found.append(Component("Checkpoint", wrapped, (narrow,), {"mask": pads}))
    return found + losses(rng) + models(rng)


def attention_rows():
    """Mask (B, 1, TQ, TK): some keys hidden, and one query with none left."""
    mask = np.ones((B, 1, TQ, TK), bool)
    mask[0, :, :, 3:] = False
    mask[1, :, 1] = False
    return mask


def multi_head_cases(query, memory, rng):
    """(name, inputs, options) of the forms of multi-head attention."""
    value = rng.standard_normal(memory.shape)
    yield "MultiHeadAttention, self", (memory,), {}
    yield "MultiHeadAttention, cross", (query, memory, value), {}
    yield "MultiHeadAttention, causal", (query, memory), {"causal": True}
    yield "MultiHeadAttention, dropout", (query, memory), {"dropout": 0.2}
    yield "Grouped-query attention", (query, memory, value), {"num_kv_heads": 2}
    yield "Multi-query attention", (query, memory), {"num_kv_heads": 1}
    yield "Attention with d_k != d_v", (query, memory, value), {"d_kv": 5, "d_v": 2, "bias": False}
    rotary = nl.RotaryPositionalEncoding(6)
    yield "Attention with RoPE", (query, memory), {"d_kv": 6, "position": rotary, "causal": True}
    yield "Attention with Shaw positions", (query, memory), {"position": nl.ShawRelativePosition(3, 2, rng=rng)}
    yield "Attention with T5 bias", (query, memory), {"position": nl.T5RelativeBias(H, 8, max_distance=9, rng=rng)}
    yield "Attention with ALiBi", (query, memory), {"position": nl.ALiBi(H), "causal": True}


def losses(rng):
    """The losses: the logits are the input, the targets are constant."""
    logits, targets = rng.standard_normal((B, TK, V)), rng.integers(V, size=(B, TK))
    targets[0, 3:] = -100
    prediction, truth = rng.standard_normal((B, TK)), rng.integers(3, size=(B, TK)).astype(np.float64)
    return [
        Component("CrossEntropyLoss", CrossEntropyLoss(), (logits, targets)),
        Component("CrossEntropyLoss, smoothed", CrossEntropyLoss(label_smoothing=0.1), (logits, targets)),
        Component("CrossEntropyLoss, sum", CrossEntropyLoss(reduction="sum"), (logits, targets)),
        Component("CrossEntropyLoss, none", CrossEntropyLoss(reduction="none"), (logits, targets)),
        Component("MSELoss", MSELoss(), (prediction,), {"targets": truth}),
    ]


def models(rng):
    """The models, in several forms."""
    src, tgt = rng.integers(1, V, size=(B, TK)), rng.integers(1, V, size=(B, TQ))
    src[0, 3:] = 0
    width, heads, hidden = SMALL
    small = dict(d_model=width, num_heads=heads, d_ff=hidden, num_encoder_layers=1, num_decoder_layers=1,
                 feedforward="gelu")  # fmt: skip
    forms = {
        "Transformer, post-norm": {"tie_output": False, "norm_placement": "post"},
        "Transformer, pre-norm, tied": {"tie_embeddings": True, "norm_placement": "pre", "position": "learned",
                                        "max_len": 7, "num_decoder_layers": 2},
        "Transformer, ReLU": {"feedforward": "relu"},
        "Transformer, Shaw": {"position": "shaw"},
        "Transformer, T5 bias": {"position": "t5", "norm": "rms", "feedforward": "geglu", "norm_placement": "pre"},
    }
    found = [
        Component(name, Transformer(TransformerConfig(V, V, **{**small, **form}), rng=rng), (src, tgt),
                  analytic=form.get("feedforward") != "relu")
        for name, form in forms.items()
    ]  # fmt: skip
    gpts = {
        "GPT": {},
        "GPT, Llama's parts": {"norm": "rms", "feedforward": "swiglu", "position": "alibi", "num_kv_heads": 1,
                               "bias": False, "tie_output": False},
    }  # fmt: skip
    for name, form in gpts.items():
        config = GPTConfig(V, max_len=7, d_model=width, num_heads=heads, num_layers=2, d_ff=hidden, **form)
        found.append(Component(name, GPT(config, rng=rng), (tgt,)))
    return found + later_models(src, tgt, rng)


def later_models(src, tgt, rng):
    """BERT, T5, Llama and ViT, each as small as shows every part."""
    found = []
    types = rng.integers(2, size=src.shape)
    sizes = dict(d_model=4, num_heads=2, d_ff=3)
    for head in ("pooled", "mlm", "none"):
        config = BERTConfig(V, TK + 1, num_layers=1, head=head, **sizes)
        found.append(Component(f"BERT, {head}", BERT(config, rng=rng), (src,), {"token_type_ids": types}))
    # two layers of a stack share the table of the positions
    t5 = dict(d_kv=3, num_buckets=4, max_distance=5, num_decoder_layers=1, **sizes)
    versions = {
        "T5 1.0": T5Config(V, num_encoder_layers=1, **t5),
        "T5 1.1": T5Config(V, num_encoder_layers=2, feedforward="geglu_tanh", tie_output=False, **t5),
    }
    for name, config in versions.items():
        found.append(Component(name, T5(config, rng=rng), (src, tgt), analytic=config.feedforward != "relu"))
    llamas = {
        "Llama": LlamaConfig(V, TK, num_layers=2, **sizes),
        "Llama, grouped queries, window": LlamaConfig(V, TK, num_layers=1, num_kv_heads=1, d_kv=4, sliding_window=2,
                                                      tie_output=True, **sizes),
    }  # fmt: skip
    for name, config in llamas.items():
        found.append(Component(name, Llama(config, rng=rng), (src,)))
    vit = ViTConfig(4, 2, channels=2, num_classes=3, num_layers=1, **sizes)
    return [*found, Component("ViT", ViT(vit, rng=rng), (rng.standard_normal((B, 2, 4, 4)),))]
