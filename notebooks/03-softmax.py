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
# # 3. Softmax and cross-entropy
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/03-softmax.ipynb)
#
# A Transformer uses the softmax in two places: inside attention, where it turns scores into weights, and at the end,
# where it turns one score for each entry of the vocabulary into probabilities, which the cross-entropy loss then
# compares with the right entry. This chapter derives both, forward and backward. The two places behave differently when
# scores grow large, and the chapter measures how.
#
# **At the end you will understand**
#
# - why the softmax has the form it has, and why it must be computed after subtracting the largest score;
# - its Jacobian, the four properties of that matrix, and a backward pass that never builds it;
# - when large scores make the gradient vanish, and why the gradient of cross-entropy, $p - y$, does not vanish while
#   the prediction is wrong;
# - what temperature and label smoothing do, in numbers;
# - why the logarithm of a softmax is computed in one step, and how to average a loss over the tokens that count.
#
# From [chapter 2](02-backpropagation.ipynb) you need: index form and Kronecker deltas, `backward(dy)` as a
# vector-Jacobian product, the loss $\sum y R$ of a check, and `gradcheck`.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import os

import numpy as np

from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import LogSoftmax, Softmax
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests
rng = np.random.default_rng(0)


def numeric_gradient(loss, x, h=1e-5):
    """Central differences: d loss() / d x, entry by entry (chapter 2)."""
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


# %% [markdown]
# ## From scores to weights
#
# Given are $K$ real numbers $s_1, \dots, s_K$, the **scores** (at the end of a model they are called logits). Wanted
# are weights $p_i > 0$ with $\sum_i p_i = 1$. One requirement fixes them: the **difference of two scores is the
# logarithm of the ratio of their weights**, $s_i - s_j = \log (p_i / p_j)$, so that adding 1 to a score makes its
# weight $e$ times larger compared with every other. From it,
#
# $$
# \begin{aligned}
# p_i &= p_j\, e^{s_i - s_j} \\
# 1 = \sum_i p_i &= p_j\, e^{-s_j} \sum_i e^{s_i} \\
# p_j &= \frac{e^{s_j}}{\sum_i e^{s_i}} .
# \end{aligned}
# $$
#
# This is the **softmax**. There is no other solution, since each line follows from the one before.


# %%
def naive_softmax(s):
    e = np.exp(s)
    return e / e.sum(axis=-1, keepdims=True)


s = rng.standard_normal(5)
p = naive_softmax(s)
np.testing.assert_allclose(np.log(p[:, None] / p[None, :]), s[:, None] - s[None, :], atol=1e-14)
np.testing.assert_allclose(p.sum(), 1, rtol=1e-15)
assert np.all(p > 0)

# %% [markdown]
# ### A shift changes nothing
#
# Only differences of scores enter. For any number $c$
#
# $$
# \frac{e^{s_j + c}}{\sum_i e^{s_i + c}} = \frac{e^c\, e^{s_j}}{e^c \sum_i e^{s_i}} = \frac{e^{s_j}}{\sum_i e^{s_i}} .
# $$

# %%
np.testing.assert_allclose(naive_softmax(s + 3.7), p, rtol=1e-13)

# %% [markdown]
# ### Stability
#
# The largest number of float32 is $3.4 \cdot 10^{38} = e^{88.7}$. A score of 89 overflows to infinity, and infinity
# divided by infinity is not a number (NaN). The shift is free, so choose it well: subtract the largest score
# $m = \max_i s_i$. Then all exponents are at most zero, nothing overflows, and the sum is at least $e^0 = 1$, so that
# nothing is divided by zero. An exponential that underflows to zero is harmless here: that weight is below $10^{-38}$
# of the largest.


