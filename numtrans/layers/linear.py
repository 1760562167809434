"""The linear layer. Shapes: ``...`` any leading axes (batch, tokens), ``I`` inputs, ``O`` outputs."""

import numpy as np

from numtrans.checks import check_sizes
from numtrans.module import Module, Parameter
from numtrans.reductions import rows, sum_rows


def xavier_uniform(rng, d_in, d_out):
    """A (d_in, d_out) float32 matrix, uniform in +-sqrt(6 / (d_in + d_out)) (Glorot and Bengio 2010)."""
    bound = (6 / (d_in + d_out)) ** 0.5
    rng = np.random.default_rng() if rng is None else rng
    return rng.uniform(-bound, bound, (d_in, d_out)).astype(np.float32)


class Linear(Module):
    r"""Affine map of the last axis.

    .. math::

        y = x W + b, \qquad dx = dy\, W^\top, \qquad dW = \sum x^\top dy, \qquad db = \sum dy

    The sums run over all tokens: in index form :math:`y_{no} = \sum_i x_{ni} W_{io} + b_o`, so that
    :math:`\partial y_{no} / \partial W_{io} = x_{ni}` for every token :math:`n`.

    Parameters
    ----------
    d_in, d_out : int
        Sizes of the last axis before and after.
    bias : bool, default True
        Whether to add ``b``, which starts at zero.
    rng : numpy.random.Generator, optional
        Draws ``W`` (Xavier uniform). A new unseeded one by default.

    Raises
    ------
    ShapeError, DtypeError
        If the last axis of the input is not ``d_in``, or its dtype is not that of ``W``.
    """

    def __init__(self, d_in, d_out, bias=True, *, rng=None):
        super().__init__()
        check_sizes(self, d_in=d_in, d_out=d_out)
        self.d_in, self.d_out = d_in, d_out
        self.W = Parameter(xavier_uniform(rng, d_in, d_out))
        self.b = Parameter(np.zeros(d_out, np.float32)) if bias else None

    def forward(self, x):
        """`x` (..., I) -> y (..., O)."""
        self.check_last_axis(x, self.d_in, like=self.W.data, label="d_in")
        self.save(x)
        # 1. multiply: one product over all tokens
        y = rows(x) @ self.W.data                                           # (N, O)
        # 2. shift
        if self.b is not None:
            y += self.b.data
        return y.reshape(*x.shape[:-1], self.d_out)                         # (..., O)

    def backward(self, dy):
        """Given dy (..., O), return dx (..., I) and add dW (I, O) and db (O)."""
        (x,) = self.saved()
        self.check_dy(dy, (*x.shape[:-1], self.d_out), x)
        # 2. y += b
        if self.b is not None:
            self.b.add_grad(sum_rows(dy))                                   # (O,)
        # 1. y = x @ W
        self.W.add_grad(rows(x).T @ rows(dy))                               # (I, O)
        return (rows(dy) @ self.W.data.T).reshape(x.shape)                  # (..., I)


class TiedLinear(Module):
    r"""Output projection that shares the embedding's table: :math:`y = x E^\top`.

    .. math::

        dx = dy\, E, \qquad dE = \sum dy^\top x

    ``E`` is the very `Parameter` of the embedding: the lookup and this product both add to its one gradient.

    Parameters
    ----------
    table : Parameter
        Shape (V, D).

    References
    ----------
    Press and Wolf (2017), Using the output embedding to improve language models, arXiv:1608.05859.
    """

    def __init__(self, table):
        super().__init__()
        self.E = table

    def forward(self, x):
        """`x` (..., D) -> y (..., V)."""
        vocab_size, d_model = self.E.data.shape
        self.check_last_axis(x, d_model, like=self.E.data)
        self.save(x)
        return (rows(x) @ self.E.data.T).reshape(*x.shape[:-1], vocab_size)  # (..., V)

    def backward(self, dy):
        """Given dy (..., V), return dx (..., D) and add dE (V, D)."""
        (x,) = self.saved()
        self.check_dy(dy, (*x.shape[:-1], self.E.data.shape[0]), x)
        # y = x @ E.T
        self.E.add_grad(rows(dy).T @ rows(x))                               # (V, D)
        return (rows(dy) @ self.E.data).reshape(x.shape)                    # (..., D)
