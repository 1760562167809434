r"""Sentences to vectors. Shapes: ``B`` sentences, ``T`` tokens, ``D`` features.

A sentence encoder (Reimers and Gurevych 2019) takes the mean of a BERT's hidden states over the tokens of a sentence
and divides it by its norm,

.. math::

    m = \frac{\sum_t k_t h_t}{\sum_t k_t}, \qquad y = \frac{m}{\lVert m \rVert},

with :math:`k_t = 1` for tokens and 0 for padding. The product of two such vectors is the cosine of their angle.

References
----------
Reimers and Gurevych (2019), Sentence-BERT: Sentence embeddings using Siamese BERT-networks, arXiv:1908.10084.
"""

import json
from pathlib import Path

import numpy as np

from numtrans.backend import backend_name, get_xp, to_device, to_numpy
from numtrans.data.vocabulary import check_integer
from numtrans.errors import CheckpointError, DataError
from numtrans.module import no_grad
from numtrans.pretrained.huggingface import from_pretrained, read_json
from numtrans.pretrained.packages import PACKAGES, locate
from numtrans.pretrained.tokenizer import load_tokenizer


class SentenceEncoder:
    """A BERT, its tokenizer, and the mean over tokens.

    Parameters
    ----------
    model : BERT
        With ``head="none"``.
    tokenizer : PretrainedTokenizer
    max_len : int, optional
        Longer sentences are cut; that of the model by default.
    normalize : bool, default True
        Divide by the norm.
    """

    def __init__(self, model, tokenizer, max_len=None, normalize=True):
        self.model, self.tokenizer, self.normalize = model, tokenizer, normalize
        self.max_len = model.config.max_len if max_len is None else min(max_len, model.config.max_len)

    @classmethod
    def from_pretrained(cls, path="minilm", dtype=np.float32):
        """Read the folder of a ``sentence-transformers`` model, or a package of `numtrans.pretrained.packages`.

        Raises
        ------
        CheckpointError
            If the folder cannot be read, or asks for steps other than the mean over tokens and the norm.
        """
        path = locate(path) if path in PACKAGES and not Path(path).exists() else Path(path)
        normalize = read_modules(path)
        cut = path / "sentence_bert_config.json"
        max_len = read_json(cut).get("max_seq_length") if cut.is_file() else None
        return cls(from_pretrained(path, dtype, head="none"), load_tokenizer(path), max_len, normalize)

    def encode(self, texts, batch_size=32):
        """Vectors (B, D) of a list of texts, NumPy."""
        texts = [texts] if isinstance(texts, str) or not np.iterable(texts) else list(texts)
        if not texts:
            raise DataError("SentenceEncoder: expected at least one text, got none")
        wrong = [text for text in texts if not isinstance(text, str)]
        if wrong:
            raise DataError(f"SentenceEncoder: got {wrong[0]!r}, expected texts, each a string")
        check_integer("SentenceEncoder", "batch_size", batch_size, 1)
        order = np.argsort([-len(text) for text in texts], kind="stable")  # like lengths together: little padding
        vectors = np.empty((len(texts), self.model.config.d_model), self.model.embedding.token.E.data.dtype)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            ids, mask = self.tokenizer.encode_batch([texts[i] for i in chosen], max_len=self.max_len)
            vectors[chosen] = to_numpy(self.pooled(ids, mask))
        return vectors

    def pooled(self, ids, mask):
        """Vectors (B, D) of `ids` (B, T) with `mask` (B, T), True = token, on the model's backend."""
        with no_grad():
            h = self.model(ids, mask=mask)                                  # (B, T, D)
        self.model.drop_transient()
        xp = get_xp(h)
        keep = to_device(mask, backend_name(h)).astype(h.dtype)[..., None]  # (B, T, 1)
        mean = (h * keep).sum(axis=1) / keep.sum(axis=1)                    # (B, D)
        return mean / xp.sqrt((mean * mean).sum(axis=1, keepdims=True)) if self.normalize else mean


def embed(texts, model="minilm"):
    """Vectors (B, D) of `texts` with a sentence encoder: `model` is a path or name for `SentenceEncoder`."""
    return SentenceEncoder.from_pretrained(model).encode(texts)


def read_modules(folder):
    """Whether a ``sentence-transformers`` folder asks for the norm; raise if it asks for what we have not."""
    path = folder / "modules.json"
    if not path.is_file():
        return True
    steps = {step["type"].rsplit(".", 1)[-1]: step["path"] for step in read_list(path)}
    unknown = [name for name in steps if name not in ("Transformer", "Pooling", "Normalize")]
    if unknown or "Pooling" not in steps:
        raise CheckpointError(
            f"{path}: has steps {', '.join(steps)}; expected Transformer, Pooling and perhaps Normalize"
        )
    pooling = read_json(folder / steps["Pooling"] / "config.json")
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode") and on}
    if modes != {"pooling_mode_mean_tokens"}:
        raise CheckpointError(
            f"{path}: {', '.join(sorted(modes)) or 'no pooling'}; expected pooling_mode_mean_tokens"
        )
    return "Normalize" in steps


def read_list(path):
    """The steps in a ``modules.json``."""
    try:
        steps = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(step["type"], str) and isinstance(step["path"], str) for step in steps):
            return steps
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    raise CheckpointError(f"{path}: expected a list of steps, each with a type and a path")
