"""numtrans agrees with the values that `record.py` took from PyTorch in float64. Needs no PyTorch."""

import inspect

import golden_file
import numpy as np
import pytest

from numtrans import blocks, layers, losses, models, optim
from numtrans.module import Module, Parameter

FILES = {path.stem: golden_file.read(path) for path in sorted(golden_file.VALUES.glob("*.safetensors"))}
MODULES = {name: file for name, file in FILES.items() if "module" in file[1]}
OPTIMIZERS = {name: file for name, file in FILES.items() if "optimizer" in file[1]}
CLIPPING = {name: file for name, file in FILES.items() if "max_norm" in file[1]}

# Dropout draws its own numbers; TiedLinear (in the models) and Identity (in the bilinear unit) are part of others. The
# four models are compared with `transformers` itself, in tests/models and tests/parity.
NOT_RECORDED = {"Checkpoint", "Dropout", "TiedLinear", "Identity", "BERT", "T5", "Llama", "ViT"}


def each(files):
    return pytest.mark.parametrize(("arrays", "meta"), files.values(), ids=list(files))


@each(MODULES)
def test_output_and_all_gradients_agree(arrays, meta):
    golden_file.assert_agree(golden_file.run(arrays, meta), arrays)


@each(MODULES)
def test_everything_that_has_a_gradient_is_recorded(arrays, meta):
    floating = [name for name in meta["inputs"] if arrays[f"input.{name}"].dtype.kind == "f" and name != "targets"]
    assert golden_file.part(arrays, "dinput").keys() == set(floating)
    parameters = dict(golden_file.build(meta["module"]).named_parameters())
    assert golden_file.part(arrays, "dparam").keys() == golden_file.part(arrays, "param").keys() == parameters.keys()


@each(MODULES)
def test_a_wrong_digit_is_noticed(arrays, meta):
    """An output or a gradient off by 1e-8 of its norm fails, each of them; so does one that is missing."""
    results = golden_file.run(arrays, meta)
    rng = np.random.default_rng(0)
    for name, value in results.items():
        norm = np.linalg.norm(value)
        if norm < 1e-3:  # the gradient of a key bias is 0: there is no 1e-8 of it
            continue
        direction = rng.standard_normal(np.shape(value))
        off = value + 1e-8 * norm * direction / np.linalg.norm(direction)
        with pytest.raises(AssertionError, match="relative errors above"):
            golden_file.assert_agree(results, {**arrays, name: off})
        with pytest.raises(AssertionError):
            golden_file.assert_agree({key: result for key, result in results.items() if key != name}, arrays)


@each(OPTIMIZERS)
def test_optimizer_takes_the_same_five_steps(arrays, meta):
    parameters = {name: Parameter(array.copy(), name) for name, array in golden_file.part(arrays, "param").items()}
    rates = meta["learning_rates"]
    optimizer = getattr(optim, meta["optimizer"])(list(parameters.values()), lr=rates[0], **meta["options"])
    for step, optimizer.lr in enumerate(rates):
        for name, parameter in parameters.items():
            parameter.grad = arrays[f"grad{step}.{name}"].copy()
        optimizer.step()
        for name, parameter in parameters.items():
            error, agree = golden_file.relative_error(parameter.data, arrays[f"step{step}.{name}"])
            assert agree, (step, name, error)


@each(CLIPPING)
def test_clip_grad_norm(arrays, meta):
    parameters = {}
    for name, gradient in golden_file.part(arrays, "grad").items():
        parameters[name] = Parameter(np.zeros_like(gradient), name)
        parameters[name].grad = gradient.copy()
    norm = optim.clip_grad_norm(list(parameters.values()), meta["max_norm"])
    assert golden_file.relative_error(norm, arrays["norm"])[1]
    for name, parameter in parameters.items():
        assert golden_file.relative_error(parameter.grad, arrays[f"clipped.{name}"])[1], name


def test_every_component_is_recorded():
    """A new layer, block, model, loss or optimizer needs a golden case, or a reason above."""
    recorded = set().union(*(constructors(meta["module"]) for _, meta in MODULES.values()))
    recorded |= {meta["optimizer"] for _, meta in OPTIMIZERS.values()}
    public = {name for place in (layers, models) for name in place.__all__ if is_module(getattr(place, name))}
    for place in (blocks, losses):
        public |= {name for name, value in vars(place).items()
                   if is_module(value) and value.__module__ == place.__name__}  # fmt: skip
    assert public | {"SGD", "Adam", "AdamW"} == recorded - {"GPTConfig", "TransformerConfig"} | NOT_RECORDED
    assert CLIPPING


def constructors(value):
    """The names of all constructors in a spec."""
    if not isinstance(value, dict):
        return set()
    return {value["module"]}.union(*(constructors(option) for option in value["options"].values()))


def is_module(value):
    return inspect.isclass(value) and issubclass(value, Module)
