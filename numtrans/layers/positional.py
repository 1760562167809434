"""Absolute positions, added to the embeddings: a fixed one (sinusoids) and a learned one.

Shapes: ``B`` batch, ``T`` tokens, ``D`` = d_model, ``L`` length of a table.
"""

from numbers import Integral

import numpy as np

from numtrans.backend import get_xp, to_numpy
from numtrans.checks import check_sizes
from numtrans.errors import DtypeError, IndexRangeError, ShapeError
from numtrans.layers.embedding import sum_by_id
from numtrans.module import Module, Parameter
from numtrans.reductions import rows, sum_rows


class SinusoidalPositionalEncoding(Module):
    r"""Add waves of many lengths to the embeddings, so that each position gets a vector of its own.

    .. math::

        y_p = x_p + PE(p), \qquad
        PE(p)_{2i} = \sin(\omega_i p), \qquad PE(p)_{2i+1} = \cos(\omega_i p), \qquad
        \omega_i = 10000^{-2i/D}

    Columns 2i and 2i+1 share one frequency. They are the two coordinates of a point on a circle, so a shift by k is
    a rotation by the fixed angle :math:`\omega_i k`, whatever p is: :math:`PE(p + k) = R_k \, PE(p)`. The
    product :math:`PE(p) \cdot PE(p + k) = \sum_i \cos(\omega_i k)` depends on the distance alone (D even). With D odd
    the last sine has no cosine beside it.

    Backward: the table is a constant and y is x plus a constant, so :math:`dx = dy`. Nothing is learned and nothing
    is in the state dict.

    Parameters
    ----------
    d_model : int
        Number of features ``D``, even or odd.
    max_len : int, default 5000
        Rows that the table starts with. A formula has no last position: the table grows when a longer
        sequence comes.

    Raises
    ------
    ShapeError
        If the input is not (..., T, D).
    IndexRangeError
        If the offset is negative.

    References
    ----------
    Vaswani et al. (2017), Attention Is All You Need, section 3.5, arXiv:1706.03762.
    """

    def __init__(self, d_model, max_len=5000):
        super().__init__()
        check_sizes(self, d_model=d_model, max_len=max_len)
        self.d_model, self.max_len = d_model, max_len
        self._tables = {}  # one a backend and dtype: a copy of what `table` returns

    def table(self, length, dtype=np.float64):
        """The first `length` rows, a NumPy array (length, D). Angles are taken in float64, whatever `dtype` is."""
        position = np.arange(length, dtype=np.float64)[:, None]  # (L, 1)
        omega = 10000.0 ** (-np.arange(0, self.d_model, 2) / self.d_model)  # (ceil(D / 2),)
        angle = position * omega  # (L, ceil(D / 2))
        table = np.empty((length, self.d_model))
        table[:, 0::2] = np.sin(angle)
        table[:, 1::2] = np.cos(angle[:, : self.d_model // 2])  # an odd width has one cosine less
        return table.astype(dtype)

    def forward(self, x, offset=0):
        """x (..., T, D) at positions offset ... offset + T - 1 -> y (..., T, D).

        `offset` may be integers of shape (T,) or (B, T) as well, the position of each token.
        """
        check_tokens(self, x, self.d_model)
        # 1. add the rows of these positions
        if np.ndim(offset):
            positions = check_positions(self, x, offset)
            table = self._table_like(x, int(positions.max(initial=-1)) + 1)
            y = x + table[get_xp(x).asarray(positions)]  # (..., T, D) + (T, D) or (B, T, D)
        else:
            end = check_offset(self, offset) + x.shape[-2]
            y = x + self._table_like(x, end)[offset:end]  # (..., T, D) + (T, D)
        self.save(x.shape)
        return y

    def backward(self, dy):
        """Given dy (..., T, D), return dx (..., T, D)."""
        (shape,) = self.saved()
        self.check_dy(dy, shape, None)
        # 1. y = x + constant
        return dy

    def _table_like(self, x, length):
        """The kept table with the backend and dtype of `x`, made or grown to at least `length` rows."""
        xp = get_xp(x)
        key = xp.__name__, x.dtype.char
        table = self._tables.get(key)
        if table is None or len(table) < length:
            # twice what is asked for, because a decoder asks for one more each step
            rows = self.max_len if length <= self.max_len else 2 * length
            table = self._tables[key] = xp.asarray(self.table(rows, x.dtype))
        return table


class LearnedPositionalEncoding(Module):
    r"""Add a learned vector for each position.

    .. math::

        y_{b,p} = x_{b,p} + W_p, \qquad dx = dy, \qquad dW_p = \sum_b dy_{b,p}

    One row of W is added to every sequence of the batch, so its gradient is the sum over the batch: copying a value
    forward is adding gradients backward. Rows that no token reached get gradient zero.

    Parameters
    ----------
    d_model : int
        Number of features ``D``.
    max_len : int
        Number of positions. There is no row for a later one, so a longer sequence is refused.
    rng : numpy.random.Generator, optional
        Draws the start values, normal with mean 0 and standard deviation 0.02. A fresh one by default.

    Attributes
    ----------
    W : Parameter (max_len, D)

    Raises
    ------
    ShapeError
        If the sequence ends beyond `max_len`, or the input is not (..., T, D).
    IndexRangeError
        If the offset is negative.

    References
    ----------
    Gehring et al. (2017), Convolutional Sequence to Sequence Learning, section 3.1, arXiv:1705.03122.
    Devlin et al. (2018), BERT, arXiv:1810.04805.
    """

    def __init__(self, d_model, max_len, *, rng=None):
        super().__init__()
        check_sizes(self, d_model=d_model, max_len=max_len)
        self.d_model, self.max_len = d_model, max_len
        rng = np.random.default_rng() if rng is None else rng
        self.W = Parameter(rng.normal(0.0, 0.02, (max_len, d_model)).astype(np.float32))

    def forward(self, x, offset=0):
        """x (..., T, D) at positions offset ... offset + T - 1 -> y (..., T, D).

        `offset` may be integers of shape (T,) or (B, T) as well, the position of each token.
        """
        check_tokens(self, x, self.d_model, like=self.W.data)
        if np.ndim(offset):
            return self.forward_at(x, check_positions(self, x, offset))
        T = x.shape[-2]
        end = check_offset(self, offset) + T
        if end > self.max_len:
            raise ShapeError(
                f"{type(self).__name__}: a sequence of {T} tokens from position {offset} needs {end} positions, "
                f"but the table has max_len={self.max_len}. Shorten the input, or make the table longer and train it."
            )
        self.save(x.shape, offset)
        # 1. add the rows of these positions to every sequence
        return x + self.W.data[offset:end]  # (..., T, D) + (T, D)

    def backward(self, dy):
        """Given dy (..., T, D), return dx (..., T, D) and add dW (max_len, D)."""
        shape, offset = self.saved()
        self.check_dy(dy, shape, self.W.data)
        T, D = shape[-2:]
        if np.ndim(offset):  # a row gets the sum over the tokens at its position
            self.W.add_grad(sum_by_id(rows(dy), offset.reshape(-1), self.max_len))
            return dy
        # 1. y = x + W[offset:end]: the row was used once a sequence, so sum over the sequences
        dW = get_xp(dy).zeros_like(self.W.data)  # (max_len, D)
        dW[offset : offset + T] = sum_rows(dy.reshape(*shape[:-2], T * D)).reshape(T, D)
        self.W.add_grad(dW)
        return dy

    def forward_at(self, x, positions):
        """`forward` with the position of each token."""
        if positions.max(initial=-1) >= self.max_len:
            raise ShapeError(
                f"{type(self).__name__}: position {positions.max()} is beyond the table, which has "
                f"max_len={self.max_len}. Shorten the input, or make the table longer and train it."
            )
        positions = get_xp(x).asarray(np.broadcast_to(positions, x.shape[:-1]))
        self.save(x.shape, positions)
        return x + self.W.data[positions]  # (..., T, D)


def check_tokens(module, x, features, like=None, label="d_model"):
    """Raise unless `x` is floating and of shape (..., T, features)."""
    module.check_last_axis(x, features, like=like, label=label)
    if x.ndim < 2:
        raise ShapeError(
            f"{type(module).__name__}: input has shape {tuple(x.shape)}, expected (..., T, {features}), "
            "with an axis for the tokens"
        )


def check_offset(module, offset):
    """`offset`, the position of the first token; raise unless it is an integer and not negative."""
    if isinstance(offset, bool) or not isinstance(offset, Integral):
        raise DtypeError(f"{type(module).__name__}: offset must be an integer, got {offset!r}")
    if offset < 0:
        raise IndexRangeError(f"{type(module).__name__}: offset is {offset}, but the first position is 0")
    return offset


def check_positions(module, x, positions):
    """`positions`, one a token of `x` (..., T, features), as a NumPy array (T,) or (B, T).

    They are looked at on the host, where a negative one cannot wrap in silence.
    """
    name, p = type(module).__name__, to_numpy(positions)
    if p.dtype.kind not in "iu":
        raise DtypeError(f"{name}: positions have dtype {p.dtype}, expected integers")
    T = x.shape[-2]
    if p.shape != (T,) and not (x.ndim >= 3 and p.shape == (x.shape[0], T)):
        raise ShapeError(f"{name}: positions have shape {p.shape}, expected ({T},) or ({x.shape[0]}, {T})")
    if p.size and p.min() < 0:
        raise IndexRangeError(f"{name}: position {p.min()} is negative, but the first position is 0")
    return p
