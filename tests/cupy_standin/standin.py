"""A stand-in for CuPy on machines without a GPU: NumPy inside, CuPy's refusals outside.

`modules()` returns what is to be put into ``sys.modules``; the fixture ``cupy`` in conftest.py does that. The class
below wraps a NumPy array and is deliberately no subclass of it, so that nothing passes that CuPy would refuse:

- implicit conversion to NumPy, NumPy arrays (also 0-d ones) and lists among the operands;
- names and keywords that CuPy 14.2 does not have: `cupy_api.json` was read off the real package;
- ``where=`` and ``initial=`` in reductions, ``ufunc.reduce`` but for add and multiply, ``ufunc.reduceat`` but for add;
- ``__index__``: a 0-d array is no list index and no ``range`` bound.

What CuPy does differently is done differently here: reductions and scalar indices give 0-d arrays, integer index arrays
that are out of range wrap around, ``a[i] = v`` keeps one of the values of a repeated index (here the last one).

``synchronisations()`` counts how often the host had to wait for the device: ``get``, ``float``, ``int``, ``bool``,
``item``, ``tolist``, printing, results whose size depends on the data (``nonzero``, boolean masks, ``unique`` ...), and
NumPy arrays or lists used as an index, which CuPy takes by copying them to the device.
"""

import functools
import json
import operator
import pathlib
import types

import numpy as np
import scipy.special

_API = json.loads((pathlib.Path(__file__).parent / "cupy_api.json").read_text())
_UFUNCS = frozenset(_API["ufuncs"].split())
_OTHER = frozenset(_API["other_names"].split())
_FUNCTIONS = {name: signature.split() for name, signature in _API["functions"].items()}
_METHODS = {name: signature.split() for name, signature in _API["methods"].items()}

# The size of the result depends on the values, so CuPy reads it back from the device.
_READS_BACK = frozenset(
    [
        "nonzero", "flatnonzero", "argwhere", "unique", "unique_all", "unique_counts", "unique_inverse",
        "unique_values", "extract", "compress", "bincount", "union1d", "intersect1d", "setdiff1d", "setxor1d",
        "trim_zeros", "ediff1d", "array_repr", "array_str", "array2string", "save",
    ]
)
# Ufuncs with an unbuffered, repeat-safe ``at``, and the dtypes for which the device has the atomic operation.
_SCATTER = {"add": "fFdDeiILQ", "subtract": "fFdDeiILQ", "maximum": "fdilIL", "minimum": "fdilIL"}

_count = 0


def synchronisations():
    """How often the host has waited for the device since the last `reset`."""
    return _count


def reset():
    """Set the counter of `synchronisations` to zero."""
    global _count
    _count = 0


def _synchronise():
    global _count
    _count += 1


# ---- between the wrapper and NumPy


def _refuse(value):
    raise TypeError(f"Unsupported type {type(value)}")


def _unwrap(value, refuse=(np.ndarray,)):
    """The NumPy value inside `value`, also within tuples, lists and dicts; what CuPy does not take is refused."""
    if isinstance(value, ndarray):
        return value._a
    if isinstance(value, refuse):
        _refuse(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_unwrap(item, refuse) for item in value)
    if isinstance(value, dict):
        return {name: _unwrap(item, refuse) for name, item in value.items()}
    return value


