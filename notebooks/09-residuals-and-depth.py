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
# A Transformer is a stack of many layers, and each of them adds its result to its input instead of replacing it. This
# chapter derives what this addition does to the gradient, then puts the norm of [chapter 8](08-normalization.ipynb)
# before the sublayer (pre-norm) or behind the sum (post-norm), and measures the difference: gradients at the start for
# 4 to 24 layers, and training with and without warm-up.
#
# **At the end you will understand**
#
# - why a residual connection gives the gradient a path that no weight can close;
# - the backward pass of a pre-norm and of a post-norm block, and which Jacobian stands where;
# - how the gradient of each layer depends on the depth of the stack, for both placements;
# - why post-norm needs a warm-up of the learning rate at rates where pre-norm does not;
# - how to tell from code, whatever its comments say, which of the two it is.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import copy
import itertools
import os

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.blocks import Encoder, EncoderLayer
from numtrans.data.tasks import SequenceTask
from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import Dropout, Embedding, FeedForward, LayerNorm, Linear, Residual, SinusoidalPositionalEncoding
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module, Parameter, no_grad
from numtrans.optim import Adam
from numtrans.optim.schedules import constant

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests


def rms(a):
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(a))))


# %% [markdown]
# ## The direct path
#
# A **residual block** (He et al. 2016) adds what a function $f$ makes of its input to this input. For one token $x$
# with entries $x_1, \dots, x_D$:
#
# $$
# y_i = x_i + f_i(x)
# $$
#
# As before, $\mathrm{d}x$ stands for the gradient $\partial L / \partial x$ of the loss $L$, and $[i = j]$ is 1 if $i =
# j$ and else 0. Let $J_{ij} = \partial f_i / \partial x_j$ be the Jacobian of $f$. In **index form**:
#
# $$
# \frac{\partial y_i}{\partial x_j} = [i = j] + J_{ij}
# $$
#
# $$
# \mathrm{d}x_j = \sum_i \mathrm{d}y_i \left( [i = j] + J_{ij} \right) = \mathrm{d}y_j + \sum_i \mathrm{d}y_i J_{ij}
# $$
#
# In **matrix form**, with $I$ the identity:
#
# $$
# \mathrm{d}x = (I + J)^\top \mathrm{d}y = \mathrm{d}y + J^\top \mathrm{d}y
# $$
#
# The first term does not depend on $f$. It is asserted for $f(x) = \tanh(W^\top x)$, whose Jacobian is $J_{ij} = (1 -
# f_i^2) W_{ji}$.

# %%
D = 6
rng = np.random.default_rng(0)
W, x, dy = rng.standard_normal((D, D)) / np.sqrt(D), rng.standard_normal(D), rng.standard_normal(D)


def f(x):
    return np.tanh(x @ W)


def jacobian_of_f(x):
    return (1 - f(x) ** 2)[:, None] * W.T  # J[i, j]


def slopes(loss, x, h=1e-6):
    """The gradient of loss(x), by central differences."""
    return np.array([(loss(x + h * e) - loss(x - h * e)) / (2 * h) for e in np.eye(len(x))])


J = jacobian_of_f(x)
numeric = slopes(lambda x: dy @ (x + f(x)), x)
np.testing.assert_allclose(dy + J.T @ dy, numeric, atol=1e-8)

# %% [markdown]
# ### A stack of blocks
#
# In a stack, $x_{l} = x_{l-1} + f_l(x_{l-1})$ for $l = 1, \dots, L$, with Jacobians $J_l$. The chain rule multiplies:
#
# $$
# \mathrm{d}x_0 = (I + J_1)^\top (I + J_2)^\top \cdots (I + J_L)^\top \mathrm{d}x_L ,
# \qquad \text{without residuals:} \quad \mathrm{d}x_0 = J_1^\top J_2^\top \cdots J_L^\top \mathrm{d}x_L
# $$
#
# Multiplied out, the first product has $2^L$ terms: each block is either passed by ($I$) or gone through ($J_l$). One
# term is $I$ itself, the path that passes all blocks by. Without residuals there is only the one term that goes through
# all.

# %%
jacobians = [0.5 * rng.standard_normal((D, D)) / np.sqrt(D) for _ in range(4)]
product, terms = np.eye(D), np.zeros((D, D))
for J_l in jacobians:
    product = product @ (np.eye(D) + J_l).T
for choice in itertools.product((False, True), repeat=4):  # the 16 paths
    term = np.eye(D)
    for J_l, through in zip(jacobians, choice, strict=True):
        term = term @ (J_l.T if through else np.eye(D))
    terms += term
np.testing.assert_allclose(product, terms, rtol=1e-12, atol=1e-14)

# %% [markdown]
# How large do these products get? Let the entries of every $J_l$ be independent with mean 0 and variance $s^2 / D$. For
# any vector $g$, $\mathbb{E} \lVert J_l^\top g \rVert^2 = s^2 \lVert g \rVert^2$, and the mixed term of $\lVert g +
# J_l^\top g \rVert^2$ has mean 0. So
#
# $$
# \mathbb{E} \lVert \mathrm{d}x_0 \rVert^2 = s^{2L} \lVert \mathrm{d}x_L \rVert^2 \quad \text{without residuals}, \qquad
# \mathbb{E} \lVert \mathrm{d}x_0 \rVert^2 = (1 + s^2)^L \lVert \mathrm{d}x_L \rVert^2 \quad \text{with}
# $$
#
# For $s < 1$ the first shrinks exponentially. The second never shrinks; it *grows* exponentially unless $s^2$ is of the
# order of $1/L$.


