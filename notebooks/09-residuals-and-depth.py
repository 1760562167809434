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
# # 9. Residuals and depth
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/09-residuals-and-depth.ipynb)
#
# A Transformer is a stack of layers, and each layer adds to its input what it computes: $x + f(x)$. This chapter derives
# what the addition does to the gradient, and what changes when the LayerNorm of [chapter 8](08-normalization.ipynb)
# stands before $f$ (pre-norm) or after the sum (post-norm). Both are then measured, at initialization down to 24 layers,
# and in training with and without a warm-up of the learning rate, after Xiong et al. (2020).
#
# **At the end you will understand**
#
# - the direct path of a residual connection, in the forward and in the backward pass;
# - why a product of many Jacobians vanishes or explodes, and why a product of $I + J$ behaves otherwise;
# - the backward passes of the pre-norm and of the post-norm block, and how to tell the two apart in code;
# - what depth does to the gradient of each placement, and which of them needs a warm-up.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import os

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.blocks import Encoder, EncoderLayer
from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import Dropout, Embedding, FeedForward, LayerNorm, Linear, Residual, SinusoidalPositionalEncoding
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module
from numtrans.optim import Adam

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests

# %% [markdown]
# ## The direct path
#
# A residual block (He et al., 2016) with a sublayer $f$ computes, for one token with features $x_1, \dots, x_D$,
#
# $$
# y_i = x_i + f_i(x)
# $$
#
# Let $\mathcal{L}$ be the loss. As in the chapters before, $\mathrm{d}x_i$ stands for $\partial \mathcal{L} / \partial x_i$,
# $[i = j]$ is 1 if $i = j$ and 0 otherwise, and $J_{ji} = \partial f_j / \partial x_i$ is the Jacobian of the sublayer.
# Index by index:
#
# $$
# \begin{aligned}
# \mathrm{d}x_i &= \sum_j \mathrm{d}y_j\, \frac{\partial y_j}{\partial x_i} \\
# &= \sum_j \mathrm{d}y_j \left( [i = j] + J_{ji} \right) \\
# &= \mathrm{d}y_i + \sum_j \mathrm{d}y_j\, J_{ji}
# \end{aligned}
# $$
#
# and as a matrix equation, with $\mathrm{d}x$ and $\mathrm{d}y$ as rows,
#
# $$
# \mathrm{d}x = \mathrm{d}y\, (I + J) = \mathrm{d}y + \mathrm{d}y\, J
# $$
#
# The second term is what `f.backward(dy)` returns. The first is the **direct path**: the gradient itself, unchanged.

# %%
rng = np.random.default_rng(0)
D = 6
A = rng.standard_normal((D, D)) / np.sqrt(D)


def f(x):
    return np.tanh(x @ A)


x, dy = rng.standard_normal((2, D))
J = ((1 - f(x) ** 2)[:, None] * A.T)                                        # J[j, i] = d f_j / d x_i
dx = dy + dy @ J
h = 1e-6
numeric = [(dy @ (x + e + f(x + e)) - dy @ (x - e + f(x - e))) / (2 * h) for e in h * np.eye(D)]
np.testing.assert_allclose(dx, numeric, rtol=1e-8)

# %% [markdown]
# ## A stack
#
# With $L$ blocks and Jacobians $J_1, \dots, J_L$, the gradient at the bottom is a product; multiplied out, it is a sum
# over all ways to go through or around each sublayer:
#
# $$
# \mathrm{d}x = \mathrm{d}y\, (I + J_L) \cdots (I + J_1) = \mathrm{d}y \left( I + \sum_l J_l + \sum_{l > k} J_l J_k + \dots \right)
# $$
#
# Without the residual connections there is one way only, $\mathrm{d}y\, J_L \cdots J_1$. If each $J_l$ shrinks a vector by
# a factor $s < 1$ on average, that is $s^L$.

# %%
Js = 0.1 * rng.standard_normal((3, D, D))
product = (np.eye(D) + Js[2]) @ (np.eye(D) + Js[1]) @ (np.eye(D) + Js[0])
expanded = np.eye(D) + Js.sum(axis=0) + Js[2] @ Js[1] + Js[2] @ Js[0] + Js[1] @ Js[0] + Js[2] @ Js[1] @ Js[0]
np.testing.assert_allclose(product, expanded, rtol=1e-12, atol=1e-14)

