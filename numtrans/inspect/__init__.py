"""Looking inside: plots of training and of attention, and what each head does in numbers."""

from numtrans.inspect.attention import (
    attention_distance,
    attention_entropy,
    attention_maximum,
    attention_patterns,
    head_divergence,
    induction_score,
    previous_token_score,
)
from numtrans.inspect.heads import head_ranks, head_singular_values

__all__ = [
    "attention_distance",
    "attention_entropy",
    "attention_maximum",
    "attention_patterns",
    "head_divergence",
    "head_ranks",
    "head_singular_values",
    "induction_score",
    "previous_token_score",
]