# %%
def size_of_gradient(L, s, residual, rng, width=64):
    g = rng.standard_normal(width)
    start = np.linalg.norm(g)
    for _ in range(L):
        through = rng.standard_normal((width, width)) @ g * s / np.sqrt(width)
        g = g + through if residual else through
    return np.linalg.norm(g) / start


s, rng = 0.5, np.random.default_rng(1)
for L in (4, 12, 24):
    plain = rms([size_of_gradient(L, s, False, rng) for _ in range(100)])
    residual = rms([size_of_gradient(L, s, True, rng) for _ in range(100)])
    print(f"{L:2d} blocks: without {plain:.1e} (formula {s**L:.1e}), with {residual:.2f} ({(1 + s**2) ** (L / 2):.2f})")
    np.testing.assert_allclose([plain, residual], [s**L, (1 + s**2) ** (L / 2)], rtol=0.3)  # 100 draws

# %% [markdown]
# ## Two places for the norm
#
# Let $n(x) = \mathrm{LN}(x)$ be LayerNorm with Jacobian $N(x)$, which is a projection divided by the standard deviation
# $\sigma(x)$ ([chapter 8](08-normalization.ipynb)). The original Transformer puts the norm behind the sum
# (**post-norm**), GPT-2 and most later models put it before the sublayer (**pre-norm**):
#
# $$
# \text{pre:} \quad y = x + f(n(x)) , \qquad\qquad \text{post:} \quad y = n(r) , \quad r = x + f(x)
# $$
#
# **Pre-norm, backward.** Let $u = n(x)$ and $J$ the Jacobian of $f$ at $u$. In index form, then in matrix form:
#
# $$
# \mathrm{d}x_j = \mathrm{d}y_j + \sum_i \sum_k \mathrm{d}y_i \frac{\partial f_i}{\partial u_k} \frac{\partial u_k}{\partial x_j}
# = \mathrm{d}y_j + \sum_k \Big( \sum_i \mathrm{d}y_i J_{ik} \Big) N_{kj}(x)
# $$
#
# $$
# \mathrm{d}x = \mathrm{d}y + N(x)^\top J^\top \mathrm{d}y = (I + J N(x))^\top \mathrm{d}y
# $$
#
# **Post-norm, backward.** First through the norm to the sum $r$, then both ways. $J$ is the Jacobian of $f$ at $x$:
#
# $$
# \mathrm{d}r_k = \sum_i \mathrm{d}y_i N_{ik}(r) , \qquad
# \mathrm{d}x_j = \sum_k \mathrm{d}r_k \left( [k = j] + J_{kj} \right) = \mathrm{d}r_j + \sum_k \mathrm{d}r_k J_{kj}
# $$
#
# $$
# \mathrm{d}x = (I + J)^\top N(r)^\top \mathrm{d}y
# $$
#
# In the pre-norm form the term $\mathrm{d}y$ stands alone. In the post-norm form every term carries the factor $N(r)$,
# also the direct one.


# %%
def normalized(x, eps=1e-5):
    return (x - x.mean()) / np.sqrt(x.var() + eps)


def jacobian_of_norm(x, eps=1e-5):
    xhat, sigma = normalized(x, eps), np.sqrt(x.var() + eps)
    return (np.eye(len(x)) - 1 / len(x) - np.outer(xhat, xhat) / len(x)) / sigma


pre_dx = dy + jacobian_of_norm(x).T @ jacobian_of_f(normalized(x)).T @ dy
np.testing.assert_allclose(pre_dx, slopes(lambda x: dy @ (x + f(normalized(x))), x), atol=1e-8)
r = x + f(x)
post_dx = (np.eye(D) + jacobian_of_f(x)).T @ jacobian_of_norm(r).T @ dy
np.testing.assert_allclose(post_dx, slopes(lambda x: dy @ normalized(x + f(x)), x), atol=1e-8)


# %% [markdown]
# ### A residual block from nothing
#
# The class takes any sublayer and any norm as modules, and calls their `backward` in the reverse order of its forward.
# It keeps nothing itself: the parts have saved what they need.


# %%
class MyResidual(Module):
    def __init__(self, sublayer, norm, placement):
        super().__init__()
        self.sublayer, self.norm, self.placement = sublayer, norm, placement

    def forward(self, x):
        if self.placement == "pre":
            return x + self.sublayer(self.norm(x))
        return self.norm(x + self.sublayer(x))

    def backward(self, dy):
        if self.placement == "pre":
            return dy + self.norm.backward(self.sublayer.backward(dy))
        dr = self.norm.backward(dy)
        return dr + self.sublayer.backward(dr)


def parts(seed=2):
    """A feed-forward network and a norm with random gains, in float64."""
    rng = np.random.default_rng(seed)
    network, norm = FeedForward(D, 2 * D, "gelu", rng=rng).astype(np.float64), LayerNorm(D).astype(np.float64)
    norm.gamma.data = 1 + 0.3 * rng.standard_normal(D)
    return network, norm


