"""Normalization: LayerNorm, RMSNorm, BatchNorm. Shapes: ``...`` leading axes (batch, tokens), ``D`` features."""

import numpy as np

from numtrans.backend import backend_name, get_xp, to_device
from numtrans.checks import check_number, check_sizes
from numtrans.errors import ConfigError, ShapeError
from numtrans.layers.masks import check_boolean
from numtrans.module import Module, Parameter
from numtrans.reductions import dot_last, mean_last, rows, sum_rows


class LayerNorm(Module):
    r"""Normalize each token over its features, then scale and shift.

    .. math::

        y = \gamma \odot \hat x + \beta, \qquad \hat x = \frac{x - \mu}{\sigma}, \qquad
        \mu = \overline{x}, \qquad \sigma^2 = \overline{(x - \mu)^2} + \epsilon

    where a bar is the mean over the features of one token. Backward, with :math:`\delta = \gamma \odot dy`:

    .. math::

        dx = \frac{1}{\sigma} \left( \delta - \overline{\delta} - \hat x \, \overline{\delta \odot \hat x} \right),
        \qquad d\gamma = \sum dy \odot \hat x, \qquad d\beta = \sum dy

    The two means are the paths through :math:`\mu` and :math:`\sigma`: a gradient that loses the first no longer
    sums to zero over the features, one that loses the second is no longer orthogonal to :math:`\hat x`.

    Parameters
    ----------
    d_model : int
        Number of features ``D``.
    eps : float, default 1e-5
        Added to the variance, inside the root.
    bias : bool, default True
        Whether to add :math:`\beta`.

    Raises
    ------
    ShapeError, DtypeError
        If the last axis of the input is not ``d_model``, or its dtype is not that of ``gamma``.

    References
    ----------
    Ba, Kiros and Hinton (2016), Layer Normalization, arXiv:1607.06450.
    """

    def __init__(self, d_model, *, eps=1e-5, bias=True):
        super().__init__()
        check_options(self, d_model, eps)
        self.d_model, self.eps = d_model, eps
        self.gamma = Parameter(np.ones(d_model, np.float32))
        self.beta = Parameter(np.zeros(d_model, np.float32)) if bias else None

    def forward(self, x):
        """`x` (..., D) -> y (..., D)."""
        self.check_last_axis(x, self.d_model, like=self.gamma.data)
        xp = get_xp(x)
        # 1. center
        xhat = x - mean_last(x)                                             # (..., D)
        # 2. divide by the standard deviation
        sigma = xp.sqrt(dot_last(xhat, xhat) / self.d_model + self.eps)     # (..., 1)
        xhat /= sigma
        self.save(xhat, sigma)
        # 3. scale and shift
        y = self.gamma.data * xhat
        if self.beta is not None:
            y += self.beta.data
        return y

    def backward(self, dy):
        """Given dy (..., D), return dx (..., D) and add dgamma (D) and dbeta (D)."""
        xhat, sigma = self.saved()
        self.check_dy(dy, xhat.shape, xhat)
        # 3. y = gamma * xhat + beta
        dx = dy * xhat
        if self.beta is not None:
            self.beta.add_grad(sum_rows(dy))                                # (D,)
        self.gamma.add_grad(sum_rows(dx))                                   # (D,)
        along = dot_last(dx, self.gamma.data) / self.d_model                # mean of dxhat * xhat, (..., 1)
        get_xp(dy).multiply(dy, self.gamma.data, out=dx)                    # dxhat, (..., D)
        # 1. mu depends on x: take out the mean
        dx -= mean_last(dx)
        # 2. sigma depends on x: take out what lies along xhat, which is ours now
        xhat *= along
        dx -= xhat
        dx /= sigma
        return dx


class RMSNorm(Module):
    r"""Divide each token by the root mean square of its features, then scale.

    .. math::

        y = \gamma \odot \hat x, \qquad \hat x = \frac{x}{r}, \qquad r^2 = \overline{x^2} + \epsilon

    .. math::

        dx = \frac{1}{r} \left( \delta - \hat x \, \overline{\delta \odot \hat x} \right), \qquad
        \delta = \gamma \odot dy, \qquad d\gamma = \sum dy \odot \hat x

    LayerNorm without the centring: one path fewer in backward.

    Parameters
    ----------
    d_model : int
        Number of features ``D``.
    eps : float, default 1e-6
        Added to the mean square, inside the root.

    References
    ----------
    Zhang and Sennrich (2019), Root mean square layer normalization, arXiv:1910.07467.
    """

    def __init__(self, d_model, *, eps=1e-6):
        super().__init__()
        check_options(self, d_model, eps)
        self.d_model, self.eps = d_model, eps
        self.gamma = Parameter(np.ones(d_model, np.float32))

    def forward(self, x):
        """`x` (..., D) -> y (..., D)."""
        self.check_last_axis(x, self.d_model, like=self.gamma.data)
        # 1. divide by the root mean square
        r = get_xp(x).sqrt(dot_last(x, x) / self.d_model + self.eps)        # (..., 1)
        xhat = x / r                                                        # (..., D)
        self.save(xhat, r)
        # 2. scale
        return self.gamma.data * xhat

    def backward(self, dy):
        """Given dy (..., D), return dx (..., D) and add dgamma (D)."""
        xhat, r = self.saved()
        self.check_dy(dy, xhat.shape, xhat)
        # 2. y = gamma * xhat
        dx = dy * xhat
        self.gamma.add_grad(sum_rows(dx))                                   # (D,)
        along = dot_last(dx, self.gamma.data) / self.d_model                # mean of dxhat * xhat, (..., 1)
        get_xp(dy).multiply(dy, self.gamma.data, out=dx)                    # dxhat, (..., D)
        # 1. r depends on x: take out what lies along xhat, which is ours now
        xhat *= along
        dx -= xhat
        dx /= r
        return dx


