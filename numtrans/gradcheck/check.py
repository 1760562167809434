"""The gradient check: hand-written gradients against numeric ones, tensor by tensor."""

import math
import warnings

import numpy as np

from numtrans.errors import ConfigError, GradientError
from numtrans.gradcheck import numeric
from numtrans.gradcheck.diagnosis import diagnose
from numtrans.gradcheck.point import Point
from numtrans.gradcheck.properties import check_properties, float32_errors
from numtrans.gradcheck.report import GradCheckReport, Row

SMALL = 256  # up to here every coordinate is checked
FULL = 4096  # up to here a failing tensor gets its full numeric gradient, for the diagnosis
COORDINATES, DIRECTIONS, LARGEST = 20, 2, 4
TOLERANCE = {"central": 1e-7, "complex": 1e-12}
FLOOR = {"central": 1e-9, "complex": 1e-12}


def gradcheck(module, *inputs, method="central", seed=0, tolerance=None, tolerance32=1e-5, randomize=True, **kwargs):
    r"""Check the backward of `module` at `inputs` against numeric differences, in float64.

    The loss is :math:`L = \sum y \odot R` with a fixed random :math:`R`. (A plain sum would hide a wrong softmax or
    normalization: the sum of a softmax is 1 whatever its input.) The check runs on a copy: the caller's module,
    gradients, buffers, random counters and arrays are never touched.

    With :math:`a` the gradient from backward and :math:`n` the numeric one over the :math:`k` checked coordinates, a
    tensor passes if

    .. math::

        \lVert a - n \rVert \le \text{tolerance} \cdot g + \text{floor}, \qquad
        g = \max\left(\lVert n \rVert,\ \sqrt{k}\,\operatorname{rms}(a)\right),

    where :math:`\operatorname{rms}(a)` is taken over the whole tensor, and the floor is 1e-9 (1e-12 for complex
    steps). The table shows :math:`\lVert a - n \rVert / (g + \text{floor} / \text{tolerance})`, which is to be
    compared with the tolerance. Every coordinate of a tensor of at most 256 entries is checked; of a larger one 20
    coordinates (the 4 largest of :math:`a`, the rest random) and the slopes along 2 random directions of unit length.

    Differences are central, with :math:`h = 10^{-5} \max(1, |x|)`. If a tensor misses by more than a tenth of the
    bound, the differences that miss by more than their share of it, but not grossly, are extrapolated to fourth order
    (see `numeric.extrapolated`). Where the slopes on the two sides disagree (a ReLU kink within the step) the
    coordinate is left out, or redrawn in a large tensor, and counted in the report.

    Parameters
    ----------
    module : Module
    *inputs : array or anything
        Arguments of forward. Floating arrays are differentiated; all else is constant.
    method : {"central", "complex"}
        Central differences, or the complex step :math:`\operatorname{Im} L(x + ih) / h` with h = 1e-30, which has no
        rounding error but needs a layer that is analytic and runs on complex128.
    seed : int, default 0
        Of the noise on the parameters, of ``R`` and of the choice of coordinates.
    tolerance : float, optional
        1e-7 for central differences, 1e-12 for complex steps.
    tolerance32 : float, default 1e-5
        For the float32 gradient against the float64 one.
    randomize : bool, default True
        Add noise to the parameters of the copy, so that gains are not 1 and biases not 0 (see `Point.of`).
    **kwargs
        Keyword arguments of forward: constants, also when they are floating arrays.

    Returns
    -------
    GradCheckReport
        True if all passes; ``str()`` gives the table.

    Raises
    ------
    DataError
        If an input or a parameter holds NaN or an infinity.
    ConfigError
        If the method is unknown, there is nothing to check, or complex steps do not apply.
    """
    if method not in TOLERANCE:
        raise ConfigError(f"gradcheck: method is {method!r}, expected 'central' or 'complex'")
    tolerance = TOLERANCE[method] if tolerance is None else tolerance
    point = Point.of(module, inputs, kwargs, seed=seed, randomize=randomize)
    gradients, complaint = point.gradients()
    y0 = point.forward()
    rule = _Rule(tolerance, FLOOR[method])
    probe = _ComplexProbe(point, y0) if method == "complex" else _CentralProbe(point, y0)
    rng = np.random.default_rng(seed)
    rows = []
    for name, tensor in point.tensors().items():
        kind = "input" if name in point.input_names() else "parameter"
        row = Row(name, kind, tuple(tensor.shape))
        _check(row, gradients[name], y0, probe, rule, rng)
        rows.append(row)
    properties = check_properties(point, gradients, complaint)
    errors, single = float32_errors(point, tolerance32)
    properties.append(single)
    for row in rows:
        row.float32_error = errors.get(row.name, float("nan"))
        if row.passed and not (row.float32_error <= tolerance32 or np.isnan(row.float32_error)):
            row.verdict = f"float32 differs by more than {tolerance32:.0e}"
    tensors = point.tensors()
    for row in rows:
        if not row.passed and 0 < tensors[row.name].size <= FULL and row.analytic is not None:
            row.numeric, row.shares = numeric.full_gradient(point, tensors[row.name])
    sentences = diagnose(point, rows, properties, y0)
    return GradCheckReport(type(module).__name__, rows, properties, sentences, method=method, tolerance=tolerance)