X, dY = rng.standard_normal((2, 3, D)), rng.standard_normal((2, 3, D))  # (B, T, D)
for placement in ("pre", "post"):
    mine, library = MyResidual(*parts(), placement), Residual(*parts(), placement)
    np.testing.assert_allclose(mine(X), library(X), rtol=1e-12)
    np.testing.assert_allclose(mine.backward(dY), library.backward(dY), rtol=1e-12)
    for p, q in zip(mine.parameters(), library.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-12, atol=1e-14)

# %%
assert gradcheck(MyResidual(*parts(), "pre"), X)
report = gradcheck(MyResidual(*parts(), "post"), X)
assert report
report


# %% [markdown]
# ### A planted mistake
#
# The direct path is the easiest thing to forget in backward: nothing crashes, all shapes are right, and the model still
# learns a little.


# %%
class NoDirectPath(MyResidual):
    def backward(self, dy):
        return self.norm.backward(self.sublayer.backward(dy))


report = gradcheck(NoDirectPath(*parts(), "pre"), X)
assert not report and "residual" in report.diagnosis[0]
report

# %% [markdown]
# ## Gradients by layer, at the start
#
# Xiong et al. (2020) computed the expected gradient of the weights at initialization. For the last layer of a stack of
# $L$ layers, up to factors that do not depend on $L$:
#
# $$
# \text{post-norm:} \quad \lVert \mathrm{d}W \rVert = O(1) , \qquad\qquad \text{pre-norm:} \quad \lVert \mathrm{d}W \rVert = O(1/\sqrt{L})
# $$
#
# The reason for the second is short. At the start each sublayer adds about the same variance to $x$, so after $L$
# layers the standard deviation of $x$ is about $\sqrt{1 + c L}$ with a constant $c$, and the closing norm of the
# pre-norm stack divides the gradient by it.
#
# We measure it on the library's `Encoder` (Xavier weights) between an embedding and a readout. The task: the input is a
# string of eight digits, the target at each position is the digit that stands there when the string is sorted. The loss
# is the cross-entropy.


# %%
class Sorter(Module):
    """Token ids (B, T) -> logits (B, T, V)."""

    def __init__(self, depth, width, placement, rng, vocab=10):
        super().__init__()
        self.embedding = Embedding(vocab, width, scale=True, rng=rng)
        self.position = SinusoidalPositionalEncoding(width)
        self.encoder = Encoder(depth, width, 4, 2 * width, norm_placement=placement, rng=rng)
        self.readout = Linear(width, vocab, rng=rng)

    def forward(self, ids):
        return self.readout(self.encoder(self.position(self.embedding(ids))))

    def backward(self, dlogits):
        dx = self.encoder.backward(self.readout.backward(dlogits))
        self.embedding.backward(self.position.backward(dx))


task = SequenceTask("sort", min_len=8, max_len=8, n_train=4000, n_valid=0, n_test=0)
pairs = np.array([[[int(c) for c in string] for string in pair] for pair in task.train])  # (4000, 2, T)


def batch(rng, B=16):
    chosen = pairs[rng.integers(len(pairs), size=B)]
    return chosen[:, 0], chosen[:, 1]  # (B, T), (B, T)


print("".join(map(str, pairs[0, 0])), "->", "".join(map(str, pairs[0, 1])))


# %%
def gradient_norms(depth, placement, seed, width):
    """The norm of dW2, the last weight of the feed-forward network, of each layer (numpy array)."""
    rng = np.random.default_rng(seed)
    model, ce = Sorter(depth, width, placement, rng), CrossEntropyLoss()
    ids, targets = batch(rng)
    ce(model(ids), targets)
    model.backward(ce.backward())
    return np.array([np.linalg.norm(layer.feedforward.sublayer.linear2.W.grad) for layer in model.encoder.layers])


depths, width, seeds = (4, 6, 12, 24), 32 if FAST else 64, range(10 if FAST else 16)
norms = {}  # (placement, depth) -> array (seeds, layers)
with threadpool_limits(1, "blas"):  # on small matrices one thread is faster
    for placement, depth in itertools.product(("post", "pre"), depths):
        norms[placement, depth] = np.array([gradient_norms(depth, placement, seed, width) for seed in seeds])
typical = {key: np.exp(np.log(table).mean(0)) for key, table in norms.items()}  # geometric mean over seeds, (layers,)
for (placement, depth), n in typical.items():
    print(f"{placement:4s} {depth:2d} layers: first {n[0]:.2f}, last {n[-1]:.2f}, last / first {n[-1] / n[0]:.2f}")

# %% [markdown]
# The assertions, on the geometric mean over the seeds. (1) In the 24-layer post-norm stack the last layer's gradient is
# more than 1.5 times the first's; in the pre-norm stack it is less than 0.7 times. (2) From 4 to 24 layers, the last
# layer's gradient falls to less than 0.85 with pre-norm, and changes by a factor at least 1.5 times larger with
# post-norm. The cell prints the standard error of a mean over the seeds; a ratio of two means has about 1.4 times that,
# so at full size the margins are three standard errors or more. The bounds of (2) were loosened after the
# first runs.