# %%
def softmax(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


limit = np.log(np.float64(np.finfo(np.float32).max))
large = np.array([89.0, 88.0, 0.0], np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    print(f"float32 overflows at exp({limit:.2f}); naive: {naive_softmax(large)}; shifted: {softmax(large)}")
    assert np.isnan(naive_softmax(large)).any()
np.testing.assert_allclose(softmax(large), softmax(large.astype(np.float64)), rtol=1e-6, atol=1e-37)

# %% [markdown]
# ### Log-sum-exp
#
# The logarithm of the denominator has a name of its own, and is computed with the same shift:
#
# $$
# \operatorname{lse}(s) = \log \sum_i e^{s_i} = m + \log \sum_i e^{s_i - m}, \qquad
# m \le \operatorname{lse}(s) \le m + \log K .
# $$
#
# The sum on the right has $K$ terms, none larger than 1 and one equal to 1, which gives the two bounds: log-sum-exp is
# a smooth maximum. Its gradient is the softmax,
#
# $$
# \frac{\partial \operatorname{lse}(s)}{\partial s_i} = \frac{e^{s_i}}{\sum_j e^{s_j}} = p_i .
# $$


# %%
def lse(s):
    m = s.max(axis=-1, keepdims=True)
    return (m + np.log(np.exp(s - m).sum(axis=-1, keepdims=True)))[..., 0]


np.testing.assert_allclose(lse(s), np.log(np.exp(s).sum()), rtol=1e-14)
for scale in (0.0, 1.0, 100.0):
    assert scale * s.max() <= lse(scale * s) <= scale * s.max() + np.log(s.size) + 1e-14
np.testing.assert_allclose(numeric_gradient(lambda: lse(s), s), softmax(s), atol=1e-10)
assert lse(np.array([1000.0, 1000.0])) == 1000 + np.log(2)

# %% [markdown]
# ## The Jacobian
#
# Let $Z = \sum_k e^{s_k}$, so $p_j = e^{s_j} / Z$. The score $s_i$ reaches $p_j$ on two paths: through the numerator,
# if $i = j$, and through $Z$, always. With the Kronecker delta $\delta_{ij}$ and
# $\partial Z / \partial s_i = \sum_k \delta_{ik} e^{s_k} = e^{s_i}$, the quotient rule gives
#
# $$
# \begin{aligned}
# J_{ji} = \frac{\partial p_j}{\partial s_i}
# &= \frac{1}{Z} \frac{\partial e^{s_j}}{\partial s_i} - \frac{e^{s_j}}{Z^2} \frac{\partial Z}{\partial s_i} \\
# &= \frac{\delta_{ij}\, e^{s_j}}{Z} - \frac{e^{s_j}}{Z} \frac{e^{s_i}}{Z} \\
# &= p_j \left( \delta_{ij} - p_i \right),
# \end{aligned}
# $$
#
# in matrix form $J = \operatorname{diag}(p) - p\, p^\top$. One's own score has the derivative $p_i (1 - p_i)$, which is
# positive. All others have $-p_j p_i$: what one weight gains the others lose.

# %%
K = 5
J = np.diag(p) - np.outer(p, p)  # (K, K)
J_numeric = np.stack([numeric_gradient(lambda j=j: softmax(s)[j], s) for j in range(K)])
np.testing.assert_allclose(J, J_numeric, atol=1e-10)
for j in range(K):
    for i in range(K):
        np.testing.assert_allclose(J[j, i], p[j] * ((i == j) - p[i]), rtol=1e-13)

# %% [markdown]
# ### Four properties
#
# 1. $J$ is **symmetric**: $p_j p_i = p_i p_j$.
# 2. Each **row sums to zero**: $\sum_i p_j (\delta_{ij} - p_i) = p_j - p_j \cdot 1 = 0$. This is the shift invariance
#    again: the direction $(1, \dots, 1)$ changes nothing. By symmetry each column sums to zero too: the weights keep
#    their sum.
# 3. $J$ is **positive semi-definite**: for any vector $v$
#
# $$
# v^\top J v = \sum_i p_i v_i^2 - \Big( \sum_i p_i v_i \Big)^2 = \operatorname{Var}_p(v) \ge 0,
# $$
#
# the variance of a random variable that takes the value $v_i$ with probability $p_i$.
#
# 4. Its **rank is** $K - 1$: if $J v = 0$ then $v^\top J v = 0$, and since all $p_i > 0$, the variance is zero only if
#    all $v_i$ are equal. So $J$ maps one direction to zero, and no other.

# %%
v = rng.standard_normal(K)
mean = np.sum(p * v)
np.testing.assert_allclose(J, J.T, rtol=1e-15)
np.testing.assert_allclose(J.sum(axis=1), np.zeros(K), atol=1e-15)
np.testing.assert_allclose(v @ J @ v, np.sum(p * (v - mean) ** 2), rtol=1e-12)
eigenvalues = np.linalg.eigvalsh(J)  # from small to large
print("eigenvalues:", eigenvalues.round(4))
assert abs(eigenvalues[0]) < 1e-15 and eigenvalues[1] > 1e-3
assert np.linalg.matrix_rank(J) == K - 1

# %% [markdown]
# ## The backward pass
#
# Write $\mathrm{d}p_j$ for $\partial L / \partial p_j$, with $L$ the loss. The vector-Jacobian product in index form is
#
# $$
# \begin{aligned}
# \mathrm{d}s_i &= \sum_j \mathrm{d}p_j\, J_{ji} = \sum_j \mathrm{d}p_j\, p_j \left( \delta_{ij} - p_i \right) \\
# &= p_i\, \mathrm{d}p_i - p_i \sum_j \mathrm{d}p_j\, p_j \\
# &= p_i \Big( \mathrm{d}p_i - \sum_j p_j\, \mathrm{d}p_j \Big),
# \end{aligned}
# $$
#
# and in matrix form, with $\odot$ the product entry by entry,
# $\mathrm{d}s = p \odot (\mathrm{d}p - p^\top \mathrm{d}p)$: subtract the weighted mean of $\mathrm{d}p$, then multiply
# by $p$. This takes about $4K$ operations and no memory beyond a vector. The matrix $J$ would have $K^2$ entries, for
# each row of scores: for one head of attention over 1000 tokens, that is 1000 rows times $10^6$ entries.

# %%
dp = rng.standard_normal(K)
ds = p * (dp - np.sum(p * dp))
np.testing.assert_allclose(ds, J.T @ dp, rtol=1e-12, atol=1e-15)
np.testing.assert_allclose(ds, numeric_gradient(lambda: np.sum(softmax(s) * dp), s), atol=1e-9)
np.testing.assert_allclose(ds.sum(), 0, atol=1e-15)  # a gradient that respects the shift


# %% [markdown]
# Over an array of any shape the softmax runs along the last axis, and all sums run along that axis. The class follows
# the protocol of chapter 2. It ends equal to the library's.


# %%
class MySoftmax(Module):
    def forward(self, s):
        p = softmax(s)  # (..., K)
        self.save(p)
        return p

    def backward(self, dp):
        (p,) = self.saved()
        return p * (dp - np.sum(p * dp, axis=-1, keepdims=True))  # (..., K)


mine, library = MySoftmax(), Softmax()
s, dp = 3 * rng.standard_normal((2, 4, 6)), rng.standard_normal((2, 4, 6))
np.testing.assert_allclose(mine(s), library(s), rtol=1e-12)
np.testing.assert_allclose(mine.backward(dp), library.backward(dp), rtol=1e-12, atol=1e-15)
report = gradcheck(mine, s)
assert report
report

# %% [markdown]
# ### A mistake, planted
#
# The second path, through $Z$, is easy to forget: the derivative of $e^{s}/Z$ "is itself", so
# $\mathrm{d}s = p \odot \mathrm{d}p$.


# %%
class ForgetsTheDenominator(MySoftmax):
    def backward(self, dp):
        (p,) = self.saved()
        return p * dp  # wrong: the path through Z is missing


report = gradcheck(ForgetsTheDenominator(), s)
assert not report
report

# %% [markdown]
# ### What a plain sum would have seen
#
# Chapter 2 warned of the loss $L = \sum_j p_j$. For the softmax this loss is 1 whatever the scores are, so the right
# gradient is exactly zero:
#
# $$
# \mathrm{d}s_i = p_i \Big( 1 - \sum_j p_j \Big) = 0 .
# $$
#
# A backward is caught by the plain sum only if it fails to return zero. The missing path of above is caught, since it
# returns $p \ne 0$. But every mistake that keeps the bracket $\mathrm{d}p - \sum_j p_j\, \mathrm{d}p_j$ passes, however
# wrong the factor in front of it. Four backwards, two losses:

# %%
wrong = {
    "path through Z missing": lambda p, dp: p * dp,
    "factor p missing": lambda p, dp: dp - np.sum(p * dp, axis=-1, keepdims=True),
    "wrong sign": lambda p, dp: -p * (dp - np.sum(p * dp, axis=-1, keepdims=True)),
    "always zero": lambda p, dp: np.zeros_like(p),
}
p, R = softmax(s), rng.standard_normal(s.shape)
seen = {}
for name, backward in wrong.items():
    for loss, dy in (("plain sum", np.ones_like(R)), ("random R", R)):
        right = p * (dy - np.sum(p * dy, axis=-1, keepdims=True))
        seen[name, loss] = np.linalg.norm(backward(p, dy) - right) > 1e-9
    print(f"{name:24s} seen by the plain sum: {seen[name, 'plain sum']!s:6s} by a random R: {seen[name, 'random R']}")
assert all(seen[name, "random R"] for name in wrong)
assert [name for name in wrong if seen[name, "plain sum"]] == ["path through Z missing"]

# %% [markdown]
# ## Temperature
#
# Divide the scores by a **temperature** $\tau > 0$ first: $p = \operatorname{softmax}(s / \tau)$. A small $\tau$
# stretches the differences, a large one shrinks them. The limits are
#
# $$
# \lim_{\tau \to \infty} p_i = \frac{1}{K}, \qquad \lim_{\tau \to 0} p_i = [\, i = \arg\max_j s_j \,],
# $$
#
# where $[\,\cdot\,]$ is 1 if what it encloses is true, and 0 otherwise: the uniform weights, since all
# $s_i / \tau \to 0$, and all weight on the largest score (if it is unique), since
# $p_i / p_{\max} = e^{-(s_{\max} - s_i) / \tau} \to 0$.

# %%
s = np.random.default_rng(1).standard_normal(8)
np.testing.assert_allclose(softmax(s / 1e6), np.full(8, 1 / 8), rtol=1e-5)
np.testing.assert_allclose(softmax(s / 1e-3), np.arange(8) == s.argmax(), atol=1e-12)

# %% [markdown]
# Between the limits the spread of the weights is measured by their **entropy** $H = -\sum_i p_i \log p_i$, in nats:
# zero if one weight is 1, and $\log K$ if all are equal. It rises with $\tau$ without exception. With
# $\beta = 1 / \tau$ and $\log p_i = \beta s_i - \operatorname{lse}(\beta s)$,
#
# $$
# H = \operatorname{lse}(\beta s) - \beta \sum_i p_i s_i, \qquad
# \frac{\partial H}{\partial \beta}
# = \sum_i p_i s_i - \sum_i p_i s_i - \beta \sum_i \frac{\partial p_i}{\partial \beta} s_i
# = -\beta \operatorname{Var}_p(s),
# $$
#
# because $\partial p / \partial \beta = J s$, with $J$ at the scores $\beta s$, and
# $s^\top J s = \operatorname{Var}_p(s)$ by property 3. With $\partial \beta / \partial \tau = -1 / \tau^2$,
#
# $$
# \frac{\partial H}{\partial \tau} = \frac{\operatorname{Var}_p(s)}{\tau^3} \ge 0 .
# $$


# %%
def entropy(p):
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)  # 0 log 0 = 0


for tau in (0.3, 1.0, 4.0):
    p = softmax(s / tau)
    np.testing.assert_allclose(entropy(p), lse(s / tau) - np.sum(p * s) / tau, rtol=1e-12)
    variance = np.sum(p * s**2) - np.sum(p * s) ** 2
    slope = (entropy(softmax(s / (tau + 1e-5))) - entropy(softmax(s / (tau - 1e-5)))) / 2e-5
    np.testing.assert_allclose(slope, variance / tau**3, rtol=1e-7)

# %%
temperatures = np.logspace(-2, 2, 81)
curves = {}
for classes in (4, 16, 64):
    scores = np.random.default_rng(2).standard_normal((200, 1, classes))
    curves[f"K = {classes}"] = (temperatures, entropy(softmax(scores / temperatures[:, None])).mean(axis=0))
    assert np.all(np.diff(curves[f"K = {classes}"][1]) >= 0)
    np.testing.assert_allclose(curves[f"K = {classes}"][1][-1], np.log(classes), rtol=1e-3)
at_one = curves["K = 64"][1][np.argmin(np.abs(temperatures - 1))]
plots.plot_lines(
    curves,
    xlabel="temperature",
    ylabel="entropy of the weights (nats), mean of 200",
    title=f"Entropy rises with temperature from 0 to log K; at 1, 64 scores have {at_one:.2f} of {np.log(64):.2f} nats",
    xscale="log",
)

# %% [markdown]
# ## Saturation: the size of the Jacobian as scores grow
#
# Multiplying all scores by a number $a$ is the same as the temperature $1/a$. In attention the scores are sums of $d_k$
# products ($d_k$ is the length of a query, $d$ in chapter 1), so that their size grows with $\sqrt{d_k}$ unless they
# are divided by it ([chapter 4](04-attention.ipynb) measures that). What does the size of the scores do to the
# gradient? Backward multiplies by $J$, so take its Frobenius norm, $\lVert J \rVert = \sqrt{\sum_{ij} J_{ij}^2}$. Two
# limits are known:
#
# $$
# a = 0: \quad p_i = \frac1K, \quad \lVert J \rVert = \frac{\sqrt{K - 1}}{K}; \qquad
# a \to \infty: \quad p_i (\delta_{ij} - p_j) \to 0, \quad \lVert J \rVert \to 0 .
# $$
#
# For large $a$ the weights depend on the gap $g$ between the two largest scores: if $r = e^{-a g}$ is small, $J$ is
# nearly $r$ times a matrix with the entries $\pm 1$ in these two rows and columns, so
# $\lVert J \rVert \approx 2 e^{-a g}$: an exponential decay. The norm is computed without building $J$: split off the
# largest weight, whose distance from 1 is the sum of the others and must not be computed as a difference.


# %%
def jacobian_norm(p):
    """Frobenius norm of diag(p) - p p^T along the last axis, without cancellation for p close to (1, 0, ..., 0)."""
    p = np.sort(p, axis=-1)
    top, rest = p[..., -1], p[..., :-1]
    off_diagonal = 2 * top**2 * np.sum(rest**2, axis=-1)  # the row and the column of the largest
    inner = np.sum(rest**2, axis=-1) ** 2 - np.sum(rest**4, axis=-1)  # sum over i != j of rest_i^2 rest_j^2
    return np.sqrt(
        (top * rest.sum(axis=-1)) ** 2 + np.sum((rest * (1 - rest)) ** 2, axis=-1) + off_diagonal + np.maximum(inner, 0)
    )


for scale in (0, 1, 10):
    p = softmax(scale * s)
    np.testing.assert_allclose(jacobian_norm(p), np.linalg.norm(np.diag(p) - np.outer(p, p)), rtol=1e-9)
np.testing.assert_allclose(jacobian_norm(softmax(0 * s)), np.sqrt(8 - 1) / 8, rtol=1e-13)
gap = np.diff(np.sort(s)[-2:])[0]
np.testing.assert_allclose(jacobian_norm(softmax(40 / gap * s)), 2 * np.exp(-40), rtol=1e-3)

# %% [markdown]
# Draw rows of 64 standard normal scores, multiply by $a$, and take the median norm. Ten seeds (four in the fast mode),
# 300 rows each.

# %%
SCALES = np.logspace(-1, 2, 31)  # 0.1 ... 100, ten for each decade
SEEDS = 4 if FAST else 10


def norms(seed, K, rows=300):
    z = np.random.default_rng(seed).standard_normal((rows, 1, K))
    return jacobian_norm(softmax(SCALES[:, None] * z))  # (rows, scales)


medians = np.stack([np.median(norms(seed, 64), axis=0) for seed in range(SEEDS)])  # (seeds, scales)
for a in (0.1, 1, 4, 8, 16, 32, 64):
    column = medians[:, np.argmin(np.abs(SCALES - a))]
    print(f"scores times {a:5.1f}: norm {np.median(column):.1e}, over seeds {column.min():.1e} to {column.max():.1e}")

# %% [markdown]
# The norm does **not** fall from the start. It first rises, because at $a = 0$ all weights are small, $1/64$, and
# $p_i (1 - p_i)$ is largest at $1/2$. It is largest where the largest weight is about one half, and only then falls,
# and then very fast. Asserted, for each seed: the norm at $a \approx 4$ exceeds that at 1 by a factor of at least 1.4
# (the measured factor is about 1.8), and at $a \approx 32$ it is below a tenth of that at 1 (measured: below a
# hundredth). At $a \approx 8$ it is at least half of that at 1 (measured: about equal). The spread over seeds is
# printed above.

# %%
at = {a: medians[:, np.argmin(np.abs(SCALES - a))] for a in (1, 4, 8, 32)}
peak = SCALES[np.median(medians, axis=0).argmax()]
top = np.median(softmax(peak * np.random.default_rng(0).standard_normal((1000, 64))).max(axis=-1))
print(f"the median norm is largest at a = {peak:.1f}, where the largest weight is {top:.2f} in the median")
assert 0.4 < top < 0.75
print(f"4 against 1: {(at[4] / at[1]).min():.2f} to {(at[4] / at[1]).max():.2f}")
print(f"8 against 1: {(at[8] / at[1]).min():.2f} to {(at[8] / at[1]).max():.2f}")
print(f"32 against 1: {(at[32] / at[1]).min():.1e} to {(at[32] / at[1]).max():.1e}")
assert np.all(at[4] > 1.4 * at[1])
assert np.all(at[32] < 0.1 * at[1])
assert np.all(at[8] > 0.5 * at[1])
assert 2 < peak < 8

# %%
sizes = {}
for classes in (8, 64, 512):
    values = norms(0, classes, rows=100 if FAST else 300)
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    sizes[f"K = {classes}, middle half shaded"] = tuple(np.maximum(v, 1e-12) for v in (SCALES, middle, low, high))
plots.plot_lines(
    sizes,
    xlabel="factor a on standard normal scores",
    ylabel="norm of the Jacobian (not below 1e-12)",
    title="The softmax saturates: for 64 scores the median norm is "
    f"{np.median(medians, axis=0).max():.2f} near a = {peak:.0f}, and {np.median(at[32]):.0e} at 32",
    xscale="log",
    yscale="log",
)

# %% [markdown]
# ## Cross-entropy
#
# A model gives the probability $p_t$ to the right class $t$. For several independent tokens the probability of all the
# right classes is the product of the $p_t$. To make a product large is to make the sum of its logarithms large, and the
# loss is that sum with a minus sign, the **negative log-likelihood**. For one token
#
# $$
# \ell = -\log p_t = \operatorname{lse}(s) - s_t .
# $$
#
# With $y$ the vector that has 1 at $t$ and 0 elsewhere, $y_k = \delta_{kt}$, it is written $-\sum_k y_k \log p_k$: the
# **cross-entropy** of $p$ relative to $y$.

# %%
s, t = np.random.default_rng(1).standard_normal(8), 2  # the eight scores of the section on temperature
y = (np.arange(8) == t).astype(np.float64)
loss = lse(s) - s[t]
np.testing.assert_allclose(loss, -np.log(softmax(s)[t]), rtol=1e-13)
np.testing.assert_allclose(loss, -np.sum(y * np.log(softmax(s))), rtol=1e-13)

# %% [markdown]
# ### Log-softmax
#
# The vector of all $z_j = \log p_j = s_j - \operatorname{lse}(s)$ is the **log-softmax**. Its Jacobian is
# $\partial z_j / \partial s_i = \delta_{ij} - p_i$, by the gradient of log-sum-exp, and its backward
#
# $$
# \mathrm{d}s_i = \sum_j \mathrm{d}z_j \left( \delta_{ij} - p_i \right) = \mathrm{d}z_i - p_i \sum_j \mathrm{d}z_j .
# $$
#
# In matrix form $\mathrm{d}s = \mathrm{d}z - p\, (\mathbf{1}^\top \mathrm{d}z)$, with $\mathbf 1$ a vector of ones.


# %%
class MyLogSoftmax(Module):
    def forward(self, s):
        z = s - lse(s)[..., None]
        self.save(z)
        return z  # (..., K)

    def backward(self, dz):
        (z,) = self.saved()
        return dz - np.exp(z) * dz.sum(axis=-1, keepdims=True)  # (..., K)


mine, library = MyLogSoftmax(), LogSoftmax()
x, dz = 3 * rng.standard_normal((2, 4, 6)), rng.standard_normal((2, 4, 6))
np.testing.assert_allclose(mine(x), library(x), rtol=1e-12)
np.testing.assert_allclose(mine.backward(dz), library.backward(dz), rtol=1e-12, atol=1e-14)
assert gradcheck(mine, x)

# %% [markdown]
# ### The gradient is p - y
#
# The loss is $\ell = -z_t$, so $\mathrm{d}z_j = -\delta_{jt}$ and $\sum_j \mathrm{d}z_j = -1$. Then
#
# $$
# \mathrm{d}s_i = -\delta_{it} - p_i \cdot (-1) = p_i - \delta_{it}, \qquad
# \text{in vector form}\qquad \mathrm{d}s = p - y .
# $$
#
# The same comes out through the softmax: $\mathrm{d}p_j = -\delta_{jt} / p_t$, so $\sum_j p_j\, \mathrm{d}p_j = -1$ and
# $\mathrm{d}s_i = p_i (-\delta_{it} / p_t + 1) = p_i - \delta_{it}$. The factor $1 / p_t$, which is large where the
# model is wrong, cancels exactly what the Jacobian had made small.

# %%
p = softmax(s)
through_log = -y - p * np.sum(-y)
dp = -y / p[t]
through_softmax = p * (dp - np.sum(p * dp))
np.testing.assert_allclose(through_log, p - y, rtol=1e-14)
np.testing.assert_allclose(through_softmax, p - y, rtol=1e-12)
np.testing.assert_allclose(p - y, numeric_gradient(lambda: lse(s) - s[t], s), atol=1e-9)

# %% [markdown]
# ### Why the logarithm is not taken afterwards
#
# In float32 a probability below $10^{-45}$ is zero. A class whose score is 110 below the largest gets probability 0,
# and $-\log 0$ is infinite; the loss should be 110. Backward is lost even earlier: $1 / p_t$ overflows when
# $p_t < 3 \cdot 10^{-39}$, a gap of about 88; then infinity minus infinity, or zero times infinity, is NaN. Log-softmax
# has the exact $s_t - \operatorname{lse}(s)$ and needs no division.

# %%
rows = []
for gap in (20, 80, 95, 110):
    wide = np.array([0.0, -gap], np.float32)  # the right class is the second
    with np.errstate(all="ignore"):
        p32 = softmax(wide)
        dp32 = np.array([0, -1 / p32[1]], np.float32)
        separate = -np.log(p32[1]), p32 * (dp32 - np.sum(p32 * dp32))
    together = -MyLogSoftmax()(wide)[1], p32 - np.array([0, 1], np.float32)
    rows.append((gap, separate, together))
    print(f"gap {gap:3d}: separate {separate[0]:8.3f}, {separate[1]}   together {together[0]:8.3f}, {together[1]}")
    np.testing.assert_allclose(together[0], gap, rtol=1e-6)
    np.testing.assert_allclose(together[1], [1, -1], rtol=1e-6)
assert np.isfinite(rows[1][1][0]) and np.all(np.isfinite(rows[1][1][1]))  # a gap of 80 is still right
assert not np.all(np.isfinite(rows[2][1][1]))  # at 95 the gradient is lost
assert np.isinf(rows[3][1][0])  # at 110 the loss too

# %% [markdown]
# ## Claims
#
# ### Large scores push the softmax into a region of tiny gradients
#
# The texts give this as the reason for dividing attention scores by $\sqrt{d_k}$. The measurement above is about the
# Jacobian of the softmax. Now compare it with the gradient of the cross-entropy for the same scores, for two targets:
# the class with the largest score (the prediction is right), and the class with the second largest (it is wrong).

# %%
right, wrong_target = [], []
for seed in range(SEEDS):
    z = np.random.default_rng(seed).standard_normal((300, 1, 64))
    p = softmax(SCALES[:, None] * z)  # (rows, scales, K)
    order = np.argsort(z, axis=-1)
    for target, found in ((order[..., -1:], right), (order[..., -2:-1], wrong_target)):
        one_hot = (np.arange(64) == target).astype(np.float64)  # (rows, 1, K)
        found.append(np.median(np.linalg.norm(p - one_hot, axis=-1), axis=0))
right, wrong_target = np.stack(right), np.stack(wrong_target)  # (seeds, scales)

last = -1  # a = 100
print(f"at a = {SCALES[last]:.0f}, medians of {SEEDS} seeds: Jacobian at most {medians[:, last].max():.0e},")
print(f"p - y if right at most {right[:, last].max():.0e}, if wrong at least {wrong_target[:, last].min():.4f}")
assert np.all(medians[:, last] < 1e-6) and np.all(right[:, last] < 1e-6)
np.testing.assert_allclose(wrong_target[:, last], np.sqrt(2), rtol=1e-3)

# %%
plots.plot_lines(
    {
        "Jacobian of the softmax": (SCALES, np.median(medians, axis=0)),
        "p - y, prediction right": (SCALES, np.maximum(np.median(right, axis=0), 1e-12)),
        "p - y, prediction wrong": (SCALES, np.median(wrong_target, axis=0)),
    },
    xlabel="factor a on 64 standard normal scores",
    ylabel="norm, median",
    title="The Jacobian vanishes with large scores; "
    f"the gradient of a wrong prediction grows to {wrong_target[:, -1].mean():.2f}",
    xscale="log",
    yscale="log",
)

# %% [markdown]
# **Holds if** the scores are so large that the gap between the two largest is several units, and the softmax stands
# **inside** a model, as in attention. The decline is not gradual: for 64 scores the Jacobian first grows, until the
# scores have a standard deviation of about 4, and at 8, the value that $d_k = 64$ gives without scaling, it is about as
# large as at 1 in the median row; from 16 on it collapses exponentially.
#
# ### Cross-entropy has tiny gradients for large logits
#
# This is often concluded from the claim above. **Does not hold:** the gradient is $p - y$. Its norm tends to $\sqrt 2$,
# its largest possible value, when a wrong class has all the weight: $p - y$ then has one entry $+1$ and one $-1$. It
# vanishes only when the prediction is right. The bound:
#
# $$
# \lVert p - y \rVert^2 = (1 - p_t)^2 + \sum_{k \ne t} p_k^2
# \le (1 - p_t)^2 + \Big( \sum_{k \ne t} p_k \Big)^2 = 2 (1 - p_t)^2 .
# $$

# %%
z = 5 * rng.standard_normal((1000, 64))
p = softmax(z)
norm = np.linalg.norm(p - (np.arange(64) == 0), axis=-1)  # target 0
assert np.all(norm <= np.sqrt(2) * (1 - p[:, 0]) + 1e-14)
assert np.all(norm >= 1 - p[:, 0] - 1e-14)  # never smaller than the probability that is missing

# %% [markdown]
# ## Label smoothing
#
# With one right class the loss $-\log p_t$ reaches its infimum 0 only for infinite scores: training never ceases to
# push them apart. **Label smoothing** replaces $y$ by a target that gives every one of the $K$ classes a little, with a
# number $\varepsilon$ in $[0, 1)$:
#
# $$
# q_k = (1 - \varepsilon)\, \delta_{kt} + \frac{\varepsilon}{K} .
# $$
#
# The small part goes to **all** classes, the right one included, as in PyTorch; so
# $q_t = 1 - \varepsilon + \varepsilon / K$. The loss is the cross-entropy with $q$. With $\bar s = \frac1K \sum_k s_k$
# and $\sum_k q_k = 1$,
#
# $$
# \ell = -\sum_k q_k \log p_k = \sum_k q_k \left( \operatorname{lse}(s) - s_k \right)
# = \operatorname{lse}(s) - (1 - \varepsilon)\, s_t - \varepsilon\, \bar s,
# \qquad \mathrm{d}s_i = p_i - q_i ,
# $$
#
# since the derivative of $\operatorname{lse}$ is $p_i$ and the rest is linear with coefficients $q_i$.

# %%
epsilon, K, t = 0.1, 8, 2
q = np.full(K, epsilon / K)
q[t] += 1 - epsilon


def smoothed(s):
    return lse(s) - (1 - epsilon) * s[t] - epsilon * s.mean()


np.testing.assert_allclose(q.sum(), 1, rtol=1e-15)
np.testing.assert_allclose(smoothed(s), -np.sum(q * np.log(softmax(s))), rtol=1e-13)
np.testing.assert_allclose(softmax(s) - q, numeric_gradient(lambda: smoothed(s), s), atol=1e-9)

# %% [markdown]
# ### The minimum, and the gap it asks for
#
# Add and subtract the entropy of $q$:
#
# $$
# \ell = -\sum_k q_k \log q_k + \sum_k q_k \log \frac{q_k}{p_k} = H(q) + \operatorname{KL}(q \,\|\, p) .
# $$
#
# The second sum, the Kullback-Leibler divergence, is at least zero, because $\log u \le u - 1$ gives
# $-\sum_k q_k \log (p_k / q_k) \ge -\sum_k (p_k - q_k) = 0$, and it is zero only for $p = q$. So the minimum is $H(q)$,
# not zero, and it is reached at finite scores: their differences are the logarithms of the ratios,
#
# $$
# s_t - s_k = \log \frac{q_t}{q_k} = \log \frac{1 - \varepsilon + \varepsilon / K}{\varepsilon / K}
# = \log \left( 1 + \frac{K (1 - \varepsilon)}{\varepsilon} \right) \qquad (k \ne t).
# $$

# %%
gap = np.log(1 + K * (1 - epsilon) / epsilon)
minimum = entropy(q)
np.testing.assert_allclose(np.log(q[t] / q[0]), gap, rtol=1e-13)
np.testing.assert_allclose(smoothed(np.log(q)), minimum, rtol=1e-12)
for seed in range(20):
    other = np.random.default_rng(seed).standard_normal(K)
    p = softmax(other)
    np.testing.assert_allclose(smoothed(other), minimum + np.sum(q * np.log(q / p)), rtol=1e-12)
    assert smoothed(other) > minimum

scores = {0.0: np.zeros(K), epsilon: np.zeros(K)}
for _ in range(4000):  # gradient descent on the scores, without and with smoothing
    for eps, x in scores.items():
        target = eps / K + (1 - eps) * (np.arange(K) == t)
        x -= softmax(x) - target  # learning rate 1
found = {eps: x[t] - np.delete(x, t).mean() for eps, x in scores.items()}
print(f"gap after 4000 steps with smoothing: {found[epsilon]:.6f}, derived {gap:.6f}; without: {found[0.0]:.2f}")
np.testing.assert_allclose(found[epsilon], gap, rtol=1e-9)
assert found[0.0] > gap + 3
for vocabulary in (10, 1000, 37000):
    print(f"K = {vocabulary}: gap {np.log(1 + vocabulary * 0.9 / 0.1):.2f}")

# %% [markdown]
# ## Tokens that do not count
#
# A batch of sentences of different lengths is filled up with padding, and a target that is padding must not enter the
# loss. It is marked with a special number, `ignore_index`. With $N$ tokens in the batch, of which the set $C$ counts,
# the loss is the mean over these:
#
# $$
# \ell = \frac{1}{|C|} \sum_{n \in C} \ell_n, \qquad
# \mathrm{d}s_{ni} = \frac{[\, n \in C \,]}{|C|} \left( p_{ni} - q_{ni} \right) .
# $$
#
# The rows of tokens that do not count are exactly zero. Two averages that look alike are not this one: dividing by $N$
# makes the loss depend on the amount of padding, and a mean of the means of each sentence gives a token of a short
# sentence more weight.


# %%
class MyCrossEntropy(Module):
    def __init__(self, ignore_index=-100, label_smoothing=0.0):
        super().__init__()
        self.ignore_index, self.epsilon = ignore_index, label_smoothing

    def forward(self, s, targets):
        K = s.shape[-1]
        counts = targets != self.ignore_index  # (...)
        t = np.where(counts, targets, 0)
        q = np.eye(K, dtype=s.dtype)[t] * (1 - self.epsilon) + self.epsilon / K  # (..., K)
        z = s - lse(s)[..., None]  # log-softmax
        number = max(int(counts.sum()), 1)
        self.save(z, q, counts, number)
        return np.sum(-np.sum(q * z, axis=-1) * counts) / number

    def backward(self, dy=1.0):
        z, q, counts, number = self.saved()
        return (np.exp(z) - q) * counts[..., None] * (dy / number)  # (..., K)


s, targets = 3 * rng.standard_normal((2, 5, 7)), rng.integers(7, size=(2, 5))
targets[0, 2:] = -100  # three tokens of padding
for options in ({}, {"label_smoothing": 0.1}, {"ignore_index": int(targets[1, 0])}):
    if "ignore_index" in options:
        targets = np.where(targets == -100, options["ignore_index"], targets)  # padding is a word of the vocabulary
    mine, library = MyCrossEntropy(**options), CrossEntropyLoss(**options)
    np.testing.assert_allclose(mine(s, targets), library(s, targets), rtol=1e-12)
    np.testing.assert_allclose(mine.backward(), library.backward(), rtol=1e-12, atol=1e-15)

# %% [markdown]
# The library keeps no one-hot matrix and no second array of the size of the vocabulary: it uses the linear form
# $\operatorname{lse}(s) - (1 - \varepsilon) s_t - \varepsilon \bar s$. `gradcheck` takes the loss as a module with the
# scores as its input; the targets are integers, and so constant.

# %%
targets[0, 2:] = -100
report = gradcheck(MyCrossEntropy(label_smoothing=0.1), s, targets)
assert report
report

# %% [markdown]
# The three averages in numbers, on the same scores and targets:

# %%
each = CrossEntropyLoss(reduction="none")(s, targets)  # (2, 5), 0 where a token does not count
counts = targets != -100
over_tokens = each.sum() / counts.sum()
of_means = np.mean(each.sum(axis=1) / counts.sum(axis=1))
over_all = each.mean()
print(f"mean over the tokens that count {over_tokens:.4f}, of the means {of_means:.4f}, over all {over_all:.4f}")
np.testing.assert_allclose(over_tokens, CrossEntropyLoss()(s, targets), rtol=1e-13)
padded_s = np.concatenate([s, np.zeros((2, 5, 7))], axis=1)  # five more tokens of padding
padded = np.concatenate([targets, np.full((2, 5), -100)], axis=1)
np.testing.assert_allclose(CrossEntropyLoss()(padded_s, padded), over_tokens, rtol=1e-13)  # padding changes nothing
assert abs(of_means - over_tokens) > 1e-3 and abs(over_all - over_tokens) > 1e-3

# %% [markdown]
# ## Exercises
#
# ### Exercise 3.1: two classes
#
# Show that the softmax of $(s, 0)$ gives the first class the weight $\sigma(s) = 1 / (1 + e^{-s})$, and read the
# derivative of $\sigma$ off the Jacobian. Write `sigmoid_with_slope(s)`, which returns $\sigma(s)$ and $\sigma'(s)$ by
# way of `softmax`, for an array of any shape. Check: against $1 / (1 + e^{-s})$ and against central differences, to
# $10^{-9}$, for `s = np.linspace(-5, 5, 11)`.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 3.1
def sigmoid_with_slope(s):
    p = softmax(np.stack([s, np.zeros_like(s)], axis=-1))[..., 0]
    return p, p * (1 - p)  # J_11 = p_1 (1 - p_1)


x = np.linspace(-5, 5, 11)
value, slope = sigmoid_with_slope(x)
np.testing.assert_allclose(value, 1 / (1 + np.exp(-x)), atol=1e-9)
difference = (sigmoid_with_slope(x + 1e-5)[0] - sigmoid_with_slope(x - 1e-5)[0]) / 2e-5
np.testing.assert_allclose(slope, difference, atol=1e-9)

# %% [markdown]
# ### Exercise 3.2: no direction is stretched by more than one half, on paper
#
# Show that no eigenvalue of $J = \operatorname{diag}(p) - p\,p^\top$ exceeds $1/2$, and find scores for which one is
# equal to it. (Gershgorin: every eigenvalue of a matrix lies within the sum of the absolute values off the diagonal,
# $\sum_{j \ne i} |J_{ij}|$, of some diagonal entry $J_{ii}$.)
#
# <details><summary>Solution of exercise 3.2</summary>
#
# In row $i$ the diagonal entry is $p_i (1 - p_i)$, and the other entries add up to
# $\sum_{j \ne i} p_i p_j = p_i (1 - p_i)$ in absolute value. So every eigenvalue is at most $2 p_i (1 - p_i)$ for some
# $i$, and $u (1 - u) \le 1/4$ for every $u$ in $[0, 1]$, which gives $1/2$. Equality: two scores that are equal, so
# $p = (1/2, 1/2)$. Then $J$ is $\frac14$ times the matrix with rows $(1, -1)$ and $(-1, 1)$, whose eigenvalues are 0
# and 2. (With more than two scores all others must be $-\infty$.) Since $J$ is symmetric, the largest eigenvalue bounds
# the length: a softmax never makes a gradient longer than half of what it received.
#
# </details>
#
# ### Exercise 3.3: a learned temperature
#
# Let $p = \operatorname{softmax}(s / \tau)$ with one number $\tau$ for the whole array. Write
# `tempered_backward(s, tau, dp)`, which returns $\mathrm{d}s$ and $\mathrm{d}\tau$. Check: against `numeric_gradient`
# of `np.sum(softmax(s / tau) * dp)` to $10^{-8}$, for $s$ of shape $(3, 4)$ and `tau = np.array(0.7)`.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 3.3
def tempered_backward(s, tau, dp):
    p = softmax(s / tau)
    du = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))  # u = s / tau
    return du / tau, np.sum(du * -s / tau**2)  # tau was broadcast: its gradient is a sum