# %% [markdown]
# ### Without residuals, the gradient shrinks exponentially with depth
#
# Two of the texts say so. Measured: a stack of feed-forward networks $f(x) = \tanh(x A)$ of width 32 with random $A$
# whose entries have variance $g^2 / 32$. How long is the gradient at the bottom, compared with the top, after $L$
# layers, with and without $x +$?

# %%
def gradient_ratio(L, gain, residual, seed, D=32):
    """Length of the gradient at the bottom of L layers over its length at the top."""
    rng = np.random.default_rng(seed)
    x, Js = rng.standard_normal(D), []
    for _ in range(L):
        A = gain * rng.standard_normal((D, D)) / np.sqrt(D)
        y = np.tanh(x @ A)
        Js.append((1 - y**2)[:, None] * A.T)
        x = x + y if residual else y
    dy = g = rng.standard_normal(D)
    for J in reversed(Js):
        g = g @ J + (g if residual else 0)
    return np.linalg.norm(g) / np.linalg.norm(dy)


depths, seeds = [1, 2, 4, 8, 16, 24], range(20)
curves = {}
for gain in (0.7, 1.0):
    for residual in (False, True):
        ratios = np.array([[gradient_ratio(L, gain, residual, seed) for L in depths] for seed in seeds])
        label = f"gain {gain}, {'x + f(x)' if residual else 'f(x) only'}"
        curves[label] = (depths, *np.exp([np.log(ratios).mean(0), np.log(ratios).min(0), np.log(ratios).max(0)]))
        mean, low, high = (curve[-1] for curve in curves[label][1:])
        print(f"{label:22s} at 24 layers: {mean:.1e} (20 seeds, {low:.1e} to {high:.1e})")
vanished = curves["gain 0.7, f(x) only"]
assert vanished[3][-1] < 1e-3                                               # the largest of 20 seeds
assert min(curves[f"gain {gain}, x + f(x)"][2][-1] for gain in (0.7, 1.0)) > 1
plots.plot_lines(
    curves, xlabel="layers", ylabel="gradient at the bottom / at the top", yscale="log",
    title=f"Without residuals the gradient falls to {vanished[1][-1]:.0e} at 24 layers; with them it does not shrink",
)  # fmt: skip

# %% [markdown]
# **Holds if** each layer shrinks: at gain 0.7 the decay is exponential. At gain 1 it is much slower, and a larger gain
# would make the gradient explode. With residuals nothing shrinks, but the gradient **grows**: $I + J$ has the length 1
# plus something. Residuals trade one danger for a smaller one, which the norms then bound.
#
# ## Pre-norm and post-norm
#
# With $N$ a LayerNorm, the two placements are
#
# $$
# \text{post-norm:}\quad y = N(x + f(x)), \qquad\qquad \text{pre-norm:}\quad y = x + f(N(x))
# $$
#
# Let $u = x + f(x)$, and let $N'$ be the Jacobian of the norm at the place where it is applied. Index by index, with
# $J$ the Jacobian of $f$ where it is applied:
#
# $$
# \begin{aligned}
# \text{post:}\quad \mathrm{d}x_i &= \sum_k \mathrm{d}y_k \sum_j N'_{kj} \left( [i = j] + J_{ji} \right) \\
# \text{pre:}\quad \mathrm{d}x_i &= \mathrm{d}y_i + \sum_k \mathrm{d}y_k \sum_j J_{kj}\, N'_{ji}
# \end{aligned}
# $$
#
# In matrix form, with the gradient of the sum as $\mathrm{d}u = \mathrm{d}y\, N'$ in the post-norm block:
#
# $$
# \text{post:}\quad \mathrm{d}x = \mathrm{d}u + \mathrm{d}u\, J, \qquad\qquad \text{pre:}\quad \mathrm{d}x = \mathrm{d}y + \mathrm{d}y\, J N'
# $$
#
# In code: post-norm sends the gradient through the norm first, then down both ways; pre-norm sends it down both ways,
# and only the way through the sublayer meets the norm.

