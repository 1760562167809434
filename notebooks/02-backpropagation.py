# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 2. Backpropagation by hand
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/02-backpropagation.ipynb)
#
# Training changes the numbers inside a program so that its output gets better, and for this it needs the derivative of
# that output with respect to each of the numbers. This chapter derives how to compute all of them in one backward pass,
# writes that pass by hand for a linear layer and a small network, and then checks it against numeric differences.
# Every later chapter does the same for one more component.
#
# **At the end you will understand**
#
# - why gradients add where a value is used twice, and where a forward pass broadcasts;
# - why `backward(dy)` is a product of a vector and a Jacobian matrix that is never built;
# - how to derive the backward pass of a layer, index by index, with the linear layer as the example;
# - how a gradient checker chooses its loss, its step and its measure of error, and what it can miss;
# - why differences with a smaller step get worse in the end, and why a complex step does not.
#
# You need matrix products and partial derivatives.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import os

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.gradcheck import gradcheck, step_size_study
from numtrans.inspect import plots
from numtrans.layers import Linear, ReLU
from numtrans.module import Module, Parameter

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests
EPS = np.finfo(np.float64).eps  # 2.2e-16: the relative spacing of float64 numbers

# %% [markdown]
# ## The derivative of a program
#
# A program that computes one number $L$ from inputs $x_1, \dots, x_n$ is a function. If its steps are smooth (products,
# sums, exponentials), then for small changes $\delta_i$ of the inputs
#
# $$
# L(x + \delta) = L(x) + \sum_{i} \frac{\partial L}{\partial x_i}\, \delta_i + O(\lVert \delta \rVert^2) .
# $$
#
# The $n$ numbers $\partial L / \partial x_i$ form the **gradient**. They say how much $L$ changes for each unit of
# change of each input. $L$ is called the loss. In this book $\mathrm{d}x$ stands for $\partial L / \partial x$, an
# array of the same shape as $x$; in code it is `dx`.
#
# Here is a program of three steps. The claim beneath it is the equation above: what is left after the linear term
# shrinks with the square of the change, so half the change leaves a quarter.


# %%
def program(a, b):
    u = a * b
    v = np.sin(a)
    return u * v


def gradient_by_calculus(a, b):  # L = a b sin(a), differentiated on paper
    return np.array([b * np.sin(a) + a * b * np.cos(a), a * np.sin(a)])


a, b = 0.8, -1.5
step = np.array([0.3, 0.7])  # a direction of change of (a, b)
rest = []
for t in (1e-3, 5e-4):
    change = program(a + t * step[0], b + t * step[1]) - program(a, b)
    rest.append(change - t * gradient_by_calculus(a, b) @ step)
print(f"what is left: {rest[0]:.3e}, with half the change {rest[1]:.3e}, ratio {rest[0] / rest[1]:.3f}")
assert abs(rest[0] / rest[1] - 4) < 0.02

# %% [markdown]
# ## The chain rule, and why gradients add at a fork
#
# Draw the program as a graph: $a$ and $b$ go into $u = ab$; $a$ also goes into $v = \sin a$; $u$ and $v$ go into
# $L = uv$.
#
# ```
# b ---------------> u = a b -----+
#                    ^            |
# a ----+------------+            +---> L = u v
#       |                         |
#       +----------> v = sin a ---+
# ```
#
# The value $a$ is used twice: the graph has a **fork**. If $a$ changes by a small $\delta$, then $u$ changes by
# $\frac{\partial u}{\partial a} \delta$ and $v$ by $\frac{\partial v}{\partial a} \delta$. Each of the two changes $L$,
# and to first order the two changes add:
#
# $$
# \frac{\partial L}{\partial a}
# = \frac{\partial L}{\partial u} \frac{\partial u}{\partial a}
# + \frac{\partial L}{\partial v} \frac{\partial v}{\partial a} .
# $$
#
# This is the chain rule. It can be applied from the end of the program to its beginning: once the gradients of $u$ and
# $v$ are known, that of $a$ needs only the local derivatives $\partial u / \partial a = b$ and
# $\partial v / \partial a = \cos a$. Working backward in this way is **backpropagation**.

# %%
u, v = a * b, np.sin(a)  # forward, with the values kept

dL = 1.0  # the derivative of L with respect to itself
du, dv = dL * v, dL * u  # L = u * v
da_through_u, db = du * b, du * a  # u = a * b
da_through_v = dv * np.cos(a)  # v = sin(a)
da = da_through_u + da_through_v  # the fork: gradients add

print(f"da = {da_through_u:+.4f} (through u) {da_through_v:+.4f} (through v) = {da:+.4f}")
np.testing.assert_allclose([da, db], gradient_by_calculus(a, b), rtol=1e-14)

# %% [markdown]
# The numeric derivative agrees with the sum and with neither part. Keep the short function: it is used in the whole
# chapter. It changes one entry of an array at a time by $\pm h$ and divides the change of the loss by $2h$. Why this
# works, and which $h$ is right, is derived further below.


