"""What backward must do besides being right: add up, keep out of others' arrays, leave nothing behind.

Each check runs on a copy of the point and yields one `Property`.
"""

import numpy as np

from numtrans.backend import get_xp, to_device, to_numpy
from numtrans.gradcheck.point import converted, is_array, is_floating
from numtrans.gradcheck.report import Property

CLOSE = 1e-9


def check_properties(point, gradients, complaint):
    """All properties of the module at `point`.

    Parameters
    ----------
    point : Point
    gradients : dict
        Name -> gradient, of one forward and backward.
    complaint : str or None
        What was wrong with the form of what backward returned.

    Returns
    -------
    list of Property
    """
    shapes = {name: tensor.shape for name, tensor in point.tensors().items()}
    wrong = [
        f"{name} {g.shape}, expected {tuple(shapes[name])}"
        for name, g in gradients.items()
        if g is not None and g.shape != tuple(shapes[name])
    ]
    found = [
        _property("one gradient for each floating input", complaint or ""),
        _property("gradients have the shapes of their tensors", ", ".join(wrong)),
        _property("forward is repeatable", _repeatable(point)),
    ]
    for names, check in (
        (("forward leaves its inputs alone", "backward leaves inputs, dy and output alone", "nothing is left saved",
          "parameter gradients accumulate", "a second run agrees"), _two_runs),
        (("two forwards, then two backwards in reverse",), _last_in_first_out),
    ):
        try:
            details = check(point.astype(np.float64))
        except Exception as error:  # a student's module may fail in any way in its second run; the report says how
            details = [f"{type(error).__name__}: {error}"] * len(names)
        found += [_property(name, detail) for name, detail in zip(names, details, strict=True)]
    return found


def _property(name, detail):
    return Property(name, not detail, detail)


def _repeatable(point):
    first, second = point.forward(), point.forward()
    if first.shape != second.shape or not np.allclose(first, second, rtol=1e-12, atol=1e-12, equal_nan=True):
        return (
            "two forwards from the same inputs and the same random state differ. Draw random numbers from a counter "
            "(see Dropout) and keep no state that changes the output"
        )
    return ""


def _arrays(value):
    """All arrays in `value`, also inside lists, tuples and dicts."""
    if is_array(value):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [a for item in value for a in _arrays(item)] if isinstance(value, (list, tuple, type({}.values()))) else []


class _Run:
    """One forward and one backward that keep every array the module was given, and its bytes."""

    def __init__(self, point, inputs=None, dy=None):
        self.point = point
        self.inputs = converted(point.inputs if inputs is None else inputs)
        self.kwargs = converted(point.kwargs)
        self.given = _arrays(self.inputs) + _arrays(self.kwargs)
        self.data = {name: p.data for name, p in point.module.named_parameters()}
        self.before = _bytes(self.given)
        self.data_before = _bytes(self.data.values())
        self.y = point.module(*self.inputs, **self.kwargs)
        self.y_before = _bytes([self.y])
        self.dy = point.dy(self.y) if dy is None else dy
        self.dy_before = _bytes([self.dy])

    def backward(self):
        self.returned, _ = self.point.by_name(self.point.module.backward(self.dy))
        self.gradients = _copies(self.returned)
        return self.gradients

    def touched(self):
        """Names of what no longer has the bytes that it had."""
        checks = [
            ("an input", self.given, self.before),
            ("dy", [self.dy], self.dy_before),
            ("the output", [self.y], self.y_before),
            ("the data of a parameter", self.data.values(), self.data_before),
        ]
        return [name for name, arrays, before in checks if _bytes(arrays) != before]


def _bytes(arrays):
    return [to_numpy(a).tobytes() if is_array(a) else a for a in arrays]


def _copies(gradients):
    return {name: None if g is None else np.array(to_numpy(g)) for name, g in gradients.items()}


def _parameter_gradients(point):
    return _copies({name: p.grad for name, p in point.parameters().items()})


