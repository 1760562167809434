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
# # 10. Feed-forward
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/10-feed-forward.ipynb)
#
# Attention moves information between tokens. The feed-forward network (FFN) then works on each token by itself, and it
# holds most of the parameters of a layer. This chapter derives it with and without a gate, counts what it costs in
# parameters and operations, and measures when a gate helps.
#
# **At the end you will understand**
#
# - why a feed-forward network is two convolutions of width 1, and why it is nothing without its activation;
# - ReLU, GELU and SiLU, their derivatives, and what a dead unit is;
# - the backward pass of a gated unit (SwiGLU, GEGLU, ReGLU), and the width 8/3 D that keeps the parameter count;
# - which part of a Transformer costs how many operations at which length, with the crossover at twice the width.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import math
import os

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.blocks import DecoderLayer, EncoderLayer
from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import (
    GEGLU, GELU, Dropout, FeedForward, GatedFeedForward, MultiHeadAttention, ReGLU, ReLU, SiLU, SwiGLU, TiedLinear,
)
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.models import GPT, GPTConfig
from numtrans.module import Module, Parameter, no_grad
from numtrans.optim import Adam, clip_grad_norm, warmup_cosine

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests

# %% [markdown]
# The shapes: $N$ tokens (batch and time together, as every token is treated alike), $D$ features (`d_model`), $F$
# hidden units (`d_ff`). $\mathrm{d}X$ is short for $\partial L / \partial X$, the gradient of the loss $L$.
#
# ## The feed-forward network
#
# Two linear layers with an activation $a$ between them, a function that is applied to each number:
#
# $$
# Z = X W_1 + b_1, \qquad H = a(Z), \qquad Y = H W_2 + b_2
# $$
#
# $X$ is (N, D), $W_1$ (D, F), $Z$ and $H$ (N, F), $W_2$ (F, D), $Y$ (N, D). In the paper by Vaswani et al. (2017) $a$
# is the rectifier, $\mathrm{ReLU}(z) = \max(0, z)$, and $F = 4 D$.


# %%
def relu(z):
    return np.maximum(z, 0)


rng = np.random.default_rng(0)
N, D, F = 6, 4, 16
X = rng.standard_normal((N, D))
W1, b1, W2, b2 = (rng.standard_normal(s) for s in ((D, F), F, (F, D), D))


def ffn(X):
    return relu(X @ W1 + b1) @ W2 + b2


library = FeedForward(D, F).astype(np.float64)
for parameter, value in zip(library.parameters(), (W1, b1, W2, b2), strict=True):
    parameter.data = value
np.testing.assert_allclose(library(X), ffn(X), rtol=1e-12)

# %% [markdown]
# ### Claim: it treats each position independently, and is two 1x1 convolutions
#
# A convolution over tokens, with kernel width $K$ (odd), slides one set of matrices $W_0, \dots, W_{K-1}$ along the
# sequence: $y_t = b + \sum_k x_{t + k - (K-1)/2} W_k$. For $K = 1$ this is a linear layer for each token.