# %%
spread = max(np.log(table[:, -1]).std(ddof=1) / np.sqrt(len(seeds)) for table in norms.values())
change = {p: typical[p, 24][-1] / typical[p, 4][-1] for p in ("post", "pre")}
slope = {p: typical[p, 24][-1] / typical[p, 24][0] for p in ("post", "pre")}
print(f"last layer, 24 layers against 4: post {change['post']:.2f}, pre {change['pre']:.2f} "
      f"(1/sqrt(6) = {6**-0.5:.2f}); largest standard error {spread:.0%}")
assert slope["post"] > 1.5 and slope["pre"] < 0.7
assert change["pre"] < 0.85 and change["post"] > 1.5 * change["pre"]

# %%
panels = {}
for placement in ("post", "pre"):
    lines = {f"{depth} layers": (np.arange(1, depth + 1), typical[placement, depth]) for depth in depths}
    panels[f"{placement}-norm"] = dict(lines=lines, xlabel="layer", ylabel="norm of dW2 at the start", yscale="log")
plots.plot_panels(
    panels, share_y=True,
    title=f"At 24 layers the last layer's gradient is {slope['post']:.1f} times the first's with post-norm, "
    f"{slope['pre']:.2f} times with pre-norm",
)  # fmt: skip

# %% [markdown]
# The reason given above can be tested by itself: the standard deviation $\sigma_L$ of $x$ before the closing norm is
# measured, and $1 / \sigma_L$ must predict the fall from 4 to 24 layers.


# %%
def stream_deviations(model, ids):
    """The standard deviation over features of x after the embedding and after each layer (mean over tokens)."""
    with no_grad():
        x = model.position(model.embedding(ids))
        found = [x.std(-1).mean()]
        for layer in model.encoder.layers:
            x = layer(x)
            found.append(x.std(-1).mean())
    return np.array(found)


rng = np.random.default_rng(3)
deviations = {}
for placement in ("post", "pre"):
    runs = [stream_deviations(Sorter(24, width, placement, rng), batch(rng)[0]) for _ in seeds]
    deviations[placement] = np.mean(runs, axis=0)  # (25,)
predicted = deviations["pre"][4] / deviations["pre"][24]
print(f"last layer's gradient, 24 layers against 4: measured {change['pre']:.2f}, 1/sigma says {predicted:.2f}")
assert abs(np.log(change["pre"] / predicted)) < 0.6  # a factor of 1.8: about four standard errors

# %% [markdown]
# ## Training with and without warm-up
#
# **Warm-up** means that the learning rate rises in a straight line from 0 to its final value over the first steps. Four
# cases: post-norm and pre-norm, each with a warm-up over the first third of the steps and without. All have 6 layers
# and Adam with $\beta_2 = 0.98$ (as Vaswani et al. 2017), and no clipping of gradients. Since a single learning rate
# can be picked so that any of the four looks bad, each case is run over a range of rates. The task, sort, was chosen
# over reverse after both had been tried at 8 layers, with the same direction in both; the bounds of the assertions were
# set after the first runs. The seeds are 0, 1, 2 (0, 1 in the small version).


# %%
def train(placement, lr, warmup, seed, width, steps):
    """The loss at each step."""
    rng = np.random.default_rng(seed)
    model, ce, losses = Sorter(6, width, placement, rng), CrossEntropyLoss(), []
    optimizer = Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, steps + 1):
        ids, targets = batch(rng)
        optimizer.lr = constant(step, lr, warmup)
        optimizer.zero_grad()
        losses.append(float(ce(model(ids), targets)))
        model.backward(ce.backward())
        optimizer.step()
    return np.array(losses)


rates = (0.003, 0.01) if FAST else (0.001, 0.003, 0.01, 0.03)
width, steps, seeds = (16, 64, range(2)) if FAST else (32, 150, range(3))
cases = {f"{p}-norm, {w} warm-up": (p, w) for p in ("post", "pre") for w in ("no", "with")}
curves = {}  # (case, rate) -> array (seeds, steps)
with threadpool_limits(1, "blas"):
    for (case, (placement, w)), lr in itertools.product(cases.items(), rates):
        warmup = steps // 3 if w == "with" else 0
        curves[case, lr] = np.array([train(placement, lr, warmup, seed, width, steps) for seed in seeds])

# %% [markdown]
# Guessing costs $\ln 10 = 2.303$ nats. A rate counts as *usable* if in every seed the mean loss of the last 20 steps is
# more than 5 % below that.

# %%
final = {key: table[:, -20:].mean(1) for key, table in curves.items()}  # (seeds,)
usable = {}
for case in cases:
    usable[case] = max((lr for lr in rates if final[case, lr].max() < 0.95 * np.log(10)), default=0.0)
    ranges = [f"{lr:g}: {final[case, lr].min():.2f} to {final[case, lr].max():.2f};" for lr in rates]
    print(f"{case:24s}", *ranges, f"usable up to {usable[case]:g}")
assert usable["post-norm, no warm-up"] < 0.01 <= usable["post-norm, with warm-up"]
assert usable["pre-norm, no warm-up"] >= usable["post-norm, with warm-up"]
pre, post = final["pre-norm, no warm-up", 0.01], final["post-norm, no warm-up", 0.01]
assert pre.max() < 0.75 * post.min()  # every seed of one is far below every seed of the other

