"""Small right modules, and the same with one planted mistake each, in a subclass."""

import math

import numpy as np

from numtrans.module import Module, Parameter

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape)


class Linear(Module):
    def __init__(self, d_in=4, d_out=4):
        super().__init__()
        rng = np.random.default_rng(3)
        self.W = Parameter(rng.standard_normal((d_in, d_out)).astype(np.float32))
        self.b = Parameter(np.zeros(d_out, np.float32))

    def forward(self, x):
        self.save(x)
        return x @ self.W.data + self.b.data

    def backward(self, dy):
        (x,) = self.saved()
        self.W.add_grad(self.dW(x, dy))
        self.b.add_grad(self.db(dy))
        return self.dx(dy)

    def dW(self, x, dy):
        return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    def db(self, dy):
        return dy.sum(axis=(0, 1))

    def dx(self, dy):
        return dy @ self.W.data.T


class TransposedW(Linear):
    def dW(self, x, dy):
        return super().dW(x, dy).T


class ForgottenTransposeInDx(Linear):
    def dx(self, dy):
        return dy @ self.W.data


class SignW(Linear):
    def dW(self, x, dy):
        return -super().dW(x, dy)


class MeanOverBatch(Linear):
    def dW(self, x, dy):
        return super().dW(x, dy) / x.shape[0]


class LastOfBatch(Linear):
    def db(self, dy):
        return dy[-1].sum(axis=0)


class FirstToken(Linear):
    def dW(self, x, dy):
        return super().dW(x[:, :1], dy[:, :1])


class MeanOverTokens(Linear):
    def db(self, dy):
        return dy.mean(axis=1).sum(axis=0)


class WrongAxis(Linear):
    def db(self, dy):
        return dy.sum(axis=(1, 2))


class TwiceB(Linear):
    def db(self, dy):
        return 2 * super().db(dy)


class ReversedB(Linear):
    def db(self, dy):
        return super().db(dy)[::-1].copy()


class ShiftedB(Linear):
    def db(self, dy):
        return np.roll(super().db(dy), 1)


class OneColumnLost(Linear):
    def dW(self, x, dy):
        dW = super().dW(x, dy)
        dW[:, 2] = 0
        return dW


class NoGradientForB(Linear):
    def backward(self, dy):
        (x,) = self.saved()
        self.W.add_grad(self.dW(x, dy))
        return self.dx(dy)


class NoneForX(Linear):
    def dx(self, dy):
        return None


class ZerosForX(Linear):
    def dx(self, dy):
        return np.zeros_like(dy)


class NaNGradient(Linear):
    def db(self, dy):
        return super().db(dy) * np.array([1, np.nan, 1, 1], dy.dtype)


class Overwrites(Linear):
    def backward(self, dy):
        (x,) = self.saved()
        self.W.grad = self.dW(x, dy)
        self.b.add_grad(self.db(dy))
        return self.dx(dy)


class WritesIntoDy(Linear):
    def dx(self, dy):
        dx = dy @ self.W.data.T
        dy *= 0
        return dx


class WritesIntoInput(Linear):
    def backward(self, dy):
        (x,) = self.saved()
        self.W.add_grad(self.dW(x, dy))
        self.b.add_grad(self.db(dy))
        x[...] = 0
        return self.dx(dy)


class ForwardWritesIntoInput(Linear):
    def forward(self, x):
        self.save(x.copy())
        y = x @ self.W.data + self.b.data
        x[...] = 0
        return y


class KeepsOneForward(Linear):
    def forward(self, x):
        self.x = x
        return x @ self.W.data + self.b.data

    def saved(self):
        return (self.x,)


class LeavesSaved(Linear):
    def saved(self):
        return self._stack[-1]


class PromotesDtype(Linear):
    def dx(self, dy):
        return super().dx(dy) * np.sqrt(np.float64(1.0))