def _two_runs(point):
    """Details on: forward leaves inputs alone, backward too, nothing saved, accumulation, second run."""
    module = point.module
    run = _Run(point)
    forward_touched = [name for name in run.touched() if name in ("an input", "the data of a parameter")]
    first = run.backward()
    once = _parameter_gradients(point)
    touched = run.touched()
    backward_touched = [name for name in touched if name not in forward_touched]
    pending = module.pending
    module.load_random_state(point.state)
    again = _Run(point)
    second = again.backward()
    twice = _parameter_gradients(point)
    later = [name for name in run.touched() if name not in touched]

    details = [f"it writes into {' and '.join(forward_touched)}" if forward_touched else ""]
    texts = [f"it writes into {' and '.join(backward_touched)}"] if backward_touched else []
    if later:
        texts.append(
            f"a second run writes into {' and '.join(later)} of the first: an array was kept as a gradient or a saved "
            "value without a copy"
        )
    changed = [n for n, g in _copies(run.returned).items() if g is not None and g.tobytes() != first[n].tobytes()]
    if changed:
        texts.append(f"a second run writes into the gradient of {', '.join(changed)} that the first returned")
    details.append("; ".join(texts))
    details.append(f"{pending} forward(s) still have saved values after backward" if pending else "")
    wrong = [
        _accumulation(name, once[name], twice[name])
        for name in once
        if once[name] is not None and not _close(twice[name], 2 * once[name])
    ]
    details.append("; ".join(wrong))
    details.append(_differing(second, first))
    return details


def _accumulation(name, once, twice):
    if _close(twice, once):
        return f"the gradient of {name} is replaced by the second backward, not added to: use add_grad (+=, not =)"
    return f"after two backwards the gradient of {name} is not twice that of one"


def _last_in_first_out(point):
    """Two forwards from different inputs, then two backwards in reverse, against each pair alone."""
    module, rng = point.module, np.random.default_rng(1)
    others = [_moved(x, rng) for x in point.inputs]
    run_a = _Run(point)
    other_dy = _moved(run_a.dy, rng)
    state_b = module.random_state()
    run_b = _Run(point, others, other_dy)
    got_b, got_a = run_b.backward(), run_a.backward()
    got = _parameter_gradients(point)

    module.clear()
    module.zero_grad()
    expected = []
    for state, inputs, dy in ((point.state, None, None), (state_b, others, other_dy)):
        module.load_random_state(state)
        expected.append(_Run(point, inputs, dy).backward())
    both = _parameter_gradients(point)
    wrong = _differing(got_a, expected[0]) or _differing(got_b, expected[1]) or _differing(got, both)
    return [wrong and f"{wrong}. Keep what backward needs with self.save and take it with saved()"]


def _moved(x, rng):
    if isinstance(x, float):
        return x * 1.5
    if not is_floating(x):
        return x
    return x + to_device(0.1 * rng.standard_normal(x.shape), "numpy" if get_xp(x) is np else "cupy")


def _close(a, b):
    if a is None or b is None or a.shape != b.shape:
        return a is None and b is None
    return bool(np.linalg.norm((a - b).ravel()) <= CLOSE * np.linalg.norm(b.ravel()) + 1e-12)


def _differing(got, expected):
    wrong = [name for name in expected if not _close(got[name], expected[name])]
    return f"the gradient of {', '.join(wrong)} differs from that of a single run" if wrong else ""


def float32_errors(point, tolerance):
    """Compare the float32 gradients with the float64 ones, at numbers that float32 holds exactly.

    Returns
    -------
    errors : dict
        Name -> ``||g32 - g64|| / (||g64|| + 0.1 * G)`` with ``G`` the largest ``||g64||`` of all tensors, which keeps a
        gradient that is zero but for rounding from failing.
    prop : Property
        Whether float32 stays float32, forward and backward.
    """
    single = point.astype(np.float32)
    exact = single.astype(np.float64)
    reference, _ = exact.gradients()
    y = single.module(*converted(single.inputs), **converted(single.kwargs))
    single.module.clear()
    got, _ = single.gradients()
    promoted = {name: g.dtype for name, g in got.items() if g is not None and g.dtype != np.float32}
    if is_array(y) and y.dtype != np.float32:
        promoted = {"the output": y.dtype, **promoted}
    detail = ", ".join(f"{name} is {dtype}" for name, dtype in promoted.items())
    if detail:
        detail += ". Use Python scalars for constants (math.sqrt, not np.sqrt) and the input's dtype for new arrays"
    norms = {name: float(np.linalg.norm(g)) for name, g in reference.items() if g is not None}
    largest = max(norms.values(), default=0.0)
    errors = {}
    for name, norm in norms.items():
        if got[name] is not None and got[name].shape == reference[name].shape:
            difference = float(np.linalg.norm(got[name].astype(np.float64) - reference[name]))
            errors[name] = difference / (norm + 0.1 * largest or 1.0)  # if all are 0, there is no other scale
    return errors, Property("float32 stays float32", not detail, detail)