def _wrap(value):
    """NumPy arrays, and scalars as 0-d arrays, on the stand-in; also within tuples and lists."""
    if isinstance(value, (np.ndarray, np.generic)):
        return ndarray._of(np.asarray(value))
    if isinstance(value, (tuple, list)):
        items = [_wrap(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _wrap_or(out, value):
    """`out` itself where the caller gave one (``a is add(b, c, out=a)``), else the wrapped `value`."""
    return out if isinstance(out, ndarray) else _wrap(value)


def _check_call(name, parameters, args, kwargs):
    """Raise TypeError unless CuPy's signature takes this call."""
    named = [parameter for parameter in parameters if not parameter.startswith("*")]
    if not any(p.startswith("*") and not p.startswith("**") for p in parameters) and len(args) > len(named):
        raise TypeError(f"{name}() takes {len(named)} positional arguments but {len(args)} were given")
    if any(parameter.startswith("**") for parameter in parameters):
        return
    for keyword in kwargs:
        if keyword not in named:
            raise TypeError(f"{name}() got an unexpected keyword argument '{keyword}'")


def _prepare_index(array, key):
    """`key` as NumPy takes it, with integer index arrays wrapped around, as CuPy does in silence.

    Returns the key and whether it holds a boolean mask.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    masked = False
    for i, part in enumerate(parts):
        if isinstance(part, ndarray):
            parts[i] = part._a
        elif isinstance(part, (np.ndarray, list, tuple)):  # CuPy copies these to the device
            _synchronise()
            parts[i] = np.asarray(part) if np.size(part) else np.zeros(np.shape(part), np.int32)
        elif not (part is None or part is Ellipsis or isinstance(part, slice)):
            operator.index(part)  # only integers are left
    used = [_axes_of(part) for part in parts]
    axis = 0
    for i, part in enumerate(parts):
        if part is Ellipsis:
            axis = array.ndim - sum(used[i + 1 :])
            continue
        if isinstance(part, np.ndarray):
            if part.dtype.kind not in "iub":
                raise IndexError(
                    f"arrays used as indices must be of integer or boolean type. (actual: {part.dtype.type})"
                )
            masked = masked or part.dtype.kind == "b"
            if part.dtype.kind in "iu" and axis < array.ndim and array.shape[axis]:
                parts[i] = part % array.shape[axis]
        axis += used[i]
    return (tuple(parts) if isinstance(key, tuple) else parts[0]), masked


def _axes_of(part):
    """Number of axes of the indexed array that one part of a key uses."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1


# ---- the array


class ndarray:
    """What ``cupy.ndarray`` is: made by the functions of the module, not by calling the class with values."""

    __slots__ = ("__weakref__", "_a")
    __module__ = "cupy"
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, order="C"):
        self._a = np.zeros(shape, dtype, order)

    @classmethod
    def _of(cls, array):
        new = object.__new__(cls)
        new._a = array
        return new

    # -- to the host

    def __array__(self, dtype=None, copy=None):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def get(self, stream=None, order="C", out=None, blocking=True):
        """A copy in host memory."""
        _synchronise()
        if out is not None:
            out[...] = self._a
            return out
        return np.array(self._a, order=order)

    def item(self):
        return self.get().item()

    def tolist(self):
        return self.get().tolist()

    def tobytes(self, order="C"):
        return self.get().tobytes(order)

    def __float__(self):
        return float(self.get())

    def __int__(self):
        return int(self.get())

    def __complex__(self):
        return complex(self.get())

    def __bool__(self):
        return bool(self.get())

    def __repr__(self):
        return repr(self.get())

    def __str__(self):
        return str(self.get())

    def __format__(self, spec):
        return format(self.get(), spec)

    def __reduce__(self):
        return _from_host, (self.get(),)

    def set(self, array, stream=None):
        """Copy a NumPy array of the same dtype and shape into this one."""
        if not isinstance(array, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if (array.dtype, array.shape) != (self.dtype, self.shape):
            raise TypeError(f"{array.dtype}{array.shape} array cannot be set to {self.dtype}{self.shape} array")
        self._a[...] = array

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    # -- NumPy's two protocols, as CuPy serves them

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        name = ufunc.__name__
        if method != "__call__" or not (name in _UFUNCS or name == "matmul"):
            return NotImplemented
        if any(not isinstance(x, (ndarray, np.ndarray, *_SCALARS)) for x in inputs):
            return NotImplemented
        if name in _COMPARISONS:
            inputs = [x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs]
        if out is not None:
            if len(out) != 1:
                raise ValueError("The 'out' parameter must have exactly one array value")
            kwargs["out"] = out[0]
        return _lookup(name)(*inputs, **kwargs)

    def __array_function__(self, function, kinds, args, kwargs):
        path = function.__module__.split(".")[1:]
        if path not in ([], ["linalg"]) or any(kind not in (ndarray, np.ndarray) for kind in kinds):
            return NotImplemented
        try:
            own = _lookup(function.__name__) if not path else getattr(_linalg, function.__name__)
        except AttributeError:
            return NotImplemented
        return own(*args, **kwargs)

    # -- a container

    def __len__(self):
        if self._a.ndim == 0:
            raise TypeError("len() of unsized object")
        return len(self._a)

    def __iter__(self):
        if self._a.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self._a)))

    def __getitem__(self, key):
        key, masked = _prepare_index(self._a, key)
        if masked:
            _synchronise()  # the size of the result depends on the mask
        result = self._a[key]
        return _wrap(result)

    def __setitem__(self, key, value):
        key, masked = _prepare_index(self._a, key)
        value = _unwrap(value, refuse=(np.ndarray, list, tuple))
        if masked and isinstance(value, np.ndarray) and value.ndim:
            _synchronise()
        self._a[key] = value

    # -- attributes

    dtype = property(lambda self: self._a.dtype)
    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    nbytes = property(lambda self: self._a.nbytes)
    itemsize = property(lambda self: self._a.itemsize)
    strides = property(lambda self: self._a.strides)
    flags = property(lambda self: self._a.flags)
    T = property(lambda self: _wrap(self._a.T))
    mT = property(lambda self: _wrap(self._a.mT))
    base = property(lambda self: None if self._a.base is None else _wrap(self._a.base))
    device = property(lambda self: "<CUDA Device 0>")

    @property
    def shape(self):
        return self._a.shape

    @shape.setter
    def shape(self, shape):
        view = self._a.view()
        view.shape = shape
        self._a = view

    @property
    def real(self):
        return _wrap(self._a.real)

    @real.setter
    def real(self, value):
        self._a.real = _unwrap(value)

    @property
    def imag(self):
        return _wrap(self._a.imag)

    @imag.setter
    def imag(self, value):
        self._a.imag = _unwrap(value)

    # -- methods that need more than a call of NumPy's

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if subok is not None:
            raise TypeError("astype: subok is not supported")
        result = self._a.astype(dtype, order=order, casting=casting or "unsafe", copy=bool(copy))
        return self if result is self._a else _wrap(result)

    def take(self, indices, axis=None, out=None):
        if not isinstance(indices, ndarray) and np.ndim(indices):
            _synchronise()
        indices = indices._a if isinstance(indices, ndarray) else np.asarray(indices)
        return _wrap_or(out, np.take(self._a, indices, axis, _unwrap(out), mode="wrap"))

    def dot(self, b, out=None):
        if not isinstance(b, ndarray):
            raise TypeError(f"Argument 'b' has incorrect type (expected cupy.ndarray, got {type(b).__name__})")
        return _wrap_or(out, np.dot(self._a, b._a, _unwrap(out)))

    def repeat(self, repeats, axis=None):
        if isinstance(repeats, ndarray):
            _synchronise()
        return _wrap(np.repeat(self._a, _unwrap(repeats), axis))

    def sort(self, axis=-1, kind=None):
        self._a.sort(axis, _check_kind(kind))

    def argsort(self, axis=-1, kind=None):
        return _wrap(self._a.argsort(axis, _check_kind(kind)))

    def view(self, dtype=None, type=None):
        return _wrap(self._a.view() if dtype is None else self._a.view(dtype))

    def scatter_add(self, slices, value):
        _scatter("add", self, slices, value)