# %%
class ResidualByHand(Module):
    def __init__(self, sublayer, norm, placement):
        super().__init__()
        self.sublayer, self.norm, self.placement = sublayer, norm, placement

    def forward(self, x):
        if self.placement == "post":
            return self.norm(x + self.sublayer(x))
        return x + self.sublayer(self.norm(x))

    def backward(self, dy):
        if self.placement == "post":
            du = self.norm.backward(dy)
            return du + self.sublayer.backward(du)
        return dy + self.norm.backward(self.sublayer.backward(dy))


def parts(seed, D=6):
    """A feed-forward network and a LayerNorm with random gain and bias, float64."""
    rng = np.random.default_rng(seed)
    norm = LayerNorm(D).astype(np.float64)
    norm.gamma.data, norm.beta.data = 1 + 0.3 * rng.standard_normal(D), 0.3 * rng.standard_normal(D)
    return FeedForward(D, 12, "gelu", rng=rng).astype(np.float64), norm


# %% [markdown]
# Equal to the library's `Residual`, forward, $\mathrm{d}x$ and all parameter gradients:

# %%
x, dy = np.random.default_rng(1).standard_normal((2, 2, 3, 6))              # (B, T, D)
for placement in ("pre", "post"):
    mine, library = ResidualByHand(*parts(2), placement), Residual(*parts(2), placement)
    np.testing.assert_allclose(mine(x), library(x), rtol=1e-12)
    np.testing.assert_allclose(mine.backward(dy), library.backward(dy), rtol=1e-12)
    for (name, p), q in zip(mine.named_parameters(), library.parameters()):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-12, err_msg=name)

# %%
report = gradcheck(ResidualByHand(*parts(3), "post"), x)
assert report, str(report)
assert gradcheck(ResidualByHand(*parts(3), "pre"), x)
report

# %% [markdown]
# ### A mistake planted: the direct path forgotten
#
# `backward` that returns only what comes back through the sublayer. Every parameter gradient of this block is right; the
# error is in `dx`, so it falls on all layers **below**.

# %%
class ForgottenPath(ResidualByHand):
    def backward(self, dy):
        return self.norm.backward(self.sublayer.backward(dy))               # dy + is missing


broken_report = gradcheck(ForgottenPath(*parts(3), "pre"), x)
assert not broken_report
assert [row.kind for row in broken_report.rows if not row.passed] == ["input"]
broken_report

# %% [markdown]
# ### The derivative of a residual block is one plus the derivative of its sublayer
#
# One of the texts writes the output of the block in the post-norm form and then this formula for its gradient. For
# $x + f(x)$ and for the pre-norm block it **holds** with the derivative of all that stands in the branch. For
# $N(x + f(x))$ it **does not hold** as written: the factor $N'$ is missing, and no part of the gradient passes without
# it. How far the formula is from the truth, in numbers:

# %%
post = Residual(*parts(4), "post")
y = post(x)
true = post.backward(dy)
post.sublayer(x)
formula = dy + post.sublayer.backward(dy)
error = np.linalg.norm(formula - true) / np.linalg.norm(true)
print(f"post-norm: dy (1 + J) differs from the gradient by {100 * error:.0f} % of its length")
assert error > 0.2

pre = Residual(*parts(4), "pre")
pre(x)
branch = ResidualByHand(*parts(4), "pre")
branch(x)
np.testing.assert_allclose(pre.backward(dy), dy + branch.norm.backward(branch.sublayer.backward(dy)), rtol=1e-12)

# %% [markdown]
# ### In post-norm, the norm on the path can amplify or dampen the gradient
#
# $N'$ divides by the standard deviation of its input ([chapter 8](08-normalization.ipynb)). The input of the norm is
# $x + f(x)$; if $x$ has variance 1 and $f(x)$ an independent variance $v$, the direct path is multiplied by about
# $1 / \sqrt{1 + v}$ in every block:

# %%
rng = np.random.default_rng(5)
D_wide, factors = 256, {}
for v in (0.0, 0.25, 1.0, 4.0):
    norm = LayerNorm(D_wide).astype(np.float64)
    x_wide, branch_wide, dy_wide = rng.standard_normal((3, 200, D_wide))
    norm(x_wide + np.sqrt(v) * branch_wide)
    factors[v] = np.linalg.norm(norm.backward(dy_wide)) / np.linalg.norm(dy_wide)
    print(f"variance of the branch {v:4.2f}: direct path times {factors[v]:.3f}, predicted {1 / np.sqrt(1 + v):.3f}")
    assert abs(factors[v] * np.sqrt(1 + v) - 1) < 0.02
