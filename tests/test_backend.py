"""Backends: names, errors, conversions. What a GPU would do is tested with the stand-in of tests/cupy_standin."""

import subprocess
import sys

import numpy as np
import pytest

import numtrans
from numtrans import backend
from numtrans.backend import backend_name, erf, get_xp, load_backend, to_device, to_numpy
from numtrans.errors import BackendError, MixedBackendError, NumtransError
from numtrans.layers import Linear
from numtrans.module import no_grad
from numtrans.reductions import dot_last, mean_last, ones, rows, sum_last, sum_rows


class Foreign:
    """An array that says it is CuPy's."""

    dtype, shape, ndim = np.dtype(np.float32), (2, 3), 2


Foreign.__module__ = "cupy"


def test_numpy_needs_nothing():
    x = np.ones(3)
    assert load_backend("numpy") is np
    assert get_xp(x, x) is np
    assert backend_name(x) == backend_name(x[0]) == "numpy"
    assert to_device(x, "numpy") is x
    assert to_numpy(x) is x
    np.testing.assert_array_equal(to_numpy([1, 2]), [1, 2])


def test_numtrans_does_not_import_cupy():
    code = "import sys, numtrans.layers, numtrans.models; print('cupy' in sys.modules, 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_cupy_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it raises ImportError
    monkeypatch.setattr(backend, "_loaded", {"numpy": np})
    layer = Linear(2, 3)
    for ask in (lambda: load_backend("cupy"), lambda: layer.to("cupy"), lambda: to_device(np.ones(2), "cupy")):
        with pytest.raises(BackendError, match=r"not installed.*pip install \"cupy-cuda13x\".*cupy-cuda12x"):
            ask()
    assert backend_name(layer.W.data) == "numpy"


@pytest.mark.parametrize(("version", "devices", "message"), [
    ("13.6.0", 1, r"needs CuPy 14 or newer, found 13\.6\.0"),
    ("14.0.1", 0, r"CuPy 14\.0\.1 is installed but no usable GPU.*reports 0 devices.*nvidia-smi"),
    ("14.0.1", RuntimeError("driver is too old"), r"no usable GPU was found \(driver is too old\)"),
])  # fmt: skip
def test_cupy_that_cannot_be_used(version, devices, message, monkeypatch):
    class Runtime:
        @staticmethod
        def getDeviceCount():
            if isinstance(devices, Exception):
                raise devices
            return devices

    fake = type(sys)("cupy")
    fake.__version__, fake.cuda = version, type("cuda", (), {"runtime": Runtime})
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(backend, "_loaded", {"numpy": np})
    with pytest.raises(BackendError, match=message):
        load_backend("cupy")
    assert backend._loaded == {"numpy": np}  # asked again, it looks again


def test_unknown_backend():
    with pytest.raises(BackendError, match="unknown backend 'torch': expected 'numpy' or 'cupy'"):
        load_backend("torch")


@pytest.mark.parametrize("value", [[1.0], 1.0, "x", None])
def test_what_is_no_array(value):
    with pytest.raises(TypeError, match=rf"expected a numpy or cupy array, got builtins\.{type(value).__name__}"):
        get_xp(value)


def test_two_backends():
    message = r"argument 0 is numpy float64\[3\], argument 1 is cupy float32\[2, 3\].*model\.to.*numtrans\.to_device"
    with pytest.raises(MixedBackendError, match=message):
        get_xp(np.ones(3), Foreign())
    with pytest.raises(MixedBackendError, match=r"Linear: input is a cupy array, expected numpy.*numtrans\.to_device"):
        Linear(3, 2)(Foreign())
    assert issubclass(MixedBackendError, TypeError)
    assert issubclass(MixedBackendError, NumtransError)


def test_what_messages_and_the_design_name_is_there():
    assert numtrans.to_device is to_device
    assert numtrans.no_grad is no_grad


def test_erf():
    assert erf(np.array([0.0, 1.0, -1.0])) == pytest.approx([0, 0.8427007929497149, -0.8427007929497149], rel=1e-14)
    assert erf(np.ones(2, np.float32)).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_reductions(shape, dtype):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, *shape)).astype(dtype)
    close = dict(rtol=1e-5 if dtype == np.float32 else 1e-13, atol=1e-6 if dtype == np.float32 else 1e-14)
    for found, expected in (
        (sum_rows(a), a.reshape(-1, 5).sum(0)),
        (sum_last(a), a.sum(-1, keepdims=True)),
        (mean_last(a), a.mean(-1, keepdims=True)),
        (dot_last(a, b), (a * b).sum(-1, keepdims=True)),
        (rows(a), a.reshape(-1, 5)),
    ):
        assert found.dtype == dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, **close)


def test_ones_grow():
    for n in (3, 100, 7, 5000):
        vector = ones(np, n, np.float32)
        assert vector.shape == (n,)
        assert vector.dtype == np.float32
        assert (vector == 1).all()


def test_dot_of_complex_numbers_is_not_conjugated():
    a = np.array([[1j, 2.0]])
    assert dot_last(a, a) == pytest.approx(3)
