"""What several test files need: generic parameters, and gradients by central differences."""

import numpy as np


def normal(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def generic(module, seed=0, dtype=np.float64):
    """`module` in `dtype` with matrices of noise, and noise on vectors: no gain is 1 and no bias 0. Always the same."""
    rng = np.random.default_rng(seed)
    module.astype(dtype)
    for parameter in module.parameters():
        start = parameter.data if parameter.data.ndim == 1 else 0
        parameter.data = (start + 0.5 * rng.standard_normal(parameter.data.shape)).astype(dtype)
    return module


def numeric(f, x, h=1e-5):
    """df/dx of the scalar f() by central differences; `f` reads `x`, which is put back."""
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        old, step = x[i], h * max(1.0, abs(x[i]))
        x[i] = old + step
        up = f()
        x[i] = old - step
        down = f()
        x[i] = old
        g[i] = (up - down) / (2 * step)
    return g


def central(f, x, R, h=1e-5):
    """Gradient of sum(f() * R) with respect to `x` by central differences; `f` reads it, and it is put back."""
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        old, step = x[i], h * max(1.0, abs(x[i]))
        x[i] = old + step
        up = (f() * R).sum()
        x[i] = old - step
        g[i] = (up - (f() * R).sum()) / (2 * step)
        x[i] = old
    return g


def assert_same_gradient(found, expected, name="gradient"):
    assert found.shape == expected.shape, name
    error, norm = np.linalg.norm(found - expected), np.linalg.norm(expected)
    assert error <= 1e-7 * norm + 1e-9, f"{name}: error {error:.3g}, norm {norm:.3g}"


def assert_gradient(f, x, found, name, limit):
    """Compare `found` with central differences: every coordinate of a small `x`, else four random directions."""
    if x.size <= limit:
        assert_same_gradient(found, numeric(f, x), name)
        return
    assert found.shape == x.shape, name
    start, rng = x.copy(), np.random.default_rng(x.size)
    for _ in range(4):
        direction = rng.standard_normal(x.shape)
        direction /= np.linalg.norm(direction)
        x[...] = start + 1e-5 * direction
        up = f()
        x[...] = start - 1e-5 * direction
        error = abs((up - f()) / 2e-5 - (found * direction).sum())
        x[...] = start
        assert error <= 1e-7 * np.linalg.norm(found) + 1e-9, f"{name}: error {error:.3g} along a direction"


def check_gradients(module, *inputs, limit=64, **kwargs):
    """Compare backward with central differences, for every floating input and every parameter, at a random dy.

    Masks of dropout are held: the counters are set back before each forward. Returns the input gradients.
    """
    counters = module.random_state()
    module.zero_grad()
    y = module(*inputs, **kwargs)
    dy = normal(*y.shape, seed=99)
    found = module.backward(dy)
    found = found if isinstance(found, tuple) else () if found is None else (found,)
    assert module.pending == 0

    def loss():
        module.load_random_state(counters)
        value = (module(*inputs, **kwargs) * dy).sum()
        module.clear()
        return value

    floating = [x for x in inputs if x is not None and x.dtype.kind == "f"]
    assert len(found) == len(floating)
    for i, (dx, x) in enumerate(zip(found, floating)):
        assert_gradient(loss, x, dx, f"input {i}", limit)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert_gradient(loss, parameter.data, parameter.grad, name, limit)
    return found