# %%
def convolution(x, W, b):
    """x (T, D), W (K, D, F), b (F,) -> (T, F); tokens outside of the sequence count as zero."""
    K, T = len(W), len(x)
    padded = np.pad(x, ((K // 2, K // 2), (0, 0)))
    return b + sum(padded[k : k + T] @ W[k] for k in range(K))


np.testing.assert_allclose(convolution(relu(convolution(X, W1[None], b1)), W2[None], b2), ffn(X), rtol=1e-12)

moved = X.copy()
moved[2] += 1  # another token at place 2
change = np.abs(ffn(moved) - ffn(X)).max(axis=1)  # (N,)
W_wide = rng.standard_normal((3, D, F))
change_wide = np.abs(convolution(moved, W_wide, b1) - convolution(X, W_wide, b1)).max(axis=1)
print("outputs that change, FFN:                    ", np.flatnonzero(change))
print("outputs that change, a convolution of width 3:", np.flatnonzero(change_wide))
assert change[2] > 0.1 and not change[[0, 1, 3, 4, 5]].any()
assert (change_wide[1:4] > 0.1).all()

# %% [markdown]
# **Holds.** The two convolutions of width 1 give the same numbers, and a change of one token changes its own output
# only, exactly.
#
# ### Claim: without the nonlinearity, the two layers collapse into one
#
# With $a(z) = z$, $Y = X (W_1 W_2) + (b_1 W_2 + b_2)$: one linear layer, whose matrix (D, D) has a rank of at most
# $\min(D, F)$.

# %%
linear = (X @ W1 + b1) @ W2 + b2
np.testing.assert_allclose(linear, X @ (W1 @ W2) + (b1 @ W2 + b2), rtol=1e-11, atol=1e-12)
rank = np.linalg.matrix_rank(W1 @ W2)
rank_narrow = np.linalg.matrix_rank(W1[:, :2] @ W2[:2])
print(f"rank {rank} with F={F}, rank {rank_narrow} with F=2; {2 * D * F} numbers in W1 and W2 where {D * D} would do")
assert rank == D and rank_narrow == 2


def residual(f, points=500):
    """The part of f's variance that the best affine map leaves unexplained."""
    x = np.random.default_rng(1).standard_normal((points, D))
    y, A = f(x), np.hstack([x, np.ones((points, 1))])
    return ((y - A @ np.linalg.lstsq(A, y, rcond=None)[0]) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()


left = {"identity": residual(lambda x: (x @ W1 + b1) @ W2 + b2), "relu": residual(ffn)}
print("unexplained by an affine map:", {name: float(f"{value:.2g}") for name, value in left.items()})
assert left["identity"] < 1e-20 and left["relu"] > 0.05

# %% [markdown]
# **Holds**: an affine map reproduces it to rounding, at any $F$. With ReLU more than 5 % of the variance is
# beyond every affine map.
#
# ## The backward pass
#
# In index form: $n$ counts tokens, $i$ and $o$ input and output features, $f$ hidden units. Forward:
#
# $$
# z_{nf} = \sum_i x_{ni} (W_1)_{if} + (b_1)_f, \qquad h_{nf} = a(z_{nf}), \qquad
# y_{no} = \sum_f h_{nf} (W_2)_{fo} + (b_2)_o
# $$
#
# Backward, the last step first. $\delta_{pq}$ is 1 if $p = q$ and else 0.
#
# $$
# \begin{aligned}
# \mathrm{d}h_{mg} &= \sum_{n,o} \mathrm{d}y_{no} \frac{\partial y_{no}}{\partial h_{mg}}
#   = \sum_{n,o} \mathrm{d}y_{no}\, \delta_{nm} (W_2)_{go} = \sum_o \mathrm{d}y_{mo} (W_2)_{go} \\
# (\mathrm{d}W_2)_{gp} &= \sum_{n,o} \mathrm{d}y_{no} \sum_f h_{nf}\, \delta_{fg} \delta_{op}
#   = \sum_n h_{ng}\, \mathrm{d}y_{np} \\
# (\mathrm{d}b_2)_p &= \sum_{n,o} \mathrm{d}y_{no}\, \delta_{op} = \sum_n \mathrm{d}y_{np} \\
# \mathrm{d}z_{mg} &= \sum_{n,f} \mathrm{d}h_{nf}\, a'(z_{nf})\, \delta_{nm} \delta_{fg}
#   = \mathrm{d}h_{mg}\, a'(z_{mg})
# \end{aligned}
# $$
#
# The first layer is linear like the second, with $\mathrm{d}z$ in the place of $\mathrm{d}y$. In matrix form, $\odot$
# the product entry by entry and $\mathbf{1}$ a vector of $N$ ones:
#
# $$
# \begin{aligned}
# \mathrm{d}H &= \mathrm{d}Y\, W_2^\top, & \mathrm{d}W_2 &= H^\top \mathrm{d}Y, &
#   \mathrm{d}b_2 &= \mathbf{1}^\top \mathrm{d}Y, \\
# \mathrm{d}Z &= \mathrm{d}H \odot a'(Z), & & & & \\
# \mathrm{d}X &= \mathrm{d}Z\, W_1^\top, & \mathrm{d}W_1 &= X^\top \mathrm{d}Z, &
#   \mathrm{d}b_1 &= \mathbf{1}^\top \mathrm{d}Z
# \end{aligned}
# $$
#
# $a'$ is taken at $Z$, before the activation. The forward pass has to keep $X$, $H$ and what $a'(Z)$ needs.


# %%
class MyFeedForward(Module):
    def __init__(self, D, F, a, da, rng):
        super().__init__()
        self.a, self.da = a, da
        self.W1 = Parameter(rng.standard_normal((D, F)) / D**0.5)
        self.b1 = Parameter(np.zeros(F))
        self.W2 = Parameter(rng.standard_normal((F, D)) / F**0.5)
        self.b2 = Parameter(np.zeros(D))

    def forward(self, x):  # (N, D)
        z = x @ self.W1.data + self.b1.data  # (N, F)
        h = self.a(z)
        self.save(x, z, h)
        return h @ self.W2.data + self.b2.data  # (N, D)

    def backward(self, dy):
        x, z, h = self.saved()
        self.b2.add_grad(dy.sum(axis=0))
        self.W2.add_grad(h.T @ dy)
        dz = dy @ self.W2.data.T * self.da(z)  # (N, F)
        self.b1.add_grad(dz.sum(axis=0))
        self.W1.add_grad(x.T @ dz)
        return dz @ self.W1.data.T  # (N, D)


# %% [markdown]
# ## Activations
#
# **ReLU** passes what is positive: $a'(z) = [z > 0]$, 1 if $z > 0$ and else 0 (at the kink 0 by convention).
#
# **GELU** (Hendrycks and Gimpel 2016): instead of a hard decision, pass $z$ with a probability that grows with $z$.
# Keep $z$ with probability $\Phi(z)$, where $\Phi$ is the distribution function of the normal distribution, and take
# the expected value:
#
# $$
# \mathrm{GELU}(z) = z \cdot \Phi(z) + 0 \cdot (1 - \Phi(z)) = z\, \Phi(z), \qquad
# \Phi(z) = \frac{1}{2} \left(1 + \mathrm{erf} \frac{z}{\sqrt 2}\right)
# $$
#
# Its derivative follows from the product rule, with the density $\varphi = \Phi'$:
#
# $$
# a'(z) = \Phi(z) + z\, \varphi(z), \qquad \varphi(z) = \frac{e^{-z^2/2}}{\sqrt{2\pi}}
# $$
#
# The **tanh form** replaces $\Phi(z)$ by $\frac12 (1 + \tanh u)$ with $u = \sqrt{2/\pi}\,(z + 0.044715\, z^3)$; GPT-2
# uses it. $a'$ is then $\frac12 (1 + \tanh u) + \frac12 z\, (1 - \tanh^2 u)\, u'$,
# $u' = \sqrt{2/\pi}\,(1 + 3 \cdot 0.044715\, z^2)$.
#
# **SiLU** has the logistic function $\sigma(z) = 1 / (1 + e^{-z})$ as its gate; $\sigma' = \sigma (1 - \sigma)$:
#
# $$
# \mathrm{SiLU}(z) = z\, \sigma(z), \qquad a'(z) = \sigma(z) + z\, \sigma(z) (1 - \sigma(z))
# $$

# %%
erf = np.vectorize(math.erf)


def drelu(z):
    return (z > 0).astype(z.dtype)


def gelu(z):
    return z * (1 + erf(z / 2**0.5)) / 2


def dgelu(z):
    return (1 + erf(z / 2**0.5)) / 2 + z * np.exp(-(z**2) / 2) / (2 * np.pi) ** 0.5


def gelu_tanh(z):
    return z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3))) / 2


def dgelu_tanh(z):
    t = np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3))
    return (1 + t) / 2 + z * (1 - t**2) / 2 * (2 / np.pi) ** 0.5 * (1 + 3 * 0.044715 * z**2)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def silu(z):
    return z * sigmoid(z)


