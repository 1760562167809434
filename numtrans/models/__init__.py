"""Whole models, each a file that reads from top to bottom."""

from numtrans.models.bert import BERT
from numtrans.models.configs import BERTConfig, GPTConfig, LlamaConfig, T5Config, TransformerConfig, ViTConfig
from numtrans.models.counts import count_parameters, parameter_parts
from numtrans.models.gpt import GPT
from numtrans.models.llama import Llama
from numtrans.models.presets import preset
from numtrans.models.t5 import T5
from numtrans.models.transformer import Transformer
from numtrans.models.vit import ViT

__all__ = [
    "BERT", "GPT", "T5", "BERTConfig", "GPTConfig", "Llama", "LlamaConfig", "T5Config", "Transformer",
    "TransformerConfig", "ViT", "ViTConfig", "count_parameters", "parameter_parts", "preset",
]  # fmt: skip
