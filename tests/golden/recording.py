"""Draw the numbers of one golden case, let PyTorch differentiate it, and keep both."""

import zlib

import numpy as np
import torch
from golden_file import spec
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = {}  # name -> function without arguments that returns (arrays, meta)


def case(name, module, *, training=True, **options):
    """Register the decorated function as the PyTorch counterpart of numtrans' ``module(**options)``.

    It is called with a `Recording` and the options, draws parameters under numtrans' names and in numtrans' layout,
    and returns the output.
    """

    def register(function):
        assert name not in CASES, name

        def record():
            recording = Recording(name)
            with sdpa_kernel(SDPBackend.MATH):  # the plain formula, which also takes rows without any key
                recording.differentiate(function(recording, **options))
            return recording.arrays, {
                "module": spec(module, **options),
                "inputs": recording.inputs,
                "scalars": recording.scalars,
                "training": training,
            }

        CASES[name] = record
        return function

    return register


class Recording:
    """The arrays of one case. What it draws depends on the name of the case alone."""

    def __init__(self, name):
        self.name = name
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.arrays, self.leaves = {}, {}
        self.inputs, self.scalars = [], {}

    def leaf(self, kind, name, array):
        """A tensor whose gradient will be recorded."""
        self.arrays[f"{kind}.{name}"] = array
        self.leaves[f"d{kind}.{name}"] = tensor = torch.tensor(array, requires_grad=True)
        return tensor

    def input(self, name, *shape, array=None):
        """The next argument of forward: normal numbers, or `array`."""
        self.inputs.append(name)
        return self.leaf("input", name, self.rng.standard_normal(shape) if array is None else array)

    def constant(self, name, array):
        """The next argument of forward, one that has no gradient (token ids, targets)."""
        self.inputs.append(name)
        self.arrays[f"input.{name}"] = array
        return torch.tensor(array)

    def ids(self, name, shape, stop, start=0):
        """The next argument of forward: integers."""
        return self.constant(name, self.rng.integers(start, stop, shape))

    def keyword(self, name, array):
        """An argument of forward by keyword (a mask)."""
        self.arrays[f"keyword.{name}"] = array
        return torch.tensor(array)

    def param(self, name, *shape):
        """A parameter: a matrix that keeps variances, or a vector that is neither 0 nor 1."""
        values = self.rng.standard_normal(shape)
        return self.leaf("param", name, values / shape[0] ** 0.5 if len(shape) > 1 else 0.5 + 0.5 * values)

    def buffer(self, name, array):
        """State that is not learned."""
        self.arrays[f"buffer.{name}"] = array
        return torch.tensor(array)

    def after(self, name, tensor):
        """The buffer `name` after forward."""
        self.arrays[f"after.{name}"] = tensor.numpy()

    def mask(self, *shape):
        """A random mask, True = may attend, in which every row of the last axis has a True."""
        mask = self.rng.random(shape) < 0.6
        mask[..., 0] |= ~mask.any(axis=-1)
        return mask

    def differentiate(self, y):
        """Draw the gradient with respect to the output, and record it, the output and the gradients."""
        self.arrays["y"] = y.detach().numpy()
        self.arrays["dy"] = np.asarray(self.rng.standard_normal(tuple(y.shape)))
        gradients = torch.autograd.grad(y, list(self.leaves.values()), torch.tensor(self.arrays["dy"]))
        self.arrays.update((name, gradient.numpy()) for name, gradient in zip(self.leaves, gradients, strict=True))
        for name, array in self.arrays.items():
            assert np.isfinite(array).all(), name
