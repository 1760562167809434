"""Elementwise activations. Each keeps what its derivative needs; ``x`` has any shape."""

import math

from numtrans.backend import erf, get_xp
from numtrans.errors import ConfigError
from numtrans.module import Module


class ReLU(Module):
    r"""Rectifier (Nair and Hinton 2010): :math:`y = \max(0, x)`, :math:`dx = dy\,[x > 0]`.

    At the kink :math:`x = 0` the derivative is taken as 0, as in PyTorch.
    """

    def forward(self, x):
        """`x` (...) -> y (...)."""
        self.check_floating("input", x)
        positive = x > 0
        self.save(positive)
        return x * positive

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        (positive,) = self.saved()
        self.check_dy(dy, positive.shape, dy)
        return dy * positive


class Sigmoid(Module):
    r"""Logistic function: :math:`y = 1 / (1 + e^{-x})`, :math:`dx = dy\, y\, (1 - y)`."""

    def forward(self, x):
        """`x` (...) -> y (...)."""
        self.check_floating("input", x)
        y = sigmoid(x)
        self.save(y)
        return y

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        (y,) = self.saved()
        self.check_dy(dy, y.shape, y)
        return dy * y * (1 - y)


class Tanh(Module):
    r"""Hyperbolic tangent: :math:`y = \tanh x`, :math:`dx = dy\, (1 - y^2)`."""

    def forward(self, x):
        """`x` (...) -> y (...)."""
        self.check_floating("input", x)
        y = get_xp(x).tanh(x)
        self.save(y)
        return y

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        (y,) = self.saved()
        self.check_dy(dy, y.shape, y)
        return dy * (1 - y * y)


class SiLU(Module):
    r"""Sigmoid-weighted linear unit, also called Swish.

    .. math::

        y = x\, s, \qquad s = \sigma(x), \qquad dx = dy \left( s + x\, s\, (1 - s) \right)

    References
    ----------
    Hendrycks and Gimpel (2016), arXiv:1606.08415; Ramachandran, Zoph and Le (2017), arXiv:1710.05941.
    """

    def forward(self, x):
        """`x` (...) -> y (...)."""
        self.check_floating("input", x)
        s = sigmoid(x)
        y = x * s
        self.save(s, y)
        return y

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        s, y = self.saved()
        self.check_dy(dy, y.shape, y)
        return dy * (s + y * (1 - s))


class GELU(Module):
    r"""Gaussian error linear unit: ``x`` times the normal distribution function.

    .. math::

        y = x\, \Phi(x), \qquad dx = dy \left( \Phi(x) + x\, \varphi(x) \right)

    with :math:`\Phi(x) = \frac12 (1 + \mathrm{erf}(x / \sqrt 2))` and its derivative
    :math:`\varphi(x) = e^{-x^2/2} / \sqrt{2\pi}`. The tanh form replaces
    :math:`\Phi` by :math:`\frac12 (1 + \tanh u)`, :math:`u = \sqrt{2/\pi}\,(x + 0.044715\, x^3)`, whose derivative is
    :math:`\frac12 (1 - \tanh^2 u)\, u'`.

    Parameters
    ----------
    approximate : {"none", "tanh"}, default "none"
        The exact form (BERT) or the tanh form (GPT-2). They differ by up to 5e-4.

    References
    ----------
    Hendrycks and Gimpel (2016), Gaussian error linear units, arXiv:1606.08415.
    """

    def __init__(self, approximate="none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ConfigError(f"GELU: approximate is {approximate!r}, expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, x):
        """`x` (...) -> y (...)."""
        self.check_floating("input", x)
        cdf, density = self.normal(x) if self.approximate == "none" else self.tanh_form(x)
        # y = x * cdf; its derivative is made here, while x is in the cache
        density *= x
        density += cdf
        self.save(density)
        cdf *= x
        return cdf

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        (derivative,) = self.saved()
        self.check_dy(dy, derivative.shape, derivative)
        return dy * derivative

    @staticmethod
    def normal(x):
        """The normal distribution function of `x` and its density."""
        cdf = erf(x * math.sqrt(0.5))
        cdf += 1
        cdf *= 0.5
        density = x * x
        density *= -0.5
        density = get_xp(x).exp(density)
        density *= 1 / math.sqrt(2 * math.pi)
        return cdf, density

    @staticmethod
    def tanh_form(x):
        """The tanh form of the distribution function and its derivative."""
        k = math.sqrt(2 / math.pi)
        square = x * x
        u = square * (0.044715 * k)
        u += k
        u *= x                                                              # k (x + 0.044715 x^3)
        cdf = get_xp(x).tanh(u)
        density = 1 - cdf * cdf
        square *= 3 * 0.044715 * k
        square += k                                                         # u'
        density *= square
        density *= 0.5
        cdf += 1
        cdf *= 0.5
        return cdf, density


class Identity(Module):
    r"""No activation: :math:`y = x`. The gate of the bilinear unit."""

    def forward(self, x):
        """`x` (...) -> y (...)."""
        self.save(x.shape)
        return x

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        (shape,) = self.saved()
        self.check_dy(dy, shape, dy)
        return dy


def sigmoid(x):
    """``1 / (1 + exp(-x))`` written with tanh, which cannot overflow."""
    y = get_xp(x).tanh(x * 0.5)
    y += 1
    y *= 0.5
    return y


ACTIVATIONS = {
    "relu": ReLU,
    "gelu": GELU,
    "gelu_tanh": lambda: GELU("tanh"),
    "silu": SiLU,
    "sigmoid": Sigmoid,
    "tanh": Tanh,
    "identity": Identity,
}


def make_activation(name):
    """A new activation by name, a key of ``ACTIVATIONS``."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"unknown activation {name!r}, expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()
