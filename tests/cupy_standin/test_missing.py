"""Asking for CuPy where it cannot be used says what to do; mixing two backends says it too."""

import sys

import numpy as np
import pytest

from numtrans.backend import get_xp, load_backend, to_device
from numtrans.errors import BackendError, MixedBackendError
from numtrans.module import Module, Parameter


class Scale(Module):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(np.ones(2, np.float32))


@pytest.fixture
def no_cupy(install, monkeypatch):
    """CuPy cannot be imported, wherever this runs."""
    install()
    monkeypatch.setitem(sys.modules, "cupy", None)


@pytest.mark.parametrize(
    "ask", [lambda: load_backend("cupy"), lambda: to_device(np.ones(2), "cupy"), lambda: Scale().to("cupy")]
)
def test_without_cupy_both_packages_are_named(no_cupy, ask):
    with pytest.raises(BackendError) as error:
        ask()
    for word in ("cupy-cuda12x", "cupy-cuda13x", "pip install", "CUDA 12", "CUDA 13"):
        assert word in str(error.value)


@pytest.mark.parametrize("devices", [0, "cudaErrorInsufficientDriver: CUDA driver version is insufficient"])
def test_cupy_without_a_gpu(install, devices):
    install(devices=devices)
    with pytest.raises(BackendError) as error:
        load_backend("cupy")
    for word in ("14.2.0", "GPU", "nvidia-smi", "CUDA_VISIBLE_DEVICES", str(devices)):
        assert word in str(error.value)
    with pytest.raises(BackendError):  # a failure is not remembered as a success
        load_backend("cupy")


@pytest.mark.parametrize("version", ["13.6.0", "9.0.0b1"])
def test_cupy_too_old(install, version):
    install(version=version)
    with pytest.raises(BackendError, match="14 or newer") as error:
        load_backend("cupy")
    assert version in str(error.value)
    assert "upgrade" in str(error.value)


@pytest.mark.parametrize("version", ["14.0.0", "14.2.0", "15.0.0rc1"])
def test_cupy_new_enough(install, version):
    module = install(version=version)
    assert load_backend("cupy") is module


def test_a_model_that_could_not_be_moved_is_unchanged(no_cupy):
    module = Scale()
    with pytest.raises(BackendError):
        module.to("cupy")
    assert isinstance(module.weight.data, np.ndarray)


def test_mixing_names_both_and_the_cure(cupy):
    with pytest.raises(MixedBackendError) as error:
        get_xp(np.ones((2, 3), np.float32), cupy.ones(3))
    for word in ("argument 0 is numpy float32[2, 3]", "argument 1 is cupy float64[3]", 'model.to("cupy")', "to_device"):
        assert word in str(error.value)


def test_mixing_is_noticed_by_the_checks_of_a_module(cupy):
    module = Scale().to("cupy")
    with pytest.raises(MixedBackendError, match="x is a numpy array, expected cupy"):
        module.check_floating("x", np.ones(2, np.float32), module.weight.data)