# %%
lines = {}
for case in cases:
    runs = curves[case, 0.01]  # (seeds, steps)
    smooth = [np.convolve(c, np.ones(5) / 5, "valid") for c in (runs.mean(0), runs.min(0), runs.max(0))]
    lines[case] = (np.arange(3, steps - 1), *smooth)  # a mean of 5 steps loses 2 at each end
plots.plot_lines(
    lines, xlabel="step", ylabel="cross-entropy (nats per token), mean of 5 steps",
    title=f"Learning rate 0.01: post-norm without warm-up stays at {post.mean():.2f}\n(guessing: 2.30), pre-norm "
    f"without reaches {pre.mean():.2f}",
)  # fmt: skip

# %%
plots.plot_lines(
    {case: (rates, [final[case, lr].mean() for lr in rates], [final[case, lr].min() for lr in rates],
            [final[case, lr].max() for lr in rates]) for case in cases},
    xlabel="learning rate", ylabel="loss of the last 20 steps (nats per token)", xscale="log",
    title=f"Largest usable rate: post-norm {usable['post-norm, no warm-up']:g} without warm-up, "
    f"{usable['post-norm, with warm-up']:g} with;\npre-norm {usable['pre-norm, no warm-up']:g} without, "
    f"{usable['pre-norm, with warm-up']:g} with (the largest tried: {max(rates):g})",
)  # fmt: skip

# %% [markdown]
# ## Claims checked
#
# Each heading is a claim that texts on Transformers make, in our words. Under it stand a number or a proof, and a
# verdict. (That gradients of recurrent networks vanish over long contexts is the subject of [chapter
# 4](04-attention.ipynb).)
#
# ### The derivative of a residual block is one plus that of the sublayer
#
# One text writes the block as $\mathrm{LN}(x + f(x))$ and its gradient as $\mathrm{d}y\,(1 + \partial f / \partial x)$.
# The cell compares this with the derivation above and with finite differences, for an $x$ of standard deviation about
# 1.

# %%
as_written = (np.eye(D) + jacobian_of_f(x)).T @ dy
truth = slopes(lambda x: dy @ normalized(x + f(x)), x)
error = np.linalg.norm(as_written - truth) / np.linalg.norm(truth)
print(f"relative error of the formula for the post-norm output: {error:.2f}")
assert error > 0.3 and np.allclose(truth, post_dx, atol=1e-8)

# %% [markdown]
# **Holds if** the block is $x + f(x)$ or pre-norm, with $\partial f / \partial x$ the derivative of
# $f(\mathrm{LN}(x))$. **Does not hold** for $\mathrm{LN}(x + f(x))$, where the formula lacks the factor $N(r)$: the "1"
# becomes the norm's Jacobian. A direct path exists there, too, but not one that is free of norms.
#
# ### Without residuals the gradient shrinks exponentially with depth
#
# Four stacks at the start: with and without residuals, with and without LayerNorm. Measured is the norm of the gradient
# at the input of the stack, divided by that at its output.


# %%
class Plain(Module):
    """A sublayer without a residual: norm, then the sublayer."""

    def __init__(self, sublayer, norm):
        super().__init__()
        self.sublayer, self.norm = sublayer, norm

    def forward(self, x, mask=None):
        return self.sublayer(self.norm(x))

    def backward(self, dy):
        return self.norm.backward(self.sublayer.backward(dy))


class Identity(Module):
    def forward(self, x):
        return x

    def backward(self, dy):
        return dy


def ratio_of_gradients(depth, residual, norm, rng, width=32):
    layers = Encoder(depth, width, 4, 2 * width, norm_placement="pre", rng=rng).astype(np.float64).layers
    blocks = [block for layer in layers for block in (layer.self_attention, layer.feedforward)]
    for block in blocks:
        block.norm = block.norm if norm else Identity()
    stack = blocks if residual else [Plain(block.sublayer, block.norm) for block in blocks]
    x, dx = rng.standard_normal((4, 8, width)), rng.standard_normal((4, 8, width))  # (B, T, D)
    size = np.linalg.norm(dx)
    for block in stack:
        x = block(x)
    for block in reversed(stack):
        dx = block.backward(dx)
    return np.linalg.norm(dx) / size


kinds = {"residual, LayerNorm": (True, True), "residual, no norm": (True, False),
         "no residual, LayerNorm": (False, True), "no residual, no norm": (False, False)}  # fmt: skip
rng, ratios, factors, draws = np.random.default_rng(4), {}, {}, 3 if FAST else 8
with threadpool_limits(1, "blas"):
    for kind, options in kinds.items():
        ratios[kind] = np.array([[ratio_of_gradients(L, *options, rng) for _ in range(draws)] for L in depths])
        means = np.exp(np.log(ratios[kind]).mean(1))
        factors[kind] = (means[-1] / means[0]) ** (1 / (depths[-1] - depths[0]))
        print(f"{kind:23s}", *(f"{L} layers: {m:.1e};" for L, m in zip(depths, means, strict=True)),
              f"factor per layer {factors[kind]:.2f}")
assert factors["no residual, no norm"] < 0.8  # at 24 layers one seed differs from another by far less than 0.8 ** 24
assert factors["residual, no norm"] > 1.5
assert 0.85 < factors["no residual, LayerNorm"] < 1.15 and 0.85 < factors["residual, LayerNorm"] < 1.15
assert factors["no residual, LayerNorm"] > factors["no residual, no norm"] + 0.15

