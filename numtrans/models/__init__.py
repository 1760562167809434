"""Whole models, each a file that reads from top to bottom."""

from numtrans.models.configs import GPTConfig, TransformerConfig
from numtrans.models.gpt import GPT
from numtrans.models.transformer import Transformer

__all__ = ["GPT", "GPTConfig", "Transformer", "TransformerConfig"]
