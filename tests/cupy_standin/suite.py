"""Run a module on NumPy and on the stand-in for CuPy, and compare everything that comes out."""

import dataclasses

import numpy as np

from numtrans.backend import backend_name, to_device, to_numpy

from . import standin

TOLERANCE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}


@dataclasses.dataclass
class Run:
    """What one run of a module gave, as NumPy arrays, and the waits for the device during forward and backward."""

    module: object
    output: np.ndarray
    input_grads: list
    parameter_grads: dict
    synchronisations: int


def is_array(value):
    return hasattr(value, "dtype") and hasattr(value, "shape")


def move(value, backend):
    """`value` with every array in it on `backend`, also within tuples, lists and dicts."""
    if is_array(value):
        return to_device(value, backend)
    if isinstance(value, (tuple, list)):
        return type(value)(move(item, backend) for item in value)
    if isinstance(value, dict):
        return {name: move(item, backend) for name, item in value.items()}
    return value


def randomise(module, seed=7, noise=0.3):
    """Add noise to every parameter: gains of one and biases of zero hide errors."""
    rng = np.random.default_rng(seed)
    for parameter in module.parameters():
        parameter.data = parameter.data + noise * rng.standard_normal(parameter.data.shape).astype(parameter.data.dtype)


def run_once(module, inputs, kwargs=None, backend="numpy", dy_seed=11):
    """Move `module` and its inputs to `backend`, run forward and backward once with a fixed random dy; return a `Run`.

    A loss, whose backward takes no dy, is one whose class name ends in "Loss".
    """
    module.to(backend)
    inputs, kwargs = move(tuple(inputs), backend), move(kwargs or {}, backend)
    before = standin.synchronisations()
    output = module(*inputs, **kwargs)
    waits = standin.synchronisations() - before
    if type(module).__name__.endswith("Loss"):
        arguments = ()
    else:
        assert backend_name(output) == backend, f"{type(module).__name__}: the output is a {backend_name(output)} array"
        dy = np.random.default_rng(dy_seed).standard_normal(output.shape).astype(output.dtype)
        arguments = (to_device(dy, backend),)
    before = standin.synchronisations()
    grads = module.backward(*arguments)
    waits += standin.synchronisations() - before
    grads = list(grads) if isinstance(grads, tuple) else [grads]
    named = {name: parameter.grad for name, parameter in module.named_parameters()}
    for name, grad in [*named.items(), *(("input", grad) for grad in grads)]:
        assert grad is None or backend_name(grad) == backend, f"gradient of {name} is a {backend_name(grad)} array"
    assert module.pending == 0
    host = {name: None if grad is None else np.array(to_numpy(grad)) for name, grad in named.items()}
    grads = [None if grad is None else np.array(to_numpy(grad)) for grad in grads]
    return Run(module, np.array(to_numpy(output)) if is_array(output) else np.array(output), grads, host, waits)


def assert_close(name, actual, expected, terms=0.0):
    """Raise unless both are None or agree relative to the largest entry.

    `terms` is the size of what was added up: a gradient that is zero by mathematics, such as that of the keys' bias, is
    left with 16 rounding errors of its terms.
    """
    if expected is None or actual is None:
        assert actual is expected, f"{name}: {actual} on cupy, {expected} on numpy"
        return
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape} on cupy, {expected.shape} on numpy"
    assert actual.dtype == expected.dtype, f"{name}: dtype {actual.dtype} on cupy, {expected.dtype} on numpy"
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(actual, expected, err_msg=name)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(actual), finite, err_msg=name)
    tolerance = TOLERANCE[expected.real.dtype]
    scale = abs(expected[finite]).max(initial=1e-30)
    allowed = tolerance * scale + 16 * np.finfo(expected.dtype).eps * terms
    error = abs(actual[finite] - expected[finite]).max(initial=0)
    assert error <= allowed, (
        f"{name}: relative error {error / scale:.2g} between cupy and numpy, allowed {allowed / scale:.2g}"
    )


def run_both(make_module, inputs, kwargs=None, setup=randomise):
    """Build a module twice, run it on NumPy and on the stand-in, compare outputs and all gradients.

    Parameters
    ----------
    make_module : callable
        Returns a new module, the same one each time.
    inputs : sequence
        Positional arguments of forward. All NumPy arrays among them, of any dtype, are moved.
    kwargs : dict, optional
        Keyword arguments of forward, moved likewise.
    setup : callable, optional
        Called with each module before it is moved.

    Returns
    -------
    Run
        That on the stand-in, with its number of synchronisations.

    Raises
    ------
    AssertionError
        If anything differs by more than 1e-6 (float32) or 1e-12 (float64) of its largest entry, or is on the wrong
        backend.
    """
    runs = []
    for backend in ("numpy", "cupy"):
        module = make_module()
        if setup is not None:
            setup(module)
        runs.append(run_once(module, inputs, kwargs, backend))
    expected, actual = runs
    assert_close("output", actual.output, expected.output)
    assert len(actual.input_grads) == len(expected.input_grads)
    for i, (grad, grad_expected) in enumerate(zip(actual.input_grads, expected.input_grads, strict=True)):
        assert_close(f"gradient of input {i}", grad, grad_expected)
    assert actual.parameter_grads.keys() == expected.parameter_grads.keys()
    terms = max((float(abs(grad).max()) for grad in expected.parameter_grads.values() if grad is not None), default=0.0)
    for name, grad in expected.parameter_grads.items():
        assert_close(f"gradient of {name}", actual.parameter_grads[name], grad, terms)
    return actual