# %%
plots.plot_lines(
    {kind: (depths, np.exp(np.log(r).mean(1)), r.min(1), r.max(1)) for kind, r in ratios.items()},
    xlabel="layers", ylabel="gradient at the input / at the output", yscale="log",
    title=f"Gradient per layer: times {factors['no residual, no norm']:.2f} without residual and norm,\ntimes "
    f"{factors['residual, no norm']:.1f} with the residual alone, times {factors['residual, LayerNorm']:.2f} with both",
)  # fmt: skip

# %% [markdown]
# **Holds if** there is no norm. With a LayerNorm before each sublayer the gradient shrinks by only 5 to 7 % a layer
# even without residuals (whether such a stack can be *trained* was not tried; Dong et al. 2021 show that its tokens
# become alike). And the residual alone does not solve the problem: the gradient then grows exponentially, as the
# formula $(1 + s^2)^{L/2}$ says for $s$ of the order of 1. It takes both.
#
# ### Post-norm is harder to train and needs warm-up, pre-norm trains without
#
# The sweep above, at the learning rate 0.01.

# %%
for case in cases:
    losses = final[case, 0.01]
    print(f"{case:24s} loss {losses.mean():.2f} ({losses.min():.2f} to {losses.max():.2f})")

# %% [markdown]
# **Holds if** the learning rate is high. At 0.01 post-norm without warm-up does not get below guessing in any seed,
# with warm-up it learns, and pre-norm learns in both cases. At rates of 0.003 and below post-norm learns without a
# warm-up in this task; it is behind pre-norm there, too. Pre-norm gains from a warm-up as well, at the highest rate of
# the full sweep.
#
# ### Pre-norm allows higher learning rates
#
# The same sweep, read across.

# %%
print({case: f"usable up to {rate:g}" for case, rate in usable.items()})

# %% [markdown]
# **Holds** in this task against post-norm without warm-up: the largest usable rate is at least one step of the grid (a
# factor of 3) higher. Against post-norm *with* warm-up the full sweep shows another step; the small version has no
# higher rate to show it.
#
# ### In post-norm the norm on the path amplifies or dampens the gradient
#
# The factor of each norm on the path, $\lVert \mathrm{d}r \rVert / \lVert \mathrm{d}y \rVert$ with $\mathrm{d}r =
# N(r)^\top \mathrm{d}y$, in a post-norm stack of 24 layers at the start, and the standard deviation $\sigma$ of $r$
# that it should be the inverse of.

# %%
rng = np.random.default_rng(5)
layers = Encoder(24, 64, 4, 128, norm_placement="post", rng=rng).astype(np.float64).layers
blocks = [block for layer in layers for block in (layer.self_attention, layer.feedforward)]
x, dx, sigmas, measured = normalized(rng.standard_normal((4, 8, 64))), rng.standard_normal((4, 8, 64)), [], []
size = np.linalg.norm(dx)
for block in blocks:
    x = block(x)
    sigmas.append(1 / np.sqrt(np.mean(1 / block.norm._stack[-1][1] ** 2)))  # saved by LayerNorm: xhat, sigma
for block in reversed(blocks):
    dr = copy.deepcopy(block.norm).backward(dx)
    measured.append(np.linalg.norm(dr) / np.linalg.norm(dx))
    dx = block.backward(dx)
measured, sigmas = np.array(measured[::-1]), np.array(sigmas)  # (48,), from the first norm to the last
print(f"factor of one norm: {measured.min():.2f} to {measured.max():.2f}; 1 / sigma: {(1 / sigmas).min():.2f} to "
      f"{(1 / sigmas).max():.2f}; product of all 48: {measured.prod():.1e}; "
      f"gradient at the input / at the output: {np.linalg.norm(dx) / size:.2f}")
assert measured.max() < 1 and np.abs(measured * sigmas - 1).max() < 0.1
small = LayerNorm(64).astype(np.float64)
small(0.1 * rng.standard_normal((8, 64)))
dy_small = rng.standard_normal((8, 64))
amplified = np.linalg.norm(small.backward(dy_small)) / np.linalg.norm(dy_small)
print(f"a norm whose input has standard deviation 0.1: factor {amplified:.1f}")
assert amplified > 5

# %% [markdown]
# **Holds.** The factor is $1 / \sigma(r)$: at the start every norm dampens, because $r = x + f(x)$ has a larger
# variance than the normalized $x$; an $r$ of small variance would be amplified. The small product does not mean that
# the gradient vanishes: the factors $I + J$ of the sublayers make up for most of it (the last number of the output is
# what is left).
#
# ### Code commented as pre-norm is pre-norm
#
# One text labels the line `x = self.norm1(x + self.dropout1(attn_output))` of its encoder layer "pre-norm style", and
# the two lines of its `TransformerBlock`, `norm1(x + attention(x))` and `norm2(x + ffn(x))`, "pre-norm". Here the same
# order of operations is run with the parts of the library's layers, and compared with both placements at equal weights.

