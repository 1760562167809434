"""Random small configurations of every model."""

from numtrans.layers.activations import ACTIVATIONS
from numtrans.layers.feedforward import GATES
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
)
from numtrans.models.configs import HEADS, POSITIONS

MODELS = [Transformer, GPT, BERT, T5, Llama, ViT]


def small(model, rng, dropout=0.0):
    """A random configuration of `model`, with this dropout."""

    def number(low, high):
        return int(rng.integers(low, high + 1))

    def one_of(choices):
        return choices[number(0, len(choices) - 1)]

    G, per_group, d = number(1, 2), number(1, 3), 2 * number(1, 3)
    H = G * per_group
    sizes = dict(d_model=H * d, num_heads=H, d_ff=number(1, 9), dropout=dropout)
    layers = dict(num_layers=number(1, 3))
    both = dict(num_encoder_layers=number(1, 3), num_decoder_layers=number(1, 3))
    style = dict(norm_placement=one_of(["pre", "post"]), norm=one_of(["layer", "rms"]), position=one_of(POSITIONS),
                 feedforward=one_of([*ACTIVATIONS, *GATES]), tie_output=one_of([True, False]))  # fmt: skip
    V, P, activation = number(2, 9), number(2, 9), one_of(list(ACTIVATIONS))
    if model is Transformer:
        tie = one_of([True, False])
        return TransformerConfig(V, V if tie else number(2, 9), max_len=P, tie_embeddings=tie, **sizes, **both, **style)
    if model is GPT:
        return GPTConfig(V, P, num_kv_heads=G, bias=one_of([True, False]), **sizes, **layers, **style)
    if model is BERT:
        return BERTConfig(V, P, token_types=number(1, 3), head=one_of(HEADS), feedforward=activation, **sizes, **layers)
    if model is T5:
        return T5Config(V, d_kv=number(1, 5), num_buckets=8, tie_output=style["tie_output"],
                        feedforward=style["feedforward"], **sizes, **both)  # fmt: skip
    if model is Llama:
        return LlamaConfig(V, P, num_kv_heads=G, d_kv=one_of([None, 2, 8]), tie_output=style["tie_output"], **sizes,
                           **layers)  # fmt: skip
    p = number(1, 3)
    return ViTConfig(p * number(1, 3), p, number(1, 3), number(2, 5), feedforward=style["feedforward"], **sizes,
                     **layers)  # fmt: skip