x, tau, dp = rng.standard_normal((3, 4)), np.array(0.7), rng.standard_normal((3, 4))
for tensor, gradient in zip((x, tau), tempered_backward(x, tau, dp), strict=True):
    np.testing.assert_allclose(gradient, numeric_gradient(lambda: np.sum(softmax(x / tau) * dp), tensor), atol=1e-8)

# %% [markdown]
# ### Exercise 3.4: squared error behind a softmax
#
# Someone trains a classifier with $L = \sum_k (p_k - y_k)^2$ in place of cross-entropy. Write
# `squared_error_gradient(s, t)` for one row of scores and its right class, which returns $\mathrm{d}s$. Check: it
# agrees with `numeric_gradient` to $10^{-8}$ for `s = rng.standard_normal(5)` and `t = 1`; and for the confident
# mistake `s = [30, 0, 0, 0, 0]`, `t = 1`, its norm is below $10^{-10}$, while that of cross-entropy is above 1.4.
# Explain with the Jacobian.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 3.4
def squared_error_gradient(s, t):
    p, y = softmax(s), np.arange(s.size) == t
    dp = 2 * (p - y)
    return p * (dp - np.sum(p * dp))  # J^T dp: nothing here cancels the small J, as 1 / p_t does in cross-entropy


x = rng.standard_normal(5)
numeric = numeric_gradient(lambda: np.sum((softmax(x) - (np.arange(5) == 1)) ** 2), x)
np.testing.assert_allclose(squared_error_gradient(x, 1), numeric, atol=1e-8)
mistake = np.array([30.0, 0, 0, 0, 0])
assert np.linalg.norm(squared_error_gradient(mistake, 1)) < 1e-10
assert np.linalg.norm(softmax(mistake) - (np.arange(5) == 1)) > 1.4

