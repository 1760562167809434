"""What is probably wrong with a gradient: simple mistakes are imitated on the right one until they fit.

Nothing here knows a layer. The evidence is the analytic gradient, the full numeric one, the shares of the numeric one
that come from each slice of the output, and the arrays and numbers that the module was given or holds.
"""

import itertools
import math

import numpy as np

from numtrans.backend import to_numpy
from numtrans.gradcheck.numeric import Line
from numtrans.gradcheck.point import is_array

FIT = 1e-5
NEAR_ONE = 1e-4  # a factor closer to one than this would print as 1


def fits(a, b):
    """True if the arrays agree to numeric accuracy, and are not just both zero."""
    size = np.linalg.norm(b)
    return bool(size > 1e-8 and np.linalg.norm(a - b) <= FIT * size)


class Case:
    """One failing tensor with all that is known around it."""

    def __init__(self, point, row, rows, y0):
        self.point, self.row, self.rows, self.y0 = point, row, rows, y0
        self.analytic, self.numeric, self.shares = row.analytic, row.numeric, row.shares
        self.constants = [to_numpy(x) for x in point.inputs if is_array(x) and x.dtype.kind in "iu"]
        self.known = {name: to_numpy(t) for name, t in point.tensors().items()}
        self.known["the output"] = y0

    def sizes(self):
        """Text -> number for every axis that a factor could come from."""
        shapes = {name: a.shape for name, a in self.known.items()}
        shapes.update({f"integer input {i}": a.shape for i, a in enumerate(self.constants)})
        found = {}
        for name, shape in shapes.items():
            for axis, n in enumerate(shape):
                found.setdefault(n, f"the size {n} of axis {axis} of {name}")
            for end in range(2, len(shape) + 1):
                n = math.prod(shape[:end])
                found.setdefault(n, f"the size {n} of axes 0 to {end - 1} of {name}")
        return {text: n for n, text in found.items() if n > 1}

    def draws(self):
        """True if forward draws random numbers: a dropout with p = 0 does not."""
        if self.point.state:
            self.point.forward()
        return self.point.module.random_state() != self.point.state

    def numbers(self):
        """Text -> number for every float that the module or a part of it holds."""
        found = {}
        for path, module in self.point.module.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, float) and value not in (0.0, 1.0):
                    found[f"{path}.{name}" if path else name] = value
        return found


def diagnose(point, rows, properties, y0):
    """Plain sentences on what is probably wrong; none if all passes.

    Parameters
    ----------
    point : Point
    rows : list of Row
        Those of failing tensors with their full numeric gradient, where the tensor is not too large for that.
    properties : list of Property
    y0 : ndarray
        The output at the point.
    """
    sentences = [f"{p.name}: {p.detail}." for p in properties if not p.passed]
    failed = [row for row in rows if not row.passed]
    if any(row.verdict == "wrong" for row in failed) and _coarse(point, y0):
        sentences.append(
            "The output moves in steps of float32 size when an input moves a little, so numeric differences mean "
            "nothing: is there a float32 cast or constant inside forward?"
        )
        return sentences
    for row in failed:
        sentences += [f"{row.name}: {text}" for text in _about(point, row, rows, y0)]
    return sentences


def _about(point, row, rows, y0):
    if row.verdict.startswith("float32"):
        return ["the float64 gradient is right and the float32 one is not: does a constant or a sum lose precision?"]
    if row.analytic is None or (row.checked == 0 and row.verdict != "wrong"):
        return [f"{row.verdict}."]
    if row.verdict == "no gradient":
        return ["backward gives no gradient (None), and the right one is not zero."]
    if row.shares is None or not np.isfinite(row.numeric).all():
        return _about_sample(row)
    case = Case(point, row, rows, y0)
    for hypothesis in HYPOTHESES:
        found = hypothesis(case)
        if found:
            return found
    a, n = case.analytic.ravel(), case.numeric.ravel()
    cosine = float(a @ n) / max(float(np.linalg.norm(a) * np.linalg.norm(n)), 1e-300)
    return [f"no simple cause fits; its cosine with the right gradient is {cosine:.4f}."]


def _about_sample(row):
    """For a large tensor: what the checked coordinates alone can tell."""
    known = np.isfinite(row.numeric)
    a, n = row.analytic[known], row.numeric[known]
    if not a.any():
        return ["the gradient is zero at every checked coordinate, and the right one is not."]
    factor = float(a @ n) / max(float(n @ n), 1e-300)
    if fits(a, factor * n):
        return [f"at the checked coordinates the gradient is {_times(factor)} times the right one."]
    return ["wrong at the checked coordinates; check a smaller instance for a diagnosis."]


