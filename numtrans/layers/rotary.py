"""Rotary positions (RoPE): queries and keys are turned by an angle that grows with the position.

Shapes: ``B`` batch, ``H`` heads, ``T`` tokens, ``d`` features of one head, ``r`` = rotary_dim of them rotated.
"""

from numbers import Integral

import numpy as np

from numtrans.backend import get_xp
from numtrans.checks import check_sizes
from numtrans.errors import ConfigError
from numtrans.layers.positional import check_offset, check_positions, check_tokens
from numtrans.module import Module


class RotaryPositionalEncoding(Module):
    r"""Rotate pairs of features of a query or key by angles proportional to its position.

    The features form r/2 pairs :math:`(x_1, x_2)`. Pair i of the token at position p is turned by
    :math:`\theta = p \, \omega_i`, with :math:`\omega_i = base^{-2i/r}`:

    .. math::

        \begin{pmatrix} y_1 \\ y_2 \end{pmatrix} = R(\theta) \begin{pmatrix} x_1 \\ x_2 \end{pmatrix}, \qquad
        R(\theta) = \begin{pmatrix} \cos\theta & -\sin\theta \\ \sin\theta & \cos\theta \end{pmatrix}

    A query at m and a key at n are turned by different angles, and only the difference is left in their product:
    :math:`R(m\omega) q \cdot R(n\omega) k = q^\top R(m\omega)^\top R(n\omega) k = q^\top R((n - m)\omega) k`. Scores
    depend on the distance alone, and no norm changes. Nothing is added to the values and nothing is learned.

    Backward: y is a linear map of x, so dx is its transpose applied to dy, and the transpose of a
    rotation is the rotation back:

    .. math::

        dx = R(\theta)^\top dy = R(-\theta) \, dy

    A backward that turns by :math:`+\theta` again has the right norm and is right at position 0: only a test at
    p > 0 sees it.

    Parameters
    ----------
    d_head : int
        Number of features ``d`` of one head.
    max_len : int, default 5000
        Positions that the tables start with. They grow when a later position comes.
    base : float, default 10000.0
        The slowest pair turns by nearly 1/base a token.
    interleaved : bool, default False
        Which features make pair i. False: (i, i + r/2), the two halves, as in GPT-NeoX and Llama's Hugging Face
        weights. True: (2i, 2i + 1), neighbors, as in RoFormer, GPT-J and Meta's Llama weights. The two differ by an
        order of the columns of the query and key projections: weights trained with one are wrong with the other.
    rotary_dim : int, optional
        Number ``r`` of features that are rotated, the first ones; the rest passes unchanged. Even; all by default.

    Raises
    ------
    ConfigError
        If the number of rotated features is odd or larger than `d_head`.
    ShapeError, DtypeError, IndexRangeError
        If the input, or the positions, have a wrong shape, are no numbers of the right kind, or are negative.

    References
    ----------
    Su et al. (2021), RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv:2104.09864.
    """

    def __init__(self, d_head, max_len=5000, *, base=10000.0, interleaved=False, rotary_dim=None):
        super().__init__()
        check_sizes(self, d_head=d_head, max_len=max_len)
        r = d_head if rotary_dim is None else rotary_dim
        check_sizes(self, rotary_dim=r)
        if r % 2 or r > d_head:
            raise ConfigError(
                f"{type(self).__name__}: features are rotated in pairs, so rotary_dim must be even and at most d_head; "
                f"got rotary_dim={rotary_dim}, d_head={d_head}"
            )
        if not base > 0:
            raise ConfigError(f"{type(self).__name__}: base must be positive, got {base!r}")
        self.d_head, self.max_len, self.rotary_dim = d_head, max_len, r
        self.base, self.interleaved = float(base), bool(interleaved)
        if interleaved:
            self.first, self.second = slice(0, r, 2), slice(1, r, 2)
        else:
            self.first, self.second = slice(0, r // 2), slice(r // 2, r)
        self._tables = {}  # (cos, sin) of all features, for each backend and dtype

    def forward(self, x, positions=None):
        """x (B, H, T, d) -> y (B, H, T, d).

        `positions`: None for 0 ... T-1; an integer, the position of the first token (the length of the cache in
        step-by-step decoding); or integers of shape (T,) or (B, T), one a token.
        """
        check_tokens(self, x, self.d_head, label="d_head")
        # 1. the angles of these positions
        cos, sin = self._cos_sin(x, positions)  # (T, d) or (B, 1, T, d)
        self.save(cos, sin, x.shape)
        # 2. turn each pair by +theta
        return self._rotate(x, cos, sin)  # (B, H, T, d)

    def backward(self, dy):
        """Given dy (B, H, T, d), return dx (B, H, T, d), turned back."""
        cos, sin, shape = self.saved()
        self.check_dy(dy, shape, cos)
        # 2. turn each pair back: cos(-theta) = cos(theta), sin(-theta) = -sin(theta)
        return self._rotate(dy, cos, -sin)  # (B, H, T, d)

    def _rotate(self, x, cos, sin):
        """A new array ``cos * x + sin * (-x2, x1)``: each pair of `x` times its matrix. The minus is in `sin`."""
        y = x * cos                                                         # (B, H, T, d)
        partner = get_xp(x).empty_like(x)
        partner[..., self.first], partner[..., self.second] = x[..., self.second], x[..., self.first]
        partner[..., self.rotary_dim :] = 0
        partner *= sin
        y += partner
        return y

    def table(self, length, dtype=np.float64):
        """cos and sin of the first `length` positions, two NumPy arrays (length, r/2); angles are taken in float64."""
        omega = self.base ** (-np.arange(0, self.rotary_dim, 2) / self.rotary_dim)  # (r/2,)
        angle = np.arange(length, dtype=np.float64)[:, None] * omega  # (L, r/2)
        return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)

    def by_feature(self, length, dtype):
        """The cosine that each feature is multiplied by, and the sine of its partner, two NumPy arrays (length, d)."""
        cos, sin = self.table(length, dtype)                                # (L, r/2)
        own, other = np.ones((length, self.d_head), dtype), np.zeros((length, self.d_head), dtype)
        own[:, self.first], own[:, self.second] = cos, cos
        other[:, self.first], other[:, self.second] = -sin, sin
        return own, other

    def _cos_sin(self, x, positions):
        """The rows of cos and sin for `positions`, shaped to broadcast over the heads of `x`."""
        T = x.shape[-2]
        if positions is None or isinstance(positions, Integral):  # a run of positions: a view of the table
            start = 0 if positions is None else check_offset(self, positions)
            cos, sin = self._tables_like(x, start + T)
            return cos[start : start + T], sin[start : start + T]
        p = check_positions(self, x, positions)
        cos, sin = self._tables_like(x, int(p.max(initial=-1)) + 1)
        if p.ndim == 2:
            p = p.reshape(p.shape[:1] + (1,) * (x.ndim - 3) + p.shape[1:])  # (B, 1, T)
        p = get_xp(x).asarray(p)
        return cos[p], sin[p]

    def _tables_like(self, x, length):
        """The kept tables with the backend and dtype of `x`, made or grown to at least `length` rows."""
        xp = get_xp(x)
        key = xp.__name__, x.dtype.char
        tables = self._tables.get(key)
        if tables is None or len(tables[0]) < length:
            # twice what is asked for, because a decoder asks for one more each step
            rows = self.max_len if length <= self.max_len else 2 * length
            tables = self._tables[key] = tuple(xp.asarray(table) for table in self.by_feature(rows, x.dtype))
        return tables