class BatchNorm(Module):
    r"""Normalize each feature over all tokens of the batch, then scale and shift.

    The formulas are those of `LayerNorm` with the bar as the mean over the ``N`` tokens that count. In training the
    running statistics move by ``momentum`` towards those of the batch,

    .. math::

        m \leftarrow (1 - \rho)\, m + \rho\, \mu, \qquad
        v \leftarrow (1 - \rho)\, v + \rho\, \tfrac{N}{N - 1} \overline{(x - \mu)^2}

    and evaluation normalizes with them, so that there :math:`dx = \gamma \odot dy / \sigma`.

    Parameters
    ----------
    d_model : int
        Number of features ``D``.
    eps : float, default 1e-5
        Added to the variance, inside the root.
    momentum : float, default 0.1
        Weight :math:`\rho` of the new batch, as in PyTorch.

    Raises
    ------
    ShapeError
        If fewer than two tokens count in training: their variance says nothing.

    References
    ----------
    Ioffe and Szegedy (2015), Batch Normalization, arXiv:1502.03167.
    """

    needs_whole_batch = True

    def __init__(self, d_model, *, eps=1e-5, momentum=0.1):
        super().__init__()
        check_options(self, d_model, eps)
        expected = "0 <= momentum <= 1 (the weight of the new)"
        check_number(type(self).__name__, "momentum", momentum, expected, lambda rho: 0 <= rho <= 1)
        self.d_model, self.eps, self.momentum = d_model, eps, momentum
        self.gamma = Parameter(np.ones(d_model, np.float32))
        self.beta = Parameter(np.zeros(d_model, np.float32))
        self.register_buffer("running_mean", np.zeros(d_model, np.float32))
        self.register_buffer("running_var", np.ones(d_model, np.float32))

    def forward(self, x, mask=None):
        """Normalize `x` (..., D). `mask` (...), True = counts: other tokens are left out and give 0."""
        self.check_last_axis(x, self.d_model, like=self.gamma.data)
        xp = get_xp(x)
        weight, n = self.token_weights(xp, x, mask)                         # (N, 1) of 0 and 1
        x2 = rows(x)                                                        # (N, D)
        if mask is not None:  # not by a product: a token that is left out may hold NaN
            x2 = xp.where(weight > 0, x2, 0)
        if self.training:
            # 1. center and 2. divide by the standard deviation, over the tokens that count
            mu = sum_rows(x2 * weight) / n                                  # (D,)
            xhat = (x2 - mu) * weight
            var = sum_rows(xhat * xhat) / n                                 # (D,)
            self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mu
            self.running_var = (1 - self.momentum) * self.running_var + self.momentum * n / (n - 1) * var
        else:
            var = self.running_var
            xhat = (x2 - self.running_mean) * weight
        sigma = xp.sqrt(var + self.eps)                                     # (D,)
        xhat /= sigma
        self.save(x.shape, xhat, sigma, weight, n if self.training else None)
        # 3. scale and shift
        y = self.gamma.data * xhat
        y += self.beta.data * weight
        return y.reshape(x.shape)

    def backward(self, dy):
        """Given dy (..., D), return dx (..., D) and add dgamma (D) and dbeta (D)."""
        shape, xhat, sigma, weight, n = self.saved()
        self.check_dy(dy, shape, xhat)
        dy = rows(dy) * weight                                              # (N, D)
        # 3. y = gamma * xhat + beta
        dbeta, dgamma = sum_rows(dy), sum_rows(dy * xhat)                   # (D,)
        self.beta.add_grad(dbeta)
        self.gamma.add_grad(dgamma)
        dx = dy * self.gamma.data                                           # dxhat, (N, D)
        if n is not None:  # 2. sigma and 1. mu depend on x in training; the sums over tokens are dgamma and dbeta
            dx -= self.gamma.data / n * (dbeta + xhat * dgamma)
            dx *= weight
        dx /= sigma
        return dx.reshape(shape)

    def token_weights(self, xp, x, mask):
        """Column of ones, with zeros for tokens outside `mask`, and the number of ones."""
        tokens = x.size // self.d_model
        if mask is None:
            weight, n = xp.ones((tokens, 1), x.dtype), tokens
        else:
            check_boolean(mask, type(self).__name__)
            if tuple(mask.shape) != tuple(x.shape[:-1]):
                raise ShapeError(f"BatchNorm: mask has shape {tuple(mask.shape)}, expected {tuple(x.shape[:-1])}")
            n = int(mask.sum())
            weight = to_device(mask, backend_name(x)).reshape(-1, 1).astype(x.dtype)
        if self.training and n < 2:
            raise ShapeError(f"BatchNorm: {n} token(s) to take statistics over, expected at least 2 in training")
        return weight, n


def check_options(norm, d_model, eps):
    """Raise `ConfigError` unless the norm has a feature or more, and an `eps` of 0 or more."""
    check_sizes(norm, d_model=d_model)
    check_number(type(norm).__name__, "eps", eps, "0 or more", lambda eps: eps >= 0)


NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def make_norm(name, d_model, eps=None):
    """A new norm by name, ``"layer"`` or ``"rms"``; without `eps` it has its own default."""
    if name not in NORMS:
        raise ConfigError(f"unknown norm {name!r}, expected one of {', '.join(NORMS)}")
    return NORMS[name](d_model) if eps is None else NORMS[name](d_model, eps=eps)
