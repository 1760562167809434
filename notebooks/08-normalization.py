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
# # 8. Normalization
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/08-normalization.ipynb)
#
# A normalization layer subtracts a mean and divides by a standard deviation that it takes from the very numbers it is
# given. Which numbers share a mean is the whole difference between LayerNorm, RMSNorm and BatchNorm. This chapter
# derives the three of them, forward and backward, and measures what each does to batches of text.
#
# **At the end you will understand**
#
# - over which axes each of the three takes its statistics, and what follows for a padded batch;
# - why the Jacobian of a normalization is a projection divided by a standard deviation;
# - which changes of the input a normalization does not see, and why its gradient is orthogonal to them;
# - why a plain sum of the outputs is a useless loss for checking its backward pass;
# - which of the usual reasons given for LayerNorm can be measured, and which cannot.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import os
import time

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import BatchNorm, FeedForward, LayerNorm, Linear, Residual, RMSNorm
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module, Parameter
from numtrans.optim import SGD, Adam

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests


def rms(a):
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(a))))


# %% [markdown]
# ## Which numbers share their statistics
#
# The activations of a Transformer are an array $x$ of shape $(B, T, D)$: $B$ sentences in the batch, $T$ tokens in
# each, $D$ features for each token. Written with one row a token it is a table of $B T$ rows and $D$ columns. The
# statistics can be taken along a row or down a column.
#
# The next cell does not say which layer does what: it finds out. It changes one number, the one of sentence 1, token 1,
# feature 2, and marks every output that moves. An output moves if the changed number is in its statistics.


# %%
def moved(layer, b=1, t=1, j=2):
    x = np.random.default_rng(0).standard_normal((3, 3, 6))  # (B, T, D)
    changed = x.copy()
    changed[b, t, j] += 1.0
    layer.astype(np.float64)
    difference = np.abs(layer(changed) - layer(x)) > 1e-9
    return difference.reshape(9, 6).astype(float)  # (B T, D)


pictures = {"LayerNorm: the row": moved(LayerNorm(6)), "RMSNorm: the row": moved(RMSNorm(6)),
            "BatchNorm: the column": moved(BatchNorm(6))}
row, column = np.zeros((9, 6)), np.zeros((9, 6))
row[4], column[:, 2] = 1, 1
assert (pictures["LayerNorm: the row"] == row).all() and (pictures["RMSNorm: the row"] == row).all()
assert (pictures["BatchNorm: the column"] == column).all()
plots.plot_heatmaps(
    pictures, xlabel="feature", ylabel="sentence.token", colorbar="1 = the output moves",
    title="One changed number moves 6 outputs of one token, or one feature of all 9 tokens of the batch",
    xticks=list("012345"), yticks=[f"{b}.{t}" for b in range(3) for t in range(3)],
)  # fmt: skip

# %% [markdown]
# ## LayerNorm, forward
#
# Take one token, a vector $x$ with entries $x_1, \dots, x_D$. We look for the map $\hat x_i = a x_i + c$ with $a > 0$
# and the same $a$ and $c$ for all features, such that the $\hat x_i$ have mean 0 and mean square 1. The first demand
# gives $c = -a \mu$ with the mean $\mu$. The second gives $a = 1 / \sigma$ with the standard deviation $\sigma$:
#
# $$
# \mu = \frac{1}{D} \sum_{k=1}^{D} x_k , \qquad
# \sigma^2 = \frac{1}{D} \sum_{k=1}^{D} (x_k - \mu)^2 , \qquad
# \hat x_i = \frac{x_i - \mu}{\sigma}
# $$
#
# The variance divides by $D$ (the *biased* one), not by $D - 1$. The $D$ numbers are not a sample from which the
# variance of something larger is estimated: they are all there is, and only with $1/D$ is the mean square exactly 1.

# %%
rng = np.random.default_rng(1)
D = 8
x = 3.0 + 2.0 * rng.standard_normal(D)  # (D,)
mu = x.sum() / D
sigma = np.sqrt(((x - mu) ** 2).sum() / D)
xhat = (x - mu) / sigma  # (D,)
np.testing.assert_allclose(xhat.mean(), 0, atol=1e-15)
np.testing.assert_allclose((xhat**2).mean(), 1, rtol=1e-14)
unbiased = (x - mu) / x.std(ddof=1)
np.testing.assert_allclose((unbiased**2).mean(), (D - 1) / D, rtol=1e-14)  # not 1

# %% [markdown]
# A token whose features are all equal has $\sigma = 0$. A small constant $\epsilon$ inside the root keeps the quotient
# finite. The mean square is then a little below 1, and goes to 0 for a token that is nearly constant:
#
# $$
# \sigma^2 = \frac{1}{D} \sum_k (x_k - \mu)^2 + \epsilon , \qquad
# \frac{1}{D} \sum_i \hat x_i^2 = 1 - \frac{\epsilon}{\sigma^2}
# $$

# %%
eps = 1e-5
for scale in (1.0, 1e-2, 1e-4):
    centered = scale * (x - mu)
    sigma_eps = np.sqrt((centered**2).mean() + eps)
    np.testing.assert_allclose(((centered / sigma_eps) ** 2).mean(), 1 - eps / sigma_eps**2, rtol=1e-9)
    print(f"features of standard deviation {scale * sigma:.0e}: mean square {1 - eps / sigma_eps**2:.6f}")

# %% [markdown]
# A layer behind the norm may need another mean and another scale, so each feature gets a learned gain $\gamma_i$ and
# shift $\beta_i$, which start at 1 and 0:
#
# $$
# y_i = \gamma_i \hat x_i + \beta_i
# $$
#
# In **matrix form**, let $\mathbf{1}$ be the vector of $D$ ones, $I$ the identity matrix, and $C = I - \tfrac{1}{D}
# \mathbf{1} \mathbf{1}^\top$. Then $C x$ is $x$ without its mean, and
#
# $$
# \hat x = \frac{C x}{\sigma} , \qquad C^2 = C = C^\top , \qquad C \mathbf{1} = 0
# $$
#
# A symmetric matrix with $C^2 = C$ is an orthogonal projection: it removes what lies along some directions and leaves
# what is orthogonal to them. $C$ removes what lies along $\mathbf{1}$.

# %%
ones = np.ones(D)
C = np.eye(D) - np.outer(ones, ones) / D  # (D, D)
np.testing.assert_allclose(C @ C, C, atol=1e-15)
np.testing.assert_allclose(C @ ones, 0, atol=1e-15)
np.testing.assert_allclose(C @ x / sigma, xhat, rtol=1e-12)

# %% [markdown]
# ### What a norm does not see
#
# With $\epsilon = 0$, for any number $c$ and any $a > 0$: the mean of $a x + c \mathbf{1}$ is $a \mu + c$ and its
# standard deviation is $a \sigma$, so both drop out,
#
# $$
# \mathrm{LN}(a x + c \mathbf{1}) = \mathrm{LN}(x)
# $$
#
# and with $\epsilon$ the scale drops out up to a change of $\epsilon$: $\mathrm{LN}_{\epsilon}(a x) =
# \mathrm{LN}_{\epsilon / a^2}(x)$. RMSNorm, below, has the scale invariance only. A factor $a < 0$ flips the sign.


# %%
def normalized(x, eps=0.0):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)


np.testing.assert_allclose(normalized(7 * x - 40), normalized(x), rtol=1e-12)
np.testing.assert_allclose(normalized(-x), -normalized(x), rtol=1e-12)
np.testing.assert_allclose(normalized(7 * x, eps=1e-2), normalized(x, eps=1e-2 / 49), rtol=1e-12)

