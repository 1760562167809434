"""Pretrained models of others: their tokenizers and their weights."""

from numtrans.pretrained.tokenizer import PretrainedTokenizer, load_tokenizer
from numtrans.pretrained.torch_names import load_torch_state_dict, to_torch_state_dict

__all__ = ["PretrainedTokenizer", "load_tokenizer", "load_torch_state_dict", "to_torch_state_dict"]
