"""Faults that NumPy forgives and CuPy does not are planted in small layers: the suite catches each of them."""

import numpy as np
import pytest

from numtrans.backend import get_xp
from numtrans.module import Module, Parameter

from .suite import run_both

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
IDS = np.array([[1, 1, 0], [3, 1, 2]])
TRIANGLE = np.tril(np.ones((3, 3), bool))


class Scale(Module):
    """y = x * w; right on both backends."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones(4, np.float32))

    def forward(self, x):
        self.save(x)
        return x * self.w.data

    def backward(self, dy):
        (x,) = self.saved()
        self.w.add_grad((dy * x).sum((0, 1)))
        return dy * self.w.data


class ZerosOfNumPy(Scale):
    def backward(self, dy):
        (x,) = self.saved()
        dx = np.zeros(x.shape, x.dtype)
        dx += dy * self.w.data
        return dx


class ZerosOfNumPyAsGradient(Scale):
    def backward(self, dy):
        self.w.add_grad(np.zeros(4, np.float32))
        return super().backward(dy)


class FilledFromCuPy(Scale):
    def backward(self, dy):
        dx = np.empty(dy.shape, dy.dtype)
        dx[...] = super().backward(dy)
        return dx


class Scores(Scale):
    """Scores with a mask that is made by `mask`, and a sum over keys."""

    def forward(self, x):
        self.save(x)
        xp = get_xp(x)
        scores = x @ x.swapaxes(1, 2)
        return xp.where(self.mask(xp), scores, -1.0)

    def mask(self, xp):
        return xp.asarray(TRIANGLE)

    def backward(self, dy):
        (x,) = self.saved()
        xp = get_xp(x)
        dscores = xp.where(self.mask(xp), dy, 0.0)
        self.w.add_grad(xp.zeros(4, x.dtype))
        return dscores @ x + dscores.swapaxes(1, 2) @ x


class MaskOfNumPy(Scores):
    def mask(self, xp):
        return TRIANGLE


class MaskOfNumPyAsIndex(Scores):
    def forward(self, x):
        y = super().forward(x)
        y[:, ~TRIANGLE] = -1.0  # CuPy takes it, and copies the mask to the device each time
        return y


class SumWhere(Scale):
    def backward(self, dy):
        (x,) = self.saved()
        product = dy * x
        self.w.add_grad(product.sum((0, 1), where=product == product))
        return dy * self.w.data


class MaxInitial(Scale):
    def forward(self, x):
        return super().forward(x - x.max(-1, keepdims=True, initial=0))


class Errstate(Scale):
    def forward(self, x):
        with get_xp(x).errstate(divide="ignore"):
            return super().forward(x)


class Reduce(Scale):
    def forward(self, x):
        return super().forward(x - get_xp(x).maximum.reduce(x, axis=-1, keepdims=True))


class ListOperand(Scale):
    def forward(self, x):
        return super().forward(x) * [1, 1, 1, 1]


class Table(Module):
    """y = w[ids]; right on both backends."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((4, 5), np.float32))

    def forward(self, ids):
        self.save(ids)
        return self.w.data[ids]

    def backward(self, dy):
        (ids,) = self.saved()
        xp = get_xp(dy)
        dw = xp.zeros(self.w.data.shape, dy.dtype)
        self.add(xp, dw, ids, dy)
        self.w.add_grad(dw)
        return None

    def add(self, xp, dw, ids, dy):
        xp.add.at(dw, ids, dy)


class LosesRepeats(Table):
    def add(self, xp, dw, ids, dy):
        if xp is np:
            xp.add.at(dw, ids, dy)  # so that NumPy's numbers are right and the other backend's fall short
        else:
            dw[ids] += dy


class AddAtOfNumPy(Table):
    def add(self, xp, dw, ids, dy):
        np.add.at(dw, ids, dy)


class IdsOfNumPy(Table):
    def forward(self, ids):
        return super().forward(ids.get() if hasattr(ids, "get") else ids)


class FloatInForward(Scale):
    def forward(self, x):
        y = super().forward(x)
        self.last = float(y.sum())
        return y


class BranchOnValues(Scale):
    def backward(self, dy):
        if (dy == 0).all():
            self.saved()
            return dy
        return super().backward(dy)


@pytest.mark.parametrize(("layer", "x"), [(Scale, X), (Scores, X), (Table, IDS)])
def test_right_layers_pass(cupy, layer, x):
    assert run_both(layer, [x]).synchronisations == 0


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (ZerosOfNumPy, X, "Unsupported type"),
        (ZerosOfNumPyAsGradient, X, "Unsupported type"),
        (FilledFromCuPy, X, "Implicit conversion"),
        (MaskOfNumPy, X, "Unsupported type"),
        (SumWhere, X, "unexpected keyword argument 'where'"),
        (MaxInitial, X, "unexpected keyword argument 'initial'"),
        (Errstate, X, "module 'cupy' has no attribute 'errstate'"),
        (Reduce, X, "not supported yet"),
        (ListOperand, X, "Unsupported type <class 'list'>"),
        (AddAtOfNumPy, IDS, "NotImplemented"),
    ],
)
def test_refused(cupy, layer, x, message):
    with pytest.raises((TypeError, AttributeError, NotImplementedError), match=message):
        run_both(layer, [x])


def test_lost_repeats_differ(cupy):
    with pytest.raises(AssertionError, match="gradient of w: relative error"):
        run_both(LosesRepeats, [IDS])


@pytest.mark.parametrize(
    ("layer", "x"), [(MaskOfNumPyAsIndex, X), (FloatInForward, X), (BranchOnValues, X), (IdsOfNumPy, IDS)]
)
def test_waits_are_counted(cupy, layer, x):
    assert run_both(layer, [x]).synchronisations > 0


def train(layer, xp, steps, read):
    """Plain gradient descent on sum(y * y); `read` is what the loop does with each loss."""
    x = xp.asarray(X)
    losses = []
    for _ in range(steps):
        y = layer(x)
        losses.append(read((y * y).sum()))
        layer.zero_grad()
        layer.backward(2.0 * y)
        layer.w.data -= 0.01 * layer.w.grad
    return losses


def test_float_of_the_loss_in_the_step(cupy):
    layer = Scale().to("cupy")
    losses = train(layer, cupy, 3, lambda loss: loss)
    assert cupy.synchronisations() == 0
    float(losses[-1])
    assert cupy.synchronisations() == 1
    train(layer, cupy, 3, float)
    assert cupy.synchronisations() == 4