def _zero(case):
    if not case.analytic.any():
        return ["the gradient is zero everywhere, and the right one is not: is a path missing?"]
    if np.linalg.norm(case.numeric) < 1e-8:
        return ["the right gradient is zero, the one from backward is not: the output does not depend on this tensor."]
    return None


def _factor(case):
    a, n = case.analytic, case.numeric
    factor = float(np.sum(a * n) / np.sum(n * n))
    if not fits(a, factor * n):
        return None
    if abs(factor + 1) < FIT:
        return ["the sign is wrong: the gradient is minus the right one."]
    names = _factor_names(abs(factor), case)
    meaning = f" ({' or '.join(names[:3])})" if names else ""
    sign = " and the sign is wrong" if factor < 0 else ""
    hint = ": a mean where a sum is right?" if any("1 / the size" in text for text in names) else "."
    if not names and abs(factor - 1) < NEAR_ONE:
        hint = ": nearly right, is an eps in another place than in forward?"
    return [f"the gradient is {_times(factor)} times the right one{meaning}{sign}{hint}"]


def _times(factor):
    """The factor as text that shows how far it is from one."""
    return f"({factor:.9f})" if abs(factor - 1) < NEAR_ONE else f"{factor:.6g}"


def _factor_names(factor, case):
    def equal(value):
        return abs(factor - value) < FIT * factor

    names = [text for text, value in (("two", 2.0), ("one half", 0.5)) if equal(value)]
    for text, n in case.sizes().items():
        forms = {text: n, f"1 / {text}": 1 / n, f"the root of {text}": math.sqrt(n),
                 f"1 / the root of {text}": 1 / math.sqrt(n)}
        names += [form for form, value in forms.items() if equal(value)]
    for text, v in case.numbers().items():
        name = f"{text} ({v:g})"
        forms = {name: v, f"1 / {name}": 1 / v, f"1 - {name}": 1 - v, f"1 / (1 - {name})": 1 / (1 - v)}
        names += [form for form, value in forms.items() if equal(abs(value))]
    return names


def _rearranged(case):
    a, n = case.analytic, case.numeric
    for order in itertools.permutations(range(n.ndim)) if n.ndim <= 4 else ():
        if order != tuple(range(n.ndim)) and n.transpose(order).shape == a.shape and fits(a, n.transpose(order)):
            if n.ndim == 2:
                return ["the gradient is the transpose of the right one."]
            return [f"the axes of the gradient are permuted: it is the right one transposed by {order}."]
    for axis in range(n.ndim):
        if fits(a, np.flip(n, axis)):
            return [f"the gradient is the right one reversed along axis {axis}."]
        for shift in (1, -1):
            rolled = np.roll(n, shift, axis)
            inner = tuple(slice(1, -1) if k == axis else slice(None) for k in range(n.ndim))
            if fits(a, rolled) or (n.shape[axis] > 3 and fits(a[inner], rolled[inner])):
                return [f"the gradient is the right one shifted by {shift:+d} along axis {axis}."]
    return None


def _swapped(case):
    for other in case.rows:
        if other is case.row or other.shape != case.row.shape or other.numeric is None:
            continue
        if fits(case.analytic, other.numeric):
            return [f"this is the right gradient of {other.name}: are two swapped, or in the wrong order?"]
    return None


def _part_of_output(case):
    for axis, shares in enumerate(case.shares):
        n = shares.shape[-1]
        if n < 2:
            continue
        for i, text in ((n - 1, "the last"), (0, "the first")):
            if fits(case.analytic, shares[..., i]):
                return [f"only {text} entry of axis {axis} of the output counts: is a sum over this axis missing?"]
    return None


def _left_out(case):
    for axis, shares in enumerate(case.shares):
        for i in range(shares.shape[-1]):
            if fits(case.analytic, case.numeric - shares[..., i]):
                return [f"entry {i} of axis {axis} of the output is left out."]
    return None


def _repeated_ids(case):
    a, n = case.analytic, case.numeric
    if a.ndim < 1 or not case.constants or case.row.kind != "parameter":  # ids name rows of a table, not of an input
        return None
    rows = np.flatnonzero(np.abs(a - n).reshape(len(a), -1).max(axis=1) > FIT * np.abs(n).max())
    for ids in case.constants:
        values, counts = np.unique(ids, return_counts=True)
        repeated = values[counts > 1]
        if rows.size and set(rows) <= set(repeated.tolist()):
            return [
                f"wrong only for ids that occur more than once ({_some(rows)}): repeated ids must add up; "
                "dW[ids] += keeps only one of them."
            ]
    return None


def _redrawn_mask(case):
    a, n = case.analytic, case.numeric
    small = 1e-7 * np.abs(n).max()
    if case.draws() and np.any((np.abs(a) <= small) != (np.abs(n) <= small)):
        return ["other entries are zero than in the right gradient, and the module draws random numbers: is the mask "
                "drawn again in backward instead of kept from forward?"]
    return None


