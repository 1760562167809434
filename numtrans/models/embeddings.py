"""Tokens to vectors: the table, the positions that are added to it, dropout. Shapes: ``B``, ``T``, ``D``."""

from numtrans.layers.dropout import Dropout
from numtrans.layers.embedding import Embedding
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
        """Vectors (B, T, D) of token `ids` (B, T), of which the first has position `offset`."""
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
