"""Looking inside: plots of training and of attention, and what each head does in numbers."""

from numtrans.inspect.attention import (
    attention_distance,
    attention_entropy,
    attention_maximum,
    attention_patterns,
    head_divergence,
)

__all__ = [
    "attention_distance",
    "attention_entropy",
    "attention_maximum",
    "attention_patterns",
    "head_divergence",
]