def _from_host(array):
    return ndarray._of(array)


def _check_kind(kind):
    if kind not in (None, "stable"):
        raise ValueError("kind can only be None or 'stable'")
    return "stable"  # CuPy sorts are stable


def _method(name):
    numpy_method, parameters = getattr(np.ndarray, name), _METHODS[name]

    @functools.wraps(numpy_method, assigned=("__name__", "__doc__"))
    def method(self, *args, out=None, **kwargs):
        if name not in ("reshape", "transpose"):  # these take a shape or axes one by one
            _check_call(name, parameters, args, kwargs)
        if out is not None:
            if "out" not in parameters:
                raise TypeError(f"{name}() got an unexpected keyword argument 'out'")
            kwargs["out"] = out
        if name == "nonzero":
            _synchronise()
        return _wrap_or(out, numpy_method(self._a, *_unwrap(args), **_unwrap(kwargs)))

    return method


_OWN = frozenset(vars(ndarray))
for _name in _METHODS:
    if _name not in _OWN and hasattr(np.ndarray, _name):
        setattr(ndarray, _name, _method(_name))


# ---- operators

_SCALARS = (bool, int, float, complex, np.generic)
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "lshift": "left_shift", "rshift": "right_shift", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "matmul": "matmul", "divmod": "divmod",
}  # fmt: skip
_COMPARE = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}
_UNARY = {"neg": "negative", "pos": "positive", "invert": "invert", "abs": "absolute"}


