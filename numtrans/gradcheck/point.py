"""The point at which gradients are checked: a private copy of a module, of its inputs and of its random state.

Nothing that belongs to the caller is touched: module, arrays and constants are copied before the first forward, and
each forward gets copies again, so that a module that writes into its inputs cannot spoil the numeric gradient.
"""

import copy
import inspect
import math

import numpy as np

from numtrans.backend import backend_name, get_xp, to_device, to_numpy
from numtrans.errors import ConfigError, DataError, DtypeError
from numtrans.module import no_grad


def is_array(value):
    """True for a NumPy or CuPy array (or NumPy scalar)."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def is_floating(value):
    """True for an array of real or complex floating point numbers."""
    return is_array(value) and value.dtype.kind in "fc"


def converted(value, dtype=None):
    """A copy of `value`; floating arrays, also inside lists, tuples and dicts, in `dtype` if one is given."""
    if is_array(value):
        return get_xp(value).array(value, dtype=dtype if dtype is not None and is_floating(value) else value.dtype)
    if type(value) in (list, tuple):
        return type(value)(converted(item, dtype) for item in value)
    if type(value) is dict:
        return {key: converted(item, dtype) for key, item in value.items()}
    return copy.deepcopy(value)


def first_bad_index(array):
    """Index of the first NaN or infinity in `array`, or None."""
    bad = ~np.isfinite(to_numpy(array))
    return tuple(int(i) for i in np.argwhere(bad)[0]) if bad.any() else None


class Point:
    """A module and its inputs in one dtype, at fixed random numbers, with a fixed cotangent.

    Parameters
    ----------
    module : Module
        Kept, not copied.
    inputs : list
        Positional arguments of forward; the floating arrays among them are differentiated.
    kwargs : dict
        Keyword arguments of forward: constants.
    cotangent : array or float, optional
        The ``R`` of the loss ``sum(y * R)``: a NumPy array of the shape of the output, or a float if that is a scalar.

    Attributes
    ----------
    state : dict
        Counters of the parts that draw random numbers; set again before each forward, so that masks stay fixed.
    """

    def __init__(self, module, inputs, kwargs, cotangent=None):
        self.module, self.inputs, self.kwargs, self.cotangent = module, list(inputs), dict(kwargs), cotangent
        self.state = module.random_state()

    @classmethod
    def of(cls, module, inputs, kwargs, *, seed=0, randomize=True):
        """A float64 copy of `module` and `inputs`, with generic parameters and a random cotangent.

        Parameters
        ----------
        module : Module
        inputs : sequence
        kwargs : dict
        seed : int
            Of the noise and the cotangent.
        randomize : bool
            Add noise to the parameters: of standard deviation 0.3 to vectors and scalars (so that gains are not 1 and
            biases not 0), of ``max(0.5 * rms(W), 0.3 / sqrt(W.shape[-2]))`` to a matrix ``W``.

        Raises
        ------
        DataError
            If an input or a parameter holds NaN or an infinity.
        ConfigError
            If there is nothing to differentiate.
        DtypeError
            If forward does not return one floating array or number.
        """
        point = cls(copy.deepcopy(module), [converted(x, np.float64) for x in inputs], converted(kwargs, np.float64))
        point.module.clear()
        point.module.astype(np.float64)
        point.module.zero_grad()
        for name, tensor in point.tensors().items():
            bad = first_bad_index(tensor)
            if bad is not None:
                kind = "input" if name in point.input_names() else "parameter"
                raise DataError(
                    f"gradcheck of {type(module).__name__}: {kind} {name} has {to_numpy(tensor)[bad]} at index {bad}, "
                    "expected finite numbers"
                )
        if not point.tensors():
            raise ConfigError(
                f"gradcheck of {type(module).__name__}: nothing to check, expected a floating array among the inputs "
                f"or a trainable parameter, got inputs of type {[type(x).__name__ for x in inputs]} and no parameter"
            )
        rng = np.random.default_rng(seed)
        if randomize:
            for parameter in point.parameters().values():
                add_noise(parameter, rng)
        y = point.forward()
        point.cotangent = rng.standard_normal(y.shape) if y.ndim else float(1 + rng.random())
        return point

    def astype(self, dtype):
        """A copy of this point in `dtype`."""
        module = copy.deepcopy(self.module)
        module.clear()
        module.zero_grad()
        module.astype(dtype)
        module.load_random_state(self.state)
        inputs = [converted(x, dtype) for x in self.inputs]
        return Point(module, inputs, converted(self.kwargs, dtype), self.cotangent)

    # ---- what is differentiated

    def input_names(self):
        """Name -> position of each input that is differentiated, named as in the signature of forward."""
        names = []
        for parameter in inspect.signature(self.module.forward).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
        names += [f"input{i}" for i in range(len(names), len(self.inputs))]
        taken = {name for name, _ in self.module.named_parameters()}
        return {
            (f"input {name}" if name in taken else name): i
            for i, (name, x) in enumerate(zip(names, self.inputs, strict=False))
            if is_floating(x)
        }

    def parameters(self):
        """Name -> parameter, for those that are trained."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def tensors(self):
        """Name -> array of all that is differentiated; a numeric difference writes into these arrays."""
        found = {name: self.inputs[i] for name, i in self.input_names().items()}
        found.update((name, p.data) for name, p in self.parameters().items())
        return found

    # ---- forward and backward

    def forward(self):
        """The output at this point as a NumPy array, with nothing saved."""
        self.module.load_random_state(self.state)
        with no_grad():
            return as_output(self.module, self.module(*converted(self.inputs), **converted(self.kwargs)))

    def dy(self, like):
        """The cotangent as it is handed to backward: in the dtype and on the backend of the output `like`."""
        if isinstance(self.cotangent, float):
            return self.cotangent
        return to_device(self.cotangent.astype(like.dtype), backend_name(like))

    def gradients(self):
        """All gradients of one forward and backward: name -> array or None (NumPy), and complaints about their form."""
        self.module.clear()
        self.module.zero_grad()
        self.module.load_random_state(self.state)
        y = self.module(*converted(self.inputs), **converted(self.kwargs))
        found, complaint = self.by_name(self.module.backward(self.dy(y)))
        for name, parameter in self.parameters().items():
            found[name] = parameter.grad
        return {name: None if g is None else np.array(to_numpy(g)) for name, g in found.items()}, complaint

    def by_name(self, returned):
        """What backward returned as a dict by input name, and a complaint (or None) if it is not one for each."""
        names = list(self.input_names())
        given = () if returned is None else tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
        complaint = None
        if len(given) != len(names) and not (returned is None and len(names) == 1):
            complaint = (
                f"backward returned {len(given)} gradient(s), expected {len(names)}, one for each floating input "
                f"({', '.join(names) or 'there is none'}). Pass what is a constant by keyword."
            )
        found = dict.fromkeys(names)
        for name, gradient in zip(names, given, strict=False):
            if gradient is not None and not is_array(gradient):
                complaint = f"the gradient of {name} is a {type(gradient).__name__}, expected an array"
                gradient = None
            found[name] = gradient
        return found, complaint


def add_noise(parameter, rng):
    """Make `parameter` generic (see `Point.of`)."""
    data = to_numpy(parameter.data)
    scale = 0.3
    if data.ndim >= 2:
        rms = math.sqrt(float(np.mean(data * data))) if data.size else 0.0
        scale = max(0.5 * rms, 0.3 / math.sqrt(max(1, data.shape[-2])))
    noise = scale * rng.standard_normal(data.shape)
    parameter.data = to_device(np.array(data + noise), backend_name(parameter.data))


def as_output(module, y):
    """`y` as a NumPy array; raises if it is not one floating array or number."""
    if isinstance(y, (float, complex)) or is_floating(y):
        return np.asarray(y if isinstance(y, (float, complex)) else to_numpy(y))
    name, what = type(module).__name__, f"dtype {y.dtype}" if is_array(y) else type(y).__name__
    raise DtypeError(f"gradcheck: {name}.forward returned {what}, expected one floating array or number")
