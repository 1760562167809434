"""Configurations of the models: frozen dataclasses of plain values, so that they can be written as JSON."""

import math
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import get_args

import numpy as np

from numtrans.blocks import RELATIVE_POSITIONS
from numtrans.errors import ConfigError
from numtrans.layers.activations import ACTIVATIONS
from numtrans.layers.feedforward import GATES
from numtrans.layers.normalization import NORMS

POSITIONS = ("sinusoidal", "learned", *RELATIVE_POSITIONS)
HEADS = ("pooled", "mlm", "none")
CHOICES = {
    "position": POSITIONS, "head": HEADS, "norm": tuple(NORMS), "norm_placement": ("post", "pre"),
    "feedforward": (*ACTIVATIONS, *GATES),
}  # fmt: skip


@dataclass(frozen=True)
class TransformerConfig:
    """Encoder-decoder of Vaswani et al. (2017); the defaults are the paper's base model.

    Parameters
    ----------
    src_vocab_size, tgt_vocab_size : int
        Sizes of the two vocabularies.
    d_model, num_heads, d_ff : int
        Width, attention heads, width of the feed-forward networks.
    num_encoder_layers, num_decoder_layers : int
        Depths.
    dropout : float
        Used on embeddings, attention weights, hidden units and sublayer outputs.
    max_len : int
        Rows of a learned position table; no limit for the other kinds.
    norm_placement : {"post", "pre"}
    norm : {"layer", "rms"}
    feedforward : str
        An activation or a gated unit.
    position : {"sinusoidal", "learned", "rope", "shaw", "t5", "alibi"}
        The first two are added to the embeddings; the others act inside self-attention.
    tie_embeddings : bool
        Source and target share one table (needs equal vocabularies).
    tie_output : bool
        The output projection is the target's table.
    pad_id : int or None
        Source tokens with this id are hidden from attention.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dropout: float = 0.1
    max_len: int = 5000
    norm_placement: str = "post"
    norm: str = "layer"
    feedforward: str = "relu"
    position: str = "sinusoidal"
    tie_embeddings: bool = False
    tie_output: bool = True
    pad_id: int | None = 0

    def __post_init__(self):
        check_config(self)
        if self.tie_embeddings and self.src_vocab_size != self.tgt_vocab_size:
            raise ConfigError(
                f"TransformerConfig: tie_embeddings needs one vocabulary, got sizes {self.src_vocab_size} and "
                f"{self.tgt_vocab_size}"
            )

    to_dict = asdict


@dataclass(frozen=True)
class GPTConfig:
    """Decoder-only model; the defaults are GPT-2's smallest (Radford et al. 2019).

    Parameters
    ----------
    vocab_size : int
        Size of the vocabulary.
    max_len : int
        Longest sequence (rows of a learned position table).
    d_model, num_heads, num_layers : int
        Width, heads, depth.
    d_ff : int, optional
        Width of the feed-forward networks, ``4 * d_model`` by default.
    num_kv_heads : int, optional
        Key-value heads, `num_heads` by default.
    dropout : float
        Used on embeddings, attention weights, hidden units and sublayer outputs.
    norm_placement, norm, feedforward, position : str
        As in `TransformerConfig`.
    bias : bool
        Whether linear layers have biases.
    tie_output : bool
        The output projection is the embedding's table.
    """

    vocab_size: int
    max_len: int = 1024
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int | None = None
    num_kv_heads: int | None = None
    dropout: float = 0.1
    norm_placement: str = "pre"
    norm: str = "layer"
    feedforward: str = "gelu_tanh"
    position: str = "learned"
    bias: bool = True
    tie_output: bool = True

    def __post_init__(self):
        check_config(self)
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)

    to_dict = asdict


@dataclass(frozen=True)
class BERTConfig:
    """Encoder that reads both ways; the defaults are BERT base, uncased (Devlin et al. 2019).

    Parameters
    ----------
    vocab_size, max_len : int
        Size of the vocabulary; longest sequence (rows of the position table).
    d_model, num_heads, num_layers, d_ff : int
        Width, heads, depth, width of the feed-forward networks.
    token_types : int
        Kinds of tokens: BERT marks the tokens of a first and a second sentence.
    dropout : float
        Used on embeddings, attention weights, hidden units and sublayer outputs.
    norm_eps : float
    feedforward : str
        The activation, in the layers and in the masked-LM head.
    head : {"pooled", "mlm", "none"}
        What the model returns: a vector of the sequence, logits of every token, or the hidden states.
    pad_id : int or None
        Tokens with this id are hidden from attention, unless a mask is given.
    """

    vocab_size: int = 30522
    max_len: int = 512
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int = 3072
    token_types: int = 2
    dropout: float = 0.1
    norm_eps: float = 1e-12
    feedforward: str = "gelu"
    head: str = "pooled"
    pad_id: int | None = 0

    def __post_init__(self):
        check_config(self)
        if self.feedforward not in ACTIVATIONS:
            raise ConfigError(
                f"BERTConfig: feedforward is {self.feedforward!r}, expected one of {', '.join(ACTIVATIONS)}"
            )

    to_dict = asdict


@dataclass(frozen=True)
class T5Config:
    """Encoder-decoder with relative positions; the defaults are T5 small, version 1.0 (Raffel et al. 2020).

    Parameters
    ----------
    vocab_size, d_model : int
        Size of the one vocabulary, and the width.
    d_kv, num_heads : int
        Features of a head, and heads; their product need not be `d_model`.
    d_ff, num_encoder_layers, num_decoder_layers : int
        Width of the feed-forward networks, and depths.
    num_buckets, max_distance : int
        Of the relative positions, see `T5RelativeBias`.
    dropout : float
        Used on embeddings, attention weights, hidden units, sublayer outputs and the outputs of both stacks.
    norm_eps : float
    feedforward : str
        ``"relu"`` in version 1.0, ``"geglu_tanh"`` in version 1.1.
    tie_output : bool
        The output projection is the embedding's table, as in version 1.0; version 1.1 has one of its own.
    pad_id : int or None
        Source tokens with this id are hidden from attention, unless a mask is given.
    """

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    num_heads: int = 8
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    num_buckets: int = 32
    max_distance: int = 128
    dropout: float = 0.1
    norm_eps: float = 1e-6
    feedforward: str = "relu"
    tie_output: bool = True
    pad_id: int | None = 0

    def __post_init__(self):
        check_config(self)

    to_dict = asdict


@dataclass(frozen=True)
class LlamaConfig:
    """Decoder-only model with RMSNorm, RoPE and SwiGLU; the defaults are Llama 7B (Touvron et al. 2023).

    Parameters
    ----------
    vocab_size, max_len : int
        Size of the vocabulary; longest sequence.
    d_model, num_heads, num_layers, d_ff : int
        Width, heads, depth, width of the feed-forward networks.
    num_kv_heads : int, optional
        Key-value heads, `num_heads` by default; fewer make grouped-query attention.
    d_kv : int, optional
        Features of a head, ``d_model / num_heads`` by default; even, because RoPE turns pairs.
    rope_base : float
        ``base`` of `RotaryPositionalEncoding`.
    norm_eps : float
    sliding_window : int, optional
        A token sees the latest so many tokens only, itself among them (Mistral); all earlier ones by default.
    dropout : float
        Used on attention weights, hidden units and sublayer outputs; Llama is trained without.
    tie_output : bool
        The output projection is the embedding's table.
    """

    vocab_size: int = 32000
    max_len: int = 2048
    d_model: int = 4096
    num_heads: int = 32
    num_layers: int = 32
    d_ff: int = 11008
    num_kv_heads: int | None = None
    d_kv: int | None = None
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
    sliding_window: int | None = None
    dropout: float = 0.0
    tie_output: bool = False

    def __post_init__(self):
        check_config(self)
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        if self.d_kv is None:
            object.__setattr__(self, "d_kv", self.d_model // self.num_heads)
        if self.d_kv % 2:
            raise ConfigError(f"LlamaConfig: a head has {self.d_kv} features, expected an even number, for RoPE")

    to_dict = asdict


@dataclass(frozen=True)
class ViTConfig:
    """Encoder of image patches; the defaults are ViT base with patches of 16 x 16 (Dosovitskiy et al. 2021).

    Parameters
    ----------
    image_size, patch_size : int
        Height and width of the images and of the patches that they are cut into, in pixels.
    channels, num_classes : int
        Of the images, and of the answer.
    d_model, num_heads, num_layers, d_ff : int
        Width, heads, depth, width of the feed-forward networks.
    dropout : float
        Used on embeddings, attention weights, hidden units and sublayer outputs.
    norm_eps : float
    feedforward : str
        An activation or a gated unit.
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    num_classes: int = 1000
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int = 3072
    dropout: float = 0.0
    norm_eps: float = 1e-12
    feedforward: str = "gelu"

    def __post_init__(self):
        check_config(self)
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"ViTConfig: image_size={self.image_size} is not divisible by patch_size={self.patch_size}"
            )

    to_dict = asdict