# %%
rng = np.random.default_rng(6)
post_layer = EncoderLayer(16, 4, 32, norm_placement="post", rng=rng).astype(np.float64)
pre_layer = EncoderLayer(16, 4, 32, norm_placement="pre").astype(np.float64)
pre_layer.load_state_dict(post_layer.state_dict())
attention, norm1 = post_layer.self_attention.sublayer, post_layer.self_attention.norm
network, norm2 = post_layer.feedforward.sublayer, post_layer.feedforward.norm
tokens = rng.standard_normal((2, 5, 16))
x = norm1(tokens + attention(tokens))
as_commented = norm2(x + network(x))
to_post, to_pre = rms(as_commented - post_layer(tokens)), rms(as_commented - pre_layer(tokens))
print(f"difference from the library's post-norm: {to_post:.1e}, from its pre-norm: {to_pre:.2f}")
assert to_post < 1e-14 and to_pre > 0.3
np.testing.assert_allclose(as_commented.mean(-1), 0, atol=1e-12)  # the mark of post-norm: the output is normalized

# %% [markdown]
# **Does not hold: it is post-norm.** (In another of the texts `x + dropout(attn(norm1(x)))` is called pre-LN, and is.)
#
# ### Pre-norm stacks need a final norm
#
# Measured above: the standard deviation of $x$ along the 24 layers at the start. Each layer of a pre-norm stack adds
# about the same variance, a post-norm stack resets it. And what the readout makes of it, with the final norm and
# without.


# %%
def start_loss(final_norm, seed):
    rng = np.random.default_rng(seed)
    model, ce = Sorter(24, 32, "pre", rng), CrossEntropyLoss()
    if not final_norm:
        model.encoder.norm = None
    ids, targets = batch(rng)
    return float(ce(model(ids), targets))


variance, layer_numbers = deviations["pre"] ** 2, np.arange(25)
line = np.polyfit(layer_numbers, variance, 1)
fit = 1 - np.var(variance - np.polyval(line, layer_numbers)) / np.var(variance)  # share of the variation explained
start = {norm: np.array([start_loss(norm, seed) for seed in range(6)]) for norm in (True, False)}
print(f"pre-norm: variance {variance[0]:.1f} before the first layer, {variance[-1]:.1f} after the last, "
      f"{line[0]:.2f} a layer; post-norm: {deviations['post'][-1] ** 2:.2f}")
print(f"loss at the start: with final norm {start[True].mean():.2f}, without {start[False].mean():.2f} "
      f"({start[False].min():.2f} to {start[False].max():.2f})")
assert fit > 0.98 and variance[-1] > 4 * variance[0] and abs(deviations["post"][-1] - 1) < 0.01
assert start[False].min() > start[True].max()

# %%
plots.plot_lines(
    {"pre-norm": (layer_numbers, variance), "post-norm": (layer_numbers, deviations["post"] ** 2)},
    points={"straight line through pre-norm": (layer_numbers, np.polyval(line, layer_numbers))},
    xlabel="layers passed", ylabel="variance of x over its features",
    title=f"Variance grows by {line[0]:.2f} a layer in a pre-norm stack at the start",
)  # fmt: skip

# %% [markdown]
# **Holds**, in the sense that without it the scale of the output depends on the depth, and the loss starts far above
# guessing. A readout could learn to undo the scale; that was not tried.
#
# ### Dropout inside the feed-forward network and at the residual is one dropout
#
# One text ends its feed-forward network with a dropout of rate $p$ and applies another of rate $p$ to the same output
# before the sum, with a remark that the first is there already. An entry survives two independent masks with
# probability $(1 - p)^2$.

# %%
p, once, twice = 0.1, Dropout(0.1, rng=np.random.default_rng(7)), Dropout(0.1, rng=np.random.default_rng(8))
y = twice(once(np.ones((1000, 256))))
kept, n = (y != 0).mean(), y.size
print(f"kept: {kept:.4f}, formula {(1 - p) ** 2:.4f}; as one dropout of rate {1 - kept:.3f}; mean {y.mean():.4f}")
assert abs(kept - (1 - p) ** 2) < 5 * np.sqrt(0.81 * 0.19 / n)  # five standard errors
np.testing.assert_allclose(y[y != 0], 1 / 0.81, rtol=1e-12)  # what is left is scaled by 1 / (1 - p) twice

# %% [markdown]
# **Does not hold:** two dropouts of rate 0.1 are one of rate 0.19 on the feed-forward branch, while the attention
# branch has 0.1. The mean stays right.
#
# ### Residuals enable stacks of 96 layers and more
#
# The largest depth measured in this chapter is 24 (gradients at the start) and 6 (training).

# %%
print("largest depth with gradients measured:", max(depths), "layers; with training: 6 layers")