# %%
def numeric_gradient(loss, x, h=1e-5):
    """Central differences: d loss() / d x, entry by entry; `loss` is a function without arguments that reads x."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        start = x[index]
        x[index] = start + h
        above = loss()
        x[index] = start - h
        below = loss()
        x[index] = start
        gradient[index] = (above - below) / (2 * h)
    return gradient


ab = np.array([a, b])
numeric = numeric_gradient(lambda: program(*ab), ab)
np.testing.assert_allclose(numeric, [da, db], rtol=1e-8)
assert abs(numeric[0] - da_through_u) > 0.1 and abs(numeric[0] - da_through_v) > 0.1

# %% [markdown]
# ## The Jacobian, and why nobody builds it
#
# A layer maps an array $x$ with $n$ numbers to an array $y$ with $m$ numbers. Count the entries of each with one index.
# All partial derivatives together form the **Jacobian** matrix $J$ of shape $(m, n)$:
#
# $$
# J_{ji} = \frac{\partial y_j}{\partial x_i} .
# $$
#
# The loss depends on $x_i$ through every $y_j$. This is a fork with $m$ branches, so the chain rule is a sum over $j$:
#
# $$
# \mathrm{d}x_i = \sum_{j} \frac{\partial L}{\partial y_j} \frac{\partial y_j}{\partial x_i}
# = \sum_{j} \mathrm{d}y_j\, J_{ji},
# \qquad\text{in matrix form}\qquad \mathrm{d}x = J^\top \mathrm{d}y .
# $$
#
# The right-hand side is called a **vector-Jacobian product**. As an example take
# $y_j = \tanh\left(\sum_i A_{ji} x_i\right)$ with a constant matrix $A$. Since $\tanh' = 1 - \tanh^2$, its Jacobian is
# $J_{ji} = (1 - y_j^2) A_{ji}$, and the sum over $j$ can be taken without forming $J$: first
# $\mathrm{d}s_j = (1 - y_j^2)\, \mathrm{d}y_j$, then $\mathrm{d}x = A^\top \mathrm{d}s$.

# %%
rng = np.random.default_rng(0)
A, x, dy = rng.standard_normal((4, 3)), rng.standard_normal(3), rng.standard_normal(4)
y = np.tanh(A @ x)

J = (1 - y**2)[:, None] * A  # (4, 3)
ds = (1 - y**2) * dy  # (4,)
dx = A.T @ ds  # (3,) without J
np.testing.assert_allclose(dx, J.T @ dy, rtol=1e-14)

J_numeric = np.stack([numeric_gradient(lambda j=j: np.tanh(A @ x)[j], x) for j in range(4)])
np.testing.assert_allclose(J, J_numeric, atol=1e-9)

# %% [markdown]
# Why avoid $J$? Count. A linear layer of a middle-sized Transformer maps $B \times T$ tokens of width $D$ to as many
# tokens of the same width. Its Jacobian has one entry for each pair of an output number and an input number.

# %%
B, T, D = 32, 128, 512  # batch, tokens, width
numbers = B * T * D  # in x, and in y
print(f"x and y: {4 * numbers / 1e6:.1f} MB each in float32")
print(f"the Jacobian: {4 * numbers**2 / 1e12:.1f} TB; the weights that it is made of: {4 * D * D / 1e6:.1f} MB")
assert numbers**2 > 1e6 * D * D  # all but one entry in 4096 is zero, and the rest repeats the D * D weights

# %% [markdown]
# So a layer is written as two functions. `forward(x)` returns $y$ and keeps what it will need. `backward(dy)` receives
# the gradient with respect to $y$ and returns $J^\top \mathrm{d}y$, the gradient with respect to $x$. For layers one
# after the other, $y = f_2(f_1(x))$, the Jacobian of the whole is the product $J_2 J_1$, and
#
# $$
# \mathrm{d}x = (J_2 J_1)^\top \mathrm{d}y = J_1^\top \left( J_2^\top \mathrm{d}y \right) :
# $$
#
# the backward functions are called in reverse order, each with the result of the one behind it. No layer knows its
# neighbors.

# %%
C = rng.standard_normal((2, 4))  # a second layer: z = tanh(C y)
z, dz = np.tanh(C @ y), rng.standard_normal(2)
J2 = (1 - z**2)[:, None] * C
dy = C.T @ ((1 - z**2) * dz)  # backward of layer 2
dx = A.T @ ((1 - y**2) * dy)  # backward of layer 1
np.testing.assert_allclose(dx, (J2 @ J).T @ dz, rtol=1e-13)

# %% [markdown]
# ## A loss that a check can trust
#
# To check `backward` alone, without a model around it, one makes up a loss. The right choice is
#
# $$
# L = \sum_j y_j R_j, \qquad\text{so that}\qquad \mathrm{d}y = R ,
# $$
#
# with numbers $R_j$ drawn at random once and then fixed. A wrong backward computes $\tilde J^\top R$ in place of
# $J^\top R$. The two agree only if $(\tilde J - J)^\top R = 0$, which happens with probability zero for random $R$
# unless $\tilde J = J$.
#
# The plain sum, $R = (1, \dots, 1)$, is tempting and blind. Take the normalization of a vector,
# $y = (x - \mu) / \sigma$, with its mean $\mu$ and standard deviation $\sigma$ ([chapter 8](08-normalization.ipynb)
# derives it). The entries of $y$ sum to zero **whatever $x$ is**, so the right gradient of the plain sum is zero. The
# wrong backward below forgets that $\sigma$ depends on $x$. It returns zero for the plain sum as well, so that a check
# with it passes.


# %%
def normalize(x):
    return (x - x.mean()) / x.std()


def wrong_normalize_backward(x, dy):  # forgets the path through the standard deviation
    return (dy - dy.mean()) / x.std()


x, R = rng.standard_normal(6), rng.standard_normal(6)
for name, dy in (("plain sum", np.ones(6)), ("random R", R)):
    numeric = numeric_gradient(lambda dy=dy: np.sum(normalize(x) * dy), x)
    miss = np.linalg.norm(wrong_normalize_backward(x, dy) - numeric)
    print(f"{name}: right gradient {np.linalg.norm(numeric):.1e}, wrong backward misses it by {miss:.1e}")
    assert miss < 1e-9 if name == "plain sum" else miss > 0.1

# %% [markdown]
# Softmax has the same property, since its outputs sum to one: [chapter 3](03-softmax.ipynb) lists mistakes in its
# backward that a plain sum lets pass. `numtrans.gradcheck` always uses a random $R$.
#
# ## The linear layer
#
# Let $x$ have one row per token, $N$ rows of $I$ numbers, and let $W$ be a matrix of shape $(I, O)$ and $b$ a vector of
# $O$ numbers. The linear layer computes, for each token $n$ and each output $o$,
#
# $$
# y_{no} = \sum_{i} x_{ni} W_{io} + b_o, \qquad\text{in matrix form}\qquad y = x W + b .
# $$

# %%
N, I, O = 5, 3, 4
x, W, b, R = (rng.standard_normal(shape) for shape in ((N, I), (I, O), (O,), (N, O)))
y = x @ W + b  # (N, O)
for n in range(N):
    for o in range(O):
        np.testing.assert_allclose(y[n, o], sum(x[n, i] * W[i, o] for i in range(I)) + b[o], rtol=1e-12, atol=1e-15)

# %% [markdown]
# ### Backward in index form
#
# The Kronecker delta $\delta_{ij}$ is 1 if $i = j$ and 0 otherwise. It appears as the derivative of a variable with
# respect to another of the same array, $\partial x_{ni} / \partial x_{mj} = \delta_{nm} \delta_{ij}$, and inside a sum
# it picks one term: $\sum_i \delta_{ij} c_i = c_j$.
#
# With respect to the **input** $x_{mj}$:
#
# $$
# \begin{aligned}
# \frac{\partial y_{no}}{\partial x_{mj}} &= \sum_{i} \frac{\partial x_{ni}}{\partial x_{mj}} W_{io}
#   = \sum_{i} \delta_{nm}\, \delta_{ij}\, W_{io} = \delta_{nm} W_{jo} \\
# \mathrm{d}x_{mj} &= \sum_{n} \sum_{o} \mathrm{d}y_{no}\, \frac{\partial y_{no}}{\partial x_{mj}}
#   = \sum_{n} \sum_{o} \mathrm{d}y_{no}\, \delta_{nm} W_{jo} = \sum_{o} \mathrm{d}y_{mo} W_{jo}
# \end{aligned}
# $$
#
# With respect to the **weight** $W_{jp}$:
#
# $$
# \begin{aligned}
# \frac{\partial y_{no}}{\partial W_{jp}} &= \sum_{i} x_{ni} \frac{\partial W_{io}}{\partial W_{jp}}
#   = \sum_{i} x_{ni}\, \delta_{ij}\, \delta_{op} = x_{nj}\, \delta_{op} \\
# \mathrm{d}W_{jp} &= \sum_{n} \sum_{o} \mathrm{d}y_{no}\, x_{nj}\, \delta_{op} = \sum_{n} x_{nj}\, \mathrm{d}y_{np}
# \end{aligned}
# $$
#
# With respect to the **bias** $b_p$:
#
# $$
# \frac{\partial y_{no}}{\partial b_p} = \delta_{op}, \qquad
# \mathrm{d}b_p = \sum_{n} \sum_{o} \mathrm{d}y_{no}\, \delta_{op} = \sum_{n} \mathrm{d}y_{np}
# $$
#
# The code is the last expression of each of the three, loop by loop, against differences made by hand.

# %%
dy = R
dx_loop, dW_loop, db_loop = np.zeros((N, I)), np.zeros((I, O)), np.zeros(O)
for n in range(N):
    for o in range(O):
        db_loop[o] += dy[n, o]
        for i in range(I):
            dx_loop[n, i] += dy[n, o] * W[i, o]
            dW_loop[i, o] += x[n, i] * dy[n, o]


def linear_loss():
    return np.sum((x @ W + b) * R)


for tensor, gradient in ((x, dx_loop), (W, dW_loop), (b, db_loop)):
    np.testing.assert_allclose(gradient, numeric_gradient(linear_loss, tensor), atol=1e-8)

# %% [markdown]
# ### Backward in matrix form
#
# A sum over the last index of one factor and the last of the other is a product with a transpose:
# $\sum_o \mathrm{d}y_{mo} W_{jo} = \sum_o \mathrm{d}y_{mo} (W^\top)_{oj}$. A sum over the first index of both is a
# product with the transpose of the first: $\sum_n x_{nj}\, \mathrm{d}y_{np} = \sum_n (x^\top)_{jn}\, \mathrm{d}y_{np}$.
# So
#
# $$
# \mathrm{d}x = \mathrm{d}y\, W^\top, \qquad \mathrm{d}W = x^\top \mathrm{d}y, \qquad
# \mathrm{d}b = \sum_{n} \mathrm{d}y_{n} .
# $$
#
# The shapes leave no choice as long as $N$, $I$ and $O$ differ: $(N, I) = (N, O)(O, I)$ and $(I, O) = (I, N)(N, O)$.
# This is a good way to remember the formulas, and a reason to check with sizes that all differ.

# %%
np.testing.assert_allclose(dy @ W.T, dx_loop, rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(x.T @ dy, dW_loop, rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(dy.sum(axis=0), db_loop, rtol=1e-12, atol=1e-14)

# %% [markdown]
# ### Batches of sequences
#
# In a Transformer $x$ has the shape $(B, T, D)$: batch, tokens, width. The layer acts on the last axis and treats each
# of the $B\,T$ tokens alike. In the derivation $n$ then stands for the pair (sequence, place in it), and nothing else
# changes: the sums over $n$ run over both axes. To have one matrix product, give $x$ the shape $(B\,T, D)$ first.

# %%
B, T = 2, 5
x, R = rng.standard_normal((B, T, I)), rng.standard_normal((B, T, O))
dx = R @ W.T  # (B, T, I)
dW = x.reshape(B * T, I).T @ R.reshape(B * T, O)  # (I, O)
db = R.sum(axis=(0, 1))  # (O,)
for tensor, gradient in ((x, dx), (W, dW), (b, db)):
    np.testing.assert_allclose(gradient, numeric_gradient(linear_loss, tensor), atol=1e-8)

# %% [markdown]
# ## Broadcasting forward is summing backward
#
# NumPy added the bias of shape $(O,)$ to an array of shape $(B, T, O)$: it used each $b_o$ for all $B\,T$ tokens.
# Broadcasting is a fork without a drawing. Let $\hat b$ be the array that broadcasting makes: $\hat b_{no} = b_o$ for
# each of the $B\,T$ tokens $n$. Then $\partial \hat b_{no} / \partial b_p = \delta_{op}$ and
#
# $$
# \mathrm{d}b_p = \sum_{n} \sum_{o} \mathrm{d}\hat b_{no}\, \delta_{op}
# = \sum_{n} \mathrm{d}\hat b_{np} .
# $$
#
# The general rule: sum the gradient over each axis that broadcasting added or stretched. Axes are added in front; axes
# of size 1 are stretched.


# %%
def unbroadcast(dy, shape):
    """Sum dy over the axes along which an array of `shape` was broadcast to the shape of dy."""
    added = dy.ndim - len(shape)
    dy = dy.sum(axis=tuple(range(added)))  # axes added in front
    stretched = tuple(axis for axis, size in enumerate(shape) if size == 1 and dy.shape[axis] > 1)
    return dy.sum(axis=stretched, keepdims=True)


x, R = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3, 4))
for shape in ((4,), (3, 1), (1, 3, 4), (2, 1, 1), (1,), (2, 3, 4), ()):
    c = rng.standard_normal(shape)
    np.testing.assert_allclose(
        unbroadcast(R, shape), numeric_gradient(lambda c=c: np.sum((x + c) * R), c), atol=1e-8, err_msg=str(shape)
    )
    np.testing.assert_allclose(  # a broadcast factor: multiply first, then sum
        unbroadcast(R * x, shape), numeric_gradient(lambda c=c: np.sum(x * c * R), c), atol=1e-8, err_msg=str(shape)
    )

# %% [markdown]
# ## A layer as a class
#
# The library's layers derive from `numtrans.module.Module`, which does the bookkeeping and no mathematics. Three calls
# matter here:
#
# - `self.save(...)` in forward puts what backward needs on a stack, and `self.saved()` in backward takes the latest
#   entry off it;
# - a `Parameter` has `data` and `grad`;
# - `parameter.add_grad(g)` **adds** $g$ to `grad`, since a parameter that is used twice is a fork. `zero_grad()`
#   forgets the sum before the next training step.


# %%
class MyLinear(Module):
    """y = x @ W + b over the last axis."""

    def __init__(self, d_in, d_out, rng):
        super().__init__()
        self.W = Parameter(rng.standard_normal((d_in, d_out)) / np.sqrt(d_in))  # y is then about as large as x
        self.b = Parameter(np.zeros(d_out))

    def forward(self, x):
        self.save(x)
        return x @ self.W.data + self.b.data  # (..., O)

    def backward(self, dy):
        (x,) = self.saved()
        I, O = self.W.data.shape
        self.b.add_grad(unbroadcast(dy, (O,)))  # (O,)
        self.W.add_grad(x.reshape(-1, I).T @ dy.reshape(-1, O))  # (I, O)
        return dy @ self.W.data.T  # (..., I)


# %% [markdown]
# With the same parameters it equals the library's `Linear`: the output, the gradient of the input and those of both
# parameters.

# %%
mine, library = MyLinear(6, 4, rng), Linear(6, 4).astype(np.float64)
mine.b.data = rng.standard_normal(4)
library.load_state_dict(mine.state_dict())  # a dict from each parameter's name to its array: copy all of them
x, dy = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 5, 4))
np.testing.assert_allclose(mine(x), library(x), rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(mine.backward(dy), library.backward(dy), rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(mine.W.grad, library.W.grad, rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(mine.b.grad, library.b.grad, rtol=1e-12, atol=1e-14)

# %% [markdown]
# And it passes the library's gradient checker, which compares every number of the backward pass with a numeric one and
# tests the bookkeeping besides. What the column `error` means is explained further below.

# %%
report = gradcheck(MyLinear(6, 4, rng), rng.standard_normal((2, 3, 6)))
assert report
report

# %% [markdown]
# ### A layer used twice
#
# Let $f$ be one linear layer with a square $W$ and $z = f(f(x))$. The two calls share $W$. Write $y = f(x)$ for the
# value between. The calls are undone in reverse order, and both add to the same gradient:
#
# $$
# \mathrm{d}y = \mathrm{d}z\, W^\top, \qquad \mathrm{d}x = \mathrm{d}y\, W^\top, \qquad
# \mathrm{d}W = y^\top \mathrm{d}z + x^\top \mathrm{d}y .
# $$
#
# The first backward needs $y$, the input of the **second** call. The second backward needs $x$, the input of the
# **first**. So the values must come back in the order last in, first out: a stack.

# %%
shared = MyLinear(3, 3, rng)
x, dz = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
z = shared(shared(x))
dx = shared.backward(shared.backward(dz))

W = shared.W.data
y, dy = x @ W + shared.b.data, dz @ W.T
np.testing.assert_allclose(dx, dy @ W.T, rtol=1e-12)
np.testing.assert_allclose(shared.W.grad, y.T @ dz + x.T @ dy, rtol=1e-12, atol=1e-14)
numeric = numeric_gradient(lambda: np.sum(((x @ W + shared.b.data) @ W + shared.b.data) * dz), W)
np.testing.assert_allclose(shared.W.grad, numeric, atol=1e-8)
for part in (y.T @ dz, x.T @ dy):  # neither use alone gives the gradient
    assert np.linalg.norm(part - numeric) > 0.1 * np.linalg.norm(numeric)

# %% [markdown]
# Many first attempts keep the input in an attribute, `self.x = x`. The second call overwrites what the first had kept.
# Each call alone is right, so that a check of one forward and one backward would pass. `gradcheck` runs two forwards
# and then two backwards, and notices.


# %%
class KeepsOnlyTheLast(MyLinear):
    def forward(self, x):
        self.x = x
        return x @ self.W.data + self.b.data

    def backward(self, dy):
        self.save(self.x)  # for the backward of MyLinear, which takes it with saved()
        return super().backward(dy)


report = gradcheck(KeepsOnlyTheLast(3, 4, rng), rng.standard_normal((2, 3)))
assert not report
assert all(row.passed for row in report.rows)  # the numbers of a single call are right
print("\n".join(report.diagnosis))

# %% [markdown]
# ## A network, trained with a backward pass made of these parts
#
# A network with one hidden layer of $\tanh$ units learns a curve from noisy points. The loss is the mean squared error
# over $N$ points with targets $t_n$,
#
# $$
# L = \frac{1}{N} \sum_{n} (y_n - t_n)^2, \qquad
# \mathrm{d}y_m = \frac{1}{N} \sum_n 2 (y_n - t_n)\, \delta_{nm} = \frac{2}{N} (y_m - t_m) .
# $$


# %%
class MyTanh(Module):
    def forward(self, x):
        y = np.tanh(x)
        self.save(y)
        return y

    def backward(self, dy):
        (y,) = self.saved()
        return (1 - y * y) * dy


class Network(Module):
    """Linear, tanh, linear."""

    def __init__(self, d_in, d_hidden, d_out, rng):
        super().__init__()
        self.first, self.tanh = MyLinear(d_in, d_hidden, rng), MyTanh()
        self.second = MyLinear(d_hidden, d_out, rng)

    def forward(self, x):
        return self.second(self.tanh(self.first(x)))

    def backward(self, dy):
        return self.first.backward(self.tanh.backward(self.second.backward(dy)))


def mse(y, t):
    return np.mean((y - t) ** 2), 2 * (y - t) / t.size  # the loss, and its gradient with respect to y


y, t = rng.standard_normal((7, 1)), rng.standard_normal((7, 1))
np.testing.assert_allclose(mse(y, t)[1], numeric_gradient(lambda: mse(y, t)[0], y), atol=1e-9)
assert gradcheck(Network(2, 5, 3, rng), rng.standard_normal((4, 2)))

# %% [markdown]
# **Gradient descent** moves each parameter $w$ against its gradient, $w \leftarrow w - \eta\, \mathrm{d}w$, with a step
# $\eta$, the learning rate. By the first equation of this chapter, the loss falls by $\eta \lVert \mathrm{d}w \rVert^2$
# to first order.
#
# The curve is $\sin 4x$ on $[-1, 1]$, the noise has standard deviation 0.1. If the network finds the curve and no more,
# its loss on the noisy points is about the variance of the noise, $0.1^2 = 0.01$. The first weights are scaled up by 3
# and the first biases spread over $[-3, 3]$, so that the hidden units bend at different places.

# %%
NOISE = 0.1


def train_curve(seed, steps=4000, learning_rate=0.05):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (60, 1))
    t = np.sin(4 * x) + NOISE * rng.standard_normal(x.shape)
    network = Network(1, 24, 1, rng)
    network.first.W.data *= 3
    network.first.b.data = rng.uniform(-3, 3, 24)
    losses = []
    with threadpool_limits(1, "blas"):  # matrices this small are faster on one thread
        for _ in range(steps):
            network.zero_grad()
            loss, dy = mse(network(x), t)
            network.backward(dy)
            for p in network.parameters():
                p.data -= learning_rate * p.grad
            losses.append(loss)
    grid = np.linspace(-1, 1, 201)[:, None]
    return x, t, losses, grid, network(grid)


# %% [markdown]
# Six seeds (three in the fast mode), each with its own points, noise and first weights. The loss must come down to less
# than twice the variance of the noise on the training points, from at least 20 times that variance. On the curve
# without noise, which training never saw, the error must be below the variance of the noise: the network has averaged
# the noise out. In all six both numbers at the end are below their bounds by a factor of more than two.

# %%
runs = [train_curve(seed) for seed in range(3 if FAST else 6)]
for seed, (x, t, losses, grid, fit) in enumerate(runs):
    error = np.mean((fit - np.sin(4 * grid)) ** 2)
    print(f"seed {seed}: loss {losses[0]:.3f} -> {losses[-1]:.4f}; error against the true curve {error:.4f}")
    assert losses[0] > 20 * NOISE**2 and losses[-1] < 2 * NOISE**2 and error < NOISE**2

# %%
x, t, losses, grid, fit = runs[0]
plots.plot_panels(
    {
        "the fit of seed 0": dict(
            lines={
                "network": (grid[:, 0], fit[:, 0]),
                "sin 4x": (grid[:, 0], np.sin(4 * grid[:, 0])),
            },
            points={"noisy points": (x[:, 0], t[:, 0])},
            xlabel="x",
            ylabel="y",
        ),
        "the loss": dict(
            lines={f"seed {seed}": (np.arange(1, 4001), run[2]) for seed, run in enumerate(runs[:3])}
            | {"variance of the noise": (np.array([1, 4000]), np.full(2, NOISE**2))},
            xlabel="step of gradient descent",
            ylabel="mean squared error",
            xscale="log",
            yscale="log",
        ),
    },
    title=f"Hand-written gradients fit the curve down to the noise: loss {losses[0]:.2f} to {losses[-1]:.4f}",
)

# %% [markdown]
# ## Reverse mode against forward mode
#
# Derivatives can also be carried forward. Let $\dot x$ be a direction of change of the inputs, and carry for each value
# the change $\dot u$ that it undergoes, to first order. For a layer, $\dot y = J \dot x$, a **Jacobian-vector
# product**. One such pass gives one number, $\dot L$, the slope along one direction. This is **forward mode**. The
# whole gradient takes one pass for each input.
#
# Take a chain of layers of widths $n_0, n_1, \dots, n_k$ with $n_k = 1$, the loss. Its gradient is the product of the
# Jacobians $J_k J_{k-1} \cdots J_1$, where $J_l$ has the shape $(n_l, n_{l-1})$. The product is the same wherever one
# begins; its cost is not. From the left (reverse mode) it is always a row vector times a matrix. From the right
# (forward mode, all $n_0$ directions at once) it is a matrix with $n_0$ columns on the right. The numbers of
# multiplications are
#
# $$
# \text{reverse: } \sum_{l=1}^{k-1} n_l\, n_{l-1}, \qquad \text{forward: } n_0 \sum_{l=2}^{k} n_l\, n_{l-1} .
# $$


# %%
def product(matrices):
    """The product of two matrices at a time, in the order given, and the multiplications it took."""
    result, count = matrices[0], 0
    for right in matrices[1:]:
        count += result.shape[0] * result.shape[1] * right.shape[1]
        result = result @ right
    return result, count


n = [300, 200, 200, 1]  # n_0 inputs, two layers, the loss
jacobians = [rng.standard_normal((n[l], n[l - 1])) / np.sqrt(n[l - 1]) for l in (3, 2, 1)]  # J_3, J_2, J_1
reverse, reverse_count = product(jacobians)
forward, forward_count = product([J.T for J in reversed(jacobians)])  # (J_3 J_2 J_1)^T, begun at J_1
np.testing.assert_allclose(reverse, forward.T, rtol=1e-10, atol=1e-12)
assert reverse_count == sum(n[l] * n[l - 1] for l in (1, 2))
assert forward_count == n[0] * sum(n[l] * n[l - 1] for l in (2, 3))
print(f"multiplications: reverse {reverse_count:,}, forward {forward_count:,}")

# %% [markdown]
# The same with the network that was trained. Forward mode carries a change of the parameters along, one pass for each
# of the $P$ parameters. Reverse mode gives all of them in one pass. The price of reverse mode is memory: it starts at
# the end, so that all values of the forward pass must be kept until then.


# %%
def slope(network, x, t, direction):
    """Forward mode: the change of the loss for a unit change of the parameters along `direction`."""
    W1, b1, W2, b2 = (p.data for p in network.parameters())
    W1_dot, b1_dot, W2_dot, b2_dot = direction
    h = np.tanh(x @ W1 + b1)
    h_dot = (1 - h * h) * (x @ W1_dot + b1_dot)
    y, y_dot = h @ W2 + b2, h_dot @ W2 + h @ W2_dot + b2_dot
    return np.sum(2 * (y - t) / t.size * y_dot)


network = Network(1, 24, 1, rng)
x, t = rng.standard_normal((60, 1)), rng.standard_normal((60, 1))
network.backward(mse(network(x), t)[1])
reverse = np.concatenate([p.grad.ravel() for p in network.parameters()])

shapes = [p.data.shape for p in network.parameters()]
ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
forward = np.zeros(ends[-1])
for k, unit in enumerate(np.eye(ends[-1])):  # one pass for each parameter
    direction = [part.reshape(shape) for part, shape in zip(np.split(unit, ends[:-1]), shapes, strict=True)]
    forward[k] = slope(network, x, t, direction)
np.testing.assert_allclose(forward, reverse, rtol=1e-10, atol=1e-13)
print(f"{ends[-1]} passes of forward mode, 1 pass of reverse mode, the same gradient")
along_itself = slope(network, x, t, [p.grad for p in network.parameters()])
np.testing.assert_allclose(along_itself, np.sum(reverse**2), rtol=1e-12)  # what a step of gradient descent gains

# %% [markdown]
# ## The checker: differences and their errors
#
# All checks above rested on `numeric_gradient`. How far can it be trusted? Let $L$ be a function of one number $x$, and
# $h > 0$ a step. By Taylor's theorem
#
# $$
# L(x \pm h) = L(x) \pm h L'(x) + \frac{h^2}{2} L''(x) \pm \frac{h^3}{6} L'''(x) + O(h^4) .
# $$
#
# Solve for $L'$ in two ways: the **forward difference** uses $L(x + h)$ and $L(x)$, the **central difference** uses
# $L(x + h)$ and $L(x - h)$, where all terms with an even power of $h$ cancel:
#
# $$
# \frac{L(x + h) - L(x)}{h} = L' + \frac{h}{2} L'' + O(h^2), \qquad
# \frac{L(x + h) - L(x - h)}{2h} = L' + \frac{h^2}{6} L''' + O(h^4) .
# $$
#
# The example from here on is $L(x) = e^{\sin x}$, whose three derivatives are known.


# %%
def L(x):
    return np.exp(np.sin(x))


def L1(x):  # the first derivative
    return np.cos(x) * L(x)


def L2(x):  # the second
    return (np.cos(x) ** 2 - np.sin(x)) * L(x)


def L3(x):  # the third
    return (np.cos(x) ** 3 - 3 * np.sin(x) * np.cos(x) - np.cos(x)) * L(x)


x, h = 0.4, 1e-3
forward_error = (L(x + h) - L(x)) / h - L1(x)
central_error = (L(x + h) - L(x - h)) / (2 * h) - L1(x)
print(f"forward: error {forward_error:.6e}, h L''/2 = {h * L2(x) / 2:.6e}")
print(f"central: error {central_error:.6e}, h^2 L'''/6 = {h * h * L3(x) / 6:.6e}")
np.testing.assert_allclose(forward_error, h * L2(x) / 2, rtol=0.01)
np.testing.assert_allclose(central_error, h * h * L3(x) / 6, rtol=0.01)

# %% [markdown]
# ### The best step
#
# By this alone, smaller is better. But a computer rounds: the computed $L$ carries an error of about $\epsilon |L|$,
# with $\epsilon = 2.2 \cdot 10^{-16}$ in float64. The difference of two such values has an error of up to $2 \epsilon
# |L|$, and division by a small $h$ makes it large. Bounds for the total error are
#
# $$
# E_{\text{forward}}(h) = \frac{h}{2} |L''| + \frac{2 \epsilon |L|}{h}, \qquad
# E_{\text{central}}(h) = \frac{h^2}{6} |L'''| + \frac{\epsilon |L|}{h} .
# $$
#
# Each has a falling and a rising part. Setting the derivative with respect to $h$ to zero gives
# $\frac12 |L''| = 2 \epsilon |L| / h^2$ for the first and $\frac{h}{3} |L'''| = \epsilon |L| / h^2$ for the second, so
#
# $$
# h_{\text{forward}} = 2 \sqrt{\epsilon\, |L| / |L''|} \propto \epsilon^{1/2}, \qquad
# h_{\text{central}} = \sqrt[3]{3 \epsilon\, |L| / |L'''|} \propto \epsilon^{1/3} .
# $$
#
# Put back in, the smallest errors are $2 \sqrt{\epsilon |L| |L''|} \propto \epsilon^{1/2}$ and
# $\frac{3 \epsilon |L|}{2 h} \propto \epsilon^{2/3}$. In float64 these are about $10^{-8}$ and $10^{-11}$: central
# differences are right to about 11 digits at best, with a step of about $10^{-5}$. The cell asserts that the two
# formulas are the minima of the two bounds.

# %%
h_forward = 2 * np.sqrt(EPS * abs(L(x)) / abs(L2(x)))
h_central = np.cbrt(3 * EPS * abs(L(x)) / abs(L3(x)))


def bound_forward(h):
    return h / 2 * abs(L2(x)) + 2 * EPS * abs(L(x)) / h


def bound_central(h):
    return h * h / 6 * abs(L3(x)) + EPS * abs(L(x)) / h


print(f"forward: best step {h_forward:.1e}, error {bound_forward(h_forward):.1e}")
print(f"central: best step {h_central:.1e}, error {bound_central(h_central):.1e}")
np.testing.assert_allclose(bound_forward(h_forward), 2 * np.sqrt(EPS * abs(L(x) * L2(x))), rtol=1e-12)
np.testing.assert_allclose(bound_central(h_central), 1.5 * EPS * abs(L(x)) / h_central, rtol=1e-12)
around = np.logspace(-2, 2, 401)
assert np.all(bound_forward(h_forward * around) >= bound_forward(h_forward) * (1 - 1e-12))
assert np.all(bound_central(h_central * around) >= bound_central(h_central) * (1 - 1e-12))

# %% [markdown]
# ### The complex step
#
# Rounding enters through the subtraction of two nearly equal numbers. There is a way without a subtraction. Let $i$ be
# the imaginary unit and let $L$ be analytic, so that its Taylor series holds for complex arguments too. Then, as
# $i^2 = -1$ and $i^3 = -i$,
#
# $$
# L(x + i h) = L(x) + i h L'(x) - \frac{h^2}{2} L''(x) - i \frac{h^3}{6} L'''(x) + O(h^4) .
# $$
#
# For real $x$ all derivatives are real. The imaginary part, divided by $h$, is
#
# $$
# \frac{\operatorname{Im} L(x + i h)}{h} = L'(x) - \frac{h^2}{6} L'''(x) + O(h^4) .
# $$
#
# Nothing is subtracted, so $h$ may be as small as one likes. At $h = 10^{-20}$ the second term is of the order of
# $10^{-40}$, far below the rounding of the result. The real number $x + h$ could not even be written in float64: there
# $0.4 + 10^{-20} = 0.4$.

# %%
h = 1e-3
complex_error = np.imag(L(x + 1j * h)) / h - L1(x)
np.testing.assert_allclose(complex_error, -h * h * L3(x) / 6, rtol=0.01)

h = 1e-20
assert x + h == x
complex_error = abs(np.imag(L(x + 1j * h)) / h - L1(x)) / abs(L1(x))
print(f"relative error at h = 1e-20: {complex_error:.1e}, which is {complex_error / EPS:.1f} eps")
assert complex_error <= 8 * EPS  # a few roundings of the arithmetic itself

# %% [markdown]
# ### The V of step sizes, by hand
#
# Measure all three at 400 random points and take the median, since the error at one point may be small by accident. On
# logarithmic axes a power $h^k$ is a straight line of slope $k$. Predicted slopes: where the neglected terms of
# Taylor's formula rule, 1 for the forward difference and 2 for the other two; where rounding rules, $-1$.

# %%
steps = np.logspace(-1, -13, 49)
points = np.random.default_rng(1).uniform(-1, 1, 400)


def median_errors(difference):
    return np.array([np.median(np.abs(difference(h) - L1(points))) for h in steps])


errors = {
    "forward": median_errors(lambda h: (L(points + h) - L(points)) / h),
    "central": median_errors(lambda h: (L(points + h) - L(points - h)) / (2 * h)),
    "complex": median_errors(lambda h: np.imag(L(points + 1j * h)) / h),
}


def fitted_slope(steps, errors, low, high):
    inside = (steps >= low) & (steps <= high)
    return np.polyfit(np.log(steps[inside]), np.log(errors[inside]), 1)[0]


for name, low, high, expected in (
    ("forward", 1e-5, 1e-1, 1),
    ("central", 1e-3, 1e-1, 2),
    ("complex", 1e-3, 1e-1, 2),
    ("forward", 1e-12, 1e-9, -1),
    ("central", 1e-12, 1e-7, -1),
):
    found = fitted_slope(steps, errors[name], low, high)
    print(f"{name}, h from {low:.0e} to {high:.0e}: slope {found:+.3f}, predicted {expected:+d}")
    assert abs(found - expected) < 0.1

# %% [markdown]
# The place of the minimum must agree with the formulas. The bounds take the worst case of every rounding, so the true
# minimum lies near the predicted one and not at it: the assertion allows a factor of 10 either way, while the two
# predictions are a factor of about 300 apart.

# %%
best = {name: steps[errors[name].argmin()] for name in ("forward", "central")}
predicted = {
    "forward": 2 * np.sqrt(EPS * np.median(np.abs(L(points)) / np.abs(L2(points)))),
    "central": np.cbrt(3 * EPS * np.median(np.abs(L(points)) / np.abs(L3(points)))),
}
for name in best:
    print(f"{name}: smallest error {errors[name].min():.1e} at h = {best[name]:.1e}, predicted {predicted[name]:.1e}")
    assert 0.1 < best[name] / predicted[name] < 10
assert errors["complex"][steps < 1e-9].max() <= 2 * EPS

# %% [markdown]
# ### The same V for a network
#
# `step_size_study` of `numtrans.gradcheck` does this for any module: it moves all inputs and parameters along one
# random direction and compares the numeric slope with the one that backward gives. Nobody wrote down the third
# derivative of the network, but the powers are the same. The median is over ten networks, each with its own direction
# and loss. Ten are few, so the bounds are wider: 0.4 for a slope, a factor of 30 for the place of the minimum, against
# $\epsilon^{1/2}$ and $\epsilon^{1/3}$.

# %%
studies = [step_size_study(Network(3, 8, 2, rng), rng.standard_normal((4, 3)), seed=seed) for seed in range(10)]
h = studies[0].steps
network_errors = {
    name: np.maximum(np.median([study.errors[name] for study in studies], axis=0), 1e-17)
    for name in ("forward", "central", "complex")
}
for name, low, high, expected in (
    ("forward", 1e-5, 1e-2, 1),
    ("central", 1e-3, 1e-1, 2),
    ("forward", 1e-12, 1e-10, -1),
    ("central", 1e-12, 1e-8, -1),
):
    found = fitted_slope(h, network_errors[name], low, high)
    print(f"{name}, h from {low:.0e} to {high:.0e}: slope {found:+.2f}, predicted {expected:+d}")
    assert abs(found - expected) < 0.4
best = {name: h[network_errors[name].argmin()] for name in ("forward", "central")}
assert EPS ** (1 / 2) / 30 < best["forward"] < 30 * EPS ** (1 / 2)
assert EPS ** (1 / 3) / 30 < best["central"] < 30 * EPS ** (1 / 3)
assert network_errors["complex"][h < 1e-9].max() < 1e-13

# %%
axes = dict(xlabel="step size h", xscale="log", yscale="log")
drawn = {name: (steps, np.maximum(error, 1e-17)) for name, error in errors.items()}  # 0 has no logarithm
drawn_network = {name: (h, error) for name, error in network_errors.items()}
plots.plot_panels(
    {
        "exp(sin x), median of 400 points": dict(lines=drawn, ylabel="error of the slope (not below 1e-17)", **axes),
        "a network, median of 10": dict(lines=drawn_network, ylabel="relative error of the slope", **axes),
    },
    title=f"Smaller is not better: the best step of a central difference is {best['central']:.0e} for the network; "
    "the complex step has none",
)

# %% [markdown]
# ### What is compared: the norm of a tensor's gradient
#
# Let $a$ be the gradient of one tensor by backward, and $n$ the numeric one. Dividing the error of each entry by that
# entry looks natural and is wrong: an entry that happens to be tiny is lost in the rounding of the whole loss. The
# error must be measured against the size of the whole tensor's gradient. `gradcheck` passes a tensor, all of whose
# entries were checked, if
#
# $$
# \lVert a - n \rVert \le \tau\, g + \tau_0, \qquad g = \max\left( \lVert n \rVert, \lVert a \rVert \right), \qquad
# \tau = 10^{-7}, \quad \tau_0 = 10^{-9},
# $$
#
# where $\lVert \cdot \rVert$ is the root of the sum of squares. The floor $\tau_0$ is for gradients that are exactly
# zero. The column `error` of a report is $\lVert a - n \rVert / (g + \tau_0 / \tau)$, to be compared with $\tau$; the
# column `float32` is the distance between the gradients of backward in float32 and in float64; the last column shows
# the entry with the largest difference. In the example the gradient of $\sum_k c_k e^{x_k}$ is $c_k e^{x_k}$; the third
# entry is $10^{-11}$ times the others. The gradient is right, but entry by entry it looks wrong.

# %%
c = np.array([1.0, 2.0, 1e-11])
x = np.array([0.3, -0.4, 0.5])
analytic = c * np.exp(x)
numeric = numeric_gradient(lambda: np.sum(c * np.exp(x)), x)

by_entry = np.abs(analytic - numeric) / np.abs(analytic)
g = max(np.linalg.norm(numeric), np.linalg.norm(analytic))
by_norm = np.linalg.norm(analytic - numeric) / g
print("relative error of each entry:", ", ".join(f"{e:.0e}" for e in by_entry), f"; by the norm: {by_norm:.0e}")
assert by_entry[2] > 1e-3  # a right gradient, refused
assert np.linalg.norm(analytic - numeric) <= 1e-7 * g + 1e-9  # and accepted

# %% [markdown]
# The price: a mistake in one entry that is smaller than $10^{-7}$ of the norm would pass. This is why `gradcheck` draws
# random gains, biases and losses, which make all entries about equally large, and why there is a second method,
# `method="complex"`, with a tolerance of $10^{-12}$.

# %%
report = gradcheck(Network(3, 5, 2, rng), rng.standard_normal((4, 3)), method="complex")
assert report
report

# %% [markdown]
# ### Kinks
#
# $\operatorname{ReLU}(x) = \max(0, x)$ has slope 0 on the left of zero, slope 1 on the right, and no derivative at
# zero. The error formulas do not hold across the kink. For $|x| < h$ the central difference mixes the two slopes:
#
# $$
# \frac{\max(0, x + h) - \max(0, x - h)}{2h} = \frac{x + h}{2h} \qquad\text{for } -h \le x \le h .
# $$
#
# At $x = h / 3$ this is $2/3$; the right answer is 1.

# %%
h = 1e-5
for x in (-h / 2, 0.0, h / 3, h):
    central = (max(0.0, x + h) - max(0.0, x - h)) / (2 * h)
    np.testing.assert_allclose(central, (x + h) / (2 * h), rtol=1e-10)
    print(f"x = {x / h:+.2f} h: central difference {central:.4f}")

# %% [markdown]
# A checker that did not know this would call a right backward wrong by chance: with $h = 10^{-5}$, about one standard
# normal number in 100,000 lies within $h$ of zero. `gradcheck` compares the slopes on the two sides with several steps;
# where they keep disagreeing it leaves the entry out and says so. One entry of $x$ below lies within the step of the
# kink.

# %%
x = rng.standard_normal((2, 3))
x[0, 1] = h / 3
report = gradcheck(ReLU(), x)
assert report and report["x"].kinks == 1
report

# %% [markdown]
# ## A mistake, planted
#
# $\mathrm{d}W = x^\top \mathrm{d}y$ or $\mathrm{d}y^\top x$? With different $I$ and $O$ the second has the wrong shape
# and fails at once. With a square $W$ all shapes fit and no error is raised. The check finds it, and says what it is.


# %%
class Transposed(MyLinear):
    def backward(self, dy):
        (x,) = self.saved()
        I, O = self.W.data.shape
        self.b.add_grad(unbroadcast(dy, (O,)))
        self.W.add_grad(dy.reshape(-1, O).T @ x.reshape(-1, I))  # wrong: the transpose
        return dy @ self.W.data.T


report = gradcheck(Transposed(4, 4, rng), rng.standard_normal((2, 3, 4)))
assert not report and not report["W"].passed and report["b"].passed and report["x"].passed
report

# %% [markdown]
# What the checker cannot see: a mistake in the **forward** pass. If forward computes the wrong function and backward is
# the right derivative of that function, the check passes. The library therefore also compares its outputs with recorded
# values of another library. In this book each from-nothing version is compared with a formula.
#
# ## Exercises
#
# ### Exercise 2.1: a gain and a bias
#
# Let $y = x \odot g + b$ with $x$ of shape $(B, T, D)$ and $g$, $b$ of shape $(D,)$; $\odot$ is the product entry by
# entry. Write `scale_backward(x, g, dy)`, which returns `dx, dg, db`. Check: each agrees with `numeric_gradient` of
# `np.sum((x * g + b) * dy)` to $10^{-8}$, at $B, T, D = 2, 3, 4$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 2.1
def scale_backward(x, g, dy):
    dg = (dy * x).sum(axis=(0, 1))  # g was broadcast over batch and tokens
    db = dy.sum(axis=(0, 1))
    return dy * g, dg, db


x, dy = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3, 4))
g, b = rng.standard_normal(4), rng.standard_normal(4)
for tensor, gradient in zip((x, g, b), scale_backward(x, g, dy), strict=True):
    np.testing.assert_allclose(gradient, numeric_gradient(lambda: np.sum((x * g + b) * dy), tensor), atol=1e-8)

# %% [markdown]
# ### Exercise 2.2: the other layout, on paper
#
# Some libraries store the weight with shape $(O, I)$ and compute $y = x W^\top + b$. Derive $\mathrm{d}x$ and
# $\mathrm{d}W$ in index form, then in matrix form. Check the shapes.
#
# <details><summary>Solution of exercise 2.2</summary>
#
# $y_{no} = \sum_i x_{ni} W_{oi} + b_o$. Then $\partial y_{no} / \partial x_{mj} = \delta_{nm} W_{oj}$, so
# $\mathrm{d}x_{mj} = \sum_o \mathrm{d}y_{mo} W_{oj}$, that is $\mathrm{d}x = \mathrm{d}y\, W$ with shapes
# $(N, I) = (N, O)(O, I)$. And $\partial y_{no} / \partial W_{pj} = \delta_{op}\, x_{nj}$, so
# $\mathrm{d}W_{pj} = \sum_n \mathrm{d}y_{np}\, x_{nj}$, that is $\mathrm{d}W = \mathrm{d}y^\top x$ with shapes
# $(O, I) = (O, N)(N, I)$. It is the formula that was the planted mistake for the layout $(I, O)$.
#
# </details>
#
# ### Exercise 2.3: the Jacobian after all
#
# Write `jacobian(module, x)`, which builds the matrix $J$ of shape $(m, n)$ of a module with one input, with $m$ calls
# of backward, each after a forward, and no differences. A forward that gets no backward leaves its saved values on the
# stack; `module.clear()` drops them. Check: for `MyTanh()` and $x$ of shape $(5,)$ it is the diagonal matrix of
# $1 - \tanh^2 x$, to $10^{-12}$; for `MyLinear(3, 2, rng)` and $x$ of shape $(1, 3)$ it is $W^\top$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 2.3
def jacobian(module, x):
    y = module(x)
    module.clear()  # this forward gets no backward
    rows = []
    for unit in np.eye(y.size):  # dy with a single 1 gives one row of J
        module(x)
        rows.append(module.backward(unit.reshape(y.shape)).ravel())
    return np.stack(rows)  # (m, n)


x = rng.standard_normal(5)
np.testing.assert_allclose(jacobian(MyTanh(), x), np.diag(1 - np.tanh(x) ** 2), atol=1e-12)
layer = MyLinear(3, 2, rng)
np.testing.assert_allclose(jacobian(layer, rng.standard_normal((1, 3))), layer.W.data.T, atol=1e-12)

# %% [markdown]
# ### Exercise 2.4: a better difference
#
# Central differences with the steps $h$ and $2h$ have the errors $\frac{h^2}{6} L'''$ and $\frac{4 h^2}{6} L'''$.
# Combine the two so that this term cancels, and write `five_point(f, x, h)`. What is the next power of $h$, and which
# power of $\epsilon$ gives the best step? Check, with the functions of "The V of step sizes, by hand":
# `five = median_errors(lambda h: five_point(L, points, h))` are the median errors,
# `fitted_slope(steps, five, 1e-2, 1e-1)` is within 0.2 of your answer, and `five.min()` is below
# `errors["central"].min()`.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 2.4
def five_point(f, x, h):
    near = (f(x + h) - f(x - h)) / (2 * h)
    far = (f(x + 2 * h) - f(x - 2 * h)) / (4 * h)
    return (4 * near - far) / 3  # the terms with h^2 cancel; the next one is h^4


# the total error is c h^4 + eps / h up to constants: smallest where h^5 is proportional to eps, so h ~ eps^(1/5)
five = median_errors(lambda h: five_point(L, points, h))
assert abs(fitted_slope(steps, five, 1e-2, 1e-1) - 4) < 0.2
assert five.min() < errors["central"].min()
assert EPS ** (1 / 5) / 10 < steps[five.argmin()] < 10 * EPS ** (1 / 5)

# %% [markdown]
# ### Exercise 2.5: one matrix in two places
#
# An autoencoder with a tied matrix computes $y = \tanh(x W)\, W^\top$ with $W$ of shape $(D, K)$. The matrix is used
# twice, and the second time transposed. Derive $\mathrm{d}W$, then write the class `Tied(d, k, rng)` with one
# `Parameter` named `W`, $d = D$ and $k = K$. Check: `gradcheck(Tied(5, 3, rng), x)` passes for $x$ of shape $(4, 5)$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 2.5
class Tied(Module):
    def __init__(self, d, k, rng):
        super().__init__()
        self.W = Parameter(rng.standard_normal((d, k)) / np.sqrt(d))

    def forward(self, x):
        h = np.tanh(x @ self.W.data)  # (N, K)
        self.save(x, h)
        return h @ self.W.data.T  # (N, D)

    def backward(self, dy):
        x, h = self.saved()
        # y_nd = sum_k h_nk W_dk, so W_dk receives sum_n dy_nd h_nk
        self.W.add_grad(dy.T @ h)  # (D, K), second use
        ds = (dy @ self.W.data) * (1 - h * h)  # (N, K)
        self.W.add_grad(x.T @ ds)  # (D, K), first use
        return ds @ self.W.data.T  # (N, D)


report = gradcheck(Tied(5, 3, rng), rng.standard_normal((4, 5)))
assert report
report

# %% [markdown]
# ## Papers
#
# - Linnainmaa (1976), *Taylor expansion of the accumulated rounding error*, BIT Numerical Mathematics 16, 146-160. The
#   reverse accumulation of derivatives, before neural networks used it.
# - Rumelhart, Hinton and Williams (1986), *Learning representations by back-propagating errors*, Nature 323, 533-536.
#   Backpropagation in networks with hidden units.
# - Squire and Trapp (1998), *Using complex variables to estimate derivatives of real functions*, SIAM Review 40,
#   110-112. The complex step.
# - Martins, Sturdza and Alonso (2003), *The complex-step derivative approximation*, ACM Transactions on Mathematical
#   Software 29, 245-262. Its use for whole programs.
# - Baydin, Pearlmutter, Radul and Siskind (2018), *Automatic differentiation in machine learning: a survey*, JMLR 18
#   (arXiv:1502.05767). Forward and reverse mode.
# - Glorot and Bengio (2010), *Understanding the difficulty of training deep feedforward neural networks*, AISTATS. The
#   scale of first weights that `Linear` uses.
#
# The linear layer is in `numtrans/layers/linear.py` and the checker in `numtrans/gradcheck/`; [chapter
# 3](03-softmax.ipynb) does for softmax and cross-entropy what this one did for the linear layer.
