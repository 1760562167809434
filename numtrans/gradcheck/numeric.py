r"""Numeric derivatives of the loss :math:`L = \sum y \odot R` along lines through a point.

.. math::

    \frac{L(x + h) - L(x - h)}{2 h} = L'(x) + O(h^2), \qquad
    \frac{4 D(h) - D(2h)}{3} = L'(x) + O(h^4), \qquad
    \frac{\operatorname{Im} L(x + i h)}{h} = L'(x) + O(h^2)

Outputs are subtracted before they are multiplied by :math:`R` and summed: the rounding error of the sum cancels.
"""

import math

import numpy as np

STEP = 1e-5
COMPLEX_STEP = 1e-30


class Line:
    """One line through a point: along a coordinate of one tensor, or along a direction in its space.

    Parameters
    ----------
    point : Point
    tensor : array
        One of ``point.tensors()``; changed only while forward runs.
    index : tuple of int, optional
        The coordinate. If not given, `direction` is.
    direction : array, optional
        Of unit length, with the shape of the tensor.
    """

    def __init__(self, point, tensor, index=None, direction=None):
        self.point, self.tensor, self.direction = point, tensor, direction
        self.index = ... if index is None else index
        self.start = tensor[self.index].copy() if index is None else tensor[self.index].item()
        size = abs(self.start) if index is not None else math.sqrt(float(abs(self.start * self.start).mean()))
        self.step = STEP * max(1.0, size)

    def at(self, t):
        """The output at distance `t` from the point."""
        self.tensor[self.index] = self.start + (t if self.direction is None else t * self.direction)
        try:
            return self.point.forward()
        finally:
            self.tensor[self.index] = self.start

    def along(self, gradient):
        """The slope that the array `gradient` (NumPy) predicts for this line."""
        if self.direction is None:
            return float(gradient[self.index])
        return float(np.sum(gradient * self.direction))


def loss_change(line, after, before):
    """``sum((after - before) * R)``."""
    return float(np.sum((after - before) * line.point.cotangent))


def central(line, h=None):
    """Central difference, of error O(h^2)."""
    h = line.step if h is None else h
    return loss_change(line, line.at(h), line.at(-h)) / (2 * h)


def forward_difference(line, y0, h):
    """Forward difference, of error O(h); `y0` is the output at the point."""
    return loss_change(line, line.at(h), y0) / h


def complex_step(line, h=COMPLEX_STEP):
    """Complex-step derivative: no subtraction, hence no rounding error. The point must be complex."""
    return float(np.sum(line.at(1j * h) * line.point.cotangent).imag) / h


def slope_gap(line, y0, h):
    """How far the slopes on the two sides of the point are apart."""
    return abs(loss_change(line, line.at(h), y0) - loss_change(line, y0, line.at(-h))) / h


def has_kink(line, y0):
    """True if the slopes on the two sides disagree: a ReLU, say, changes sides within the step.

    In a smooth function the gap between the slopes shrinks in proportion to the step; at a kink it stays as it is, or
    drops to zero. Gaps within the rounding error are no evidence.
    """
    rounding = 20 * np.finfo(float).eps * float(np.linalg.norm(y0 * line.point.cotangent))
    gap = slope_gap(line, y0, line.step)
    for factor in (8, 64):
        h = line.step / factor
        if abs(slope_gap(line, y0, h) - gap / factor) > 0.25 * gap / factor + rounding / h:
            return True
    return False


def extrapolated(line, enough=0.0):
    """Central differences extrapolated to error O(h^4), at the best of three steps.

    The best step is the one where the plain difference and the extrapolated one agree most closely: a step that is
    too small suffers from rounding, one that is too large from curvature. The search ends where the two agree to
    within `enough`.
    """
    best = (math.inf, math.nan)
    for h in (10 * line.step, line.step, 100 * line.step):
        near, far = central(line, h), central(line, 2 * h)
        value = (4 * near - far) / 3
        best = min(best, (abs(value - near), value))
        if best[0] <= enough:
            break
    return best[1]


def full_gradient(point, tensor):
    """Central differences at every coordinate of `tensor`, and their shares by slices of the output.

    Returns
    -------
    gradient : ndarray
        Of the shape of the tensor.
    shares : list of ndarray
        For each axis of the output an array ``(*tensor.shape, n)``: the gradient of the part of the loss that comes
        from each of the n slices along this axis.
    """
    axes = range(np.ndim(point.cotangent))
    gradient = np.empty(tensor.shape)
    shares = [np.empty((*tensor.shape, point.cotangent.shape[axis])) for axis in axes]
    for index in np.ndindex(*tensor.shape):
        line = Line(point, tensor, index)
        terms = (line.at(line.step) - line.at(-line.step)) * point.cotangent / (2 * line.step)
        gradient[index] = terms.sum()
        for axis in axes:
            shares[axis][index] = terms.sum(axis=tuple(a for a in axes if a != axis))
    return gradient, shares
