"""Elementwise activations. Each keeps what its derivative needs; ``x`` has any shape."""

import math

import numpy as np

from numtrans.backend import erf, get_xp
from numtrans.cache_blocks import in_blocks
from numtrans.errors import ConfigError
from numtrans.layers.error_function import erf_float32
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
        xp = get_xp(x)
        y, derivative = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
        # the derivative is made here, while x is in the cache
        for y_, derivative_, x_ in in_blocks((y, derivative), (x,)):
            s = sigmoid(x_)
            xp.multiply(x_, s, out=y_)                                      # x s
            xp.subtract(1, s, out=derivative_)
            derivative_ *= y_
            derivative_ += s                                                # s + x s (1 - s)
        self.save(derivative)
        return y

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        (derivative,) = self.saved()
        self.check_dy(dy, derivative.shape, derivative)
        return dy * derivative


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
        xp = get_xp(x)
        phi = {"none": normal, "tanh": normal_tanh}[self.approximate]
        y, derivative = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
        for y_, derivative_, x_ in in_blocks((y, derivative), (x,)):         # as in SiLU
            cdf, x_density = phi(x_)
            xp.multiply(x_, cdf, out=y_)                                    # x Phi(x)
            xp.add(cdf, x_density, out=derivative_)                         # Phi(x) + x Phi'(x)
        self.save(derivative)
        return y

    def backward(self, dy):
        """Given dy (...), return dx (...)."""
        (derivative,) = self.saved()
        self.check_dy(dy, derivative.shape, derivative)
        return dy * derivative


def normal(x):
    """The normal distribution function of `x`, and `x` times its derivative, the density."""
    xp = get_xp(x)
    small = x.dtype == "float32" and xp.__name__ == "numpy"
    cdf = (erf_float32 if small else erf)(x * math.sqrt(0.5))
    cdf += 1
    cdf *= 0.5
    with np.errstate(over="ignore"):                                        # exp(-inf) = 0 is right
        density = x * x
    density *= -0.5
    xp.exp(density, out=density)
    density *= 1 / math.sqrt(2 * math.pi)
    density *= x
    return cdf, density


def normal_tanh(x):
    r"""The tanh form of the normal distribution function, and `x` times its derivative.

    It is a sigmoid, as :math:`\frac12 (1 + \tanh u) = \sigma(2u)`, whose derivative is
    :math:`2u'\, \sigma (1 - \sigma)`.
    """
    xp = get_xp(x)
    k = math.sqrt(8 / math.pi)
    low, high = TANH_ENDS.get(x.dtype.char, (-22.0, 21.0))
    x = xp.clip(x, low, high)
    square = x * x
    v = square * (0.044715 * k)
    v += k
    v *= x                                                                  # 2u = k (x + 0.044715 x^3)
    cdf = xp.exp(v, out=v)
    slope = cdf + 1
    cdf /= slope                                                            # sigma(2u) = exp(2u) / (1 + exp(2u))
    xp.divide(cdf, slope, out=slope)                                        # sigma (1 - sigma), without the difference
    square *= 3 * 0.044715 * k
    square += k                                                             # 2u'
    slope *= square
    slope *= x
    return cdf, slope


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
    """``exp(x) / (1 + exp(x))``: 0 far below and 1 far above, where ``exp`` is kept from overflowing."""
    xp = get_xp(x)
    largest = LARGEST_EXPONENT.get(x.dtype.char, 709.0)
    y = xp.minimum(x, largest, out=xp.empty_like(x))  # without `out`, a number and no array if x has no axes
    xp.exp(y, out=y)
    return xp.divide(y, y + 1, out=y)


# by dtype: e float16, f float32, F complex64 (of complex numbers the real part is compared), else as for float64
# exp of a larger number overflows
LARGEST_EXPONENT = {"e": 11.0, "f": 88.0, "F": 88.0}
# where 2u of the tanh form is below any number that exp does not round to 0, and where it nears the largest exponent
TANH_ENDS = {"e": (-5.3, 3.9), "f": (-11.0, 10.0), "F": (-11.0, 10.0)}

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