class PromotesOutput(Linear):
    def forward(self, x):
        return super().forward(x) / np.sqrt(64) * 8


class ReturnsTwo(Linear):
    def dx(self, dy):
        return super().dx(dy), super().dx(dy)


class Bias(Module):
    """Adds a bias of the shape of its input."""

    def __init__(self, shape):
        super().__init__()
        self.b = Parameter(np.zeros(shape, np.float32))

    def forward(self, x):
        return x + self.b.data

    def backward(self, dy):
        self.b.add_grad(dy.copy())
        return dy


class AliasedBias(Bias):
    """The gradient of b is dy itself: the next += writes into the caller's dy."""

    def backward(self, dy):
        self.b.add_grad(dy)
        return dy


class Square(Module):
    def forward(self, x):
        self.save(x)
        return x * x

    def backward(self, dy):
        (x,) = self.saved()
        return 2 * x * dy


class SquareWithoutX(Square):
    def backward(self, dy):
        self.saved()
        return 2 * dy


class SquareSingle(Square):
    """A float32 cast hides inside forward and backward, whatever the dtype of the input."""

    def forward(self, x):
        self.save(x)
        return (x.astype(np.float32) ** 2).astype(x.dtype)


class SquareBackwardSingle(Square):
    def backward(self, dy):
        return super().backward(dy).astype(np.float32).astype(dy.dtype)


class Residual(Module):
    def forward(self, x):
        self.save(x)
        return x + x * x

    def backward(self, dy):
        (x,) = self.saved()
        return dy + 2 * x * dy


class ResidualWithoutIdentity(Residual):
    def backward(self, dy):
        return super().backward(dy) - dy