def dsilu(z):
    return sigmoid(z) * (1 + z * (1 - sigmoid(z)))


FUNCTIONS = {
    "ReLU": (relu, drelu, ReLU()), "GELU": (gelu, dgelu, GELU()),
    "GELU, tanh form": (gelu_tanh, dgelu_tanh, GELU("tanh")), "SiLU": (silu, dsilu, SiLU()),
}

# %%
z, h = np.linspace(-5, 5, 200), 1e-5  # 200 points: none of them is 0, where ReLU has its kink
for name, (a, da, layer) in FUNCTIONS.items():
    np.testing.assert_allclose(a(z), layer(z), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(da(z), layer.backward(np.ones_like(z)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(da(z), (a(z + h) - a(z - h)) / (2 * h), atol=1e-9)
apart = np.abs(gelu(z) - gelu_tanh(z)).max()
assert 1e-4 < apart < 1e-3
shown = ("ReLU", "GELU", "SiLU")
plots.plot_panels(
    {
        "a(z)": dict(lines={n: (z, FUNCTIONS[n][0](z)) for n in shown}, xlabel="z", ylabel="activation"),
        "a'(z)": dict(lines={n: (z, FUNCTIONS[n][1](z)) for n in shown}, xlabel="z", ylabel="derivative"),
    },
    title=f"GELU and SiLU pass a gradient below 0, ReLU none; GELU dips to {gelu(z).min():.2f}, SiLU to "
    f"{silu(z).min():.2f}. The tanh form of GELU is within {apart:.0e}",
)

# %% [markdown]
# ### Dead units
#
# A ReLU unit whose $z$ is negative for every token of the data gets no gradient at all, in its column of $W_1$ and its
# entry of $b_1$, so gradient descent cannot bring it back. Here all biases are pushed to $-4$, where the
# pre-activations have standard deviation 1.

# %%
x, dy = np.random.default_rng(2).standard_normal((2, 200, 16))
dead = {}
for name in shown:
    layer = MyFeedForward(16, 64, *FUNCTIONS[name][:2], np.random.default_rng(3))
    layer.b1.data -= 4
    layer(x)
    layer.backward(dy)
    dead[name] = (np.abs(layer.W1.grad).max(axis=0) == 0).mean()
    print(f"{name:5} units without any gradient: {dead[name]:.0%}, RMS of dW1 {np.sqrt((layer.W1.grad**2).mean()):.1e}")
assert dead["ReLU"] > 0.5 and dead["GELU"] == dead["SiLU"] == 0

# %% [markdown]
# ### Equal to the library, and checked

# %%
for name, key in (("ReLU", "relu"), ("GELU", "gelu"), ("GELU, tanh form", "gelu_tanh"), ("SiLU", "silu")):
    mine = MyFeedForward(8, 32, *FUNCTIONS[name][:2], np.random.default_rng(4))
    library = FeedForward(8, 32, key).astype(np.float64)
    for theirs, own in zip(library.parameters(), mine.parameters(), strict=True):
        theirs.data = own.data.copy()
    x, dy = rng.standard_normal((2, 5, 8))
    np.testing.assert_allclose(mine(x), library(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mine.backward(dy), library.backward(dy), rtol=1e-9, atol=1e-12)
    for theirs, own in zip(library.parameters(), mine.parameters(), strict=True):
        np.testing.assert_allclose(own.grad, theirs.grad, rtol=1e-9, atol=1e-12)
report = gradcheck(mine, x)
assert report
report

# %% [markdown]
# ## Gated units
#
# Dauphin et al. (2017) multiply one linear map by the activation of another; Shazeer (2020) puts this into the
# Transformer. With a gate $a(Z)$ and values $U$ that it scales:
#
# $$
# Z = X W_g, \qquad U = X W_u, \qquad H = a(Z) \odot U, \qquad Y = H W_d
# $$
#
# The activation names it: SiLU gives **SwiGLU**, GELU **GEGLU**, ReLU **ReGLU**, the logistic function **GLU**, the
# identity a *bilinear* unit. Usually there are no biases. Backward in index form; $h_{nf} = a(z_{nf})\, u_{nf}$ depends
# on $z$ and on $u$, and $x$ is used twice:
#
# $$
# \begin{aligned}
# \mathrm{d}h_{nf} &= \sum_o \mathrm{d}y_{no} (W_d)_{fo}, \qquad
#   (\mathrm{d}W_d)_{fo} = \sum_n h_{nf}\, \mathrm{d}y_{no} \\
# \mathrm{d}u_{nf} &= \mathrm{d}h_{nf} \frac{\partial h_{nf}}{\partial u_{nf}} = \mathrm{d}h_{nf}\, a(z_{nf}) \\
# \mathrm{d}z_{nf} &= \mathrm{d}h_{nf} \frac{\partial h_{nf}}{\partial z_{nf}}
#   = \mathrm{d}h_{nf}\, u_{nf}\, a'(z_{nf}) \\
# \mathrm{d}x_{ni} &= \sum_f \mathrm{d}z_{nf} (W_g)_{if} + \sum_f \mathrm{d}u_{nf} (W_u)_{if}
# \end{aligned}
# $$
#
# In matrix form:
#
# $$
# \begin{aligned}
# \mathrm{d}H &= \mathrm{d}Y\, W_d^\top, & \mathrm{d}U &= \mathrm{d}H \odot a(Z), &
#   \mathrm{d}Z &= \mathrm{d}H \odot U \odot a'(Z), \\
# \mathrm{d}W_d &= H^\top \mathrm{d}Y, & \mathrm{d}W_u &= X^\top \mathrm{d}U, & \mathrm{d}W_g &= X^\top \mathrm{d}Z, \\
# \mathrm{d}X &= \mathrm{d}Z\, W_g^\top + \mathrm{d}U\, W_u^\top & & & &
# \end{aligned}
# $$


# %%
class MyGated(Module):
    def __init__(self, D, F, a, da, rng):
        super().__init__()
        self.a, self.da = a, da
        self.Wg, self.Wu = (Parameter(rng.standard_normal((D, F)) / D**0.5) for _ in range(2))
        self.Wd = Parameter(rng.standard_normal((F, D)) / F**0.5)

    def forward(self, x):  # (N, D)
        z, u = x @ self.Wg.data, x @ self.Wu.data  # (N, F) each
        self.save(x, z, u)
        return (self.a(z) * u) @ self.Wd.data

    def backward(self, dy):
        x, z, u = self.saved()
        self.Wd.add_grad((self.a(z) * u).T @ dy)
        dh = dy @ self.Wd.data.T  # (N, F)
        dz, du = self.gate_backward(dh, z, u)
        self.Wg.add_grad(x.T @ dz)
        self.Wu.add_grad(x.T @ du)
        return dz @ self.Wg.data.T + du @ self.Wu.data.T  # both branches start at x

    def gate_backward(self, dh, z, u):
        return dh * u * self.da(z), dh * self.a(z)


# %%
for name, Unit in (("SiLU", SwiGLU), ("GELU", GEGLU), ("ReLU", ReGLU)):
    mine = MyGated(8, 21, *FUNCTIONS[name][:2], np.random.default_rng(5))
    library = Unit(8, 21).astype(np.float64)
    for theirs, own in zip(library.parameters(), mine.parameters(), strict=True):
        theirs.data = own.data.copy()
    x, dy = rng.standard_normal((2, 5, 8))
    np.testing.assert_allclose(mine(x), library(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mine.backward(dy), library.backward(dy), rtol=1e-9, atol=1e-12)
    for theirs, own in zip(library.parameters(), mine.parameters(), strict=True):
        np.testing.assert_allclose(own.grad, theirs.grad, rtol=1e-9, atol=1e-12)

swiglu = MyGated(8, 21, silu, dsilu, np.random.default_rng(5))
swiglu(x)
bump = np.zeros_like(x)
bump[3, 2] = 1e-5  # one entry by a finite difference
with no_grad():
    slope = ((swiglu(x + bump) - swiglu(x - bump)) * dy).sum() / 2e-5
assert abs(slope - swiglu.backward(dy)[3, 2]) < 1e-8
report = gradcheck(swiglu, x)
assert report
report

# %% [markdown]
# ### A mistake: the derivative of the gate at the wrong place
#
# After the forward pass it is tempting to keep the gate's value $g = a(z)$ and to take the derivative there: $a'(g)$ in
# place of $a'(z)$. For ReLU this is even right, because $[g > 0] = [z > 0]$, so code that was tested with ReLU goes
# wrong when the gate is changed to SiLU.


# %%
class WrongGate(MyGated):
    def gate_backward(self, dh, z, u):
        g = self.a(z)
        return dh * u * self.da(g), dh * g


assert gradcheck(WrongGate(8, 21, relu, drelu, np.random.default_rng(5)), x)  # not seen with ReLU
report = gradcheck(WrongGate(8, 21, silu, dsilu, np.random.default_rng(5)), x)
assert not report
report

# %% [markdown]
# ### Claim: SwiGLU is the product of Swish of one map and another map, then a third
#
# One text writes $(\mathrm{Swish}(x W_1) \odot (x W_3))\, W_2$, and names no number $\beta$. Swish has one:
# $\mathrm{Swish}_\beta(z) = z\, \sigma(\beta z)$. With $\beta = 1$ it is SiLU; $\beta = 0$ gives $z / 2$ and
# $\beta \to \infty$ gives ReLU.


# %%
def swish(z, beta):
    return z * (1 + np.tanh(beta * z / 2)) / 2  # sigmoid written with tanh, which cannot overflow


np.testing.assert_allclose(swish(z, 1), silu(z), rtol=1e-9, atol=1e-12)
np.testing.assert_allclose(swish(z, 0), z / 2)
assert np.abs(swish(z, 1000) - relu(z)).max() < 1e-3
library = SwiGLU(8, 21).astype(np.float64)
w1, w3, w2 = library.gate_proj.W.data, library.up_proj.W.data, library.down_proj.W.data
np.testing.assert_allclose(library(x), (swish(x @ w1, 1) * (x @ w3)) @ w2, rtol=1e-12, atol=1e-12)

# %% [markdown]
# **Holds with beta = 1.** In the library $W_1$ is `gate_proj`, $W_3$ is `up_proj` and $W_2$ is `down_proj`.
#
# The texts place dropout differently. One drops hidden units in the plain network, but *outputs* in the gated one;
# another drops both, and then once more in the residual connection. The library drops hidden units in both networks,
# and outputs in `Residual`. In numbers, at a rate of 0.5:

# %%
x = np.random.default_rng(6).standard_normal((400, 16)).astype(np.float32)
inside = SwiGLU(16, 43, dropout=0.5, rng=np.random.default_rng(7))(x)
plain = SwiGLU(16, 43, rng=np.random.default_rng(7))
once, twice = Dropout(0.5, rng=np.random.default_rng(8)), Dropout(0.5, rng=np.random.default_rng(9))
zeros = [float((y == 0).mean()) for y in (inside, once(plain(x)), twice(once(plain(x))))]
print("share of outputs that are 0: hidden dropout {:.2f}, output dropout {:.2f}, twice {:.2f}".format(*zeros))
assert zeros[0] == 0 and abs(zeros[1] - 0.5) < 0.03 and abs(zeros[2] - 0.75) < 0.03

# %% [markdown]
# Output dropout twice at rate $p$ keeps $(1 - p)^2$ of the outputs: at the text's 0.1 this is a rate of 0.19.
#
# ## Parameters
#
# ### Claim: the inner width is typically 4 times the model width, 2048 for 512
#
# Matrices and biases of the plain network: $2 D F + F + D$; with $F = 4D$: $8 D^2 + 5 D$.

# %%
D, F = 512, 2048
count = FeedForward(D, F).num_parameters()
assert count == 2 * D * F + F + D == 8 * D**2 + 5 * D
print(f"{count:,} parameters for D={D}, F={F}")

# %% [markdown]
# **Holds as a convention**: it is the base model of Vaswani et al. (2017), and the default of the library's models.
# That 4 is a good number is another question, measured below.
#
# ### Claim: a gated unit needs another width to keep the parameter count
#
# Three matrices in place of two. Equal counts of weights:
#
# $$
# 3 D F' = 2 D F \quad \Longrightarrow \quad F' = \frac{2}{3} F, \qquad F = 4 D: \quad F' = \frac{8}{3} D
# $$

# %%
for D in (48, 512, 768, 4096):
    plain, gated = 2 * D * 4 * D, 3 * D * round(8 * D / 3)
    print(f"D={D:4}: width {4 * D:5} -> {round(8 * D / 3):5}, weights {plain:,} -> {gated:,} "
          f"({gated / plain - 1:+.3%})")
    assert abs(gated / plain - 1) < 1e-3
assert SwiGLU(48, 128).num_parameters() == FeedForward(48, 192, bias=False).num_parameters()  # 8/3 * 48 = 128, exact
same_width = SwiGLU(512, 2048).num_parameters() / FeedForward(512, 2048, bias=False).num_parameters()
assert same_width == 1.5

# %% [markdown]
# **Holds**: at the same width it has 1.5 times the weights; at two thirds of the width as many, up to rounding.
#
# ### Claim: feed-forward networks hold the bulk of the parameters
#
# Leaving out biases and norms, self-attention has $4 D^2$ (four projections), the FFN $8 D^2$. A decoder layer has
# attention twice.

# %%
D, F = 512, 2048
shares = {}
for name, layer in (("encoder layer", EncoderLayer(D, 8, F)), ("decoder layer", DecoderLayer(D, 8, F))):
    in_ffn = sum(p.data.size for n, p in layer.named_parameters() if n.startswith("feedforward.sublayer"))
    shares[name] = in_ffn / layer.num_parameters()
    print(f"{name}: {in_ffn:,} of {layer.num_parameters():,} parameters, {shares[name]:.1%}")
assert abs(shares["encoder layer"] - 2 / 3) < 0.005 and abs(shares["decoder layer"] - 1 / 2) < 0.005
with_table = 6 * 2_099_712 / (6 * 3_152_384 + 30_000 * 512)  # six encoder layers and a table of 30,000 words
print(f"encoder of one text, with its table: {with_table:.1%}")
assert EncoderLayer(D, 8, F).num_parameters() == 3_152_384 and FeedForward(D, F).num_parameters() == 2_099_712

# %% [markdown]
# **Holds for encoders and decoder-only models, embeddings aside**: two thirds of a layer. In a decoder layer with
# cross-attention it is half. In the encoder that one text builds (six layers, 30,000 words) the embedding table is so
# large that the FFNs hold 37 % of all parameters.
#
# ## Where the operations are
#
# A product of an (n, k) and a (k, m) matrix takes $n k m$ multiplications and as many additions: $2 n k m$ floating
# point operations (FLOPs). For $n$ tokens, width $d$ (all heads together, here written small as usual in cost
# formulas), $d_{ff} = 4d$ and a vocabulary of $V$, the forward pass costs
#
# | part | products | FLOPs |
# |---|---|---|
# | projections of attention | 4 times (n, d)(d, d) | $8 n d^2$ |
# | scores and weighted values | (n, d)(d, n) and (n, n)(n, d), over all heads | $4 n^2 d$ |
# | feed-forward | (n, d)(d, 4d) and (n, 4d)(4d, d) | $16 n d^2$ |
# | logits, once | (n, d)(d, V) | $2 n d V$ |
#
# An embedding is a lookup and costs no products. To prove the table, the library's own layers run below on arrays that
# count the multiplications of every matrix product.


# %%
class Counted(np.ndarray):
    """An array that counts the multiplications of the matrix products it takes part in."""

    multiplications = 0
    __module__ = "numpy"  # the library asks the class of an array which backend it belongs to

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        plain = [np.asarray(a) if isinstance(a, Counted) else a for a in inputs]
        target = None if out is None else tuple(np.asarray(a) for a in out)
        result = getattr(ufunc, method)(*plain, out=target, **kwargs)
        if ufunc is np.matmul and min(a.ndim for a in plain) >= 2:  # a sum by a vector of ones is no matrix product
            Counted.multiplications += result.size * plain[0].shape[-1]
        if out is not None:
            return out[0]
        return result.view(Counted) if isinstance(result, np.ndarray) else result


def flops(layer, *shapes):
    """Operations of one forward pass, on inputs of these shapes."""
    for parameter in layer.parameters():
        parameter.data = parameter.data.view(Counted)
    Counted.multiplications = 0
    with no_grad():
        layer(*(np.ones(shape, np.float32).view(Counted) for shape in shapes))
    return 2 * Counted.multiplications


def formula(n, d, V=0):
    return {"projections": 8 * n * d**2, "scores and values": 4 * n**2 * d, "feed-forward": 16 * n * d**2,
            "logits": 2 * n * d * V}  # fmt: skip


# %%
for n, d in ((8, 16), (40, 16), (64, 32), (100, 24)):
    want = formula(n, d, V=50)
    assert flops(MultiHeadAttention(d, 4), (1, n, d)) == want["projections"] + want["scores and values"]
    assert flops(FeedForward(d, 4 * d), (1, n, d)) == want["feed-forward"]
    assert flops(EncoderLayer(d, 4, 4 * d), (1, n, d)) == sum(formula(n, d).values())
    assert flops(TiedLinear(Parameter(np.ones((50, d), np.float32))), (1, n, d)) == want["logits"]
    assert flops(SwiGLU(d, 8 * d // 3), (1, n, d)) == 2 * 3 * n * d * (8 * d // 3)
print("every count equals its formula, to the last operation")

# %% [markdown]
# The feed-forward part costs more than the whole of attention while
#
# $$
# 16 n d^2 > 8 n d^2 + 4 n^2 d \iff 8 n d^2 > 4 n^2 d \iff n < 2 d
# $$
#
# and more than its quadratic part alone while $16 n d^2 > 4 n^2 d$, that is $n < 4d$.

# %%
for d in (16, 32):
    for n in (d, 2 * d - 1, 2 * d, 2 * d + 1, 4 * d):
        fed, attended = flops(FeedForward(d, 4 * d), (1, n, d)), flops(MultiHeadAttention(d, 4), (1, n, d))
        assert (fed > attended) == (n < 2 * d) and (fed == attended) == (n == 2 * d)
        quadratic = attended - 8 * n * d**2
        assert (fed > quadratic) == (n < 4 * d)


def shares_at(n, d):
    cost = formula(n, d)
    return {part: value / sum(cost.values()) for part, value in cost.items() if value}


lengths = 2.0 ** np.arange(6, 18)
plots.plot_panels(
    {
        f"d = {d}": dict(
            lines={part: (lengths, [shares_at(n, d)[part] for n in lengths]) for part in shares_at(1, d)},
            xlabel="n (tokens)", ylabel="share of a layer's FLOPs", xscale="log",
        )
        for d in (512, 4096)
    },
    share_y=True, title=f"At 512 tokens the feed-forward part is {shares_at(512, 512)['feed-forward']:.0%} (d = 512) "
    f"and {shares_at(512, 4096)['feed-forward']:.0%} (d = 4096); at 2d tokens it is half",
)  # fmt: skip

# %% [markdown]
# ### Claim: the feed-forward network dominates the FLOPs of the Transformer

# %%
for n, d in ((512, 512), (512, 4096), (1024, 512), (2048, 512), (8192, 4096), (100_000, 4096)):
    parts = shares_at(n, d)
    print(f"n={n:6}, d={d:4}: feed-forward {parts['feed-forward']:.0%}, projections {parts['projections']:.0%}, "
          f"scores and values {parts['scores and values']:.0%}")
assert shares_at(512, 512)["feed-forward"] > 0.57 and shares_at(512, 4096)["feed-forward"] > 0.65
assert shares_at(1024, 512)["feed-forward"] == 0.5 and shares_at(2048, 512)["feed-forward"] == 0.4
vocabulary = formula(512, 512, V=30_000)["logits"] / (6 * sum(formula(512, 512).values()))
print(f"logits over 30,000 words, compared with six layers: {vocabulary:.2f}")
assert round(vocabulary, 2) == 0.70

# %% [markdown]
# **Holds if n < 2d.** With $n = d = 512$ it is 57 % of a layer, and never more than two thirds. With 512 features it is
# half at 1024 tokens and 40 % at 2048; at 100,000 tokens, $4 n^2 d$ dominates even with 4096 features. For the model of
# the texts the logits alone cost as much as 70 % of six layers.
#
# ## Does a gate help?
#
# A gated unit multiplies two linear maps of its input. A plain one cannot multiply; it adds functions of one linear map
# each. So it should depend on what has to be computed. Three random targets, for inputs $x$ of 24 normal numbers, $A$,
# $B$, $C$ random matrices: a ReLU network $\max(0, xA)\, C$, a smooth one $\tanh(2 xA)\, C$, and products
# $(xA \odot xB)\, C$. Networks with 4608 weights each: width 96 plain, 64 gated. Same steps, same data.


# %%
D = 24
TARGETS = {
    "ReLU network": lambda x, A, B, C: relu(x @ A) @ C,
    "tanh network": lambda x, A, B, C: np.tanh(2 * x @ A) @ C,
    "products": lambda x, A, B, C: (x @ A * (x @ B)) @ C,
}
NETWORKS = {
    "ReLU": lambda rng: FeedForward(D, 96, "relu", bias=False, rng=rng),
    "GELU": lambda rng: FeedForward(D, 96, "gelu", bias=False, rng=rng),
    "SwiGLU": lambda rng: SwiGLU(D, 64, rng=rng),
}
assert len({build(rng).num_parameters() for build in NETWORKS.values()}) == 1


def regression(target, network, seed):
    """The share of the target's variance that is left after training."""
    rng = np.random.default_rng(seed)
    matrices = [rng.standard_normal(shape) / shape[0] ** 0.5 for shape in ((D, 32), (D, 32), (32, D))]
    model, mse, steps = NETWORKS[network](rng), MSELoss(), 500 if FAST else 1000
    adam = Adam(model.parameters())
    with threadpool_limits(1, "blas"):  # small matrices are faster on one thread
        for step in range(1, steps + 1):
            adam.lr = warmup_cosine(step, 1e-2, steps // 10, steps)
            x = rng.standard_normal((128, D)).astype(np.float32)
            model.zero_grad()
            mse(model(x), TARGETS[target](x, *matrices).astype(np.float32))
            model.backward(mse.backward())
            adam.step()
        x = rng.standard_normal((4000, D)).astype(np.float32)
        y = TARGETS[target](x, *matrices)
        with no_grad():
            return ((model(x) - y) ** 2).mean() / y.var()


# %%
SEEDS = 2 if FAST else 3
left = {t: {m: [regression(t, m, seed) for seed in range(SEEDS)] for m in NETWORKS} for t in TARGETS}
for target, results in left.items():
    print(f"{target:13}", ", ".join(f"{m} {min(v):.4f} to {max(v):.4f}" for m, v in results.items()))
plots.plot_bars(
    {network: [np.mean(left[target][network]) for target in TARGETS] for network in NETWORKS},
    categories=list(TARGETS), xlabel="what has to be computed", ylabel="unexplained share of the variance",
    yscale="log",
    title=f"Equal parameters: on products SwiGLU leaves {np.mean(left['products']['SwiGLU']):.2f}, GELU "
    f"{np.mean(left['products']['GELU']):.2f}; on the tanh network {np.mean(left['tanh network']['SwiGLU']):.2f} and "
    f"{np.mean(left['tanh network']['GELU']):.2f}",
)

# %%
def always(target, better, worse, factor):
    """True if `better` leaves less than `worse` by the factor, the worst seed against the best."""
    return max(left[target][better]) * factor < min(left[target][worse])


assert always("products", "SwiGLU", "GELU", 1.1) and always("products", "SwiGLU", "ReLU", 1.3)
assert always("ReLU network", "ReLU", "SwiGLU", 2) and always("tanh network", "GELU", "SwiGLU", 1.3)

# %% [markdown]
# The margins (the worst seed of one against the best of the other) are several times the spread between seeds. Neither
# kind is better: the gate wins where features are multiplied, and loses where each unit needs one of them.
#
# ### Claim: gating improves performance
#
# Now in a Transformer: a GPT of one layer reads 16 symbols of a random source (the next symbol, of 12, depends on the
# last two, so the FFN has to combine two symbols that attention brought together). All models have the same number of
# parameters within 0.2 %, the same data and the same steps. The same run varies the ratio of inner to model width.

# %%
V, T = 12, 16
SOURCE = np.random.default_rng(5).dirichlet(np.full(V, 0.15), size=(V, V)).cumsum(-1)  # (before last, last, next)
MODELS = {  # name: feedforward, d_model, d_ff
    "ReLU, 4": ("relu", 48, 192), "GELU, 4": ("gelu", 48, 192), "SwiGLU, 8/3": ("swiglu", 48, 128),
    "GELU, 0.9": ("gelu", 68, 62), "GELU, 2": ("gelu", 58, 119), "GELU, 7.7": ("gelu", 38, 292),
    "GELU, 16": ("gelu", 28, 450),
}  # fmt: skip


def next_symbol(rng, B):
    ids = np.empty((B, T + 1), int)
    ids[:, :2] = rng.integers(V, size=(B, 2))
    for t in range(2, T + 1):
        u = rng.random((B, 1))
        ids[:, t] = np.minimum((u > SOURCE[ids[:, t - 2], ids[:, t - 1]]).sum(1), V - 1)
    targets = ids[:, 1:].copy()
    targets[:, 0] = -100  # the second symbol is drawn evenly: nothing to learn
    return ids[:, :-1], targets


TEST = next_symbol(np.random.default_rng(1000), 256)  # the same for all
STEPS, CHECKS = (60, 3) if FAST else (300, 10)


def gpt_losses(name, seed):
    """Cross-entropy on 256 new sequences at `CHECKS` moments of the training, and the number of parameters."""
    feedforward, d, F = MODELS[name]
    config = GPTConfig(V, T, d, 2, 1, F, dropout=0.0, feedforward=feedforward, bias=False)
    model, ce, rng = GPT(config, rng=seed), CrossEntropyLoss(), np.random.default_rng(seed)
    parameters, losses = model.parameters(), []
    adam = Adam(parameters)
    with threadpool_limits(1, "blas"):
        for step in range(1, STEPS + 1):
            adam.lr = warmup_cosine(step, 1e-2, STEPS // 10, STEPS)
            ids, targets = next_symbol(rng, 16 if FAST else 32)
            model.zero_grad()
            ce(model(ids), targets)
            model.backward(ce.backward())
            clip_grad_norm(parameters, 1.0)
            adam.step()
            if step % (STEPS // CHECKS) == 0:
                with no_grad():
                    losses.append(float(ce(model(TEST[0]), TEST[1])))
    return losses, model.num_parameters()


# %%
runs = {name: [gpt_losses(name, seed) for seed in range(1 if FAST else 4)] for name in MODELS}
curves = {name: np.array([losses for losses, _ in r]) for name, r in runs.items()}  # (seeds, CHECKS) each
sizes = [r[0][1] for r in runs.values()]
assert max(sizes) / min(sizes) < 1.003
for name, c in curves.items():
    early, end = c[:, CHECKS // 3 - 1], c[:, -1]
    print(f"{name:12} {runs[name][0][1]:,} parameters: after a third {early.mean():.3f} nats, "
          f"at the end {end.mean():.3f} ({end.min():.3f} to {end.max():.3f})")
    assert end.max() < np.log(V) - 0.1  # clearly better than guessing

compared = ["ReLU, 4", "GELU, 4", "SwiGLU, 8/3"]
steps = STEPS // CHECKS * np.arange(1, CHECKS + 1)
means = {name: curves[name][:, -1].mean() for name in compared}
plots.plot_lines(
    {n: (steps, curves[n].mean(0), curves[n].min(0), curves[n].max(0)) for n in compared},
    xlabel="training steps", ylabel="cross-entropy (nats per token)",
    title=f"After {STEPS} steps: ReLU {means['ReLU, 4']:.3f}, GELU {means['GELU, 4']:.3f}, SwiGLU "
    f"{means['SwiGLU, 8/3']:.3f} nats",
)

# %%
if not FAST:  # 60 steps are too few to compare
    assert curves["SwiGLU, 8/3"][:, -1].max() < min(curves[n][:, -1].min() for n in compared[:2]) - 0.005

# %% [markdown]
# **Holds under conditions.** At full size (300 steps, 4 seeds) the worst SwiGLU run is better than the best ReLU and
# the best GELU run; the gap of the means is about twice the range of the seeds. That is one task, which asks for
# a combination of two symbols. After the 60 steps of the fast run SwiGLU is behind, and the regression above shows the
# opposite order on targets without products. Shazeer (2020) reports small gains on language, and offers no explanation.
#
# ### Claim: an expansion by 4 is a sweet spot, and parameter-efficient

# %%
ratios = ["GELU, 0.9", "GELU, 2", "GELU, 4", "GELU, 7.7", "GELU, 16"]
x = np.array([F / d for _, d, F in (MODELS[name] for name in ratios)])
low, mean, high = (np.array([f(curves[name][:, -1]) for name in ratios]) for f in (np.min, np.mean, np.max))
best = x[mean.argmin()]
if not FAST:
    assert high[1:3].max() + 0.05 < low[4]  # 2 and 4 against 16, each seed
    assert abs(mean[1] - mean[2]) < 0.05
plots.plot_lines(
    {"GELU, equal parameters": (x, mean, low, high)}, xscale="log",
    xlabel="inner width / model width", ylabel="cross-entropy (nats per token)",
    title=f"From ratio {x[1]:.0f} to {x[2]:.0f} the loss changes by {abs(mean[1] - mean[2]):.3f} nats, at {x[4]:.0f} "
    f"it is {mean[4] - mean.min():.2f} above the best (at {best:.1f})",
)

# %% [markdown]
# **Holds as "not far from the best" only.** At equal parameters all ratios from 1 to 8 lie within 0.1 nats, 16 is
# clearly worse, and in this experiment 2 is no worse than 4. There is nothing sharp at 4. What is best at the size of
# real models, with real text, is not shown here.
#
# ## Exercises
#
# ### Exercise 10.1: the width of a gated unit
#
# Write `gated_width(D, multiple)`: the smallest multiple of `multiple` that is at least $\frac{8}{3} D$. Check:
# `gated_width(768, 64) == 2048` and `gated_width(4096, 256) == 11008`, the width of Llama 7B.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 10.1
def gated_width(D, multiple):
    return -(-8 * D // (3 * multiple)) * multiple  # -(-a // b) rounds up


assert gated_width(768, 64) == 2048
assert gated_width(4096, 256) == 11008

# %% [markdown]
# ### Exercise 10.2: where is SiLU lowest
#
# Show on paper that the minimum of $z\, \sigma(z)$ lies where $1 + z\,(1 - \sigma(z)) = 0$, and that its value there is
# $z + 1$.
#
# <details><summary>Solution of exercise 10.2</summary>
#
# $a'(z) = \sigma(z)\,(1 + z\,(1 - \sigma(z)))$ and $\sigma(z) > 0$, so $a'(z) = 0$ where the bracket is 0. There
# $z\, \sigma(z) = z + 1$, which is the value of the function. (Numerically $z = -1.278$, value $-0.278$.)
#
# </details>
#
# ### Exercise 10.3: the bilinear unit
#
# Write `bilinear_backward(x, Wg, Wu, Wd, dy)`, which returns `dx, dWg, dWu, dWd` for $Y = (X W_g \odot X W_u)\, W_d$.
# Check: equal to `GatedFeedForward(6, 9, "identity")`, 1e-12.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 10.3
def bilinear_backward(x, Wg, Wu, Wd, dy):
    z, u, dh = x @ Wg, x @ Wu, dy @ Wd.T
    dz, du = dh * u, dh * z
    return dz @ Wg.T + du @ Wu.T, x.T @ dz, x.T @ du, (z * u).T @ dy


library = GatedFeedForward(6, 9, "identity").astype(np.float64)
x, dy = np.random.default_rng(0).standard_normal((2, 5, 6))
library(x)
want = [library.backward(dy), *(p.grad for p in library.parameters())]
for a, b in zip(bilinear_backward(x, *(p.data for p in library.parameters()), dy), want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)

# %% [markdown]
# ### Exercise 10.4: the cost of a decoder layer
#
# Write `decoder_flops(n, m, d)`: the FLOPs of a decoder layer with $d_{ff} = 4 d$ for $n$ target and $m$ source tokens.
# Check: equal to `flops(DecoderLayer(16, 4, 64), (1, 10, 16), (1, 7, 16))`, which counts it for $n = 10$, $m = 7$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 10.4
def decoder_flops(n, m, d):
    self_attention = 8 * n * d**2 + 4 * n**2 * d
    cross_attention = 4 * n * d**2 + 4 * m * d**2 + 4 * n * m * d  # query and output for n, key and value for m
    return self_attention + cross_attention + 16 * n * d**2


assert flops(DecoderLayer(16, 4, 64), (1, 10, 16), (1, 7, 16)) == decoder_flops(10, 7, 16)

# %% [markdown]
# ### Exercise 10.5: a network that multiplies
#
# Write `multiplier()`, which returns a `ReGLU(2, 2)` in float64 with weights such that the first output is exactly
# $x_0 x_1$ and the second 0, for all $x$. Check: 1e-12 on 1000 random points. (Hint: $z = \max(0, z) - \max(0, -z)$.)

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 10.5
def multiplier():
    unit = ReGLU(2, 2).astype(np.float64)
    unit.gate_proj.W.data = np.array([[1.0, -1.0], [0.0, 0.0]])  # gates max(0, x0) and max(0, -x0)
    unit.up_proj.W.data = np.array([[0.0, 0.0], [1.0, 1.0]])  # both scale x1
    unit.down_proj.W.data = np.array([[1.0, 0.0], [-1.0, 0.0]])  # their difference
    return unit


x = np.random.default_rng(0).standard_normal((1000, 2))
y = multiplier()(x)
np.testing.assert_allclose(y, np.stack([x[:, 0] * x[:, 1], np.zeros(1000)], axis=1), atol=1e-12)

# %% [markdown]
# ## Papers
#
# - Ashish Vaswani et al. (2017), *Attention Is All You Need*, arXiv:1706.03762: the feed-forward network, section 3.3.
# - Dan Hendrycks and Kevin Gimpel (2016), *Gaussian Error Linear Units (GELUs)*, arXiv:1606.08415: GELU and SiLU.
# - Prajit Ramachandran, Barret Zoph and Quoc V. Le (2017), *Searching for Activation Functions*, arXiv:1710.05941:
#   Swish.
# - Yann N. Dauphin et al. (2017), *Language Modeling with Gated Convolutional Networks*, arXiv:1612.08083: GLU.
# - Noam Shazeer (2020), *GLU Variants Improve Transformer*, arXiv:2002.05202: SwiGLU, GEGLU, ReGLU and the width 2/3.
#
# The classes of this chapter live in `numtrans/layers/feedforward.py` and `numtrans/layers/activations.py`; next comes
# [chapter 11, the whole encoder-decoder](11-encoder-decoder.ipynb).
