"""Models of the library `transformers` in float64, and the comparison with ours: outputs and every gradient.

`transformers` takes means of squares, softmaxes and angles in float32 whatever the dtype of the model is. To compare
in float64, `in_float64` gives the files of its models a `torch` whose float32 is float64; nothing else changes.
"""

import importlib

import numpy as np
import pytest


class Float64:
    """The module torch, but for the names of single precision."""

    def __init__(self, torch):
        self.torch, self.float, self.float32 = torch, torch.float64, torch.float64

    def __getattr__(self, name):
        return getattr(self.torch, name)


def in_float64(monkeypatch, *models):
    """Let the files of `models` (``"llama"``, ...) compute in float64; returns (torch, transformers)."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    for name in models:
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        monkeypatch.setattr(module, "torch", Float64(torch))
    return torch, transformers


def build(torch, kind, config, seed=0):
    """A `kind` with `config` in float64, evaluation mode; generic weights: no gain is 1, no bias 0."""
    config._attn_implementation = "eager"
    return generic_weights(torch, kind(config), seed)


def generic_weights(torch, model, seed=0):
    """`model`, a PyTorch module, in float64 and evaluation mode with generic weights: no gain is 1, no bias 0."""
    model.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim == 1:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return model


def copy_weights(model, reference, names):
    """Set the parameters of `model`, in float64, from `reference`; `names` is one of parity/names.py."""
    theirs = {name: p.detach().numpy() for name, p in reference.named_parameters()}
    model.astype(np.float64).eval()
    ours, values = dict(model.named_parameters()), names(theirs)
    assert set(values) == set(ours)
    assert model.num_parameters() == sum(value.size for value in theirs.values())  # nothing of theirs is left out
    for name, value in values.items():
        assert value.shape == ours[name].data.shape, name
        ours[name].data = np.array(value)
    return model


def compare(torch, model, y, reference, y_reference, names, keep=None, inputs=(), tolerance=1e-9):
    """Compare outputs and, from a random cotangent, all gradients; returns what backward returns.

    `keep` selects the rows that are compared; the cotangent is 0 elsewhere. `inputs` are their tensors whose gradients
    backward returns. An error counts relative to the norm of its tensor; only for a gradient that is 0 in exact
    arithmetic, and so rounding in both (the bias of the keys), relative to that of all tensors.
    """
    keep = np.ones(y.shape[:-1], bool) if keep is None else np.broadcast_to(keep, y.shape[:-1])
    expected = y_reference.detach().numpy()
    assert y.shape == expected.shape
    assert y.dtype == expected.dtype == np.float64
    assert error(y[keep], expected[keep]) <= tolerance, f"output: {error(y[keep], expected[keep]):.3g}"
    dy = np.random.default_rng(5).standard_normal(y.shape) * keep[..., None]
    y_reference.backward(torch.from_numpy(dy))
    dx = model.backward(dy)
    assert model.pending == 0
    theirs = names({name: p.grad.numpy() for name, p in reference.named_parameters()})
    pairs = [(name, parameter.grad, theirs[name]) for name, parameter in model.named_parameters()]
    found = dx if isinstance(dx, tuple) else (dx,)
    pairs += [(f"input {i}", found[i], x.grad.numpy()) for i, x in enumerate(inputs)]
    whole = np.sqrt(sum(float((gradient**2).sum()) for _, _, gradient in pairs))
    for name, gradient, expected in pairs:
        assert gradient.shape == expected.shape, name
        distance, norm = np.linalg.norm(gradient - expected), np.linalg.norm(expected)
        limit = tolerance * norm if norm > 1e-13 * whole else 1e-13 * whole
        assert distance <= limit, f"{name}: {distance:.3g} of {norm:.3g}"
    return dx


def error(found, expected):
    """Norm of the difference over the norm of `expected`."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)