small = LayerNorm(D_wide).astype(np.float64)
small(0.5 * x_wide)
assert np.linalg.norm(small.backward(dy_wide)) > 1.8 * np.linalg.norm(dy_wide)

# %% [markdown]
# **Holds**: dampened by 0.71 a block when the branch is as large as the input, amplified (by 2 here) when the input of
# the norm is small. In pre-norm the direct path has the factor 1 whatever the sublayer does.
#
# ### The code that says pre-norm is post-norm
#
# One of the texts comments its encoder layer and its block as pre-norm, and computes `norm1(x + attention(x))`, then
# `norm2(x + ffn(x))`. The same lines with the library's parts equal the library's **post-norm** layer, not its pre-norm
# layer. The label **does not hold**.

# %%
def labelled_pre_norm(layer, x):
    """The two lines of the text, with the parts of a library layer."""
    attention, ffn = layer.self_attention, layer.feedforward
    x = attention.norm(x + attention.sublayer(x))
    return ffn.norm(x + ffn.sublayer(x))


post_layer = EncoderLayer(8, 2, 16, norm_placement="post", rng=np.random.default_rng(0)).astype(np.float64)
pre_layer = EncoderLayer(8, 2, 16, norm_placement="pre", rng=np.random.default_rng(0)).astype(np.float64)
z = np.random.default_rng(6).standard_normal((2, 5, 8))
np.testing.assert_allclose(labelled_pre_norm(post_layer, z), post_layer(z), rtol=1e-12)
distance = np.abs(labelled_pre_norm(pre_layer, z) - pre_layer(z)).max()
print(f"equal to post-norm to 1e-12; differs from pre-norm by up to {distance:.2f}")
assert distance > 0.5

# %% [markdown]
# ### Dropout applied twice
#
# The encoder layer of another text ends its feed-forward network with a dropout and applies a second one to the result
# before it is added. **A mistake of its own kind**: with rate $p$ an entry survives with probability $(1 - p)^2$, not
# $1 - p$, so at $p = 0.1$ the rate is 0.19. Counted on a million entries:

# %%
p = 0.1
ones = np.ones((1000, 1000), np.float32)
twice = Dropout(p, rng=np.random.default_rng(7))(Dropout(p, rng=np.random.default_rng(8))(ones))
dropped = float((twice == 0).mean())
print(f"dropped: {dropped:.4f}; 1 - (1 - p)^2 = {1 - (1 - p) ** 2:.4f}")
assert abs(dropped - (1 - (1 - p) ** 2)) < 0.002                            # five standard deviations

# %% [markdown]
# ## A stack of pre-norm blocks needs a closing norm
#
# In pre-norm, $x^{(L)} = x^{(0)} + \sum_l f_l(N(x^{(l-1)}))$. Each term sees a normalized input, so at initialization the
# terms have about the same variance, and the variance of the sum grows in proportion to $L$.
#
# ### The output of a pre-norm stack grows with its depth

# %%
def output_variance(L, placement, seed, D=32):
    rng = np.random.default_rng(seed)
    stack = Encoder(L, D, 4, 4 * D, norm_placement=placement, rng=rng)
    x = rng.standard_normal((4, 8, D)).astype(np.float32)
    for layer in stack.layers:
        x = layer(x)
    stack.clear()
    return float(x.var())


stack_depths = [1, 2, 4, 8, 16, 24]
grown = {
    placement: np.array([[output_variance(L, placement, seed) for L in stack_depths] for seed in range(3)])
    for placement in ("pre", "post")
}
slope = np.polyfit(np.log(stack_depths[2:]), np.log(grown["pre"][:, 2:].mean(axis=0)), 1)[0]
print("variance before a closing norm, pre-norm ", np.round(grown["pre"].mean(axis=0), 2))
print("variance, post-norm                      ", np.round(grown["post"].mean(axis=0), 2))
print(f"pre-norm grows like L to the power {slope:.2f}")
assert 0.6 < slope < 1.4
assert np.abs(grown["post"] - 1).max() < 0.01