class Softmax(Module):
    def forward(self, x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        y = e / e.sum(axis=-1, keepdims=True)
        self.save(y.copy())
        return y

    def backward(self, dy):
        (y,) = self.saved()
        return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


class SoftmaxDiagonal(Softmax):
    def backward(self, dy):
        (y,) = self.saved()
        return y * dy


class SoftmaxWritesIntoOutput(Softmax):
    def forward(self, x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        e /= e.sum(axis=-1, keepdims=True)
        self.save(e)
        return e

    def backward(self, dy):
        (y,) = self.saved()
        along = (dy * y).sum(axis=-1, keepdims=True)
        y *= dy - along
        return y


class LayerNorm(Module):
    mean_path = variance_path = gain_path = True

    def __init__(self, d=5):
        super().__init__()
        self.eps = 1e-5
        self.gamma, self.beta = Parameter(np.ones(d, np.float32)), Parameter(np.zeros(d, np.float32))

    def forward(self, x):
        centered = x - x.mean(axis=-1, keepdims=True)
        sigma = np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + self.eps)
        self.save(centered / sigma, sigma)
        return self.gamma.data * (centered / sigma) + self.beta.data

    def backward(self, dy):
        xhat, sigma = self.saved()
        self.gamma.add_grad((dy * xhat).reshape(-1, dy.shape[-1]).sum(axis=0))
        self.beta.add_grad(dy.reshape(-1, dy.shape[-1]).sum(axis=0))
        d = dy * self.gamma.data if self.gain_path else dy
        dx = d.copy()
        if self.mean_path:
            dx -= d.mean(axis=-1, keepdims=True)
        if self.variance_path:
            dx -= xhat * (d * xhat).mean(axis=-1, keepdims=True)
        return dx / sigma


class NormWithoutMeanPath(LayerNorm):
    mean_path = False


class NormWithoutVariancePath(LayerNorm):
    variance_path = False


class NormWithoutGain(LayerNorm):
    gain_path = False


class Scaled(Module):
    """y = gain * x with one gain for each feature."""

    def __init__(self, d=4):
        super().__init__()
        self.gain = Parameter(np.ones(d, np.float32))

    def forward(self, x):
        self.save(x)
        return x * self.gain.data

    def backward(self, dy):
        (x,) = self.saved()
        self.gain.add_grad((dy * x).reshape(-1, dy.shape[-1]).sum(axis=0))
        return dy * self.gain.data


class ScaledWithoutGain(Scaled):
    def backward(self, dy):
        super().backward(dy)
        return dy


class Lookup(Module):
    def __init__(self, n=6, d=3):
        super().__init__()
        self.W = Parameter(np.zeros((n, d), np.float32))

    def forward(self, ids):
        self.save(ids)
        return self.W.data[ids]

    def backward(self, dy):
        (ids,) = self.saved()
        dW = np.zeros_like(self.W.data)
        self.scatter(dW, ids, dy)
        self.W.add_grad(dW)

    def scatter(self, dW, ids, dy):
        np.add.at(dW, ids, dy)


class LookupKeepsLast(Lookup):
    def scatter(self, dW, ids, dy):
        dW[ids] += dy


class Drop(Module):
    """Dropout whose mask depends on a counter alone."""

    def __init__(self, p=0.5):
        super().__init__()
        self.p, self.counter = p, 0

    def mask(self, x):
        self.counter += 1
        keep = np.random.default_rng(self.counter).random(x.shape) >= self.p
        return keep.astype(x.dtype) / (1 - self.p)

    def forward(self, x):
        mask = self.mask(x)
        self.save(mask)
        return x * mask

    def backward(self, dy):
        (mask,) = self.saved()
        return dy * mask


class DropRedrawn(Drop):
    def backward(self, dy):
        self.saved()
        return dy * self.mask(dy)


class DropUnscaled(Drop):
    def backward(self, dy):
        return super().backward(dy) * (1 - self.p)


class DropGlobal(Drop):
    """Draws from NumPy's global generator, which no check can set back."""

    def mask(self, x):
        return (RNG.random(x.shape) >= self.p).astype(x.dtype)


class Relu(Module):
    def forward(self, x):
        self.save(x)
        return np.maximum(x, 0)

    def backward(self, dy):
        (x,) = self.saved()
        return dy * (x > 0)


class Absolute(Module):
    def forward(self, x):
        self.save(x)
        return np.abs(x)

    def backward(self, dy):
        (x,) = self.saved()
        return dy * np.sign(x)


class Product(Module):
    """The product of all entries of x, as a vector of one entry."""

    def forward(self, x):
        self.save(x)
        return x.prod(keepdims=True)

    def backward(self, dy):
        (x,) = self.saved()
        return dy * x.prod() / x


class Sine(Module):
    def forward(self, x):
        self.save(x)
        return np.sin(x)

    def backward(self, dy):
        (x,) = self.saved()
        return dy * np.cos(x)


class Bilinear(Module):
    """query @ key^T / sqrt(d), with two floating inputs."""

    def forward(self, query, key, mask=None):
        self.save(query, key)
        self.scale = 1 / math.sqrt(query.shape[-1])
        return query @ key.swapaxes(-1, -2) * self.scale

    def backward(self, dy):
        query, key = self.saved()
        return dy @ key * self.scale, dy.swapaxes(-1, -2) @ query * self.scale


class BilinearSwapped(Bilinear):
    def backward(self, dy):
        return super().backward(dy)[::-1]


class BilinearUnscaled(Bilinear):
    def backward(self, dy):
        dq, dk = super().backward(dy)
        return dq / self.scale, dk


class MeanSquare(Module):
    """A loss: returns a Python float or a 0-d array; backward has a default."""

    def forward(self, x, target):
        self.save(x - target)
        return float(((x - target) ** 2).mean()) if x.dtype != np.complex128 else ((x - target) ** 2).mean()

    def backward(self, dy=1.0):
        (difference,) = self.saved()
        return difference * (2 / difference.size) * dy


class MeanSquareIgnoresDy(MeanSquare):
    def backward(self, dy=1.0):
        return super().backward(1.0)