def assert_gradients(module, *inputs, **kwargs):
    """Raise `GradientError` with the table unless `gradcheck` passes; takes the same arguments, returns the report."""
    report = gradcheck(module, *inputs, **kwargs)
    if not report:
        raise GradientError(f"\n{report}")
    return report


class _Rule:
    """When a difference between gradients is small enough."""

    def __init__(self, tolerance, floor):
        self.tolerance, self.floor = tolerance, floor

    def bound(self, size):
        return self.tolerance * size + self.floor

    def relative(self, error, size):
        return error / (size + self.floor / self.tolerance)


class _CentralProbe:
    """Slopes by central differences: kinks are recognized, inexact values refined."""

    def __init__(self, point, y0):
        self.point, self.y0 = point, y0

    slope = staticmethod(numeric.central)

    def settle(self, line, predicted, value, share, size):
        """A better value of a slope that misses the predicted one by more than `share`; None at a kink."""
        miss = abs(predicted - value)
        if numeric.slope_gap(line, self.y0, line.step) > 0.5 * miss and numeric.has_kink(line, self.y0):
            return None
        if miss <= 1e-3 * size + 1e-6:
            return numeric.extrapolated(line, share)
        return value


class _ComplexProbe:
    """Slopes by complex steps; the layer is first shown to run on complex numbers."""

    def __init__(self, point, y0):
        self.real = point
        self.name = type(point.module).__name__
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", np.exceptions.ComplexWarning)
                self.point = point.astype(np.complex128)
                y = self.point.forward()
        except Exception as error:  # whatever a layer that was never meant for complex numbers may raise
            raise ConfigError(
                f"gradcheck: {self.name} does not run on complex128, so method='complex' does not apply; use "
                f"method='central' ({type(error).__name__}: {error})"
            ) from error
        if y.dtype.kind != "c" or not np.allclose(y, y0, rtol=1e-9, atol=1e-9):
            raise ConfigError(self._not_analytic(f"on complex128 input the output is {y.dtype} and differs"))

    def slope(self, line):
        return numeric.complex_step(line)

    def settle(self, line, predicted, value, share, size):
        """`value`, once it is shown to agree with a central difference."""
        name = next(name for name, tensor in self.point.tensors().items() if tensor is line.tensor)
        twin = numeric.Line(self.real, self.real.tensors()[name], line.index if line.direction is None else None,
                            None if line.direction is None else line.direction)
        check = numeric.central(twin)
        if not abs(check - value) <= 1e-5 * max(abs(check), size) + 1e-6:
            raise ConfigError(self._not_analytic(f"for {name} it gives {value:.6e}, a central difference {check:.6e}"))
        return value

    def _not_analytic(self, what):
        return (
            f"gradcheck: method='complex' needs an analytic layer (no abs, max, conj or real part), and {self.name} "
            f"seems not to be one: {what}. Use method='central'"
        )


