"""Pretrained models of others: their tokenizers and their weights."""

from numtrans.pretrained.attention import attention_of
from numtrans.pretrained.files import load, save
from numtrans.pretrained.huggingface import from_pretrained, save_pretrained
from numtrans.pretrained.sentences import SentenceEncoder, embed
from numtrans.pretrained.tokenizer import PretrainedTokenizer, load_tokenizer
from numtrans.pretrained.torch_names import load_torch_state_dict, to_torch_state_dict

__all__ = [
    "PretrainedTokenizer", "SentenceEncoder", "attention_of", "embed", "from_pretrained", "load", "load_tokenizer",
    "load_torch_state_dict", "save", "save_pretrained", "to_torch_state_dict",
]  # fmt: skip