def _missing_projection(case):
    a, n = case.analytic, case.numeric
    for axis in reversed(range(n.ndim)):
        if n.shape[axis] < 2:
            continue
        text = "the last axis" if axis == n.ndim - 1 else f"axis {axis}"
        if _orthogonal(n, np.ones_like(n), axis) and not _orthogonal(a, np.ones_like(a), axis):
            end = "is the path through the mean, or through a normalizing sum, missing?"
            return [f"the gradient should sum to zero over {text}, and does not: {end}"]
    x = case.known[case.row.name]
    if n.ndim and n.shape[-1] > 1:
        centered = x - x.mean(axis=-1, keepdims=True)
        for text, v in (("the input", x), ("the centered input", centered)):
            if _orthogonal(n, v, -1) and not _orthogonal(a, v, -1):
                return [f"the gradient should be orthogonal to {text} over the last axis, and is not: is the path "
                        "through the norm or the variance missing?"]
    return None


def _orthogonal(g, v, axis):
    products = np.abs(np.sum(g * v, axis=axis))
    sizes = np.sqrt(np.sum(g * g, axis=axis) * np.sum(v * v, axis=axis))
    return bool(sizes.max() > 1e-8 and products.max() <= 1e-3 * sizes.max())


def _known_factor(case):
    """Is the right gradient, entry by entry, the analytic one times or divided by an array at hand?"""
    a, n = case.analytic, case.numeric
    for name, array in case.known.items():
        try:
            if np.broadcast_shapes(array.shape, a.shape) != a.shape or array.size < 2:
                continue
        except ValueError:
            continue
        name = "the tensor itself" if name == case.row.name else name
        if fits(a * array, n):
            return [f"the factor {name} is missing: the gradient times it is the right one."]
        if fits(n * array, a):
            return [f"the gradient has the factor {name} too often: it is the right one times it."]
    return None


def _missing_term(case):
    a, n, dy = case.analytic, case.numeric, case.point.cotangent
    if np.shape(dy) == a.shape:
        if fits(n - a, dy):
            return ["dy itself is missing as a term: is a residual (identity) path left out?"]
        if fits(a - n, dy):
            return ["dy itself is a term too many: is a residual (identity) path counted twice?"]
    for factor in (1.0, -1.0):
        if fits(a - n, factor * case.known[case.row.name]):
            return ["the tensor itself is added to or subtracted from its gradient."]
    return None


def _localized(case):
    a, n = case.analytic, case.numeric
    wrong = np.abs(a - n) > FIT * np.abs(n).max()
    for axis in range(a.ndim):
        size = a.shape[axis]
        bad = np.flatnonzero(wrong.any(axis=tuple(k for k in range(a.ndim) if k != axis)))
        if 0 < bad.size <= size // 2:
            return [f"wrong only at {_some(bad)} of axis {axis} (of {size}); the rest is right."]
    return None


def _varying_factor(case):
    """Is the ratio of the two gradients the same along all axes but one?"""
    a, n = case.analytic, case.numeric
    for axis in reversed(range(a.ndim)) if a.ndim >= 2 else ():
        others = tuple(k for k in range(a.ndim) if k != axis)
        weight = np.sum(n * n, axis=others, keepdims=True)
        ratio = np.sum(a * n, axis=others, keepdims=True) / np.where(weight > 0, weight, 1)
        if a.shape[axis] < math.prod(a.shape) and fits(a, ratio * n):
            return [f"the gradient is the right one times a factor that depends only on axis {axis}."]
    return None


def _some(indices):
    shown = ", ".join(str(int(i)) for i in indices[:6])
    return f"[{shown}{', ...' if len(indices) > 6 else ''}]"


HYPOTHESES = (
    _zero,
    _factor,
    _rearranged,
    _swapped,
    _part_of_output,
    _repeated_ids,
    _known_factor,
    _missing_term,
    _redrawn_mask,
    _missing_projection,
    _localized,
    _varying_factor,
    _left_out,
)


def _coarse(point, y0):
    """True if the output moves in steps of float32 size: a smooth float64 function is straight on so short a line."""
    scale = float(np.linalg.norm(y0))
    gaps = []
    for seed, tensor in enumerate(point.tensors().values()):
        v = np.random.default_rng(seed).standard_normal(tensor.shape)
        line = Line(point, tensor, direction=v / max(float(np.linalg.norm(v)), 1e-300))
        gaps.append(float(np.linalg.norm(line.at(1e-6) - 2 * y0 + line.at(-1e-6))))
    return bool(scale > 0 and max(gaps, default=0.0) > 1e-9 * scale and min(gaps) > 1e-9 * scale)