def _add_operator(method, ufunc, how):
    def operate(self, other):
        if isinstance(other, (str, type(None))):
            return NotImplemented
        if ufunc in _COMPARISONS and isinstance(other, np.ndarray) and other.ndim == 0:
            other = other.item()
        if how == "reflected":
            return _lookup(ufunc)(other, self)
        return _lookup(ufunc)(self, other, out=self) if how == "in place" else _lookup(ufunc)(self, other)

    setattr(ndarray, f"__{method}__", operate)


for _name, _ufunc in _BINARY.items():
    _add_operator(_name, _ufunc, "plain")
    _add_operator(f"r{_name}", _ufunc, "reflected")
    if _name not in ("matmul", "divmod"):  # CuPy has no __imatmul__ either: ``a @= b`` makes a new array
        _add_operator(f"i{_name}", _ufunc, "in place")
for _name, _ufunc in _COMPARE.items():
    _add_operator(_name, _ufunc, "plain")
for _name, _ufunc in _UNARY.items():
    setattr(ndarray, f"__{_name}__", functools.partialmethod(lambda self, _u: _lookup(_u)(self), _ufunc))


# ---- ufuncs


class ufunc:
    """What ``cupy.ufunc`` is: arrays and scalars only, keywords ``out``, ``dtype`` and ``casting`` only."""

    __module__ = "cupy"

    def __init__(self, name, function, nin=None, nout=1):
        self.__name__, self.name, self._function = name, f"cupy_{name}", function
        self.nin, self.nout = getattr(function, "nin", nin or 1), getattr(function, "nout", nout)

    def __repr__(self):
        return f"<ufunc '{self.name}'>"

    def __call__(self, *args, **kwargs):
        wrong = {key: value for key, value in kwargs.items() if key not in ("out", "dtype", "casting")}
        if wrong:
            raise TypeError(f"Wrong arguments {wrong}")
        if not self.nin <= len(args) <= self.nin + self.nout:
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        for value in (*args, *_as_tuple(kwargs.get("out"))):
            if value is not None and not isinstance(value, (ndarray, *_SCALARS)):
                _refuse(value)
        for out in (*args[self.nin :], *_as_tuple(kwargs.get("out"))):
            if out is not None and not isinstance(out, ndarray):
                raise TypeError(f"output must be a cupy.ndarray, got {type(out)}")
        with np.errstate(all="ignore"):  # a GPU warns of nothing
            result = self._function(*_unwrap(args), **_unwrap(kwargs))
        out = kwargs.get("out") if kwargs.get("out") is not None else (args[self.nin :] or (None,))[0]
        return out if isinstance(out, (ndarray, tuple)) else _wrap(result)

    def outer(self, a, b, **kwargs):
        a, b = asarray(a), asarray(b)
        return self(a.reshape(a.shape + (1,) * b.ndim), b, **kwargs)

    def at(self, a, indices, b=None):
        _scatter(self.__name__, a, indices, b)

    def reduce(self, array, axis=0, dtype=None, out=None, keepdims=False):
        return self._as_method("reduce", {"add": "sum", "multiply": "prod"})(
            array, axis=axis, dtype=dtype, out=out, keepdims=keepdims
        )

    def accumulate(self, array, axis=0, dtype=None, out=None):
        return self._as_method("accumulate", {"add": "cumsum", "multiply": "cumprod"})(
            array, axis=axis, dtype=dtype, out=out
        )

    def reduceat(self, array, indices, axis=0, dtype=None, out=None):
        if self.__name__ != "add":
            raise NotImplementedError(f"`{self.name}.reduceat` is not supported yet")
        return _wrap_or(out, np.add.reduceat(array._a, _unwrap(indices), axis, dtype, _unwrap(out)))

    def _as_method(self, method, names):
        if self.__name__ not in names:
            raise NotImplementedError(f"`{self.name}.{method}` is not supported yet")
        return getattr(ndarray, names[self.__name__])


