"""Tokens to vectors: the table, the positions that are added to it, dropout. Shapes: ``B``, ``T``, ``D``."""

import numpy as np

from numtrans.backend import get_xp
from numtrans.errors import IndexRangeError, ShapeError
from numtrans.layers.dropout import Dropout
from numtrans.layers.embedding import Embedding, as_array
from numtrans.layers.normalization import LayerNorm
from numtrans.layers.positional import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from numtrans.module import Module


class TokenEmbedding(Module):
    r"""Embedding, plus positions, then dropout: :math:`y = \mathrm{dropout}(s E_{i_t} + p_t)`.

    Parameters
    ----------
    embedding : Embedding
        The table, which a second `TokenEmbedding` may share.
    position : {"sinusoidal", "learned"} or another
        What is added; nothing for positions that act inside attention.
    max_len : int
        Rows of a learned position table.
    dropout : float
    rng : numpy.random.Generator, optional
    """

    def __init__(self, embedding: Embedding, position, *, max_len, dropout=0.0, rng=None):
        super().__init__()
        self.embedding = embedding
        self.position = None
        if position == "sinusoidal":
            self.position = SinusoidalPositionalEncoding(embedding.d_model, max_len)
        elif position == "learned":
            self.position = LearnedPositionalEncoding(embedding.d_model, max_len, rng=rng)
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, ids, offset=0):
        """Vectors (B, T, D) of token `ids` (B, T), of which the first has position `offset`.

        `offset` may be integers (T,) or (B, T) as well, the position of each token.
        """
        x = self.embedding(ids)                                             # (B, T, D)
        if self.position is not None:
            x = self.position(x, offset)
        return self.dropout(x)

    def backward(self, dy):
        """Given dy (B, T, D), add the gradients of the tables; ids have none, so None is returned."""
        dx = self.dropout.backward(dy)
        if self.position is not None:
            dx = self.position.backward(dx)
        self.embedding.backward(dx)


class BERTEmbedding(Module):
    r"""Sum of three tables, then a norm and dropout:
    :math:`y_t = \mathrm{dropout}(\mathrm{LayerNorm}(E_{i_t} + S_{s_t} + P_t))`.

    The gradient of the sum goes to each of the three tables as it is.

    Parameters
    ----------
    vocab_size, d_model : int
        Rows of the token table, and the width.
    max_len, token_types : int
        Rows of the position table and of the table of token types.
    norm_eps, dropout : float
    rng : numpy.random.Generator, optional
        Draws the tables.
    """

    def __init__(self, vocab_size, d_model, *, max_len, token_types=2, norm_eps=1e-12, dropout=0.0, rng=None):
        super().__init__()
        self.token = Embedding(vocab_size, d_model, std=0.02, rng=rng)
        self.position = LearnedPositionalEncoding(d_model, max_len, rng=rng)
        self.token_type = Embedding(token_types, d_model, std=0.02, rng=rng)
        self.norm = LayerNorm(d_model, eps=norm_eps)
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, ids, token_type_ids=None):
        """Vectors (B, T, D) of token `ids` (B, T) with `token_type_ids` (B, T), all 0 by default."""
        ids = as_array(ids, "BERTEmbedding")
        if token_type_ids is None:
            token_type_ids = get_xp(ids).zeros_like(ids)
        token_type_ids = as_array(token_type_ids, "BERTEmbedding", "token_type_ids")
        self.check_types(ids, token_type_ids)
        x = self.token(ids) + self.token_type(token_type_ids)               # (B, T, D)
        return self.dropout(self.norm(self.position(x)))

    def backward(self, dy):
        """Given dy (B, T, D), add the gradients of the tables; ids have none, so None is returned."""
        dx = self.position.backward(self.norm.backward(self.dropout.backward(dy)))
        self.token_type.backward(dx)
        self.token.backward(dx)

    def check_types(self, ids, token_type_ids):
        """Raise unless there is one token type for each id, and a row for it."""
        if np.shape(token_type_ids) != np.shape(ids):
            raise ShapeError(
                f"BERTEmbedding: token_type_ids have shape {np.shape(token_type_ids)}, expected {np.shape(ids)} as ids"
            )
        try:
            self.token_type.check_ids(token_type_ids)
        except IndexRangeError as error:
            raise IndexRangeError(f"BERTEmbedding: token_type_ids: {error}") from None