# %% [markdown]
# ## LayerNorm, backward
#
# In this book $\mathrm{d}x$ is the gradient $\partial L / \partial x$ of the loss $L$. We are given $\mathrm{d}y$ and
# want $\mathrm{d}x$, $\mathrm{d}\gamma$, $\mathrm{d}\beta$. The gain and the shift serve all $N$ tokens, so their
# gradients are sums over tokens $n$:
#
# $$
# \mathrm{d}\beta_i = \sum_n \mathrm{d}y_{ni} , \qquad
# \mathrm{d}\gamma_i = \sum_n \mathrm{d}y_{ni}\, \hat x_{ni}
# $$
#
# ### Index form
#
# One token at a time. Let $\delta_i = \partial L / \partial \hat x_i = \gamma_i\, \mathrm{d}y_i$, and let $[i = j]$ be
# 1 if $i = j$ and 0 otherwise (Kronecker's delta). The input $x_j$ reaches $\hat x_i$ on three paths: directly, through
# $\mu$, and through $\sigma$. The derivatives along them, a line each:
#
# $$
# \frac{\partial \mu}{\partial x_j} = \frac{1}{D}
# $$
#
# $$
# \frac{\partial (x_k - \mu)}{\partial x_j} = [k = j] - \frac{1}{D}
# $$
#
# $$
# 2 \sigma \frac{\partial \sigma}{\partial x_j}
# = \frac{2}{D} \sum_k (x_k - \mu) \left( [k = j] - \frac{1}{D} \right)
# = \frac{2}{D} (x_j - \mu) ,
# \qquad \text{since } \sum_k (x_k - \mu) = 0
# $$
#
# $$
# \frac{\partial \sigma}{\partial x_j} = \frac{x_j - \mu}{D \sigma} = \frac{\hat x_j}{D}
# $$
#
# $$
# \frac{\partial \hat x_i}{\partial x_j}
# = \frac{1}{\sigma} \left( [i = j] - \frac{1}{D} \right) - \frac{x_i - \mu}{\sigma^2} \cdot \frac{\hat x_j}{D}
# = \frac{1}{\sigma} \left( [i = j] - \frac{1}{D} - \frac{\hat x_i \hat x_j}{D} \right)
# $$
#
# The constant $\epsilon$ in $\sigma^2$ has derivative 0, so none of these lines changes with it. The cell checks the
# last line, the whole Jacobian, against finite differences made by hand.

# %%
eps = 1e-3
sigma = np.sqrt(((x - mu) ** 2).mean() + eps)
xhat = (x - mu) / sigma  # (D,)
J = (np.eye(D) - 1 / D - np.outer(xhat, xhat) / D) / sigma  # J[i, j] = d xhat_i / d x_j, (D, D)
h = 1e-6
numeric = np.empty((D, D))
for j in range(D):
    step = h * np.eye(D)[j]
    numeric[:, j] = (normalized(x + step, eps) - normalized(x - step, eps)) / (2 * h)
np.testing.assert_allclose(J, numeric, atol=1e-9)

# %% [markdown]
# The gradient is the sum over all outputs that $x_j$ reaches, $\mathrm{d}x_j = \sum_i \delta_i\, \partial \hat x_i /
# \partial x_j$. With a bar for the mean over the features of the token:
#
# $$
# \mathrm{d}x_j = \frac{1}{\sigma} \Big( \delta_j - \frac{1}{D} \sum_i \delta_i
#   - \hat x_j \frac{1}{D} \sum_i \delta_i \hat x_i \Big)
# = \frac{1}{\sigma} \left( \delta_j - \overline{\delta} - \hat x_j\, \overline{\delta \hat x} \right)
# $$

# %%
delta = rng.standard_normal(D)  # gamma * dy of one token
dx = (delta - delta.mean() - xhat * (delta * xhat).mean()) / sigma
np.testing.assert_allclose(dx, delta @ J, rtol=1e-10, atol=1e-14)

# %% [markdown]
# ### Matrix form: a projection
#
# The Jacobian is symmetric:
#
# $$
# J = \frac{1}{\sigma} P , \qquad
# P = I - \frac{1}{D} \mathbf{1} \mathbf{1}^\top - \frac{1}{D} \hat x \hat x^\top , \qquad
# \mathrm{d}x = J^\top \delta = \frac{1}{\sigma} P \delta
# $$
#
# For $\epsilon = 0$ the two vectors $\mathbf{1} / \sqrt{D}$ and $\hat x / \sqrt{D}$ have length 1 and are orthogonal.
# So $P^2 = P$: it is the projection that removes what lies along these two. Its eigenvalues are 0, twice, and 1, $D -
# 2$ times. This is the mirror of the two invariances: a step of $x$ along $\mathbf{1}$ or along $\hat x$ does not
# change $\hat x$, so the loss has no slope in these directions,
#
# $$
# \mathbf{1}^\top \mathrm{d}x = 0 , \qquad \hat x^\top \mathrm{d}x = 0 \quad (\epsilon = 0)
# $$
#
# Since $P$ only removes, $\lVert \mathrm{d}x \rVert \le \lVert \delta \rVert / \sigma$. And since $\hat x$ does not
# change when $x$ is scaled while $\sigma$ does, the gradient at $a x$ is the one at $x$ divided by $a$: a large input
# gets a small gradient.

# %%
sigma0 = x.std()
xhat0 = (x - x.mean()) / sigma0  # eps = 0
P = np.eye(D) - np.outer(ones, ones) / D - np.outer(xhat0, xhat0) / D
np.testing.assert_allclose(P @ P, P, atol=1e-14)
np.testing.assert_allclose(np.linalg.eigvalsh(P), [0, 0] + [1] * (D - 2), atol=1e-14)
dx0 = P @ delta / sigma0
np.testing.assert_allclose([ones @ dx0, xhat0 @ dx0], 0, atol=1e-14)
assert np.linalg.norm(dx0) <= np.linalg.norm(delta) / sigma0
numeric = (normalized(10 * x + h * delta) - normalized(10 * x - h * delta)) / (2 * h)  # J(10 x) delta
np.testing.assert_allclose(numeric, dx0 / 10, atol=1e-9)

# %% [markdown]
# With $\epsilon > 0$ the sum over features is still exactly 0, and the product with $\hat x$ is small but not 0: $\hat
# x^\top \mathrm{d}x = \frac{\epsilon}{\sigma^3} \sum_i \delta_i \hat x_i$ (put the mean square $1 - \epsilon /
# \sigma^2$ into the formula for $\mathrm{d}x$).
#
# For all tokens at once, with the tokens as rows of $X$ and $\Delta = \mathrm{d}Y \odot \gamma$ ($\odot$ is the product
# entry by entry; $\operatorname{mean}$ goes along rows):
#
# $$
# \mathrm{d}X = \frac{1}{\sigma} \odot \left( \Delta - \operatorname{mean}(\Delta) - \hat X \odot \operatorname{mean}(\Delta \odot \hat X) \right) ,
# \qquad \mathrm{d}\gamma = \mathbf{1}^\top (\mathrm{d}Y \odot \hat X) , \qquad \mathrm{d}\beta = \mathbf{1}^\top \mathrm{d}Y
# $$

# %%
np.testing.assert_allclose(ones @ dx, 0, atol=1e-14)
np.testing.assert_allclose(xhat @ dx, eps / sigma**3 * (delta @ xhat), rtol=1e-8)


# %% [markdown]
# ### LayerNorm from nothing
#
# The last two displays are the class. `save` puts what backward needs on a stack, `saved` takes it off, and `add_grad`
# adds to a parameter's gradient ([chapter 2](02-backpropagation.ipynb)).


