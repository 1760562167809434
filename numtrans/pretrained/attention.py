"""What the heads of a pretrained model look at. Shapes: ``H`` heads, ``T`` tokens."""

from pathlib import Path

import numpy as np

from numtrans.backend import to_numpy
from numtrans.errors import ConfigError
from numtrans.models import BERT, GPT, Llama
from numtrans.module import no_grad
from numtrans.pretrained.huggingface import from_pretrained
from numtrans.pretrained.packages import PACKAGES, locate
from numtrans.pretrained.tokenizer import load_tokenizer


def attention_of(path, text):
    """The attention weights of a model that reads `text`.

    Parameters
    ----------
    path : str or Path
        A BERT, GPT-2 or Llama: a name of `numtrans.pretrained.packages`, a Hugging Face folder or a ``.gguf`` file.
    text : str

    Returns
    -------
    weights : list of array (H, T, T)
        One for each layer: ``weights[layer][head, query, key]``.
    tokens : list of str
        T labels.

    Raises
    ------
    ConfigError
        If the model is of another kind, or the text has no token or too many.
    """
    if path in PACKAGES and not Path(path).exists():
        path = locate(path)
    model, tokenizer = from_pretrained(path), load_tokenizer(path)
    if not isinstance(model, (BERT, GPT, Llama)):
        raise ConfigError(f"{path}: a {type(model).__name__} is not drawn, expected a BERT, GPT or Llama")
    ids = tokenizer.encode(text)
    if not 0 < len(ids) <= model.config.max_len:
        raise ConfigError(f"{path}: the text has {len(ids)} tokens, expected 1 to {model.config.max_len}")
    stack = model.encoder if isinstance(model, BERT) else model.layers
    for layer in stack.layers:
        layer.self_attention.sublayer.attention.block_size = 0  # tiles, for a long text, would leave no weights
    with no_grad():
        model(np.array([ids]))
    weights = [to_numpy(layer.self_attention.sublayer.attention_weights)[0] for layer in stack.layers]
    return weights, tokenizer.tokens(ids)