# %% [markdown]
# **Holds**: without a closing norm the output layer would get inputs whose size depends on the depth. `numtrans.blocks`
# adds a norm at the end of a pre-norm stack, and none at the end of a post-norm stack, which ends with one.
#
# ## Gradients by layer, at initialization
#
# Xiong et al. (2020) derive how the gradient of the last layer's feed-forward weights depends on the number of layers
# $L$: in post-norm it does not shrink with depth, in pre-norm it does:
#
# $$
# \left\| \frac{\partial \mathcal{L}}{\partial W_2^{(L)}} \right\|_{\text{post}} = O(1), \qquad
# \left\| \frac{\partial \mathcal{L}}{\partial W_2^{(L)}} \right\|_{\text{pre}} = O(1 / \sqrt{L})
# $$
#
# with the width held fixed, because in pre-norm the closing norm divides by the standard deviation of the sum, which is
# about $\sqrt{L}$. Measured on a whole model with a real loss: tokens in, an encoder, logits and cross-entropy out. The
# task is to sort eight digits.

# %%
V, T = 10, 8


class Sorter(Module):
    """Token embedding, positions, an encoder, an output layer."""

    def __init__(self, layers, placement, D, rng):
        super().__init__()
        self.embedding = Embedding(V, D, scale=True, rng=rng)
        self.position = SinusoidalPositionalEncoding(D)
        self.encoder = Encoder(layers, D, 4, 2 * D, norm_placement=placement, rng=rng)
        self.output = Linear(D, V, rng=rng)

    def forward(self, ids):
        return self.output(self.encoder(self.position(self.embedding(ids))))

    def backward(self, dlogits):
        dx = self.encoder.backward(self.output.backward(dlogits))
        self.embedding.backward(self.position.backward(dx))


def draw_batch(rng, size):
    ids = rng.integers(V, size=(size, T))
    return ids, np.sort(ids, axis=1)


def gradient_norms(layers, placement, seed, D=64):
    """The norm of d loss / d W2 of each layer's feed-forward network, at initialization."""
    rng = np.random.default_rng(seed)
    model, loss = Sorter(layers, placement, D, rng), CrossEntropyLoss()
    ids, targets = draw_batch(rng, 16)
    loss(model(ids), targets)
    model.backward(loss.backward())
    return [np.linalg.norm(layer.feedforward.sublayer.linear2.W.grad) for layer in model.encoder.layers]


# %%
model_depths = [4, 6, 12, 24]
with threadpool_limits(1, "blas"):                                          # small matrices are faster on one thread
    norms = {
        placement: {L: np.array([gradient_norms(L, placement, seed) for seed in range(4 if FAST else 8)]) for L in model_depths}
        for placement in ("post", "pre")
    }
for placement, by_depth in norms.items():
    for L, values in by_depth.items():
        print(f"{placement:4s} {L:2d} layers: first {values[:, 0].mean():.3f}, last {values[:, -1].mean():.3f} ({len(values)} seeds)")
plots.plot_panels(
    {
        f"{placement}-norm": dict(
            lines={
                f"{L} layers": (np.arange(1, L + 1), values.mean(axis=0), values.min(axis=0), values.max(axis=0))
                for L, values in by_depth.items()
            },
            xlabel="layer, from the input", ylabel="norm of the gradient of W2", yscale="log",
        )
        for placement, by_depth in norms.items()
    },
    title="At initialization, the upper layers of a deep post-norm model have the larger gradients",
    share_y=True,
)  # fmt: skip

# %%
last = {placement: np.array([by_depth[L][:, -1] for L in model_depths]) for placement, by_depth in norms.items()}
for placement, values in last.items():
    power = np.polyfit(np.log(model_depths), np.log(values).mean(axis=1), 1)[0]
    print(f"{placement}-norm: the last layer's gradient goes like L to the power {power:.2f}")
ratios = last["post"] / last["pre"]                                         # (depths, seeds)
mean_ratios = np.exp(np.log(ratios).mean(axis=1))
print("post-norm over pre-norm, by depth:", np.round(mean_ratios, 1), f"; at 24 layers {ratios[-1].min():.1f} or more")
assert (ratios[-1] > 1.5).all()                                             # in each seed
assert mean_ratios[-1] > 1.5 * mean_ratios[0]

