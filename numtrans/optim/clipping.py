"""Clipping gradients by their global norm."""

import math

from numtrans.backend import get_xp
from numtrans.errors import ConfigError, NonFiniteError


def clip_grad_norm(parameters, max_norm):
    r"""Scale all gradients by one factor, so that their norm taken together is at most `max_norm`.

    .. math::

        g \leftarrow g \cdot \min\left(1, \frac{c}{\lVert g \rVert + 10^{-6}}\right), \qquad
        \lVert g \rVert^2 = \sum_\text{parameters} \sum g^2

    One factor for all keeps the direction of the step. Gradients are never scaled up.

    Parameters
    ----------
    parameters : list of Parameter
        One that is given twice counts once; one without a gradient is passed by.
    max_norm : float
        :math:`c`, above 0. ``math.inf`` only measures.

    Returns
    -------
    float, or on the GPU a 0-d array
        The norm before clipping; 0.0 if there are no gradients.

    Raises
    ------
    ConfigError
        If `max_norm` is not above 0.
    NonFiniteError
        If the norm is NaN or infinite; the gradients are left as they were. Not on the GPU, where looking would wait
        for the device: there the gradients become NaN, and so does the returned norm.

    References
    ----------
    Pascanu, Mikolov and Bengio (2013), On the difficulty of training recurrent neural networks, arXiv:1211.5063.
    """
    if not max_norm > 0:
        raise ConfigError(f"clip_grad_norm: max_norm is {max_norm}, expected a number above 0")
    gradients = [p.grad for p in dict.fromkeys(parameters) if p.grad is not None]
    if not gradients:
        return 0.0
    xp = get_xp(*gradients)
    squares = [_square(gradient) for gradient in gradients]
    if xp.__name__ != "numpy":  # all on the device: the factor is applied even when it is 1
        norm = xp.sqrt(sum(squares))
        factor = xp.minimum(max_norm / (norm + 1e-6), 1.0)
        for gradient in gradients:
            gradient *= factor
        return norm
    norm = math.sqrt(sum(float(square) for square in squares))
    if not math.isfinite(norm):  # or do only the squares overflow?
        norm = math.sqrt(sum(float(_square(gradient.astype("float64"))) for gradient in gradients))
    if not math.isfinite(norm):
        names = [p.name for p in dict.fromkeys(parameters) if p.grad is not None and not xp.isfinite(p.grad).all()]
        raise NonFiniteError(f"clip_grad_norm: the norm of the gradients is {norm}; not finite in: {names}")
    if norm + 1e-6 > max_norm:
        factor = max_norm / (norm + 1e-6)
        for gradient in gradients:
            gradient *= factor
    return norm


def _square(gradient):
    """Sum of squares, as a scalar of the library in float64."""
    flat = gradient.reshape(-1)
    return (flat @ flat).astype("float64")
