"""The fixture ``cupy``: for the length of one test, CuPy is there."""

import sys

import pytest

import numtrans.backend

from . import standin


def _forget():
    """Drop what numtrans keeps for "cupy": the loaded module, and entries of caches keyed by the backend."""
    numtrans.backend._loaded.pop("cupy", None)
    for name, module in list(sys.modules.items()):
        if not name.startswith("numtrans"):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, dict):
                for key in [k for k in value if k == "cupy" or (isinstance(k, tuple) and "cupy" in map(str, k))]:
                    del value[key]
            elif hasattr(value, "cache_clear"):
                value.cache_clear()


@pytest.fixture
def install(monkeypatch):
    """A function that puts a stand-in into ``sys.modules`` until the test ends; arguments as for `standin.modules`."""

    def install(**kwargs):
        _forget()
        for name, module in standin.modules(**kwargs).items():
            monkeypatch.setitem(sys.modules, name, module)
        standin.reset()
        return sys.modules["cupy"]

    yield install
    _forget()


@pytest.fixture
def cupy(install):
    """The stand-in, loaded by numtrans as its backend "cupy"."""
    module = install()
    assert numtrans.backend.load_backend("cupy") is module
    return module
