"""Layers: one component a file, forward and backward side by side."""

from numtrans.layers.activations import GELU, Identity, ReLU, Sigmoid, SiLU, Tanh
from numtrans.layers.attention import ScaledDotProductAttention
from numtrans.layers.dropout import Dropout
from numtrans.layers.embedding import Embedding
from numtrans.layers.feedforward import GEGLU, FeedForward, GatedFeedForward, ReGLU, SwiGLU
from numtrans.layers.kv_cache import KVCache
from numtrans.layers.linear import Linear, TiedLinear
from numtrans.layers.masks import causal_mask, padding_mask
from numtrans.layers.multi_head_attention import MultiHeadAttention
from numtrans.layers.normalization import BatchNorm, LayerNorm, RMSNorm
from numtrans.layers.positional import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from numtrans.layers.recompute import Checkpoint, checkpoint_layers
from numtrans.layers.relative import ShawRelativePosition
from numtrans.layers.relative_bias import ALiBi, T5RelativeBias
from numtrans.layers.residual import Residual
from numtrans.layers.rotary import RotaryPositionalEncoding
from numtrans.layers.softmax import LogSoftmax, Softmax

__all__ = [
    "GEGLU",
    "GELU",
    "ALiBi",
    "BatchNorm",
    "Checkpoint",
    "Dropout",
    "Embedding",
    "FeedForward",
    "GatedFeedForward",
    "Identity",
    "KVCache",
    "LayerNorm",
    "LearnedPositionalEncoding",
    "Linear",
    "LogSoftmax",
    "MultiHeadAttention",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "Residual",
    "RotaryPositionalEncoding",
    "ScaledDotProductAttention",
    "ShawRelativePosition",
    "SiLU",
    "Sigmoid",
    "SinusoidalPositionalEncoding",
    "Softmax",
    "SwiGLU",
    "T5RelativeBias",
    "Tanh",
    "TiedLinear",
    "causal_mask",
    "checkpoint_layers",
    "padding_mask",
]