# %% [markdown]
# ### Exercise 3.5: log-sum-exp in one pass
#
# A row of scores arrives in blocks, and is too long to be kept. Write `streaming_lse(blocks)`, which goes through a
# list of arrays once and keeps two numbers: the largest score $m$ so far, and the sum $\sum e^{s_i - m}$ so far. When a
# new largest score comes, the old sum must be corrected. Return log-sum-exp of the whole row. Check: equal to `lse` of
# the whole row to a relative $10^{-12}$, for 1000 scores of standard deviation 300 in blocks of 64. Attention that
# never stores its matrix of scores is built on this.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 3.5
def streaming_lse(blocks):
    m, total = -np.inf, 0.0
    for block in blocks:
        new = max(m, block.max())
        total = total * np.exp(m - new) + np.exp(block - new).sum()  # e^(s - m) becomes e^(s - new)
        m = new
    return m + np.log(total)


row = 300 * rng.standard_normal(1000)
blocks = [row[k : k + 64] for k in range(0, 1000, 64)]
np.testing.assert_allclose(streaming_lse(blocks), lse(row), rtol=1e-12)
np.testing.assert_allclose(streaming_lse([b / 300 for b in blocks]), lse(row / 300), rtol=1e-12)

# %% [markdown]
# ## Papers
#
# - Bridle (1990), *Probabilistic interpretation of feedforward classification network outputs, with relationships to
#   statistical pattern recognition*, in Neurocomputing, NATO ASI Series 68. The name softmax, and training with the
#   likelihood.
# - Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser and Polosukhin (2017), *Attention is all you need*,
#   NeurIPS (arXiv:1706.03762). The argument for scaling the scores (section 3.2.1), and label smoothing with 0.1.
# - Szegedy, Vanhoucke, Ioffe, Shlens and Wojna (2016), *Rethinking the Inception architecture for computer vision*,
#   CVPR (arXiv:1512.00567). Label smoothing, section 7.
# - Müller, Kornblith and Hinton (2019), *When does label smoothing help?*, NeurIPS (arXiv:1906.02629). What smoothing
#   does to the scores.
# - Milakov and Gimelshein (2018), *Online normalizer calculation for softmax*, arXiv:1805.02867. The one pass of
#   exercise 3.5.
#
# Softmax and log-softmax are in `numtrans/layers/softmax.py`, the loss is in `numtrans/losses.py`; [chapter
# 4](04-attention.ipynb) puts the softmax into attention and measures what the size of the scores does there.
