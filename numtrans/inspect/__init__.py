"""Looking inside: what a model costs, plots of training and of attention, a view of heads, and what each head does."""

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
from numtrans.inspect.summaries import Summary, summary
from numtrans.inspect.viewer import AttentionView, attention_html, write_attention

__all__ = [
    "AttentionView",
    "Summary",
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
    "summary",
    "write_attention",
]
