"""Softmax and log-softmax. Shapes: ``...`` any axes; the sums run over one of them, of size ``K``."""

from numtrans.backend import get_xp
from numtrans.module import Module
from numtrans.reductions import sum_last


def softmax_(scores):
    """Softmax over the last axis, written into `scores`. A row of ``-inf`` only becomes zeros, not NaN."""
    xp = get_xp(scores)
    if scores.shape[-1] == 0:
        return scores
    limits = xp.finfo(scores.dtype)
    largest = scores.max(axis=-1, keepdims=True)
    scores -= xp.maximum(largest, float(limits.min))  # in a row of -inf: -inf - finite, and never -inf - -inf
    xp.exp(scores, out=scores)
    scores /= xp.maximum(sum_last(scores), float(limits.tiny))
    return scores


class Softmax(Module):
    r"""Turn scores into weights that are positive and sum to one.

    .. math::

        p_i = \frac{e^{s_i}}{\sum_j e^{s_j}}, \qquad ds_i = p_i \left( dp_i - \sum_j dp_j\, p_j \right)

    from :math:`\partial p_j / \partial s_i = p_j ([i = j] - p_i)`. The largest score is subtracted first: a shift
    changes no weight, and nothing overflows.

    Parameters
    ----------
    axis : int, default -1
        The axis that sums to one.
    """

    def __init__(self, axis=-1):
        super().__init__()
        self.axis = axis

    def forward(self, s):
        """Scores `s` (...) -> p (...), which sums to one along the axis."""
        self.check_floating("input", s)
        p = softmax_(get_xp(s).moveaxis(s, self.axis, -1).copy())           # (..., K)
        p = get_xp(s).moveaxis(p, -1, self.axis)
        self.save(p)
        return p

    def backward(self, dp):
        """Given dp (...), return ds (...)."""
        (p,) = self.saved()
        self.check_dy(dp, p.shape, p)
        # dp_j reaches s_i through the common denominator as well
        return p * (dp - (dp * p).sum(axis=self.axis, keepdims=True))


class LogSoftmax(Module):
    r"""Logarithm of the softmax, computed without it.

    .. math::

        y_i = s_i - \log \sum_j e^{s_j}, \qquad ds_i = dy_i - p_i \sum_j dy_j, \qquad p = e^{y}

    The logarithm of a softmax that has underflowed would be :math:`-\infty`; here the largest score is taken out of
    the sum, so that the result is finite.

    Parameters
    ----------
    axis : int, default -1
        The axis over which probabilities sum to one.
    """

    def __init__(self, axis=-1):
        super().__init__()
        self.axis = axis

    def forward(self, s):
        """Scores `s` (...) -> y (...), logarithms of probabilities."""
        self.check_floating("input", s)
        y = log_softmax(s, self.axis)
        self.save(y)
        return y

    def backward(self, dy):
        """Given dy (...), return ds (...)."""
        (y,) = self.saved()
        self.check_dy(dy, y.shape, y)
        return dy - get_xp(y).exp(y) * dy.sum(axis=self.axis, keepdims=True)


def log_softmax(s, axis=-1):
    """Log-softmax of `s` along `axis` as a new array; see `LogSoftmax`."""
    xp = get_xp(s)
    y = s - s.max(axis=axis, keepdims=True)
    y -= xp.log(xp.exp(y).sum(axis=axis, keepdims=True))
    return y
