"""Residual connection with its norm. Shapes: ``...`` batch and tokens, ``D`` = d_model."""

from numtrans.errors import ConfigError
from numtrans.layers.dropout import Dropout
from numtrans.module import Module


class Residual(Module):
    r"""Add a sublayer's output to its input, with the norm before it (pre) or after the sum (post).

    .. math::

        \text{pre:}\quad y = x + f(\mathrm{norm}(x)), \qquad \text{post:}\quad y = \mathrm{norm}(x + f(x))

    Backward: the gradient of the sum goes both ways, so ``dx`` is what returns through the sublayer plus what comes
    straight down. In the pre form the straight path is free of norms all the way through a stack.

    Parameters
    ----------
    sublayer : Module
        ``f``. Its further inputs (a decoder's memory) are passed on, and their gradients returned.
    norm : Module
        The norm.
    placement : {"pre", "post"}, default "pre"
    dropout : float, default 0.0
        Applied to the sublayer's output in training.
    rng : numpy.random.Generator, optional
        Draws the key of the dropout mask.

    References
    ----------
    He et al. (2016), arXiv:1512.03385; Vaswani et al. (2017), arXiv:1706.03762 (post); Xiong et al. (2020),
    arXiv:2002.04745 (pre).
    """

    def __init__(self, sublayer, norm, placement="pre", *, dropout=0.0, rng=None):
        super().__init__()
        if placement not in ("pre", "post"):
            raise ConfigError(f"Residual: placement is {placement!r}, expected 'pre' or 'post'")
        self.sublayer, self.norm, self.placement = sublayer, norm, placement
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, x, *others, **kwargs):
        """`x` (..., D) -> y (..., D). What else comes is passed to the sublayer."""
        if self.placement == "pre":
            return x + self.dropout(self.sublayer(self.norm(x), *others, **kwargs))
        return self.norm(x + self.dropout(self.sublayer(x, *others, **kwargs)))

    def backward(self, dy):
        """Given dy (..., D), return dx (..., D), or a tuple with the gradients of the sublayer's further inputs."""
        dsum = dy if self.placement == "pre" else self.norm.backward(dy)
        dx = self.sublayer.backward(self.dropout.backward(dsum))
        dx, others = (dx[0], dx[1:]) if isinstance(dx, tuple) else (dx, ())
        if self.placement == "pre":
            dx = self.norm.backward(dx)
        dx = dsum + dx
        return (dx, *others) if others else dx
