"""What a golden file holds, how to rebuild its numtrans module, and how values are compared. Needs no PyTorch.

A file ``values/NAME.safetensors`` holds arrays under these names:

- ``input.x``: an argument of forward (``keyword.mask``: one by keyword); ``param.W`` and ``buffer.m``: the state
- ``dy`` and ``y``: the gradient with respect to the output, and the output
- ``dinput.x``, ``dparam.W``: the gradients; ``after.m``: a buffer after forward

and in its metadata, under ``golden`` as JSON: ``module`` (see `build`), ``inputs`` (their order), ``scalars``
(arguments of forward by keyword that are no arrays) and ``training``.
Files of optimizers and clipping are described by their recorders in torch_training.py.
"""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from numtrans import blocks, layers, losses, models, optim

VALUES = Path(__file__).parent / "values"
RTOL, ATOL = 1e-10, 1e-12


def write(path, arrays, meta):
    """Write NumPy `arrays` by name and the JSON-able dict `meta`."""
    arrays = {name: np.array(array, order="C") for name, array in arrays.items()}  # it would write a view's buffer
    save_file(arrays, path, {"golden": json.dumps(meta)})  # one key: several would be written in any order


def read(path):
    """``(arrays, meta)`` as they were written."""
    with safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, json.loads(file.metadata()["golden"])


def part(arrays, kind):
    """The arrays of one kind, by name without it: ``part(arrays, "param")["W"]`` is ``arrays["param.W"]``."""
    return {name.partition(".")[2]: array for name, array in arrays.items() if name.partition(".")[0] == kind}


def spec(module, **options):
    """A constructor of numtrans and its arguments, as JSON can hold them; arguments may be specs."""
    return {"module": module, "options": options}


def build(value):
    """What a `spec` describes; any other value is returned as it is."""
    if not isinstance(value, dict):
        return value
    constructor = next(
        getattr(place, value["module"]) for place in (layers, blocks, models, losses, optim)
        if hasattr(place, value["module"])
    )  # fmt: skip
    return constructor(**{name: build(option) for name, option in value["options"].items()})


def run(arrays, meta):
    """Forward and backward of the numtrans module on the recorded values; the results, named as in the file."""
    module = build(meta["module"]).astype(np.float64).train(meta["training"])
    module.load_state_dict({**part(arrays, "param"), **part(arrays, "buffer")})
    inputs = [arrays[f"input.{name}"] for name in meta["inputs"]]
    results = {"y": module(*inputs, **part(arrays, "keyword"), **meta["scalars"])}
    results.update((f"after.{name}", buffer) for name, buffer in module.named_buffers())
    gradients = module.backward(arrays["dy"])
    gradients = () if gradients is None else gradients if isinstance(gradients, tuple) else (gradients,)
    floating = [name for name in meta["inputs"] if f"dinput.{name}" in arrays]
    results.update((f"dinput.{name}", gradient) for name, gradient in zip(floating, gradients, strict=True))
    results.update((f"dparam.{name}", parameter.grad) for name, parameter in module.named_parameters())
    assert module.pending == 0
    return results


def relative_error(value, expected):
    """Norm of the difference by the norm of `expected`, and whether they agree."""
    assert np.shape(value) == np.shape(expected)
    difference, norm = np.linalg.norm(np.subtract(value, expected)), np.linalg.norm(expected)
    return difference / max(norm, ATOL / RTOL), bool(difference <= RTOL * norm + ATOL)


def assert_agree(results, arrays):
    """Raise unless `results` has each recorded result, no other, and all agree; the largest relative error."""
    expected = {
        name: array for name, array in arrays.items() if name.partition(".")[0] in ("y", "dinput", "dparam", "after")
    }
    assert results.keys() == expected.keys()
    assert all(result is not None for result in results.values()), "a parameter got no gradient"
    errors = {name: relative_error(results[name], expected[name]) for name in expected}
    wrong = {name: error for name, (error, agree) in errors.items() if not agree}
    assert not wrong, f"relative errors above {RTOL}: {wrong}"
    return max(error for error, _ in errors.values())