def _as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def _scatter(name, a, indices, value):
    """``ufunc.at``: repeated indices all count."""
    if name not in _SCATTER:
        raise NotImplementedError(f"`cupy_{name}.at` is not supported yet")
    if a.dtype.char not in _SCATTER[name]:
        raise TypeError(f"scatter_{name} does not support {a.dtype}: there is no such atomic operation on the device")
    key, masked = _prepare_index(a._a, indices)
    if masked:
        _synchronise()
    getattr(np, name).at(a._a, key, _unwrap(value, refuse=(np.ndarray, list, tuple)))


# ---- functions of the module that need more than a call of NumPy's


def _host(value):
    """`value` as NumPy takes it in a call that may read host arrays: array() and asarray()."""
    return _unwrap(value, refuse=())


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, blocking=False):
    if subok:
        raise NotImplementedError
    if isinstance(obj, ndarray) and not copy and (dtype is None or obj.dtype == np.dtype(dtype)):
        return obj
    result = np.array(_host(obj), dtype=dtype, order=order, ndmin=ndmin)
    if result.dtype.kind not in "biufc":
        raise ValueError(f"Unsupported dtype {result.dtype}")
    return ndarray._of(result)


def asarray(a, dtype=None, order=None, copy=None, blocking=False):
    return array(a, dtype, copy=bool(copy), order=order or "K")


def ascontiguousarray(a, dtype=None):
    if isinstance(a, ndarray) and a.flags.c_contiguous and (dtype is None or a.dtype == np.dtype(dtype)):
        return a
    return array(a, dtype, order="C")


def asnumpy(a, stream=None, order="C", out=None, blocking=True):
    return a.get(stream, order, out) if isinstance(a, ndarray) else np.asarray(a, order=order)


def where(condition, x=None, y=None):
    if not isinstance(condition, ndarray):
        if isinstance(condition, np.ndarray):
            _refuse(condition)
        raise AttributeError(f"'{type(condition).__name__}' object has no attribute 'astype'")
    if (x is None) != (y is None):
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    if x is None:
        return condition.nonzero()
    for value in (x, y):
        if not isinstance(value, (ndarray, *_SCALARS)):
            _refuse(value)
    return _wrap(np.where(condition._a, _unwrap(x), _unwrap(y)))


def clip(a, a_min, a_max, out=None):
    return a.clip(a_min, a_max, out=out)


def take(a, indices, axis=None, out=None):
    return a.take(indices, axis, out)


def take_along_axis(a, indices, axis):
    if not isinstance(indices, ndarray):
        _refuse(indices)
    if axis is None:
        a, axis = a.ravel(), 0
    return _wrap(np.take_along_axis(a._a, indices._a % a.shape[axis], axis))


def put_along_axis(arr, indices, values, axis):
    if not isinstance(indices, ndarray) or isinstance(values, np.ndarray):
        _refuse(values if isinstance(indices, ndarray) else indices)
    if axis is None:
        raise NotImplementedError("put_along_axis: axis=None")
    np.put_along_axis(arr._a, indices._a % arr.shape[axis], _unwrap(values), axis)


def lexsort(keys):
    if not isinstance(keys, ndarray):
        raise AttributeError(f"'{type(keys).__name__}' object has no attribute 'ndim'")
    if keys.ndim > 2:
        raise NotImplementedError("Keys with the rank of three or more is not supported in lexsort")
    return _wrap(np.lexsort(keys._a))


def sort(a, axis=-1, kind=None):
    return _wrap(np.sort(a._a, axis, _check_kind(kind)))


def argsort(a, axis=-1, kind=None):
    return a.argsort(axis, kind)


def matmul(*args, out=None, **kwargs):
    for value in (*args, out):
        if value is not None and not isinstance(value, ndarray):
            _refuse(value)
    return _wrap_or(out, np.matmul(*_unwrap(args), out=_unwrap(out), **kwargs))


