"""Arrays on the CPU (NumPy) and on the GPU (CuPy). The only file that imports CuPy.

There is no global switch: a layer asks for the namespace of the arrays that it was given (`get_xp`), and a model is
moved as a whole with ``model.to("cupy")``.
"""

import importlib

import numpy as np

from numtrans.errors import BackendError, DtypeError, MixedBackendError

_loaded, _NUMPY_ONLY = {"numpy": np}, {np.ndarray}

_CUPY_MISSING = (
    'backend "cupy" needs CuPy, which is not installed. For CUDA 13: pip install "cupy-cuda13x"; for CUDA 12: '
    'pip install "cupy-cuda12x". numtrans works without it on the CPU (backend "numpy").'
)
_NO_GPU = (
    'CuPy {version} is installed but no usable GPU was found ({why}). Look at the output of nvidia-smi and at '
    'CUDA_VISIBLE_DEVICES, or stay on backend "numpy".'
)
_CUPY_OLD = 'backend "cupy" needs CuPy 14 or newer, found {version}. pip install --upgrade "cupy-cuda13x" (or cuda12x).'


def backend_name(array):
    """``"numpy"`` or ``"cupy"``, by the type of `array`."""
    return "numpy" if type(array) is np.ndarray else type(array).__module__.partition(".")[0]


def load_backend(name):
    """The module `name`, ready for use.

    Parameters
    ----------
    name : {"numpy", "cupy"}

    Raises
    ------
    BackendError
        If CuPy is asked for and CuPy or a GPU is missing: the message says what to install or to look at.
    """
    if name in _loaded:
        return _loaded[name]
    if name != "cupy":
        raise BackendError(f"unknown backend {name!r}: expected 'numpy' or 'cupy'")
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise BackendError(_CUPY_MISSING) from error
    if int(cupy.__version__.partition(".")[0]) < 14:
        raise BackendError(_CUPY_OLD.format(version=cupy.__version__))
    try:
        count, why = cupy.cuda.runtime.getDeviceCount(), "CUDA reports 0 devices"
    except Exception as error:  # CuPy raises its own CUDARuntimeError here: a broken driver, no driver, no device
        count, why = 0, str(error)
    if count == 0:
        raise BackendError(_NO_GPU.format(version=cupy.__version__, why=why))
    _loaded["cupy"] = cupy
    return cupy


def get_xp(*arrays):
    """The array namespace (numpy or cupy) that all of `arrays` belong to.

    Raises
    ------
    TypeError
        If an argument is no array.
    MixedBackendError
        If NumPy and CuPy arrays are mixed.
    """
    if {type(array) for array in arrays} == _NUMPY_ONLY:  # the common case, without a look at names
        return np
    name = backend_name(arrays[0])
    for array in arrays[1:]:
        if backend_name(array) != name:
            raise MixedBackendError(_mixed(arrays))
    if name not in _loaded and name == "cupy":
        return load_backend("cupy")
    if name not in _loaded or not hasattr(arrays[0], "dtype"):
        raise TypeError(f"expected a numpy or cupy array, got {type(arrays[0]).__module__}.{type(arrays[0]).__name__}")
    return _loaded[name]


def _mixed(arrays):
    given = ", ".join(
        f"argument {i} is {backend_name(a)} {getattr(a, 'dtype', type(a).__name__)}{list(getattr(a, 'shape', ()))}"
        for i, a in enumerate(arrays)
    )
    return (
        f"cannot combine arrays of two backends: {given}. Move them first: "
        'model.to("cupy") moves parameters, numtrans.to_device(x, "cupy") moves data.'
    )


def to_device(array, name):
    """`array` on backend `name` (``"numpy"`` or ``"cupy"``); the same object when it is there already."""
    xp = load_backend(name)
    if backend_name(array) == name:
        return array
    return array.get() if name == "numpy" else xp.asarray(array)


def to_numpy(array):
    """`array` as a NumPy array. Waits for the GPU when the array lives there."""
    return array.get() if backend_name(array) == "cupy" else np.asarray(array)


def erf(x):
    """The error function, elementwise, on either backend."""
    if backend_name(x) == "cupy":
        return importlib.import_module("cupyx.scipy.special").erf(x)
    if x.dtype.char in "gG":
        raise DtypeError(f"erf, of GELU: input has dtype {x.dtype}, expected float16 to float64: SciPy has no other")
    from scipy.special import erf as scipy_erf  # imported on use: scipy.special doubles the time of the import

    return scipy_erf(x).astype(x.dtype, copy=False)  # of float16 it is float32 or float64