# %% [markdown]
# **Not shown here.** GPT-3 (Brown et al. 2020) has 96 layers, so such stacks with residuals can be trained; that the
# residuals make the difference at this depth was not tested. The measured exponential decay without residuals and norms
# makes it plausible: a factor of 0.65 a layer is $10^{-18}$ over 96 layers.
#
# ## Exercises
#
# ### Exercise 9.1: How large may a sublayer be
#
# With pen and paper: a stack of $L$ residual blocks without norms has Jacobians with independent entries of mean 0 and
# variance $s^2 / D$. Choose $s$ such that the expected squared norm of the gradient grows by at most a factor of $e =
# 2.718$ for any $L$. By which factor must the weights of the last linear map of each sublayer be smaller for $L = 24$
# than for $s = 1$?
#
# <details><summary>Solution of exercise 9.1</summary>
#
# The factor is $(1 + s^2)^L \le e^{s^2 L}$, which is at most $e$ for $s = 1 / \sqrt{L}$. The Jacobian of a sublayer is
# proportional to the weights of its last linear map, so these are divided by $\sqrt{24} = 4.9$. GPT-2 does this: the
# weights of the maps that write to the residual path start smaller by the root of their number.
#
# </details>
#
# ### Exercise 9.2: Which of the two is it
#
# Write `placement_of(block, d_model)`, which gets a residual block as a black box (a `Module` from $(B, T, D)$ to $(B,
# T, D)$ in float64, all gains 1 and shifts 0) and returns `"pre"` or `"post"`, from outputs alone. Check: it is right
# for `Residual` with both placements and a `FeedForward` with ten seeds.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 9.2
def placement_of(block, d_model):
    x = 3 + np.random.default_rng(0).standard_normal((2, 3, d_model))
    with no_grad():
        y = block(x)
    return "post" if np.abs(y.mean(-1)).max() < 1e-6 else "pre"  # a norm at the end leaves mean 0


for seed, placement in itertools.product(range(10), ("pre", "post")):
    block = Residual(FeedForward(D, 2 * D, rng=np.random.default_rng(seed)), LayerNorm(D), placement).astype(np.float64)
    assert placement_of(block, D) == placement

# %% [markdown]
# ### Exercise 9.3: A residual with a gate that starts closed
#
# Bachlechner et al. (2020) replace the norm by one learned number $\alpha$ that starts at 0: $y = x + \alpha f(x)$.
# Write a `Module` named `ReZero(sublayer)` with a parameter `alpha` of shape `(1,)`, forward and backward. Check:
# `gradcheck` passes with a `FeedForward`; at the start `backward(dy)` returns `dy` exactly.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 9.3
class ReZero(Module):
    def __init__(self, sublayer):
        super().__init__()
        self.sublayer, self.alpha = sublayer, Parameter(np.zeros(1))

    def forward(self, x):
        branch = self.sublayer(x)
        self.save(branch)
        return x + self.alpha.data * branch

    def backward(self, dy):
        (branch,) = self.saved()
        self.alpha.add_grad((dy * branch).sum(keepdims=True).reshape(1))
        return dy + self.sublayer.backward(self.alpha.data * dy)


block = ReZero(parts()[0])
assert gradcheck(block, X)
block(X)
assert (block.backward(dY) == dY).all() and block.alpha.grad[0] != 0  # alpha itself gets a gradient, so it can open

# %% [markdown]
# ### Exercise 9.4: Keep the variance of a pre-norm stack
#
# Write `scale_branches(encoder)`, which divides the weights that write to the residual path
# (`self_attention.sublayer.out_proj.W` and `feedforward.sublayer.linear2.W` of each layer) of a pre-norm `Encoder` by
# the root of their number, $\sqrt{2 L}$. Check: over 5 seeds, the mean variance of $x$ before the closing norm at 24
# layers is at most 1.5 times that at 4 layers. Without scaling it is more than 2 times.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 9.4
def scale_branches(encoder):
    for layer in encoder.layers:
        for matrix in (layer.self_attention.sublayer.out_proj.W, layer.feedforward.sublayer.linear2.W):
            matrix.data /= np.sqrt(2 * len(encoder.layers))


def last_variance(depth, scaled, seed):
    rng = np.random.default_rng(seed)
    model = Sorter(depth, 32, "pre", rng)
    if scaled:
        scale_branches(model.encoder)
    return stream_deviations(model, batch(rng)[0])[-1] ** 2


growth = {scaled: np.mean([last_variance(24, scaled, seed) for seed in range(5)])
          / np.mean([last_variance(4, scaled, seed) for seed in range(5)]) for scaled in (False, True)}
print(f"variance at 24 layers / at 4 layers: {growth[False]:.2f}, scaled {growth[True]:.2f}")
assert growth[True] < 1.5 and growth[False] > 2

# %% [markdown]
# ## Papers
#
# - He, Zhang, Ren and Sun (2016), *Deep Residual Learning for Image Recognition*, arXiv:1512.03385: the residual
#   connection.
# - Vaswani et al. (2017), *Attention Is All You Need*, arXiv:1706.03762: the post-norm Transformer and its warm-up.
# - Xiong et al. (2020), *On Layer Normalization in the Transformer Architecture*, arXiv:2002.04745: the gradients by
#   layer that this chapter measures, and pre-norm without warm-up.
# - Dong, Cordonnier and Loukas (2021), *Attention is Not All You Need: Pure Attention Loses Rank Doubly Exponentially
#   with Depth*, arXiv:2103.03404: what becomes of tokens without residuals.
# - Bachlechner et al. (2020), *ReZero is All You Need: Fast Convergence at Large Depth*, arXiv:2003.04887: exercise
#   9.3.
# - Brown et al. (2020), *Language Models are Few-Shot Learners*, arXiv:2005.14165: GPT-3, 96 layers.
#
# The block is in `numtrans/layers/residual.py`, the stacks in `numtrans/blocks.py`; [chapter 10](10-feed-forward.ipynb)
# opens the feed-forward sublayer.
