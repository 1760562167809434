"""BERT. Shapes: ``B`` batch, ``T`` tokens, ``D`` = d_model, ``V`` vocabulary."""

import numpy as np

from numtrans.backend import get_xp
from numtrans.blocks import Encoder
from numtrans.errors import ShapeError
from numtrans.layers.activations import Tanh, make_activation
from numtrans.layers.linear import Linear, TiedLinear
from numtrans.layers.normalization import LayerNorm
from numtrans.models.configs import BERTConfig
from numtrans.models.embeddings import BERTEmbedding
from numtrans.models.inputs import check_ids, key_mask
from numtrans.module import Module, Parameter
from numtrans.reductions import sum_rows


class BERT(Module):
    r"""Read a sequence in both directions, with one of three heads.

    .. math::

        x_t = \mathrm{LayerNorm}(E_{i_t} + S_{s_t} + P_t), \qquad h = \mathrm{Encoder}(x), \qquad
        y = \mathrm{head}(h)

    with a table each for the tokens :math:`i_t`, the token types :math:`s_t` (first or second sentence) and the
    positions. The layers are post-norm, so the stack ends with a norm and needs no closing one. The heads:

    - ``"pooled"``: :math:`\tanh(h_0 W + b)`, a vector of the sequence, (B, D); see `Pooler`;
    - ``"mlm"``: logits of the token at every place, (B, T, V); see `MaskedLMHead`;
    - ``"none"``: the hidden states, (B, T, D).

    Parameters
    ----------
    config : BERTConfig
    rng : numpy.random.Generator or int, optional
        Draws the weights, or seeds the generator that does: all matrices from a normal distribution with deviation
        0.02 that is cut off at two deviations; biases are 0.

    Notes
    -----
    Variants: base and large differ in sizes only (12 layers of 768, 24 of 1024), cased and uncased in the vocabulary
    (28996 and 30522 tokens). MiniLM is a narrower one (6 layers of 384) with ``head="none"`` and a mean over the
    tokens. RoBERTa has the same layers with one token type, and starts its positions at 2. Published BERT drops no
    hidden units; `FeedForward` does, so dropout 0 in evaluation agrees and training differs in that place.

    References
    ----------
    Devlin et al. (2019), BERT: Pre-training of deep bidirectional Transformers, arXiv:1810.04805.
    """

    def __init__(self, config: BERTConfig, *, rng=None):
        super().__init__()
        rng = np.random.default_rng(rng)
        self.config = c = config
        self.embedding = BERTEmbedding(
            c.vocab_size, c.d_model, max_len=c.max_len, token_types=c.token_types, norm_eps=c.norm_eps,
            dropout=c.dropout, rng=rng,
        )  # fmt: skip
        self.encoder = Encoder(
            c.num_layers, c.d_model, c.num_heads, c.d_ff, dropout=c.dropout, norm_placement="post", norm="layer",
            norm_eps=c.norm_eps, feedforward=c.feedforward, rng=rng,
        )  # fmt: skip
        self.head = None
        if c.head == "pooled":
            self.head = Pooler(c.d_model, rng=rng)
        elif c.head == "mlm":
            self.head = MaskedLMHead(self.embedding.token.E, c.feedforward, norm_eps=c.norm_eps, rng=rng)
        for parameter in self.parameters():
            if parameter.data.ndim == 2:
                parameter.data[...] = truncated_normal(rng, parameter.data.shape, 0.02)

    def forward(self, ids, token_type_ids=None, mask=None):
        """What the head makes of the tokens `ids`: (B, D), (B, T, V) or (B, T, D).

        Parameters
        ----------
        ids : integer array (B, T)
        token_type_ids : integer array (B, T), optional
            0 for a first sentence, 1 for a second; all 0 by default.
        mask : boolean array (B, T) or one that broadcasts to (B, H, T, T), optional
            True = real token. By default the tokens that are not ``pad_id``.
        """
        ids = check_ids("BERT", "ids", ids, self.config.max_len)
        mask = key_mask("BERT", ids, mask, self.config.pad_id)
        x = self.embedding(ids, token_type_ids)                             # (B, T, D)
        h = self.encoder(x, mask)                                           # (B, T, D)
        return h if self.head is None else self.head(h)

    def backward(self, dy):
        """Add the gradients of all parameters. Token ids have none, so nothing is returned."""
        dh = dy if self.head is None else self.head.backward(dy)            # (B, T, D)
        self.embedding.backward(self.encoder.backward(dh))


class Pooler(Module):
    r"""A vector of the whole sequence, from its first token: :math:`y = \tanh(h_0 W + b)`.

    Only the first token gets a gradient from here: :math:`dh_0 = (dy \odot (1 - y^2))\, W^\top` and
    :math:`dh_t = 0` for the others.
    """

    def __init__(self, d_model, *, rng=None):
        super().__init__()
        self.dense = Linear(d_model, d_model, rng=rng)
        self.activation = Tanh()

    def forward(self, h):
        """`h` (B, T, D) -> y (B, D)."""
        if h.ndim != 3 or not h.shape[1]:
            raise ShapeError(
                f"Pooler: h has shape {tuple(h.shape)}, expected (batch, tokens, d_model) with at least one token"
            )
        self.save(h.shape)
        return self.activation(self.dense(h[:, 0]))                         # (B, D)

    def backward(self, dy):
        """Given dy (B, D), return dh (B, T, D)."""
        (shape,) = self.saved()
        dh = get_xp(dy).zeros(shape, dy.dtype)                              # (B, T, D)
        dh[:, 0] = self.dense.backward(self.activation.backward(dy))
        return dh


class MaskedLMHead(Module):
    r"""Logits of the token at every place: :math:`y = \mathrm{LayerNorm}(a(h W + b_W))\, E^\top + b`.

    :math:`E` is the token embedding's very table, :math:`b` has one entry for each token of the vocabulary, and
    :math:`a` is the activation of the layers.

    Parameters
    ----------
    table : Parameter (V, D)
    activation : str
    norm_eps : float
    rng : numpy.random.Generator, optional
    """

    def __init__(self, table, activation="gelu", *, norm_eps=1e-12, rng=None):
        super().__init__()
        vocab_size, d_model = table.data.shape
        self.dense = Linear(d_model, d_model, rng=rng)
        self.activation = make_activation(activation)
        self.norm = LayerNorm(d_model, eps=norm_eps)
        self.output = TiedLinear(table)
        self.bias = Parameter(np.zeros(vocab_size, np.float32))

    def forward(self, h):
        """`h` (B, T, D) -> logits (B, T, V)."""
        x = self.norm(self.activation(self.dense(h)))                       # (B, T, D)
        return self.output(x) + self.bias.data                              # (B, T, V)

    def backward(self, dy):
        """Given dy (B, T, V), return dh (B, T, D)."""
        dx = self.output.backward(dy)                                       # (B, T, D)
        self.bias.add_grad(sum_rows(dy))                                    # (V,)
        return self.dense.backward(self.activation.backward(self.norm.backward(dx)))


def truncated_normal(rng, shape, std):
    """Normal values with mean 0 and deviation `std`; those beyond two deviations are drawn again."""
    x = rng.standard_normal(shape)
    while (far := np.abs(x) > 2).any():
        x[far] = rng.standard_normal(far.sum())
    return std * x