def check_config(config):
    """Raise `ConfigError` for values of another type, sizes below 1, heads that do not divide and unknown names.

    Each field becomes a plain value of the type that it is declared with, so that a size that NumPy computed can be
    written as JSON.
    """
    name, values = type(config).__name__, vars(config)
    for field in fields(config):
        value = plain(f"{name}: {field.name}", values[field.name], field.type)
        object.__setattr__(config, field.name, value)
        if isinstance(value, int) and not isinstance(value, bool) and field.name != "pad_id" and value < 1:
            raise ConfigError(f"{name}: {field.name} is {value}, expected at least 1")
        if field.name == "norm_eps" and value < 0:
            raise ConfigError(f"{name}: norm_eps is {value}, expected 0 or more")
        if field.name == "dropout" and not 0 <= value < 1:
            raise ConfigError(f"{name}: dropout is {value}, expected 0 <= dropout < 1")
        if value not in CHOICES.get(field.name, [value]):
            raise ConfigError(f"{name}: {field.name} is {value!r}, expected one of {', '.join(CHOICES[field.name])}")
    if values.get("d_kv") is None and config.d_model % config.num_heads:
        raise ConfigError(f"{name}: d_model={config.d_model} is not divisible by num_heads={config.num_heads}")
    if values.get("num_kv_heads") is not None and config.num_heads % config.num_kv_heads:
        raise ConfigError(
            f"{name}: num_heads={config.num_heads} is not divisible by num_kv_heads={config.num_kv_heads}"
        )


_PLAIN = {
    int: (Integral, "a whole number"), float: (Real, "a finite number"), bool: ((bool, np.bool_), "True or False"),
    str: (str, "a string"),
}  # fmt: skip


def plain(label, value, declared):
    """`value` as the type that a field is declared with, such as ``int`` or ``int | None``; raise if it is another."""
    options = get_args(declared) or (declared,)
    if value is None and type(None) in options:
        return None
    kind = options[0]
    accepted, what = _PLAIN[kind]
    truth = isinstance(value, (bool, np.bool_))  # True is no size, though Python counts it as 1
    if not isinstance(value, accepted) or truth != (kind is bool) or (kind is float and not math.isfinite(value)):
        also = ", or None" if type(None) in options else ""
        raise ConfigError(f"{label} is {value!r}, expected {what}{also}")
    return kind(value)