def _check(row, gradient, y0, probe, rule, rng):
    """Fill in `row` for one tensor with the analytic `gradient`."""
    tensor = probe.point.tensors()[row.name]
    missing = gradient is None
    gradient = np.zeros(row.shape) if missing else gradient
    row.numeric = np.full(row.shape, np.nan)
    if gradient.shape != row.shape:
        row.verdict = f"gradient has shape {gradient.shape}, expected {row.shape}"
        return
    row.analytic = gradient = gradient.astype(np.float64)
    if gradient.size == 0:
        return
    if not np.isfinite(gradient).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(gradient))[0])
        row.verdict = f"analytic gradient has {gradient[index]} at {list(index)}"
        return
    if not np.isfinite(y0).all():
        row.verdict = "the output is not finite"
        return
    lines, spare = _lines(probe.point, tensor, gradient, rng)
    rms = math.sqrt(float(np.mean(gradient * gradient)))
    kept = _compare(row, lines, spare, gradient, rms, probe, rule)
    row.checked = len(kept)
    if not kept:
        row.verdict = "every point lies on a kink: nothing could be compared"
        return
    predicted, values = np.array([k[1] for k in kept]), np.array([k[2] for k in kept])
    size = max(float(np.linalg.norm(values)), math.sqrt(len(kept)) * rms)
    error = float(np.linalg.norm(predicted - values))
    row.error = rule.relative(error, size)
    _note_worst(row, kept)
    if not np.isfinite(error):
        row.verdict = "numeric gradient is not finite"
    elif error > rule.bound(size):
        row.verdict = "no gradient" if missing else "wrong"


def _lines(point, tensor, gradient, rng):
    """The lines to check, and an endless supply of further ones to replace those that hit a kink."""
    def coordinate(flat):
        return numeric.Line(point, tensor, tuple(int(i) for i in np.unravel_index(flat, tensor.shape)))

    def direction():
        v = rng.standard_normal(tensor.shape)
        return numeric.Line(point, tensor, direction=v / np.linalg.norm(v))

    if tensor.size <= SMALL:
        return [coordinate(i) for i in range(tensor.size)], None
    largest = np.argsort(np.abs(gradient), axis=None)[-LARGEST:]
    others = rng.permutation(np.setdiff1d(np.arange(tensor.size), largest))
    chosen = [*largest, *others[: COORDINATES - LARGEST]]
    spare = iter(others[COORDINATES - LARGEST :])

    def replace(line):
        return direction() if line.direction is not None else coordinate(next(spare))

    return [coordinate(i) for i in chosen] + [direction() for _ in range(DIRECTIONS)], replace


def _compare(row, lines, spare, gradient, rms, probe, rule):
    """The triples (line, predicted slope, numeric slope) of all lines that meet no kink."""
    first = [(line, line.along(gradient), probe.slope(line)) for line in lines]
    size = max(float(np.linalg.norm([value for _, _, value in first])), math.sqrt(len(first)) * rms)
    goal = 0.1 * rule.bound(size)
    if math.sqrt(sum((predicted - value) ** 2 for _, predicted, value in first)) <= goal:
        return first
    share = goal / math.sqrt(len(first))
    kept = []
    for line, predicted, value in first:
        for _ in range(5):
            if np.isfinite(value) and abs(predicted - value) > share:
                value = probe.settle(line, predicted, value, share, size / math.sqrt(len(first)))
            if value is not None:
                kept.append((line, predicted, value))
                break
            row.kinks += 1
            if spare is None:
                break
            line = spare(line)
            predicted, value = line.along(gradient), probe.slope(line)
    return kept


def _note_worst(row, kept):
    worst = -1.0
    for line, predicted, value in kept:
        if line.direction is not None:
            continue
        row.numeric[line.index] = value
        miss = abs(predicted - value)
        if miss > worst or not np.isfinite(miss):
            worst, row.worst, row.worst_analytic, row.worst_numeric = miss, line.index, predicted, value