# %% [markdown]
# The theory says that the last layer's gradient goes like $L^0$ in post-norm and like $L^{-1/2}$ in pre-norm. Measured
# over a factor of six in depth, the powers are noisy: from seed to seed the norm varies by a factor of two. What is
# beyond chance is the comparison: in every seed the deepest post-norm model has the larger gradient at its last layer,
# and the ratio of the two grows with depth. So at the same learning rate the first steps of a deep post-norm model move
# its upper layers several times further than those of a pre-norm model.
#
# ## Training with and without warm-up
#
# A warm-up raises the learning rate linearly from 0 during the first steps. Four cases, post-norm and pre-norm, each
# with and without, on the sorting task with six layers. Not one learning rate but several, since a comparison at one
# can be made to say anything. The loss is the mean of the last 20 steps; $\log 10 = 2.30$ is that of guessing.

# %%
def train(placement, warmup, lr, seed, D, steps, layers=6):
    rng = np.random.default_rng(seed)
    model, loss = Sorter(layers, placement, D, rng), CrossEntropyLoss()
    optimizer, losses = Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), eps=1e-9), []
    for step in range(1, steps + 1):
        ids, targets = draw_batch(rng, 32)
        optimizer.lr = lr * min(1.0, step / warmup) if warmup else lr
        optimizer.zero_grad()
        losses.append(float(loss(model(ids), targets)))
        model.backward(loss.backward())
        optimizer.step()
    return np.array(losses)


D, steps, warmup = (16, 100, 30) if FAST else (32, 200, 60)
rates, train_seeds = ([1e-2] if FAST else [1e-3, 3e-3, 1e-2, 3e-2]), range(2 if FAST else 3)
with threadpool_limits(1, "blas"):
    runs = {
        (placement, w, lr): np.array([train(placement, w, lr, seed, D, steps) for seed in train_seeds])
        for placement in ("post", "pre") for w in (0, warmup) for lr in rates
    }  # fmt: skip
final = {key: losses[:, -20:].mean(axis=1) for key, losses in runs.items()}
for (placement, w, lr), values in final.items():
    print(f"{placement}-norm, warm-up {w:2d} steps, learning rate {lr:.0e}: " + " ".join(f"{v:.3f}" for v in values))

# %%
def mean_curve(placement, w, lr):
    losses = runs[placement, w, lr].mean(axis=0)
    smooth = np.convolve(losses, np.ones(10) / 10, mode="valid")            # mean of 10 steps
    return np.arange(10, len(losses) + 1), smooth


def name(placement, w):
    return f"{placement}-norm, {'warm-up' if w else 'no warm-up'}"


lr = 1e-2
plots.plot_lines(
    {name(placement, w): mean_curve(placement, w, lr) for placement in ("post", "pre") for w in (0, warmup)},
    xlabel="step", ylabel="cross-entropy (nats per token)",
    title=f"At learning rate 0.01 post-norm without warm-up stays at {final['post', 0, lr].mean():.2f} nats; "
    f"pre-norm needs none",
)  # fmt: skip

# %%
assert final["post", 0, lr].min() - final["post", warmup, lr].max() > 0.3   # the worst seed against the best
assert final["post", 0, lr].min() - final["pre", 0, lr].max() > 0.5
assert final["post", warmup, lr].min() > final["pre", warmup, lr].max()

# %% [markdown]
# ### Post-norm needs the warm-up, pre-norm does not
#
# **Holds** at learning rate 0.01, in every seed: post-norm without warm-up hardly learns, or not at all; with warm-up
# it learns; pre-norm learns without. At the small rates of the sweep (full size) post-norm trains without
# warm-up too. So the statement needs its condition: the warm-up is needed at rates that are large for the depth.
#
# ### Pre-norm allows higher learning rates
#
# The largest rate of the sweep at which every seed gets below 2 nats, for each of the four cases:

# %%
for placement in ("post", "pre"):
    for w in (0, warmup):
        good = [rate for rate in rates if final[placement, w, rate].max() < 2.0]
        print(f"{name(placement, w):24s} {max(good) if good else 'none'}")
if not FAST:
    best = {p: max(rate for rate in rates if final[p, 0, rate].max() < 2.0) for p in ("post", "pre")}
    assert best["pre"] > 2 * best["post"]

