"""Learning rates as plain functions of the step. The first step is 1.

A run that is resumed at some step needs nothing but the step to go on with the right rate.
"""

import math

from numtrans.errors import ConfigError


def constant(step, lr, warmup=0):
    r"""`lr`, reached by a straight line over the first `warmup` steps: :math:`\mathrm{lr} \min(1, s / w)`."""
    _check("constant", step, warmup)
    return lr * _rise(step, warmup)


def noam(step, d_model, warmup, factor=1.0):
    r"""The schedule of the first Transformer: rise over `warmup` steps, then fall as the root of the step.

    .. math:: f\, D^{-1/2} \min\left(s^{-1/2},\; s\, w^{-3/2}\right)

    The peak, at step `warmup`, is :math:`f / \sqrt{D w}`. With ``warmup=0`` it only falls.

    Parameters
    ----------
    step : int
        From 1.
    d_model : int
        Width ``D``.
    warmup : int
        Steps of warm-up.
    factor : float, default 1.0
        Multiplies the whole.

    References
    ----------
    Vaswani et al. (2017), Attention Is All You Need, arXiv:1706.03762, section 5.3.
    """
    _check("noam", step, warmup)
    rise = step * warmup**-1.5 if warmup else math.inf
    return factor * d_model**-0.5 * min(step**-0.5, rise)


def warmup_cosine(step, peak, warmup, total, final=0.0):
    r"""Rise to `peak` over `warmup` steps, then fall to `final` at step `total` along half a cosine.

    .. math:: \text{final} + (\text{peak} - \text{final}) \frac{1 + \cos \pi x}{2}, \qquad
        x = \frac{s - w}{\text{total} - w}

    After `total` the rate stays at `final`.

    References
    ----------
    Loshchilov and Hutter (2017), SGDR: Stochastic Gradient Descent with Warm Restarts, arXiv:1608.03983.
    """
    _check("warmup_cosine", step, warmup, total)
    if step <= warmup:
        return peak * _rise(step, warmup)
    return final + (peak - final) * (1 + math.cos(math.pi * _progress(step, warmup, total))) / 2


def warmup_linear(step, peak, warmup, total, final=0.0):
    """Rise to `peak` over `warmup` steps, then fall to `final` at step `total`, both by a straight line.

    After `total` the rate stays at `final`.

    References
    ----------
    Devlin et al. (2019), BERT, arXiv:1810.04805, appendix A.2.
    """
    _check("warmup_linear", step, warmup, total)
    if step <= warmup:
        return peak * _rise(step, warmup)
    return peak + (final - peak) * _progress(step, warmup, total)


def _rise(step, warmup):
    return min(1.0, step / warmup) if warmup else 1.0


def _progress(step, warmup, total):
    """0 at the end of the warm-up, 1 from step `total` on."""
    return min(1.0, (step - warmup) / (total - warmup)) if total > warmup else 1.0


def _check(name, step, warmup, total=math.inf):
    if step < 1:
        raise ConfigError(f"{name}: step is {step}; the first step is 1")
    if warmup < 0 or total < warmup:
        raise ConfigError(f"{name}: warmup is {warmup} and total {total}, expected 0 <= warmup <= total")
