"""Looking inside: plots of training and of attention, a view of heads, and what each head does in numbers."""

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
from numtrans.inspect.viewer import AttentionView, attention_html, write_attention

__all__ = [
    "AttentionView",
    "attention_distance",
    "attention_entropy",
    "attention_html",
    "attention_maximum",
    "attention_patterns",
    "head_divergence",
    "head_ranks",
    "head_singular_values",
    "induction_score",
    "previous_token_score",
    "write_attention",
]