# %% [markdown]
# **Holds** on this task: without warm-up pre-norm stands a rate at least three times higher, one step of the sweep.
#
# ### Residuals make stacks of 96 layers trainable
#
# Said in two of the texts, with GPT-3 as the example. **Not shown** here: the deepest stack of this chapter has 24
# layers, at initialization. What is shown is the reason given, the direct path.
#
# ## Exercises
#
# ### Exercise 9.1: Count the paths
#
# Multiplied out, $(I + J_L) \cdots (I + J_1)$ has one term for each choice of through or around. Write `paths(L, k)`, the
# number of terms with exactly $k$ sublayers, and check that the sum over $k$ is $2^L$ and that for $L = 24$ more than
# half of all terms have between 10 and 14 sublayers.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 9.1
from math import comb


def paths(L, k):
    return comb(L, k)


assert sum(paths(24, k) for k in range(25)) == 2**24
assert sum(paths(24, k) for k in range(10, 15)) > 2**24 / 2

# %% [markdown]
# ### Exercise 9.2: A block that starts as the identity
#
# Write `identity_start(block)`, which changes parameters of a pre-norm `Residual` around a `FeedForward` so that the
# block returns its input exactly, while the gradients of at least one weight matrix stay different from zero.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 9.2
def identity_start(block):
    block.sublayer.linear2.W.data[:] = 0
    block.sublayer.linear2.b.data[:] = 0


block = Residual(*parts(9), "pre")
identity_start(block)
assert (block(x) == x).all()
block.backward(dy)
assert np.abs(block.sublayer.linear2.W.grad).max() > 0                      # so it learns from the first step
assert (block.sublayer.linear1.W.grad == 0).all()                           # this one from the second

# %% [markdown]
# ### Exercise 9.3: Scale the branches
#
# GPT-2 multiplies the initial weights of each branch's last matrix by $1 / \sqrt{2L}$. Write
# `scaled_variance(L, seed)`: the output variance of a pre-norm stack as in `output_variance`, with the `W` of
# `self_attention.sublayer.out_proj` and of `feedforward.sublayer.linear2` of each layer multiplied so. Check that it
# stays below 3 for $L = 24$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 9.3
def scaled_variance(L, seed, D=32):
    rng = np.random.default_rng(seed)
    stack = Encoder(L, D, 4, 4 * D, norm_placement="pre", rng=rng)
    x = rng.standard_normal((4, 8, D)).astype(np.float32)
    for layer in stack.layers:
        for matrix in (layer.self_attention.sublayer.out_proj.W, layer.feedforward.sublayer.linear2.W):
            matrix.data *= (2 * L) ** -0.5
        x = layer(x)
    return float(x.var())


assert max(scaled_variance(24, seed) for seed in range(3)) < 3 < grown["pre"][:, -1].min()

# %% [markdown]
# ### Exercise 9.4: The direct path through a post-norm stack
#
# With pen and paper: in a post-norm stack of $L$ blocks whose branches have the variance of their input, by what factor
# is the gradient that takes only direct paths multiplied? And in pre-norm with a closing norm?
#
# <details><summary>Solution of exercise 9.4</summary>
#
# Post-norm: each norm divides by $\sqrt{2}$, so the factor is $2^{-L/2}$, which is $2 \cdot 10^{-4}$ for $L = 24$
# blocks. The direct path alone vanishes; what keeps the gradient alive are the paths through the sublayers. Pre-norm:
# the direct path has the factor 1 in each block, and the closing norm divides once by the standard deviation of the
# sum, about $\sqrt{L + 1}$: the factor is $1/5$ for $L = 24$.
#
# </details>
#
# ## Papers
#
# - He, Zhang, Ren and Sun (2016), Deep residual learning for image recognition, arXiv:1512.03385: the residual
#   connection.
# - Xiong, Yang, He, Zheng, Zheng, Xing, Zhang, Lan, Wang and Liu (2020), On layer normalization in the Transformer
#   architecture, arXiv:2002.04745: the gradients of both placements, and training without warm-up.
# - Veit, Wilber and Belongie (2016), Residual networks behave like ensembles of relatively shallow networks,
#   arXiv:1605.06431: the sum over paths.
# - Radford, Wu, Child, Luan, Amodei and Sutskever (2019), Language models are unsupervised multitask learners: GPT-2,
#   pre-norm with scaled branches.
#
# In the library this is `numtrans/layers/residual.py` and `numtrans/blocks.py`. Next:
# [chapter 10](10-feed-forward.ipynb), the feed-forward network.
