"""Losses: cross-entropy and mean squared error.

Shapes: ``...`` any leading axes (batch, tokens), ``N`` their product, ``V`` classes (vocabulary).

A loss value is a scalar of the array library (on the GPU a 0-d array), so that a training step never waits for the
device. Call ``float(loss)`` when you want to see it.
"""

import warnings

from numtrans.backend import backend_name, get_xp
from numtrans.checks import check_number
from numtrans.errors import ConfigError, DtypeError, IndexRangeError, ShapeError
from numtrans.module import Module
from numtrans.reductions import mean_last, rows, sum_last

_REDUCTIONS = ("mean", "sum", "none")


class CrossEntropyLoss(Module):
    r"""Cross-entropy between logits and integer targets, with label smoothing.

    .. math::

        \ell = -\sum_k q_k \log p_k, \qquad \log p = z - \mathrm{logsumexp}(z), \qquad
        q_k = (1 - \epsilon)\,[k = t] + \frac{\epsilon}{V}

    The logarithm of the softmax is never taken of a rounded probability: with the largest logit subtracted from
    :math:`z` first, :math:`\ell = \log \sum_k e^{z_k} - (1 - \epsilon) z_t - \epsilon \overline{z}`, since q sums to 1.

    Backward: :math:`\partial\, \mathrm{logsumexp}(z) / \partial z = p`, and the other two terms are linear in z, so

    .. math:: dz = (p - q)\, d\ell

    The ``"mean"`` is over the targets that count, those that differ from `ignore_index`. A target that does not count
    adds nothing to the loss, and its row of the gradient is exactly 0. If none counts, the loss is 0 and the gradient
    is 0, with a warning.

    Parameters
    ----------
    ignore_index : int, default -100
        Targets with this value do not count. It may be a class of the vocabulary, such as the id of the padding.
    label_smoothing : float, default 0.0
        :math:`\epsilon` in [0, 1): the part of the target that is spread evenly over all V classes (as in PyTorch).
    reduction : {"mean", "sum", "none"}, default "mean"
        ``"none"`` keeps one loss for each target.

    Raises
    ------
    DtypeError
        If the logits are not floating point or the targets are not integers.
    ShapeError
        If the targets do not have the shape of the logits without the last axis.
    IndexRangeError
        If a target that counts lies outside [0, V). Arrays on the GPU are not looked at, which would wait for the
        device, and CuPy wraps a bad index without a word: check targets before moving them.

    References
    ----------
    Szegedy et al. (2016), Rethinking the Inception Architecture, arXiv:1512.00567, section 7 (label smoothing).

    Examples
    --------
    >>> import numpy as np
    >>> ce = CrossEntropyLoss()
    >>> float(ce(np.array([[0.0, 1000.0]]), np.array([0])))
    1000.0
    >>> ce.backward()
    array([[-1.,  1.]])
    """

    def __init__(self, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        super().__init__()
        _check_reduction(self, reduction)
        check_number(type(self).__name__, "label_smoothing", label_smoothing, "0 <= value < 1", lambda e: 0 <= e < 1)
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction

    def forward(self, logits, targets, normalizer=None):
        """The loss of `logits` (..., V) for `targets` (...).

        Parameters
        ----------
        logits : array (..., V)
        targets : integer array (...)
        normalizer : number or 0-d array, optional
            With reduction ``"mean"``, divide by this number (0 is taken as 1) in place of the own count. Pieces of a
            batch that are all given the count of the whole batch add up to its loss and gradient.

        Returns
        -------
        scalar of the dtype of `logits`, or an array (...) for reduction ``"none"``
        """
        self._check(logits, targets)
        xp = get_xp(logits, targets)
        eps = self.label_smoothing
        z, t = rows(logits), targets.reshape(-1)  # (N, V), (N,)
        counts = t != self.ignore_index  # (N,) bool
        t = xp.where(counts, t, 0)
        # 1. subtract the largest logit: the loss does not change, and exp cannot overflow
        e = z - z.real.max(-1, keepdims=True)  # (N, V)
        linear = (1 - eps) * e[xp.arange(t.size), t]  # (N,)
        if eps:
            linear += eps * mean_last(e)[:, 0]
        # 2. logsumexp
        xp.exp(e, out=e)
        total = sum_last(e)[:, 0]  # (N,)
        # 3. the loss of each target, 0 where it does not count
        losses = xp.where(counts, xp.log(total) - linear, 0)  # (N,)
        # 4. reduce
        divisor = self._divisor(xp, counts, normalizer)
        self.save(e, total, t, counts, divisor, targets.shape)
        if self.reduction == "none":
            return losses.reshape(targets.shape)
        if divisor is not None:
            losses /= divisor
        return losses.sum()

    def backward(self, dy=1.0):
        """The gradient with respect to the logits (..., V).

        Parameters
        ----------
        dy : number, or array of the shape of the loss; default 1.0
        """
        e, total, t, counts, divisor, shape = self.saved()
        xp, eps = get_xp(e), self.label_smoothing
        # 4. the weight of each target in the loss
        weight = xp.ones(t.size, e.dtype)  # (N,)
        weight *= _flat_dy(self, dy, shape)
        if divisor is not None:
            weight /= divisor
        # 3-1. dz = (p - q) * weight, p = e / total
        e *= (weight / total)[:, None]  # (N, V)
        e[xp.arange(t.size), t] -= (1 - eps) * weight
        if eps:
            e -= (eps / e.shape[-1] * weight)[:, None]
        e[~counts] = 0
        return e.reshape(*shape, e.shape[-1])

    def count(self, targets):
        """Number of targets that count: an int, or for an array on the GPU a 0-d array."""
        count = (targets != self.ignore_index).sum()
        return int(count) if backend_name(targets) == "numpy" else count

    def _divisor(self, xp, counts, normalizer):
        """What the sum of the losses is divided by; None for no division."""
        if self.reduction != "mean":
            _refuse_normalizer(self, normalizer)
            return None
        if normalizer is not None:
            return _not_zero(self, xp, normalizer)
        count = counts.sum()
        if xp.__name__ == "numpy" and count == 0:
            warnings.warn("CrossEntropyLoss: every target is ignored; loss and gradient are 0", stacklevel=4)
        return xp.maximum(count, 1)

    def _check(self, logits, targets):
        self.check_floating("logits", logits)
        if not hasattr(targets, "dtype"):
            raise DtypeError(f"CrossEntropyLoss: targets must be a numpy or cupy array, got {type(targets).__name__}")
        if targets.dtype.kind not in "iu":
            raise DtypeError(f"CrossEntropyLoss: targets have dtype {targets.dtype}, expected integers (class indices)")
        if logits.ndim == 0 or logits.shape[-1] == 0 or targets.shape != logits.shape[:-1]:
            raise ShapeError(
                f"CrossEntropyLoss: targets have shape {tuple(targets.shape)}, expected {tuple(logits.shape[:-1])}: "
                f"that of the logits {tuple(logits.shape)} without their last axis, the classes"
            )
        if backend_name(targets) == "numpy":
            bad = (targets != self.ignore_index) & ((targets < 0) | (targets >= logits.shape[-1]))
            if bad.any():
                raise IndexRangeError(
                    f"CrossEntropyLoss: target {targets[bad].flat[0]} is outside 0..{logits.shape[-1] - 1} "
                    f"and is not ignore_index={self.ignore_index}"
                )


class MSELoss(Module):
    r"""Mean squared error.

    .. math::

        \ell = \frac{1}{n} \sum_i (y_i - t_i)^2, \qquad dy_i = \frac{2}{n} (y_i - t_i)\, d\ell

    Targets are constants: backward returns the gradient of the prediction only.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean is over all numbers, not over rows.

    Raises
    ------
    ShapeError
        If prediction and target differ in shape; nothing is broadcast.
    DtypeError
        If one is not floating point, or they differ in dtype.
    """

    def __init__(self, reduction="mean"):
        super().__init__()
        _check_reduction(self, reduction)
        self.reduction = reduction

    def forward(self, prediction, targets, normalizer=None):
        """The loss of `prediction` (...) for `targets` (...); `normalizer` as in `CrossEntropyLoss`."""
        self.check_floating("prediction", prediction)
        self.check_floating("targets", targets, like=prediction)
        xp = get_xp(prediction, targets)
        if prediction.shape != targets.shape:
            raise ShapeError(
                f"MSELoss: targets have shape {tuple(targets.shape)}, expected that of the prediction, "
                f"{tuple(prediction.shape)}"
            )
        # 1. the difference, squared
        difference = (prediction - targets).reshape(-1)  # (N,)
        losses = difference * difference  # (N,)
        # 2. reduce
        divisor = None
        if self.reduction == "mean":
            divisor = _not_zero(self, xp, targets.size if normalizer is None else normalizer)
        else:
            _refuse_normalizer(self, normalizer)
        self.save(difference, divisor, targets.shape)
        if self.reduction == "none":
            return losses.reshape(targets.shape)
        if divisor is not None:
            losses /= divisor
        return losses.sum()

    def backward(self, dy=1.0):
        """The gradient with respect to the prediction (...); `dy` as in `CrossEntropyLoss`."""
        difference, divisor, shape = self.saved()
        # 2. the weight of each value in the loss
        difference *= _flat_dy(self, dy, shape)  # (N,)
        if divisor is not None:
            difference /= divisor
        # 1. (y - t)^2
        difference *= 2
        return difference.reshape(shape)

    def count(self, targets):
        """Number of values that the mean is over."""
        return targets.size


def _check_reduction(loss, reduction):
    if reduction not in _REDUCTIONS:
        raise ConfigError(f"{type(loss).__name__}: reduction is {reduction!r}, expected one of {_REDUCTIONS}")


def _refuse_normalizer(loss, normalizer):
    if normalizer is not None:
        raise ConfigError(f"{type(loss).__name__}: normalizer is for reduction 'mean', got {loss.reduction!r}")


def _not_zero(loss, xp, normalizer):
    """`normalizer`, or 1 if it is 0: the mean over nothing is 0. One on the GPU is not looked at."""
    if hasattr(normalizer, "dtype") and backend_name(normalizer) == "cupy":
        return xp.where(normalizer == 0, 1, normalizer)
    number = normalizer.item() if getattr(normalizer, "ndim", None) == 0 else normalizer
    check_number(type(loss).__name__, "normalizer", number, "a number of 0 or more", lambda n: n >= 0)
    return number or 1


def _flat_dy(loss, dy, shape):
    """`dy` as it multiplies the flat losses: a scalar, or for reduction ``"none"`` an array of `shape`, made flat."""
    if isinstance(dy, (int, float)) or getattr(dy, "ndim", None) == 0:
        return dy
    expected, given = shape if loss.reduction == "none" else (), getattr(dy, "shape", type(dy).__name__)
    if given != expected:
        raise ShapeError(f"{type(loss).__name__}: dy has shape {given}, expected a number or shape {tuple(expected)}")
    return dy.reshape(-1)