def einsum(*operands, **kwargs):
    wrong = sorted(set(kwargs) - {"dtype", "optimize"})
    if wrong:
        raise TypeError(f"Did not understand the following kwargs: {wrong}")
    return _wrap(np.einsum(*_unwrap(operands), **kwargs))


def get_array_module(*args):
    return _module if any(isinstance(arg, ndarray) for arg in args) else np


_SPECIAL = {
    function.__name__: function
    for function in (
        array, asarray, ascontiguousarray, asnumpy, where, clip, take, take_along_axis, put_along_axis, lexsort, sort,
        argsort, matmul, einsum, get_array_module, ndarray, ufunc, synchronisations, reset,
    )
}  # fmt: skip
_SPECIAL["asanyarray"] = asarray
# These answer on the host.
_PLAIN = frozenset([
    "ndim", "shape", "size", "iscomplexobj", "isrealobj", "isscalar", "result_type", "promote_types", "can_cast",
])


def _function(name):
    numpy_function, parameters = getattr(np, name), _FUNCTIONS[name]

    @functools.wraps(numpy_function, assigned=("__name__", "__doc__"), updated=())
    def function(*args, **kwargs):
        _check_call(name, parameters, args, kwargs)
        kwargs.pop("blocking", None)
        if name in _READS_BACK:
            _synchronise()
        with np.errstate(all="ignore"):
            result = numpy_function(*_unwrap(args), **_unwrap(kwargs))
        return result if name in _PLAIN else _wrap_or(kwargs.get("out"), result)

    return function


@functools.cache
def _lookup(name):
    """Attribute `name` of the module ``cupy``."""
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name in _UFUNCS and hasattr(np, name):
        return ufunc(name, getattr(np, name))
    if name in _FUNCTIONS and hasattr(np, name):
        return _function(name)
    if name in _OTHER and _is_shared(getattr(np, name, _module)):
        return getattr(np, name)
    if name in _UFUNCS or name in _FUNCTIONS or name in _OTHER:
        raise NotImplementedError(f"cupy.{name} exists but the stand-in does not provide it: add it to standin.py")
    raise AttributeError(f"module 'cupy' has no attribute '{name}'")


def _is_shared(value):
    """True for dtypes and constants, which CuPy takes from NumPy."""
    if isinstance(value, type):
        return issubclass(value, (np.generic, Exception)) or value in (np.dtype, np.finfo, np.iinfo, np.ndindex)
    return value is None or isinstance(value, float)


# ---- the modules


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _lookup(name)


def _norm(x, ord=None, axis=None, keepdims=False):
    return _wrap(np.linalg.norm(_unwrap(x), ord, axis, keepdims))


class CUDARuntimeError(RuntimeError):
    """What CuPy raises when the driver is missing or broken."""


def modules(version="14.2.0", devices=1):
    """The entries for ``sys.modules``: cupy, cupyx and what is below them.

    `devices` is the number of GPUs, or the message of the error that asking for it raises.
    """
    global _module, _linalg

    def device_count():
        if isinstance(devices, str):
            raise CUDARuntimeError(devices)
        return devices

    _module = _Module("cupy")
    _module.__version__ = version
    runtime = types.SimpleNamespace(
        getDeviceCount=device_count, deviceSynchronize=_synchronise, CUDARuntimeError=CUDARuntimeError
    )
    stream = types.SimpleNamespace(null=types.SimpleNamespace(synchronize=_synchronise))
    _module.cuda = types.SimpleNamespace(runtime=runtime, Stream=stream)
    _module.linalg = _linalg = types.SimpleNamespace(norm=_norm)
    special = types.ModuleType("cupyx.scipy.special")
    special.erf = ufunc("erf", scipy.special.erf)
    special.expit = ufunc("expit", scipy.special.expit)
    scipy_part, cupyx = types.ModuleType("cupyx.scipy"), types.ModuleType("cupyx")
    scipy_part.special, cupyx.scipy = special, scipy_part
    cupyx.scatter_add = ndarray.scatter_add
    cupyx.rsqrt = ufunc("rsqrt", lambda x, **kwargs: 1 / np.sqrt(x, **kwargs), nin=1)
    return {"cupy": _module, "cupyx": cupyx, "cupyx.scipy": scipy_part, "cupyx.scipy.special": special}


_module = _linalg = None
modules()