# %%
class MyLayerNorm(Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma, self.beta = Parameter(np.ones(d_model)), Parameter(np.zeros(d_model))

    def forward(self, x):
        xhat = x - x.mean(-1, keepdims=True)  # (..., D)
        sigma = np.sqrt((xhat**2).mean(-1, keepdims=True) + self.eps)  # (..., 1)
        xhat = xhat / sigma
        self.save(xhat, sigma)
        return self.gamma.data * xhat + self.beta.data

    def backward(self, dy):
        xhat, sigma = self.saved()
        tokens = tuple(range(dy.ndim - 1))  # all axes but the last
        self.beta.add_grad(dy.sum(tokens))  # (D,)
        self.gamma.add_grad((dy * xhat).sum(tokens))  # (D,)
        delta = dy * self.gamma.data  # (..., D)
        mean = delta.mean(-1, keepdims=True)
        along = (delta * xhat).mean(-1, keepdims=True)
        return (delta - mean - xhat * along) / sigma


# %% [markdown]
# It equals the library's class: output, input gradient and parameter gradients, with gains and shifts that are not 1
# and 0.


# %%
def assert_same(mine, library, x, **kwargs):
    """Forward, dx and the gradients of all parameters agree to 1e-12, at random parameters."""
    rng = np.random.default_rng(5)
    library.astype(np.float64)
    for (name, p), (name2, q) in zip(mine.named_parameters(), library.named_parameters(), strict=True):
        assert name == name2
        p.data = rng.standard_normal(p.data.shape)
        q.data = p.data.copy()
    y, y2 = mine(x, **kwargs), library(x, **kwargs)
    np.testing.assert_allclose(y, y2, rtol=1e-12, atol=1e-12)
    dy = rng.standard_normal(y.shape)
    np.testing.assert_allclose(mine.backward(dy), library.backward(dy), rtol=1e-12, atol=1e-12)
    for p, q in zip(mine.parameters(), library.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-12, atol=1e-12)


X = np.random.default_rng(2).standard_normal((2, 3, D)) * 2 + 1  # (B, T, D)
assert_same(MyLayerNorm(D), LayerNorm(D), X)

# %%
report = gradcheck(MyLayerNorm(D), X)
assert report
report


# %% [markdown]
# ### Two planted mistakes
#
# The first forgets the path through $\mu$, the second forgets that $\delta = \gamma \odot \mathrm{d}y$. With the
# initial $\gamma = 1$ the second would be invisible; `gradcheck` therefore adds noise to the parameters of its copy
# before it looks.


# %%
class NoMeanTerm(MyLayerNorm):
    def backward(self, dy):
        xhat, sigma = self._stack[-1]
        lost = (dy * self.gamma.data).mean(-1, keepdims=True) / sigma
        return super().backward(dy) + lost  # as if "- mean" had been left out


class NoGamma(MyLayerNorm):
    def backward(self, dy):
        xhat, sigma = self._stack[-1]
        super().backward(dy)  # for dgamma and dbeta
        return (dy - dy.mean(-1, keepdims=True) - xhat * (dy * xhat).mean(-1, keepdims=True)) / sigma


report = gradcheck(NoMeanTerm(D), X)
assert not report and not report["x"].passed and "path through the mean" in report.diagnosis[0]
report

# %%
report = gradcheck(NoGamma(D), X)
assert not report and not report["x"].passed and report["gamma"].passed
assert gradcheck(NoGamma(D), X, randomize=False)  # at gamma = 1 the mistake cannot be seen
report

# %% [markdown]
# ### A loss that hides a wrong backward
#
# The natural first idea for a check is the loss $L = \sum_{ni} y_{ni}$. For $\gamma = 1$, $\beta = 0$ this sum is 0
# whatever the input, because every token has mean 0. So its true gradient is 0, and any backward that returns 0 for
# $\mathrm{d}y = 1$ passes. The cell lets two wrong ones pass: one that returns zeros for everything, and one that
# forgets the path through $\sigma$.


# %%
def no_sigma_path(dy, sigma):
    return (dy - dy.mean(-1, keepdims=True)) / sigma


def returns_zeros(dy, sigma):
    return np.zeros_like(dy)


def slopes(loss, x, h=1e-6):
    """The gradient of loss(x), by central differences."""
    result = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = h
        result[i] = (loss(x + step) - loss(x - step)) / (2 * h)
    return result


R = np.random.default_rng(3).standard_normal(X.shape)
sigma_X = np.sqrt(X.var(-1, keepdims=True) + 1e-5)
for name, dy in (("sum(y)", np.ones_like(X)), ("sum(y * R)", R)):
    truth = slopes(lambda x: np.sum(normalized(x, 1e-5) * dy), X)
    for wrong in (no_sigma_path, returns_zeros):
        error = np.abs(wrong(dy, sigma_X) - truth).max()
        print(f"loss {name:10s} {wrong.__name__:14s} largest error of dx {error:.1e}")
        assert (error < 1e-8) if name == "sum(y)" else (error > 0.1)

# %% [markdown]
# This is why `gradcheck` uses $L = \sum y \odot R$ with a random $R$.
#
# ## RMSNorm
#
# RMSNorm (Zhang and Sennrich 2019) leaves the mean where it is and divides by the root of the mean square $r$:
#
# $$
# r^2 = \frac{1}{D} \sum_k x_k^2 + \epsilon , \qquad \hat x_i = \frac{x_i}{r} , \qquad y_i = \gamma_i \hat x_i
# $$
#
# There are two paths now, the direct one and the one through $r$. In index form:
#
# $$
# 2 r \frac{\partial r}{\partial x_j} = \frac{2}{D} x_j
# \qquad \Rightarrow \qquad \frac{\partial r}{\partial x_j} = \frac{\hat x_j}{D}
# $$
#
# $$
# \frac{\partial \hat x_i}{\partial x_j}
# = \frac{1}{r} [i = j] - \frac{x_i}{r^2} \cdot \frac{\hat x_j}{D}
# = \frac{1}{r} \left( [i = j] - \frac{\hat x_i \hat x_j}{D} \right)
# $$
#
# $$
# \mathrm{d}x_j = \sum_i \delta_i \frac{\partial \hat x_i}{\partial x_j}
# = \frac{1}{r} \left( \delta_j - \hat x_j\, \overline{\delta \hat x} \right)
# $$
#
# In matrix form the projection removes one direction, $\hat x$, and its rank is $D - 1$:
#
# $$
# J = \frac{1}{r} \left( I - \frac{1}{D} \hat x \hat x^\top \right) , \qquad
# \mathrm{d}X = \frac{1}{r} \odot \left( \Delta - \hat X \odot \operatorname{mean}(\Delta \odot \hat X) \right)
# $$

# %%
r = np.sqrt((x**2).mean())  # eps = 0
xhat = x / r
P = np.eye(D) - np.outer(xhat, xhat) / D
np.testing.assert_allclose(np.linalg.eigvalsh(P), [0] + [1] * (D - 1), atol=1e-14)
numeric = slopes(lambda x: delta @ (x / np.sqrt((x**2).mean())), x)
np.testing.assert_allclose(P @ delta / r, numeric, atol=1e-8)
np.testing.assert_allclose((delta - xhat * (delta * xhat).mean()) / r, P @ delta / r, rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(xhat @ P @ delta, 0, atol=1e-13)  # scale invariance
assert abs(ones @ P @ delta) > 0.1  # no shift invariance


# %%
class MyRMSNorm(Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.eps, self.gamma = eps, Parameter(np.ones(d_model))

    def forward(self, x):
        r = np.sqrt((x**2).mean(-1, keepdims=True) + self.eps)  # (..., 1)
        self.save(x / r, r)
        return self.gamma.data * (x / r)

    def backward(self, dy):
        xhat, r = self.saved()
        self.gamma.add_grad((dy * xhat).sum(tuple(range(dy.ndim - 1))))  # (D,)
        delta = dy * self.gamma.data
        return (delta - xhat * (delta * xhat).mean(-1, keepdims=True)) / r


assert_same(MyRMSNorm(D), RMSNorm(D), X)
report = gradcheck(MyRMSNorm(D), X)
assert report
report

# %% [markdown]
# ## BatchNorm
#
# BatchNorm (Ioffe and Szegedy 2015) takes the statistics of feature $j$ over the tokens. Some of the tokens may be
# padding: let $w_n = 1$ if token $n$ counts and 0 if not, and $N = \sum_n w_n$. In training
#
# $$
# \mu_j = \frac{1}{N} \sum_n w_n x_{nj} , \qquad
# \sigma_j^2 = \frac{1}{N} \sum_n w_n (x_{nj} - \mu_j)^2 + \epsilon , \qquad
# \hat x_{nj} = w_n \frac{x_{nj} - \mu_j}{\sigma_j} , \qquad y_{nj} = \gamma_j \hat x_{nj} + w_n \beta_j
# $$
#
# Everything derived for LayerNorm holds with rows and columns exchanged: the sums now run over the tokens $m$ that
# count. For tokens $n$ and $m$ that both count,
#
# $$
# \frac{\partial \hat x_{nj}}{\partial x_{mj}}
# = \frac{1}{\sigma_j} \left( [n = m] - \frac{1}{N} - \frac{\hat x_{nj} \hat x_{mj}}{N} \right)
# $$
#
# $$
# \mathrm{d}x_{mj} = \sum_n \gamma_j\, \mathrm{d}y_{nj} \frac{\partial \hat x_{nj}}{\partial x_{mj}}
# = \frac{\gamma_j}{\sigma_j} \Big( \mathrm{d}y_{mj} - \frac{1}{N} \underbrace{\sum_n w_n \mathrm{d}y_{nj}}_{\mathrm{d}\beta_j}
#   - \frac{\hat x_{mj}}{N} \underbrace{\sum_n \mathrm{d}y_{nj} \hat x_{nj}}_{\mathrm{d}\gamma_j} \Big)
# $$
#
# and $\mathrm{d}x_{mj} = 0$ for padding. The gradient of one sentence now depends on the gradients of all the others.
# In matrix form, for column $j$ and without padding, $\mathrm{d}X_{:j} = \frac{\gamma_j}{\sigma_j} \left( I -
# \frac{1}{N} \mathbf{1} \mathbf{1}^\top - \frac{1}{N} \hat X_{:j} \hat X_{:j}^\top \right) \mathrm{d}Y_{:j}$, a
# projection in the space of the $N$ tokens.
#
# **In evaluation** the output must not depend on who else is in the batch, so running statistics take the place of
# $\mu_j$ and $\sigma_j$. In each training step they move by the share $\rho$ (the momentum) towards those of the batch.
# Here the variance *is* an estimate for something larger (all data), so it is the unbiased one:
#
# $$
# m_j \leftarrow (1 - \rho)\, m_j + \rho\, \mu_j , \qquad
# v_j \leftarrow (1 - \rho)\, v_j + \rho \frac{1}{N - 1} \sum_n w_n (x_{nj} - \mu_j)^2
# $$
#
# They are constants for backward, so in evaluation $\mathrm{d}x_{nj} = \gamma_j\, \mathrm{d}y_{nj} / \sqrt{v_j +
# \epsilon}$.


# %%
class MyBatchNorm(Module):
    def __init__(self, d_model, eps=1e-5, rho=0.1):
        super().__init__()
        self.eps, self.rho = eps, rho
        self.gamma, self.beta = Parameter(np.ones(d_model)), Parameter(np.zeros(d_model))
        self.register_buffer("m", np.zeros(d_model))
        self.register_buffer("v", np.ones(d_model))

    def forward(self, x, mask=None):
        w = np.ones(x.shape[:-1]) if mask is None else mask
        w, x2 = w.reshape(-1, 1).astype(x.dtype), x.reshape(-1, x.shape[-1])  # (N, 1), (N, D)
        n, mu, var = int(w.sum()), self.m, self.v
        if self.training:
            mu = (w * x2).sum(0) / n  # (D,)
            var = (w * (x2 - mu) ** 2).sum(0) / n  # (D,)
            self.m = (1 - self.rho) * self.m + self.rho * mu
            self.v = (1 - self.rho) * self.v + self.rho * var * n / (n - 1)
        sigma = np.sqrt(var + self.eps)
        xhat = w * (x2 - mu) / sigma
        self.save(xhat, sigma, w, n, self.training)
        return (self.gamma.data * xhat + w * self.beta.data).reshape(x.shape)

    def backward(self, dy):
        xhat, sigma, w, n, training = self.saved()
        shape, dy = dy.shape, w * dy.reshape(xhat.shape)
        dbeta, dgamma = dy.sum(0), (dy * xhat).sum(0)  # (D,)
        dx = dy - w * (dbeta + xhat * dgamma) / n if training else dy
        self.beta.add_grad(dbeta)
        self.gamma.add_grad(dgamma)
        return (self.gamma.data / sigma * dx).reshape(shape)


# %%
mask = np.array([[True, True, True], [True, True, False]])  # the last token of sentence 1 is padding
assert_same(MyBatchNorm(D), BatchNorm(D), X)
assert_same(MyBatchNorm(D), BatchNorm(D), X, mask=mask)
mine, library = MyBatchNorm(D), BatchNorm(D).astype(np.float64)
mine(X), library(X)  # one training step
np.testing.assert_allclose(mine.m, library.running_mean, rtol=1e-12)
np.testing.assert_allclose(mine.v, library.running_var, rtol=1e-12)
assert_same(mine.eval(), library.eval(), X)

# %% [markdown]
# If every batch had the same mean $\mu_j$, the running mean after $k$ steps would be $(1 - (1 - \rho)^k)\, \mu_j$: it
# starts at 0 and has reached 65 % after 10 steps with $\rho = 0.1$.

# %%
layer = MyBatchNorm(D)
for _ in range(10):
    layer(X)
np.testing.assert_allclose(layer.m, (1 - 0.9**10) * X.mean((0, 1)), rtol=1e-12)
assert gradcheck(MyBatchNorm(D), X) and gradcheck(MyBatchNorm(D).eval(), X)
report = gradcheck(MyBatchNorm(D), X, mask=mask)
assert report
report

# %% [markdown]
# ## What batch statistics do to padded text
#
# Sentences have different lengths, so a batch is filled up with a padding token to the longest. We put one sentence $a$
# of five tokens into different batches and look at the output for $a$ alone. The output is in units of standard
# deviations, since each feature of it has variance about 1. Three changes of the batch:
#
# - *more padding*: the same two sentences, the batch padded to 24 tokens and not to 8;
# - *another neighbor*: $a$ with another sentence of the same length as its old neighbor;
# - *alone*: $a$ by itself, without a neighbor.
#
# Three layers: BatchNorm that counts padding as tokens, BatchNorm with the mask of the real tokens, and LayerNorm.

# %%
PAD, V, D = 0, 50, 16


def padded(sentences, T):
    ids = np.full((len(sentences), T), PAD)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids  # (B, T)


def output_of_a(kind, table, sentences, T):
    """The output of a norm for the first sentence, in training mode."""
    ids = padded(sentences, T)
    layer = (LayerNorm if kind == "LayerNorm" else BatchNorm)(D).astype(np.float64)
    y = layer(table[ids], mask=ids != PAD) if kind == "BatchNorm with mask" else layer(table[ids])
    return y[0, : len(sentences[0])]  # (tokens of a, D)


def differences(kind, seed):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((V, D))  # one vector a token, padding included
    a, b, c = rng.integers(1, V, 5), rng.integers(1, V, 8), rng.integers(1, V, 8)
    reference = output_of_a(kind, table, [a, b], 8)
    others = {"more padding": ([a, b], 24), "another neighbor": ([a, c], 8), "alone": ([a], 8)}
    return {name: rms(output_of_a(kind, table, *other) - reference) for name, other in others.items()}


KINDS, seeds = ("BatchNorm", "BatchNorm with mask", "LayerNorm"), range(10 if FAST else 50)
moves = {kind: [differences(kind, seed) for seed in seeds] for kind in KINDS}
changes = list(moves["LayerNorm"][0])
for kind in KINDS:
    for c in changes:
        sizes = [move[c] for move in moves[kind]]
        print(f"{kind:20s} {c:17s} mean {np.mean(sizes):.3f}, least {min(sizes):.3f} standard deviations")

# %% [markdown]
# The assertion: under every seed, BatchNorm moves the output of $a$ by more than 0.1 standard deviations in all three
# cases, and the mask makes it deaf to the amount of padding and to nothing else. LayerNorm does not move at all. The
# margin is wide: with about 13 tokens a mean has a standard error of $1/\sqrt{13} = 0.28$.

# %%
for move in moves["BatchNorm"]:
    assert min(move.values()) > 0.1
for move in moves["BatchNorm with mask"]:
    assert move["more padding"] < 1e-12 and min(move["another neighbor"], move["alone"]) > 0.1
for move in moves["LayerNorm"]:
    assert max(move.values()) < 1e-12
mean_moves = {kind: [np.mean([m[c] for m in moves[kind]]) for c in changes] for kind in KINDS}
plots.plot_bars(
    mean_moves, categories=changes, xlabel="what changes around the sentence",
    ylabel="change of its output (standard deviations)",
    title=f"BatchNorm moves by {mean_moves['BatchNorm'][0]:.2f} with more padding;\na mask cures that, but not the "
    f"{mean_moves['BatchNorm with mask'][1]:.2f} from another neighbor",
)  # fmt: skip

# %% [markdown]
# ### How noisy are the statistics of a batch
#
# Let the features have variance 1. The mean of $n$ independent tokens has standard deviation $1/\sqrt{n}$. The tokens
# of one sentence are not independent (they share a topic, a language, a length). Suppose the share $\varrho$ of the
# variance is common to a sentence. For sentences of lengths $\ell_1, \dots, \ell_B$ with $n = \sum_b \ell_b$ the
# variance of the mean is
#
# $$
# \operatorname{Var}(\mu_j) = \frac{1 - \varrho}{n} + \varrho\, \frac{\sum_b \ell_b^2}{n^2}
# $$
#
# The first term counts tokens, the second counts sentences. The cell draws many batches and measures.


# %%
def noise_of_mean(B, share, rng, batches, D=16, longest=20):
    """Measured and predicted standard deviation of a batch's mean, and the mean number of real tokens."""
    means, predicted, tokens = [], [], []
    for _ in range(batches):
        lengths = rng.integers(1, longest + 1, B)
        n = lengths.sum()
        topic = np.repeat(rng.standard_normal((B, D)), lengths, axis=0)  # (n, D)
        x = np.sqrt(share) * topic + np.sqrt(1 - share) * rng.standard_normal((n, D))
        means.append(x.mean(0))
        predicted.append((1 - share) / n + share * (lengths**2).sum() / n**2)
        tokens.append(n)
    return rms(means), np.sqrt(np.mean(predicted)), np.mean(tokens)


rng, sizes = np.random.default_rng(4), (2, 8, 32, 128, 512)
noise = {share: np.array([noise_of_mean(B, share, rng, 100 if FAST else 400) for B in sizes]) for share in (0.0, 0.3)}
for share, table in noise.items():
    for B, (measured, predicted, n) in zip(sizes, table, strict=True):
        print(f"common share {share}, {B:2d} sentences, {n:4.0f} tokens: {measured:.3f} (formula {predicted:.3f})")
    np.testing.assert_allclose(table[:, 0], table[:, 1], rtol=0.15)  # short batches of 2 sentences vary most

# %%
few, many = noise[0.3][0], noise[0.3][-1]  # (measured, formula, tokens)
both = np.concatenate(list(noise.values()))
n = np.geomspace(few[2], many[2], 50)  # between the measured sizes the formula is drawn as a smooth curve
curve = {share: np.exp(np.interp(np.log(n), np.log(t[:, 2]), np.log(t[:, 1]))) for share, t in noise.items()}
plots.plot_lines(
    {"formula, tokens independent": (n, curve[0.0]),
     "formula, 30 % of the variance common to a sentence": (n, curve[0.3])},
    points={"measured": (both[:, 2], both[:, 0])},
    xlabel="real tokens in the batch (mean)", ylabel="noise of a batch's mean (standard deviations)",
    title=f"Noise of a batch's mean: {few[0]:.2f} standard deviations at {few[2]:.0f} real tokens,\n{many[0]:.2f} at "
    f"{many[2]:.0f}", xscale="log", yscale="log",
)  # fmt: skip

# %% [markdown]
# ## Claims checked
#
# Each heading is a claim that texts on Transformers make, in our words. Under it stand a number or a proof, and a
# verdict.
#
# ### LayerNorm takes its statistics over the features, BatchNorm over the batch
#
# The first picture of this chapter measured it. The cell repeats the count.

# %%
print("outputs moved by one changed number, as (rows, columns):",
      {name: (int(p.any(1).sum()), int(p.any(0).sum())) for name, p in pictures.items()})

# %% [markdown]
# **Holds**, with one word added for text: BatchNorm's statistics run over the batch *and the tokens*, 9 rows here from
# a batch of 3.
#
# ### Variable lengths make batch statistics unreliable
#
# Two effects were measured above, and they are different. Padding that is counted moves the output of a sentence; a
# mask removes that down to rounding. What stays with the mask is the noise of a mean over few tokens.

# %%
print(f"more padding: {mean_moves['BatchNorm'][0]:.2f} without mask, {mean_moves['BatchNorm with mask'][0]:.1e} with")
print(f"noise of the masked mean: {few[0]:.2f} at {few[2]:.0f} tokens, {many[0]:.2f} at {many[2]:.0f} tokens")
assert few[0] > 3 * many[0]

# %% [markdown]
# **Holds if** padding is counted, or a batch has few real tokens. With a mask and some thousand tokens the mean of a
# batch is reliable; how many it takes is set by the number of sentences more than by the number of tokens, as the
# second term of the formula says.
#
# ### LayerNorm treats each token independently of all others
#
# A token gets the same output by itself as in a batch of 64 sentences of 20 tokens, and the same gradient.

# %%
big = np.random.default_rng(6).standard_normal((64, 20, D))
dbig = np.random.default_rng(7).standard_normal(big.shape)
layer = LayerNorm(D).astype(np.float64)
y, dx = layer(big), layer.backward(dbig)
y1, dx1 = layer(big[3:4, 5:6]), layer.backward(dbig[3:4, 5:6])
print("largest difference:", np.abs(y1 - y[3, 5]).max(), np.abs(dx1 - dx[3, 5]).max())
np.testing.assert_allclose(y1[0, 0], y[3, 5], rtol=0, atol=1e-14)
np.testing.assert_allclose(dx1[0, 0], dx[3, 5], rtol=0, atol=1e-14)

# %% [markdown]
# **Holds**, for the output and for $\mathrm{d}x$. (The gradients of $\gamma$ and $\beta$ are sums over all tokens, as
# for any parameter.)
#
# ### LayerNorm works at batch size 1
#
# It was shown in the last cell. BatchNorm over a single token has $\mu = x$, so $\hat x = 0$: the output is $\beta$
# whatever the input, and $\mathrm{d}x = 0$. The library refuses to do that in training.

# %%
single = MyBatchNorm(D)
single.gamma.data[:] = 2.0
with np.errstate(invalid="ignore", divide="ignore"):  # the running variance divides by N - 1 = 0
    y = single(big[:1, :1])
assert (y == single.beta.data).all() and (single.backward(dbig[:1, :1]) == 0).all()
try:
    BatchNorm(D).astype(np.float64)(big[:1, :1])
    refused = False
except ValueError as error:
    refused = True
    print("BatchNorm refuses:", error)
assert refused

# %% [markdown]
# **Holds.** (BatchNorm over the many tokens of a single sentence does run; its noise is then that of one sentence.)
#
# ### RMSNorm has superior numerical stability
#
# Two questions hide in this: what rounding does, and what large numbers do. First rounding: inputs of standard
# deviation 1 around a common mean $m$, in float32. The truth is the same formula in float64 on the same float32
# numbers. The error is relative to the size of the output. For RMSNorm we also look at the part of the output that is
# left when its mean over the features is removed, which is the part that LayerNorm keeps.

# %%
offsets = np.array([0, 1, 10, 100, 1e3, 1e4])


def relative_errors(m, seed):
    x = (m + np.random.default_rng(seed).standard_normal((200, 64))).astype(np.float32)
    errors = []
    for make in (LayerNorm, RMSNorm):
        y = make(64)(x).astype(np.float64)
        truth = make(64).astype(np.float64)(x.astype(np.float64))
        errors.append(rms(y - truth) / rms(truth))
    center = truth - truth.mean(-1, keepdims=True)
    return [*errors, rms((y - y.mean(-1, keepdims=True)) - center) / rms(center)]


errors = np.median([[relative_errors(m, seed) for m in offsets] for seed in range(5)], axis=0)  # (offsets, 3)
for m, (ln, rn, centered) in zip(offsets, errors, strict=True):
    print(f"mean {m:7.0f}: LayerNorm {ln:.1e}, RMSNorm {rn:.1e}, RMSNorm's centered part {centered:.1e}")
assert (errors[:, 1] < 3e-7).all() and errors[-1, 0] > 30 * errors[-1, 1]  # 2.5 roundings of 1.2e-7; over 5 seeds
assert errors[-1, 2] > 30 * errors[-1, 1] and errors[0, 0] < 3e-7

# %%
plots.plot_lines(
    {"LayerNorm": (offsets + 0.1, errors[:, 0]), "RMSNorm": (offsets + 0.1, errors[:, 1]),
     "RMSNorm, centered part": (offsets + 0.1, errors[:, 2])},
    xlabel="common mean of the features (standard deviations) + 0.1", ylabel="relative error in float32",
    title=f"Mean 10 000: error {errors[-1, 0]:.0e} in LayerNorm, {errors[-1, 1]:.0e} in RMSNorm, but "
    f"{errors[-1, 2]:.0e} in its centered part", xscale="log", yscale="log",
)  # fmt: skip

# %% [markdown]
# LayerNorm subtracts two nearly equal numbers and so shows the rounding of the mean, magnified by $m / \sigma$. RMSNorm
# keeps the mean, and nearly all of its output *is* the mean. Now the large numbers: both layers square the input, so
# both overflow at the same size. And cost:


# %%
def largest_scale(make, dtype=np.float32):
    """The largest power of ten by which the input can be multiplied with a finite, non-zero output."""
    x = np.random.default_rng(8).standard_normal((4, 64)).astype(dtype)
    with np.errstate(all="ignore"):
        good = [k for k in range(38) if np.isfinite(y := make(64)(x * dtype(10.0**k))).all() and rms(y) > 0.5]
    return max(good)


def milliseconds(make, repeats=15):
    layer, x = make(512), np.random.default_rng(9).standard_normal((1024, 512)).astype(np.float32)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        layer(x)
        layer.backward(x)
        times.append(time.perf_counter() - start)
    return 1e3 * np.median(times)


scales = {make.__name__: largest_scale(make) for make in (LayerNorm, RMSNorm)}
print("largest power of ten in float32:", scales)
with threadpool_limits(1, "blas"):
    ln_ms, rms_ms = milliseconds(LayerNorm), milliseconds(RMSNorm)
print(f"forward and backward of 1024 tokens of width 512: LayerNorm {ln_ms:.1f} ms, RMSNorm {rms_ms:.1f} ms")
assert scales["LayerNorm"] == scales["RMSNorm"]

# %% [markdown]
# **Holds if** the features share a mean that is large against their spread, and then only in the sense that RMSNorm
# adds no error of its own; for inputs around 0 the two are equally exact, and they overflow at the same size. What does
# hold is that RMSNorm is cheaper: one mean, one subtraction and one parameter vector fewer (Zhang and Sennrich report
# the time saved, and do not claim stability beyond LayerNorm's).
#
# ### LayerNorm allows higher learning rates
#
# The network is a stack of six feed-forward blocks $x + f(\mathrm{norm}(x))$ with a readout, once with LayerNorm and
# once with the norms taken out (the form $x + f(\mathrm{norm}(x))$ is the subject of the next chapter). It learns to
# which of 8 random directions a random vector is nearest. A learning rate counts as *usable* if in every seed the loss
# of the last 20 steps is below three quarters of that of guessing, $\ln 8 = 2.08$ nats.


# %%
class Identity(Module):
    def forward(self, x):
        return x

    def backward(self, dy):
        return dy


class Stack(Module):
    def __init__(self, norm, rng, width=32, depth=6, classes=8):
        super().__init__()
        make = (lambda: LayerNorm(width)) if norm else Identity
        blocks = [Residual(FeedForward(width, 2 * width, rng=rng), make(), "pre") for _ in range(depth)]
        self.layers = [*blocks, make(), Linear(width, classes, rng=rng)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def backward(self, dy):
        for layer in reversed(self.layers):
            dy = layer.backward(dy)


# %%
def train(norm, optimizer, lr, seed, steps, watch=None):
    """The loss at each step; infinite from the step on at which it is not finite any more."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((32, 8)).astype(np.float32)
    net, ce = Stack(norm, rng), CrossEntropyLoss()
    optimizer, losses = optimizer(net.parameters(), lr=lr), np.full(steps, np.inf)
    for step in range(steps):
        x = rng.standard_normal((64, 32)).astype(np.float32)  # (B, width)
        optimizer.zero_grad()
        if watch is not None:
            watch(net)
        with np.errstate(all="ignore"):  # a run that diverges overflows
            loss = float(ce(net(x), (x @ directions).argmax(-1)))
            if not np.isfinite(loss):
                break
            losses[step] = loss
            net.backward(ce.backward())
            optimizer.step()
    return losses


rates = {SGD: (0.01, 0.03, 0.1, 0.3, 1.0), Adam: (0.003, 0.01, 0.03, 0.1, 0.3)}
if FAST:
    rates = {SGD: (0.03, 0.3), Adam: (0.01, 0.1)}
steps, seeds = (100, range(2)) if FAST else (200, range(4))
final = {}  # (optimizer, norm) -> array (rates, seeds)
with threadpool_limits(1, "blas"):  # on small matrices one thread is faster
    for optimizer, lrs in rates.items():
        for norm in (False, True):
            runs = [[train(norm, optimizer, lr, seed, steps)[-20:].mean() for seed in seeds] for lr in lrs]
            final[optimizer, norm] = np.array(runs)

# %%
usable, lines = {}, {}
for (optimizer, norm), losses in final.items():
    name = f"{optimizer.__name__}, {'with' if norm else 'without'} LayerNorm"
    for lr, row in zip(rates[optimizer], losses, strict=True):
        print(f"{name:24s} rate {lr:5g}: loss {row.min():.2f} to {row.max():.2f}")
        if row.max() < 0.75 * np.log(8):
            usable[optimizer, norm] = lr
    lines[name] = (rates[optimizer], np.minimum(losses.max(1), 10))
for optimizer in rates:
    assert usable[optimizer, True] > 3 * usable[optimizer, False]
plots.plot_lines(
    lines, xlabel="learning rate", ylabel="loss of the worst seed (nats; 10 = more or diverged)",
    title=f"Largest usable rate with LayerNorm: {usable[SGD, True]:g}, not {usable[SGD, False]:g} (SGD); "
    f"{usable[Adam, True]:g}, not {usable[Adam, False]:g} (Adam)", xscale="log", yscale="log",
)  # fmt: skip

# %% [markdown]
# **Holds** in this network, by a factor of about 10 on this grid (half-decades; two rates in the small version). In
# plain stacks without residuals, of depth 4 and 8, tried before and not shown here, LayerNorm prevented the overflow at
# rate 10 and did not raise the best rate; the bound for "usable" was also set after the first runs. It does not follow that the higher rate is needed: in the full-size run the best loss without the norms is as low as with
# them. Part of the reason is derived above: the gradient through a norm is divided by the size of its input, so weights
# that have grown get smaller gradients.
#
# ### LayerNorm prevents internal covariate shift
#
# Ioffe and Szegedy (2015) call *internal covariate shift* the change, in training, of the distribution of a layer's
# inputs that is caused by changes of the weights before it. We measure it: 256 fixed probe vectors go through the
# network at the start and at the end of training, and for each of the 32 input units of the last feed-forward block we
# take mean and standard deviation over the probes. The drift is the change of the mean in units of the standard
# deviation at the start (root mean square over units). The learning rate (Adam, 0.01) is usable for both networks.


# %%
def drift(norm, seed, steps):
    probes, seen = np.random.default_rng(99).standard_normal((256, 32)).astype(np.float32), []

    def watch(net):
        h = probes
        for layer in net.layers[:5]:
            h = layer(h)
        seen.append(net.layers[5].norm(h))  # what the last block's sublayer reads, (256, 32)
        net.clear()  # these forwards get no backward

    loss = train(norm, Adam, 0.01, seed, steps, watch)[-20:].mean()
    first, last = seen[0], seen[-1]
    unit_drift = rms((last.mean(0) - first.mean(0)) / first.std(0))
    token_drift = rms((last.mean(1) - first.mean(1)) / first.std(1))
    return unit_drift, token_drift, loss


steps, seeds = (100, range(3)) if FAST else (200, range(6))
with threadpool_limits(1, "blas"):
    drifts = {norm: np.array([drift(norm, seed, steps) for seed in seeds]) for norm in (False, True)}  # (seeds, 3)
for norm, table in drifts.items():
    unit, token, loss = table.mean(0)
    print(f"{'with' if norm else 'without':7s} norm: drift of a unit {unit:.2f} ({table[:, 0].min():.2f} to "
          f"{table[:, 0].max():.2f}), of a token's mean {token:.2f}, loss {loss:.2f}")
assert drifts[True][:, 0].min() > 0.25  # not prevented: a quarter of a standard deviation or more, in every seed
assert drifts[True][:, 0].mean() < drifts[False][:, 0].mean()

# %% [markdown]
# **Does not hold: it is reduced, not prevented.** LayerNorm fixes mean and variance over the features of each *token*
# ($\gamma$ and $\beta$ move them again). Nothing fixes the distribution of a *unit* over tokens, and it drifts by half
# a standard deviation. In the full-size run the network that drifts more ends with the lower loss. Santurkar et al.
# (2018) showed for BatchNorm that networks train as well when noise re-creates the shift behind the norm, and explain
# its benefit by a smoother loss instead. So even a measured reduction would not show that this is why norms help.
#
# ### LayerNorm acts as regularization
#
# For BatchNorm there is a mechanism: the batch changes, so the output for one and the same token carries noise in
# training, as with dropout. The cell measures it: one token, in 200 batches with random neighbors.


# %%
def noise_of_output(make, others, rng):
    token, outputs = rng.standard_normal((1, D)), []
    for _ in range(200):
        layer = make(D).astype(np.float64)
        outputs.append(layer(np.concatenate([token, rng.standard_normal((others, D))]))[0])
    return rms(np.std(outputs, axis=0))


rng = np.random.default_rng(10)
for others in (15, 63, 255):
    bn, ln = noise_of_output(BatchNorm, others, rng), noise_of_output(LayerNorm, others, rng)
    print(f"{others:3d} neighbors: noise of the output: BatchNorm {bn:.3f}, LayerNorm {ln:.1e} standard deviations")
    assert bn > 0.5 / np.sqrt(others + 1) and ln < 1e-14

# %% [markdown]
# LayerNorm is deterministic: this mechanism is absent. Is there an effect without it? The network above learns 128
# examples by heart (until the training loss is below 0.1), and is tested on 1000 others. A third network has no norms
# either, but its blocks start with a quarter of the weight $W_2$ of their last linear layer, so that the activations
# start smaller.


# %%
def held_out(norm, factor, seed):
    """The share of right answers on 1000 examples, when 128 others are learned by heart."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1128, 32)).astype(np.float32)
    t = (x @ rng.standard_normal((32, 8)).astype(np.float32)).argmax(-1)
    net, ce = Stack(norm, rng), CrossEntropyLoss()
    for block in net.layers[:6]:
        block.sublayer.linear2.W.data *= factor
    optimizer, loss = Adam(net.parameters(), lr=0.003), 9.0
    while loss > 0.1:
        optimizer.zero_grad()
        loss = float(ce(net(x[:128]), t[:128]))
        net.backward(ce.backward())
        optimizer.step()
    return (net(x[128:]).argmax(-1) == t[128:]).mean()


networks = {"no norm": (False, 1.0), "LayerNorm": (True, 1.0), "no norm, smaller start": (False, 0.25)}
with threadpool_limits(1, "blas"):
    right = {name: np.array([held_out(*how, seed) for seed in range(6)]) for name, how in networks.items()}
for name, shares in right.items():
    print(f"{name:24s} right on held-out examples: {shares.mean():.3f} ({shares.min():.3f} to {shares.max():.3f})")
assert right["LayerNorm"].mean() > right["no norm"].mean() + 0.03  # the standard error of a mean is about 0.01
assert right["no norm, smaller start"].mean() > right["LayerNorm"].mean() + 0.02

# %% [markdown]
# **Does not hold as stated.** In this experiment LayerNorm does better on held-out examples than the same network
# without it, but a smaller start without any norm does better still. What looked like regularization was the size of
# the activations at the start. LayerNorm has no noise that depends on the batch, and a regularizing effect of its own
# is not shown here; nor does this one small experiment exclude it elsewhere.
#
# ## Exercises
#
# ### Exercise 8.1: LayerNorm with two features
#
# With pen and paper: what does LayerNorm (with $\epsilon = 0$, $\gamma = 1$, $\beta = 0$) make of a token $(x_1, x_2)$,
# $x_1 \ne x_2$? What is $\mathrm{d}x$? What does this say about very small $D$?
#
# <details><summary>Solution of exercise 8.1</summary>
#
# $\mu = (x_1 + x_2)/2$, so $x_1 - \mu = -(x_2 - \mu) = (x_1 - x_2)/2$ and $\sigma = |x_1 - x_2| / 2$. The output is
# $(1, -1)$ if $x_1 > x_2$, else $(-1, 1)$: all that is left is which is larger. The projection $P$ removes two
# directions of two, so $P = 0$ and $\mathrm{d}x = 0$. Of $D$ numbers $D - 2$ survive a LayerNorm; for $D = 2$ nothing
# can be learned through it.
#
# </details>
#
# ### Exercise 8.2: The Jacobian
#
# Write `layer_norm_jacobian(x, eps)` for one token `x` of shape `(D,)`. It returns the `(D, D)` array of $\partial \hat
# x_i / \partial x_j$, without a loop. Check: it equals central differences of `normalized(x, eps)` to 1e-8, and for
# `eps=0` its rank is $D - 2$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 8.2
def layer_norm_jacobian(x, eps):
    D, centered = len(x), x - x.mean()
    sigma = np.sqrt((centered**2).mean() + eps)
    xhat = centered / sigma
    return (np.eye(D) - 1 / D - np.outer(xhat, xhat) / D) / sigma


token = np.random.default_rng(11).standard_normal(7)
numeric = np.stack([slopes(lambda x, i=i: normalized(x, 0.1)[i], token) for i in range(7)])
np.testing.assert_allclose(layer_norm_jacobian(token, 0.1), numeric, atol=1e-8)
assert np.linalg.matrix_rank(layer_norm_jacobian(token, 0.0), tol=1e-10) == 5

# %% [markdown]
# ### Exercise 8.3: A variance that loses its digits
#
# $\sigma^2 = \overline{x^2} - \mu^2$ needs one pass over the data and not two. Write `one_pass_variance(x)`, which
# computes it over the last axis in the dtype of `x`. Check: in float64 it agrees with `x.var(-1)` to 1e-10 for numbers
# around 0. Then find a mean for which the result in float32 is off by more than 10 % for numbers of variance 1, and
# explain the size.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 8.3
def one_pass_variance(x):
    return (x**2).mean(-1) - x.mean(-1) ** 2


noise64 = np.random.default_rng(12).standard_normal((100, 64))
np.testing.assert_allclose(one_pass_variance(noise64), noise64.var(-1), rtol=1e-10)
shifted = (noise64 + 3000).astype(np.float32)
truth = shifted.astype(np.float64).var(-1)
print("relative error at mean 3000:", np.abs(one_pass_variance(shifted) / truth - 1).mean())
# Both terms are 9e6; float32 rounds each by up to 9e6 * 6e-8 = 0.5, and the difference, about 1, keeps that error.
assert np.abs(one_pass_variance(shifted) / truth - 1).mean() > 0.1
assert np.abs(shifted.var(-1) / truth - 1).mean() < 0.01  # the two-pass formula

# %% [markdown]
# ### Exercise 8.4: Fold a BatchNorm into the next linear layer
#
# In evaluation BatchNorm is an affine map of each feature, so a linear layer $z = y W + b$ behind it can absorb it.
# Write `fold(bn, W, b)`, which returns `W2`, `b2` such that `x @ W2 + b2` equals `bn(x) @ W + b` for a `BatchNorm` in
# evaluation mode. Check: to 1e-12 on random numbers. Why does this not work for LayerNorm?

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 8.4
def fold(bn, W, b):
    scale = bn.gamma.data / np.sqrt(bn.running_var + bn.eps)  # (D,)
    shift = bn.beta.data - scale * bn.running_mean
    return scale[:, None] * W, b + shift @ W


rng = np.random.default_rng(13)
bn = BatchNorm(D).astype(np.float64)
bn(rng.standard_normal((50, D)) * 3 + 1)
bn.eval()
bn.gamma.data, bn.beta.data = rng.standard_normal(D), rng.standard_normal(D)
W, b, tokens = rng.standard_normal((D, 5)), rng.standard_normal(5), rng.standard_normal((9, D))
W2, b2 = fold(bn, W, b)
np.testing.assert_allclose(tokens @ W2 + b2, bn(tokens) @ W + b, rtol=1e-12, atol=1e-12)
# LayerNorm divides each token by its own sigma, which is not a linear function of the token. Only gamma and beta fold.

# %% [markdown]
# ### Exercise 8.5: Group normalization
#
# Wu and He (2018) split the $D$ features into `groups` equal groups and normalize each group of each token by itself.
# Write a `Module` named `GroupNorm(d_model, groups, eps=1e-5)` with one `gamma` and `beta` of shape `(D,)`, forward and
# backward. Check: with one group it equals `LayerNorm` (use `assert_same`), and `gradcheck(GroupNorm(8, 2), X)` passes.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 8.5
class GroupNorm(Module):
    def __init__(self, d_model, groups, eps=1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.gamma, self.beta = Parameter(np.ones(d_model)), Parameter(np.zeros(d_model))

    def forward(self, x):
        parts = x.reshape(*x.shape[:-1], self.groups, -1)  # (..., G, D / G)
        centered = parts - parts.mean(-1, keepdims=True)
        sigma = np.sqrt((centered**2).mean(-1, keepdims=True) + self.eps)
        xhat = centered / sigma
        self.save(xhat, sigma)
        return self.gamma.data * xhat.reshape(x.shape) + self.beta.data

    def backward(self, dy):
        xhat, sigma = self.saved()
        tokens = tuple(range(dy.ndim - 1))
        self.beta.add_grad(dy.sum(tokens))
        self.gamma.add_grad((dy * xhat.reshape(dy.shape)).sum(tokens))
        delta = (dy * self.gamma.data).reshape(xhat.shape)
        along = (delta * xhat).mean(-1, keepdims=True)
        return ((delta - delta.mean(-1, keepdims=True) - xhat * along) / sigma).reshape(dy.shape)


assert_same(GroupNorm(8, 1), LayerNorm(8), X)
assert gradcheck(GroupNorm(8, 2), X)

# %% [markdown]
# ## Papers
#
# - Ioffe and Szegedy (2015), *Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
#   Shift*, arXiv:1502.03167: BatchNorm, and the term internal covariate shift.
# - Ba, Kiros and Hinton (2016), *Layer Normalization*, arXiv:1607.06450: statistics over the features of one case, with
#   the invariances.
# - Zhang and Sennrich (2019), *Root Mean Square Layer Normalization*, arXiv:1910.07467: RMSNorm, and how much time it
#   saves.
# - Wu and He (2018), *Group Normalization*, arXiv:1803.08494: exercise 8.5.
# - Santurkar, Tsipras, Ilyas and Madry (2018), *How Does Batch Normalization Help Optimization?*, arXiv:1805.11604:
#   disputes the explanation by covariate shift.
# - Shen, Yao, Gholami, Mahoney and Keutzer (2020), *PowerNorm: Rethinking Batch Normalization in Transformers*,
#   arXiv:2003.07845: measures how much the batch statistics of text fluctuate.
#
# The three layers are in `numtrans/layers/normalization.py`; [chapter 9](09-residuals-and-depth.ipynb) puts them before
# or behind residual connections.
