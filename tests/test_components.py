"""The list behind `numtrans gradcheck --all`: every component passes, and every public layer and block is on it."""

import pytest

import numtrans.blocks
import numtrans.layers
import numtrans.models
from numtrans.blocks import Decoder, Encoder
from numtrans.components import components
from numtrans.gradcheck import gradcheck
from numtrans.module import Module

ALL = components()
MODELS = [value for value in vars(numtrans.models).values() if isinstance(value, type) and issubclass(value, Module)]
WHOLE = (Encoder, Decoder, *MODELS)  # their complex step is left to the command
PARTS = [component for component in ALL if component.analytic and not isinstance(component.module, WHOLE)]


@pytest.mark.parametrize("component", ALL, ids=[component.name for component in ALL])
def test_gradients(component):
    report = gradcheck(component.module, *component.inputs, **component.kwargs)
    assert report, str(report)
    assert all(row.error <= 1e-7 for row in report.rows)
    assert not any(row.float32_error > 1e-5 for row in report.rows)  # NaN where a tensor has no gradient


@pytest.mark.parametrize("component", PARTS, ids=[component.name for component in PARTS])
def test_complex_step(component):
    report = gradcheck(component.module, *component.inputs, method="complex", **component.kwargs)
    assert report, str(report)
    assert all(row.error <= 1e-12 for row in report.rows)


def test_every_public_layer_and_block_is_on_the_list():
    parts = {type(part) for component in ALL for part in component.module.modules()}
    public = {value for value in vars(numtrans.layers).values() if isinstance(value, type)}
    public = (public | {value for value in vars(numtrans.blocks).values() if isinstance(value, type)}) - {Module}
    assert {kind.__name__ for kind in public if issubclass(kind, Module)} <= {kind.__name__ for kind in parts}


def test_every_model_is_on_the_list():
    assert set(MODELS) == {type(component.module) for component in ALL} & set(MODELS)
    assert len(MODELS) == 6


def test_names_are_unique():
    names = [component.name for component in ALL]
    assert len(set(names)) == len(names)
