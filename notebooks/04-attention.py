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
# # 4. Scaled dot-product attention
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/04-attention.ipynb)
#
# Attention is the one operation of a Transformer in which tokens exchange information. It is a lookup in a dictionary
# whose keys need not match exactly: every value is returned, weighted by how well its key answers the query. This
# chapter derives the forward and the backward pass of the simplest case, in which every query may use every key (masks
# come in chapter 5, several heads in chapter 6). It measures why the dot products of queries and keys are divided by
# $\sqrt{d}$, with $d$ the number of components of a key, compares attention with kernel regression, and counts the
# cost.
#
# **At the end you will understand**
#
# - why the output of attention is an average of the values, and never leaves the region that they span;
# - why $q \cdot k$ has variance $d$ for random vectors, when it does not, and what the scale $1/\sqrt d$ does about it;
# - what a saturated softmax does to the gradient: most queries get almost none, a few get a large one;
# - that attention with a Gaussian kernel is the estimator of Nadaraya and Watson, and how it differs from it;
# - how time and memory grow with the number of tokens, and which of the two can be avoided.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import os
import time
import tracemalloc

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import Linear, ScaledDotProductAttention
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module, no_grad
from numtrans.optim import SGD, Adam

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests

# %% [markdown]
# ## A soft dictionary
#
# A dictionary holds pairs of a key $k_j$ and a value $v_j$, $j = 1, \dots, T_k$. A lookup with a query $q$ returns the
# value $o$ whose key equals the query. Written as a sum, with $[\,\cdot\,]$ equal to 1 if the statement inside is true
# and 0 otherwise,
#
# $$
# o = \sum_{j} [q = k_j]\, v_j .
# $$
#
# Two things are wrong with it for learning. It fails if no key matches, and it is a step function of $q$ and $k_j$, so
# its gradient is zero almost everywhere. Attention replaces the bracket by a weight that is positive for every key and
# smooth. Queries and keys are vectors of $d$ numbers, and their similarity is the **dot product** $q \cdot k = \sum_a
# q_a k_a$. The scores of one query against all keys go through the softmax of
# [chapter 3](03-softmax.ipynb), so that the weights are positive and sum to one.
#
# Let there be $T_q$ queries, the rows of $Q$ $(T_q, d)$; $T_k$ keys, the rows of $K$ $(T_k, d)$; and as many values of
# $d_v$ numbers, the rows of $V$ $(T_k, d_v)$. With a constant factor $c$, the **scale**, in index form:
#
# $$
# S_{ij} = c \sum_{a} Q_{ia} K_{ja}, \qquad
# P_{ij} = \frac{e^{S_{ij}}}{\sum_{m} e^{S_{im}}}, \qquad
# O_{ib} = \sum_{j} P_{ij} V_{jb} .
# $$
#
# $S$ are the **scores**, $P$ the **attention weights** and $O$ $(T_q, d_v)$ the output. The first and the last sum are
# matrix products, so in matrix form, with $c = 1/\sqrt d$ and a softmax of each row:
#
# $$
# O = \mathrm{softmax}\!\left( \frac{Q K^\top}{\sqrt d} \right) V .
# $$


# %%
def softmax(S):
    e = np.exp(S - S.max(axis=-1, keepdims=True))  # the shift changes no weight and prevents overflow
    return e / e.sum(axis=-1, keepdims=True)


rng = np.random.default_rng(0)
Tq, Tk, d, dv = 3, 4, 5, 2
Q, K, V = rng.standard_normal((Tq, d)), rng.standard_normal((Tk, d)), rng.standard_normal((Tk, dv))

S = Q @ K.T / np.sqrt(d)  # (Tq, Tk)
P = softmax(S)  # (Tq, Tk)
O = P @ V  # (Tq, dv)

for i in range(Tq):
    s = [sum(Q[i, a] * K[j, a] for a in range(d)) / d**0.5 for j in range(Tk)]
    total = sum(np.exp(s[m]) for m in range(Tk))
    for b in range(dv):
        by_index = sum(np.exp(s[j]) / total * V[j, b] for j in range(Tk))
        np.testing.assert_allclose(O[i, b], by_index, rtol=1e-12)

# %% [markdown]
# The exact lookup is the limit of a large scale: if the query equals one of the keys, all keys have the same length,
# and the scale grows, the weight of the matching key goes to one. (Equal lengths matter: without them a longer key
# nearby can have the larger dot product.)

# %%
unit = K / np.linalg.norm(K, axis=1, keepdims=True)  # keys of length 1
for scale in (1, 10, 1000):
    weights = softmax(scale * unit @ unit[2])  # the query is key 2
    print(f"scale {scale:4d}: weights {np.round(weights, 4)}")
np.testing.assert_allclose(weights @ V, V[2], rtol=1e-12)
two_keys = np.array([[1.0, 0.0], [2.0, 1.0]])  # of unequal length
assert (two_keys @ two_keys[0]).argmax() == 1  # the query is key 0, and key 1 has the larger dot product

# %% [markdown]
# ### The output stays among the values
#
# The weights of a query are positive and sum to one, so the output is a **convex combination** of the values. It lies
# in their convex hull, the smallest convex region that holds all of them. Two consequences can be asserted. Along any
# direction $u$, the output lies between the smallest and the largest value,
#
# $$
# \min_j u \cdot v_j \;\le\; u \cdot o \;\le\; \max_j u \cdot v_j ,
# $$
#
# because $u \cdot o = \sum_j P_{ij}\, (u \cdot v_j)$ is an average of the numbers $u \cdot v_j$. (A point outside a
# convex region is separated from it by some direction, so the inequality for all $u$ says the same as the hull.) And
# the output is no longer than the longest value. Attention selects and mixes. It cannot extrapolate.

# %%
assert (P > 0).all()
np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-14)
for u in rng.standard_normal((1000, dv)):
    assert ((V @ u).min() <= O @ u).all() and (O @ u <= (V @ u).max()).all()
assert np.linalg.norm(O, axis=1).max() <= np.linalg.norm(V, axis=1).max()

# %% [markdown]
# ## The variance of a dot product
#
# Why divide by $\sqrt d$? Let all components of $q$ and $k$ be independent random numbers with mean 0 and variance 1,
# which is about what a layer's initial weights produce. Write $\mathbb{E}$ for the expected value. For each term
#
# $$
# \mathbb{E}[q_a k_a] = \mathbb{E}[q_a]\, \mathbb{E}[k_a] = 0, \qquad
# \mathrm{Var}[q_a k_a] = \mathbb{E}[q_a^2 k_a^2] - 0^2 = \mathbb{E}[q_a^2]\, \mathbb{E}[k_a^2] = 1 ,
# $$
#
# where both products of expectations use that $q_a$ and $k_a$ are independent. The $d$ terms are independent of each
# other, so their variances add:
#
# $$
# \mathbb{E}[q \cdot k] = 0, \qquad \mathrm{Var}[q \cdot k] = \sum_{a=1}^{d} 1 = d, \qquad
# \mathrm{Var}\!\left[ \frac{q \cdot k}{\sqrt d} \right] = \frac{d}{d} = 1 .
# $$
#
# The measurement: many pairs for each $d$, five seeds. A sample variance of $N$ such numbers has a relative standard
# error of about $\sqrt{2/N}$ if the numbers are nearly normal, which they are for large $d$. For small $d$ the tails
# are heavier: at $d = 1$ the fourth moment is $3 \cdot 3 = 9$, and the error $\sqrt{(9 - 1)/N}$ is twice as large.

# %%
SIZES = [1, 4, 16, 64, 256, 1024]
PAIRS, SEEDS = (1000, 5) if FAST else (8000, 5)


def variances(make_pair):
    """Variance of q.k over many pairs: one row a seed, one column a size."""
    found = np.zeros((SEEDS, len(SIZES)))
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        for column, d in enumerate(SIZES):
            q, k = make_pair(rng, d)  # (PAIRS, d) each
            found[seed, column] = (q * k).sum(axis=1).var()
    return found


plain = variances(lambda rng, d: rng.standard_normal((2, PAIRS, d)))
scaled = plain / np.array(SIZES)  # Var[x / sqrt(d)] = Var[x] / d
slopes = np.polyfit(np.log(SIZES), np.log(plain).T, 1)[0]  # one a seed
print(f"variance at d = 1024: {plain[:, -1].mean():.0f}, scaled {scaled[:, -1].mean():.3f}")
print(f"slope of log variance against log d: {slopes.mean():.3f}, seeds from {slopes.min():.3f} to {slopes.max():.3f}")
assert np.abs(slopes - 1).max() < 0.05  # seeds differ by about 0.01
assert np.abs(scaled - 1).max() < 0.4  # over 4 standard errors at d = 1, the widest

# %% [markdown]
# ### When the assumption fails
#
# The derivation needs independent components. Let $\Sigma_q = \mathbb{E}[q q^\top]$ and $\Sigma_k$ be the covariance
# matrices of a query and a key with mean zero that are independent of each other, but whose own components may be
# correlated. With $\mathrm{tr}$ for the trace, the sum of the diagonal of a matrix,
#
# $$
# \mathrm{Var}[q \cdot k] = \mathbb{E}\Big[ \sum_{a} \sum_{b} q_a k_a q_b k_b \Big]
# = \sum_{a} \sum_{b} \mathbb{E}[q_a q_b]\, \mathbb{E}[k_a k_b] = \mathrm{tr}(\Sigma_q \Sigma_k) .
# $$
#
# If every two components have correlation $\rho$ (in the query and in the key), both matrices have 1 on the diagonal
# and $\rho$ elsewhere, and the trace is $d + d (d - 1) \rho^2$. This grows like $d^2$: for large $d$ the dot product
# has standard deviation about $\rho d$, and $1/\sqrt d$ is too weak a scale. A third case is a key that equals the
# query: the mean of $q \cdot q$ is $d$ in place of 0. Nothing in training keeps the components independent, so the
# scale is right at the start and promises nothing later.

# %%
RHO = 0.5


def correlated(rng, d):
    common = rng.standard_normal((2, PAIRS, 1))  # one number a vector, shared by all its components
    return RHO**0.5 * common + (1 - RHO) ** 0.5 * rng.standard_normal((2, PAIRS, d))


common = variances(correlated)
sizes = np.array(SIZES)
formula = sizes + sizes * (sizes - 1) * RHO**2
slope = np.polyfit(np.log(SIZES[2:]), np.log(common.mean(axis=0)[2:]), 1)[0]
print(f"correlated: variance at d = 1024 is {common[:, -1].mean():.0f}, the formula says {formula[-1]:.0f}")
print(f"slope from d = 16 on: {slope:.2f}")
np.testing.assert_allclose(common.mean(axis=0), formula, rtol=0.25)  # over 3 standard errors, tails included
assert 1.8 < slope < 2.1

q = np.random.default_rng(0).standard_normal((PAIRS, 256))
print(f"key equal to the query, d = 256: mean of q.k is {(q * q).sum(axis=1).mean():.1f}")
assert abs((q * q).sum(axis=1).mean() - 256) < 5  # its standard error is sqrt(2 d / PAIRS), below 0.8

# %%
bands = {"independent, scale 1": plain, "independent, divided by root of d": scaled,
         f"correlation {RHO}, divided by root of d": common / sizes}  # fmt: skip
plots.plot_lines(
    {name: (SIZES, v.mean(axis=0), v.min(axis=0), v.max(axis=0)) for name, v in bands.items()},
    xlabel="size d of a query and a key", ylabel="variance of a score", xscale="log", yscale="log",
    title=f"The variance of q.k grows as d to the power {slopes.mean():.2f}; divided by the root of d it stays at "
    f"{scaled.mean():.2f}, unless components are correlated",
)  # fmt: skip

# %% [markdown]
# ## The backward pass
#
# $\mathrm{d}X$ stands for $\partial L / \partial X$, the gradient of the loss $L$ with respect to the array $X$. Given
# is $\mathrm{d}O$ $(T_q, d_v)$; wanted are $\mathrm{d}Q$, $\mathrm{d}K$ and $\mathrm{d}V$. $\delta_{ij}$ is 1 if $i =
# j$ and 0 otherwise. The steps of the forward pass are undone from the last to the first.
#
# ### Index form
#
# **Values.** $O_{ib} = \sum_j P_{ij} V_{jb}$ depends on $V_{mc}$ in every row $i$:
#
# $$
# \begin{aligned}
# \frac{\partial O_{ib}}{\partial V_{mc}} &= \sum_{j} P_{ij}\, \delta_{jm}\, \delta_{bc} = P_{im}\, \delta_{bc} \\
# \mathrm{d}V_{mc} &= \sum_{i} \sum_{b} \mathrm{d}O_{ib}\, P_{im}\, \delta_{bc} = \sum_{i} P_{im}\, \mathrm{d}O_{ic}
# \end{aligned}
# $$
#
# **Weights.** The same product, with respect to $P_{im}$, which occurs in row $i$ of $O$ only:
#
# $$
# \begin{aligned}
# \frac{\partial O_{ib}}{\partial P_{im}} &= \sum_{j} \delta_{jm}\, V_{jb} = V_{mb} \\
# \mathrm{d}P_{im} &= \sum_{b} \mathrm{d}O_{ib}\, \frac{\partial O_{ib}}{\partial P_{im}}
#   = \sum_{b} \mathrm{d}O_{ib}\, V_{mb}
# \end{aligned}
# $$
#
# **Scores.** Each row of $P$ is a softmax, whose Jacobian is derived in [chapter 3](03-softmax.ipynb):
#
# $$
# \begin{aligned}
# \frac{\partial P_{ij}}{\partial S_{im}} &= P_{ij} \left( \delta_{jm} - P_{im} \right) \\
# \mathrm{d}S_{im} &= \sum_{j} \mathrm{d}P_{ij}\, P_{ij} \left( \delta_{jm} - P_{im} \right)
#   = P_{im} \Big( \mathrm{d}P_{im} - \sum_{j} \mathrm{d}P_{ij}\, P_{ij} \Big)
# \end{aligned}
# $$
#
# **Queries and keys.** $S_{ij} = c \sum_a Q_{ia} K_{ja}$. A query occurs in one row of $S$, a key in one column:
#
# $$
# \begin{aligned}
# \frac{\partial S_{ij}}{\partial Q_{mb}} &= c \sum_{a} \delta_{im}\, \delta_{ab}\, K_{ja} = c\, \delta_{im} K_{jb},
#   & \mathrm{d}Q_{mb} &= \sum_{i} \sum_{j} \mathrm{d}S_{ij}\, c\, \delta_{im} K_{jb}
#   = c \sum_{j} \mathrm{d}S_{mj} K_{jb} \\
# \frac{\partial S_{ij}}{\partial K_{mb}} &= c \sum_{a} Q_{ia}\, \delta_{jm}\, \delta_{ab} = c\, \delta_{jm} Q_{ib},
#   & \mathrm{d}K_{mb} &= \sum_{i} \sum_{j} \mathrm{d}S_{ij}\, c\, \delta_{jm} Q_{ib}
#   = c \sum_{i} \mathrm{d}S_{im} Q_{ib}
# \end{aligned}
# $$
#
# ### Matrix form
#
# Each sum over one index is a matrix product. With $\odot$ for the product entry by entry, and $r$ $(T_q, 1)$ the row
# sums of $\mathrm{d}P \odot P$:
#
# $$
# \mathrm{d}V = P^\top \mathrm{d}O, \qquad \mathrm{d}P = \mathrm{d}O\, V^\top, \qquad
# \mathrm{d}S = P \odot (\mathrm{d}P - r), \qquad
# \mathrm{d}Q = c\, \mathrm{d}S\, K, \qquad \mathrm{d}K = c\, \mathrm{d}S^\top Q .
# $$
#
# The scale $c$ occurs twice, once for each factor of the product that it multiplies. The code computes the matrix form
# and compares it with the last expression of each line of the index form, and with central differences.

# %%
c = d**-0.5
R = rng.standard_normal((Tq, dv))  # the loss is sum(O * R), so dO = R
dO = R
dV = P.T @ dO  # (Tk, dv)
dP = dO @ V.T  # (Tq, Tk)
dS = P * (dP - (dP * P).sum(axis=1, keepdims=True))  # (Tq, Tk)
dQ = c * dS @ K  # (Tq, d)
dK = c * dS.T @ Q  # (Tk, d)

for m in range(Tk):
    for b in range(dv):
        np.testing.assert_allclose(dV[m, b], sum(P[i, m] * dO[i, b] for i in range(Tq)), rtol=1e-12)
    for i in range(Tq):
        np.testing.assert_allclose(dP[i, m], sum(dO[i, b] * V[m, b] for b in range(dv)), rtol=1e-11, atol=1e-15)
        r = sum(sum(dO[i, b] * V[j, b] for b in range(dv)) * P[i, j] for j in range(Tk))
        ds = P[i, m] * (sum(dO[i, b] * V[m, b] for b in range(dv)) - r)
        np.testing.assert_allclose(dS[i, m], ds, rtol=1e-11, atol=1e-15)
for b in range(d):
    for i in range(Tq):
        np.testing.assert_allclose(dQ[i, b], c * sum(dS[i, j] * K[j, b] for j in range(Tk)), rtol=1e-11, atol=1e-15)
    for j in range(Tk):
        np.testing.assert_allclose(dK[j, b], c * sum(dS[i, j] * Q[i, b] for i in range(Tq)), rtol=1e-11, atol=1e-15)


# %%
def loss():
    return np.sum(softmax(Q @ K.T / np.sqrt(d)) @ V * R)


def numeric_gradient(x, h=1e-5):  # central differences, as in chapter 2
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


for name, x, dx in (("Q", Q, dQ), ("K", K, dK), ("V", V, dV)):
    error = np.abs(dx - numeric_gradient(x)).max()
    print(f"d{name}: largest difference from the numeric gradient {error:.1e}")
    assert error < 1e-9

# %% [markdown]
# ## A class, equal to the library's
#
# The same as a module of the protocol of [chapter 2](02-backpropagation.ipynb): `forward` saves what `backward` needs.
# The library's class takes arrays of shape (batch, heads, tokens, size), so the two first axes are added for it.


# %%
class Attention(Module):
    """One head, no mask: Q (Tq, d), K (Tk, d), V (Tk, dv) to (Tq, dv)."""

    def forward(self, Q, K, V):
        scale = Q.shape[-1] ** -0.5
        # 1. scores
        S = Q @ K.T * scale  # (Tq, Tk)
        # 2. weights
        P = softmax(S)  # (Tq, Tk)
        # 3. average
        self.save(Q, K, V, P, scale)
        return P @ V  # (Tq, dv)

    def backward(self, dO):
        Q, K, V, P, scale = self.saved()
        # 3. O = P V
        dV, dP = P.T @ dO, dO @ V.T  # (Tk, dv), (Tq, Tk)
        # 2. P = softmax(S)
        dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))  # (Tq, Tk)
        # 1. S = scale * Q K^T
        return scale * dS @ K, scale * dS.T @ Q, dV  # (Tq, d), (Tk, d), (Tk, dv)


# %%
ours, library = Attention(), ScaledDotProductAttention()
np.testing.assert_allclose(ours(Q, K, V), library(Q[None, None], K[None, None], V[None, None])[0, 0], rtol=1e-12)
np.testing.assert_allclose(P, library.attention_weights[0, 0], rtol=1e-12)
for mine, theirs in zip(ours.backward(R), library.backward(R[None, None])):
    np.testing.assert_allclose(mine, theirs[0, 0], rtol=1e-11, atol=1e-14)

# %%
report = gradcheck(Attention(), Q, K, V)
assert report
report

# %% [markdown]
# ### A planted mistake
#
# A common slip: the scale is applied in forward and forgotten in backward. All shapes fit. The gradients of $Q$ and $K$
# have the right direction and are too long by $\sqrt d$, so a model can still learn, with wrong step sizes. The checker
# names the factor.


# %%
class ScaleForgotten(Attention):
    def backward(self, dO):
        Q, K, V, P, scale = self.saved()
        dV, dP = P.T @ dO, dO @ V.T
        dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))
        return dS @ K, dS.T @ Q, dV  # the mistake: no scale


report = gradcheck(ScaleForgotten(), Q, K, V)
assert not report
assert report["V"].passed and "root of the size 5" in " ".join(report.diagnosis)
report

# %% [markdown]
# ## What large scores do to the gradient
#
# An entry of the Jacobian of the softmax, $P_{ij} (\delta_{jm} - P_{im})$, is $-P_{ij} P_{im}$ off the diagonal and
# $P_{im} (1 - P_{im})$ on it. If one weight of the row is nearly 1, all others are nearly 0, and every entry is nearly
# 0: the softmax is **saturated**. Scores with standard deviation $\sqrt d$ saturate it. How strongly? For random
# queries and keys, 32 of each, two sizes are measured for every query:
#
# - the Frobenius norm of the Jacobian of its row, $\sqrt{\sum_{j} \sum_{m} (\partial P_{ij} / \partial S_{im})^2}$;
# - the length of its row of $\mathrm{d}Q = c\, \mathrm{d}S\, K$, for random $\mathrm{d}P$ with variance 1. This is what
#   the layer before receives.
#
# Both are summarized by the median over queries (the typical query) and by the root mean square (which a sum over
# queries, and so a step of training, is made of). The two need not agree.


# %%
def gradient_sizes(d, scale, seed, n=32, rounds=10):
    """Jacobian norm and length of dQ, for every query of `rounds` random problems with n queries and keys."""
    rng = np.random.default_rng(seed)
    jacobians, lengths = [], []
    for _ in range(rounds):
        Q, K = rng.standard_normal((2, n, d))
        P, dP = softmax(scale * Q @ K.T), rng.standard_normal((n, n))
        J = P[:, :, None] * (np.eye(n) - P[:, None, :])  # (n, n, n): one Jacobian a query
        dS = np.einsum("ij,ijm->im", dP, J)
        jacobians.append(np.linalg.norm(J, axis=(1, 2)))
        lengths.append(np.linalg.norm(scale * dS @ K, axis=1))
    return np.concatenate(jacobians), np.concatenate(lengths)


sizes_of = {}  # (scale name, quantity, summary) -> (seeds, sizes)
for name, scale_of in (("scale 1", lambda d: 1.0), ("scaled", lambda d: d**-0.5)):
    found = [[gradient_sizes(d, scale_of(d), seed) for d in SIZES] for seed in range(SEEDS)]
    for place, quantity in enumerate(("Jacobian", "dQ")):
        sizes_of[name, quantity, "median"] = np.array([[np.median(f[place]) for f in row] for row in found])
        sizes_of[name, quantity, "rms"] = np.array([[np.sqrt(np.mean(f[place] ** 2)) for f in row] for row in found])

for (name, quantity, summary), v in sizes_of.items():
    print(f"{name:8} {quantity:8} {summary:6}  " + "  ".join(f"d={d}: {x:.3g}" for d, x in zip(SIZES, v.mean(axis=0))))

# %%
panels = {}
for quantity, ylabel in (("Jacobian", "Frobenius norm"), ("dQ", "length of a row")):
    lines = {}
    for name in ("scale 1", "scaled"):
        for summary in ("median", "rms"):
            v = np.maximum(sizes_of[name, quantity, summary], 1e-12)  # a logarithmic axis has no zero
            lines[f"{name}, {summary}"] = (SIZES, v.mean(axis=0), v.min(axis=0), v.max(axis=0))
    panels[quantity] = dict(lines=lines, xlabel="size d", ylabel=ylabel, xscale="log", yscale="log")
fall = sizes_of["scale 1", "dQ", "median"][:, -1].mean() / sizes_of["scaled", "dQ", "median"][:, -1].mean()
rise = sizes_of["scale 1", "dQ", "rms"][:, -1].mean() / sizes_of["scaled", "dQ", "rms"][:, -1].mean()
plots.plot_panels(
    panels,
    title=f"Without the scale, at d = 1024, the typical query gets {fall:.1g} of the gradient that it gets with it, "
    f"while the root mean square is {rise:.0f} times larger",
)

# %% [markdown]
# With the scale, all four curves are flat from $d = 64$ on. Without it, the two summaries part. For large $d$ the
# median falls steeply. The root mean square of the Jacobian falls slowly, and that of $\mathrm{d}Q$ even **rises**.
#
# The reason: a row of the softmax is not saturated when its two largest scores are about equal, closer than 1. The
# scores have standard deviation $\sqrt d$, so their gaps are of the order of $\sqrt d$, and such a near tie has a
# probability of the order of $1/\sqrt d$. The mean square of the Jacobian therefore falls only like $d^{-1/2}$. But
# $\mathrm{d}Q$ multiplies by $K$, whose rows have length $\sqrt d$, and without the scale nothing takes that factor
# out: the mean square of $\mathrm{d}Q$ goes like $d^{-1/2} \cdot d = d^{1/2}$, its root like $d^{1/4}$.

# %%
large = [i for i, d in enumerate(SIZES) if d >= 64]
for quantity, expected in (("Jacobian", -0.25), ("dQ", 0.25)):
    v = sizes_of["scale 1", quantity, "rms"][:, large]
    powers = np.polyfit(np.log(np.array(SIZES)[large]), np.log(v).T, 1)[0]  # one a seed
    error = powers.std() / np.sqrt(SEEDS)
    print(f"root mean square of {quantity}, scale 1: d to the power {powers.mean():+.3f} (standard error {error:.3f}), "
          f"expected for large d {expected:+.2f}")  # fmt: skip
    assert abs(powers.mean() - expected) < 0.1  # the sizes are not yet large: the powers still drift

flat = {key: v.mean(axis=0)[large] for key, v in sizes_of.items() if key[0] == "scaled"}
assert all(np.ptp(v) < 0.15 * v.mean() for v in flat.values())  # with the scale: no trend
unscaled, with_scale = (sizes_of[name, "dQ", "median"][:, -1] for name in ("scale 1", "scaled"))
assert (unscaled < 0.1 * with_scale).all()  # in each seed; the ratio is about 0.01
assert (sizes_of["scale 1", "dQ", "rms"][:, -1] > 5 * sizes_of["scaled", "dQ", "rms"][:, -1]).all()

# %% [markdown]
# ## Attention as kernel regression
#
# Given are $n$ pairs $(x_i, y_i)$ of a number and a noisy measurement at it. What is the expected $y$ at a new $x$? If
# the density $p(x, y)$ were known, the answer would be
#
# $$
# m(x) = \mathbb{E}[y \mid x] = \frac{\int y\, p(x, y)\, \mathrm{d}y}{\int p(x, y)\, \mathrm{d}y} .
# $$
#
# Nadaraya (1964) and Watson (1964) put a kernel estimate in its place: a small bump on every pair, $\hat p(x, y) =
# \frac{1}{n} \sum_i G_h(x - x_i)\, G_h(y - y_i)$, where $G_h$ is the normal density with standard deviation $h$, the
# **bandwidth**. (In this derivation $\mathrm{d}y$ is that of the integral.) Since $\int G_h(y - y_i)\, \mathrm{d}y
# = 1$ and $\int y\, G_h(y - y_i)\, \mathrm{d}y = y_i$,
#
# $$
# \hat m(x) = \frac{\sum_i G_h(x - x_i)\, y_i}{\sum_i G_h(x - x_i)}
# = \sum_i \frac{e^{-(x - x_i)^2 / 2h^2}}{\sum_j e^{-(x - x_j)^2 / 2h^2}}\; y_i .
# $$
#
# The right-hand side is a softmax of the scores $-(x - x_i)^2 / 2h^2$, applied to the values $y_i$. Now write the score
# as a dot product. Expand the square:
#
# $$
# -\frac{(x - x_i)^2}{2h^2} = \frac{x\, x_i}{h^2} - \frac{x_i^2}{2h^2} - \frac{x^2}{2h^2} .
# $$
#
# The last term is the same for all keys, and a softmax does not change when all its scores are shifted. The other two
# are a dot product of vectors with two components:
#
# $$
# \tilde q = \frac{1}{h^2} \left( x,\; 1 \right), \qquad \tilde k_i = \left( x_i,\; -\tfrac{1}{2} x_i^2 \right) .
# $$
#
# So the estimator of Nadaraya and Watson **is** dot-product attention with these queries and keys and scale 1. The
# second component acts as a bias of the key.


# %%
def truth(x):
    return np.sin(2 * x) + x / 2


def noisy_curve(n, seed, noise=0.3):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, n)
    return x, truth(x) + noise * rng.standard_normal(n)


def nadaraya_watson(x, x_i, y_i, h):
    kernel = np.exp(-((x[:, None] - x_i) ** 2) / (2 * h**2))  # (points, n)
    return (kernel @ y_i) / kernel.sum(axis=1)


def by_attention(x, x_i, y_i, h):
    query = np.stack([x, np.ones_like(x)], axis=-1) / h**2  # (points, 2)
    key = np.stack([x_i, -(x_i**2) / 2], axis=-1)  # (n, 2)
    attention = ScaledDotProductAttention(scale=1.0)
    return attention(query[None, None], key[None, None], y_i[None, None, :, None])[0, 0, :, 0]


x_i, y_i = noisy_curve(200, seed=0)
grid = np.linspace(-2.8, 2.8, 120)
for h in (0.1, 0.25, 1.0):
    estimate = nadaraya_watson(grid, x_i, y_i, h)
    np.testing.assert_allclose(by_attention(grid, x_i, y_i, h), estimate, rtol=1e-9, atol=1e-11)

# %% [markdown]
# A second way needs no bias: keys and queries of **equal length**. Put $x$ on the unit circle, $u(x) = (\cos\theta,
# \sin\theta)$ with $\theta = x/2$. For two vectors of length 1, $\lVert u - u' \rVert^2 = 2 - 2\, u \cdot u'$, hence
#
# $$
# e^{-\lVert u - u' \rVert^2 / 2h^2} = e^{-1/h^2}\, e^{u \cdot u' / h^2} ,
# $$
#
# and the constant factor cancels. Attention with scale $1/h^2$ is the Gaussian kernel in the straight-line distance
# between the points of the circle: the **bandwidth squared is the temperature** of the softmax.


# %%
def circle(x):
    return np.stack([np.cos(x / 2), np.sin(x / 2)], axis=-1)  # (..., 2)


h = 0.1  # on the circle, where distances are half as large
distance2 = ((circle(grid)[:, None] - circle(x_i)) ** 2).sum(axis=-1)  # (points, n)
kernel = np.exp(-distance2 / (2 * h**2))
normalized = ScaledDotProductAttention(scale=1 / h**2)
estimate = normalized(circle(grid)[None, None], circle(x_i)[None, None], y_i[None, None, :, None])[0, 0, :, 0]
np.testing.assert_allclose(estimate, (kernel @ y_i) / kernel.sum(axis=1), rtol=1e-9, atol=1e-11)

# %%
errors = {h: np.mean((by_attention(grid, x_i, y_i, h) - truth(grid)) ** 2) ** 0.5 for h in (0.03, 0.1, 0.3, 1.0)}
panels = {}
for h, error in errors.items():
    lines = {
        "truth": (grid, truth(grid)),
        "Nadaraya-Watson": (grid, nadaraya_watson(grid, x_i, y_i, h)),
        "attention": (grid, by_attention(grid, x_i, y_i, h)),
    }
    panels[f"h = {h}, temperature {h * h:.4g}, error {error:.2f}"] = dict(
        lines=lines, points={"measured": (x_i, y_i)}, xlabel="x", ylabel="y"
    )
plots.plot_panels(
    panels, share_y=True,
    title=f"Attention and Nadaraya-Watson give the same curve; the error is {errors[0.03]:.2f}, {errors[0.1]:.2f}, "
    f"{errors[0.3]:.2f} and {errors[1.0]:.2f} as the temperature rises",
)  # fmt: skip

# %% [markdown]
# The bandwidth trades two errors. A small one follows the noise, since few points take part in each average. A large
# one averages over places where the curve differs. In attention no one chooses the bandwidth: it is in the lengths of
# the queries and keys, and training sets it.

# %%
BANDWIDTHS = [0.02, 0.05, 0.1, 0.2, 0.4, 0.8]


def squared_errors(n, bandwidths, seeds=10):
    """Mean squared error on the grid: one row a seed."""
    curves = [noisy_curve(n, seed) for seed in range(seeds)]
    return np.array([[np.mean((by_attention(grid, *c, h) - truth(grid)) ** 2) for h in bandwidths] for c in curves])


errors = squared_errors(200, BANDWIDTHS)
best = BANDWIDTHS[errors.mean(axis=0).argmin()]
print("mean squared error", "  ".join(f"h={h}: {e:.4f}" for h, e in zip(BANDWIDTHS, errors.mean(axis=0))))
middle = errors[:, BANDWIDTHS.index(0.2)]
assert (errors[:, 0] > 1.5 * middle).all() and (errors[:, -1] > 5 * middle).all()  # in each of 10 seeds
plots.plot_lines(
    {"200 points, 10 seeds": (BANDWIDTHS, errors.mean(axis=0), errors.min(axis=0), errors.max(axis=0))},
    xlabel="bandwidth h, the root of the temperature", ylabel="mean squared error", xscale="log", yscale="log",
    title=f"Both too sharp and too soft attention miss the curve; the best of these bandwidths is {best}",
)  # fmt: skip

# %% [markdown]
# ### A learned kernel need not be symmetric
#
# In a Transformer query and key are two different linear maps of the tokens: $q = x W_q$, $k = x' W_k$. The kernel is
#
# $$
# \kappa(x, x') = \exp\!\left( \frac{x\, W_q W_k^\top x'^\top}{\sqrt d} \right) ,
# $$
#
# and $\kappa(x, x') = \kappa(x', x)$ for all $x, x'$ only if $W_q W_k^\top$ is a symmetric matrix. A distance is
# symmetric, so a learned attention is in general no function of a distance. That can be of use for language: a verb may
# need its subject more than the subject needs the verb. The matrix of weights $P$ is not symmetric even for a
# symmetric kernel, since each row is divided by its own sum.

# %%
rng = np.random.default_rng(1)
x, W_q, W_k = rng.standard_normal((6, 8)), rng.standard_normal((8, 4)), rng.standard_normal((8, 4))


def kernel(x, W_q, W_k):
    return np.exp((x @ W_q) @ (x @ W_k).T / np.sqrt(W_q.shape[1]))


kappa, same = kernel(x, W_q, W_k), kernel(x, W_q, W_q)
print(f"W_q, W_k: kappa(0, 1) = {kappa[0, 1]:.3g}, kappa(1, 0) = {kappa[1, 0]:.3g}")
assert not np.allclose(kappa, kappa.T)
np.testing.assert_allclose(same, same.T, rtol=1e-10)  # W_k = W_q: symmetric
weights = same / same.sum(axis=1, keepdims=True)
assert not np.allclose(weights, weights.T)

# %% [markdown]
# ## What attention costs
#
# Let there be $n$ queries, $n$ keys and $d_v = d$. An entry of $S$ takes $d$ multiplications, and there are $n^2$
# entries; an entry of $O$ takes $n$, and there are $n d$. Self-attention in a model also computes $Q$, $K$, $V$ from
# the tokens and projects $O$: four products of an $(n, d)$ and a $(d, d)$ matrix, $n d^2$ multiplications each.
#
# $$
# \underbrace{n^2 d}_{Q K^\top} + \underbrace{n^2 d}_{P V} + \underbrace{4 n d^2}_{\text{projections}}
# = 2 n^2 d + 4 n d^2
# $$
#
# The two parts are equal at $n = 2d$: for fewer tokens the projections cost more, for more tokens the attention does.
# The product below counts its multiplications.

# %%
counted = 0


def product(A, B):
    """A @ B by the definition, counting multiplications."""
    global counted
    C = np.zeros((len(A), B.shape[1]))
    for i, j, k in np.ndindex(len(A), B.shape[1], len(B)):
        C[i, j] += A[i, k] * B[k, j]
        counted += 1
    return C


def self_attention(x, W_q, W_k, W_v, W_o):
    Q, K, V = product(x, W_q), product(x, W_k), product(x, W_v)
    return product(product(softmax(product(Q, K.T) / np.sqrt(W_q.shape[1])), V), W_o)


for n, d in ((4, 4), (8, 4), (16, 4)):
    counted = 0
    self_attention(rng.standard_normal((n, d)), *rng.standard_normal((4, d, d)))
    print(f"n = {n:2d}, d = {d}: {counted} multiplications, {2 * n * n * d} of them in the attention")
    assert counted == 2 * n**2 * d + 4 * n * d**2

# %% [markdown]
# Memory: the scores are one array of $n^2$ numbers for each head; the softmax may add copies, and so may dropout, which
# sets some weights to zero in training ([chapter 5](05-masks.ipynb)). The library writes the softmax into the scores,
# so beside $S$ it makes the scaled queries and the output, $n d$ numbers each: $n^2 + 2 n d$ in all. `tracemalloc`
# counts what NumPy allocates. The time is the shortest of several runs of the library's forward on one thread (with
# more, the scheduling would be measured as well): what else the machine does can only add to it. It includes the
# softmax, and it depends on the machine, so the asserted interval for its slope is wide.

# %%
LENGTHS = [128, 256, 512, 1024] + ([] if FAST else [2048])
d = 64


def cost(n, d, repeats=15):
    """Least seconds, seconds of the two products alone, and peak bytes of one forward, in float32."""
    rng = np.random.default_rng(n)
    Q, K, V = rng.standard_normal((3, 1, 1, n, d)).astype(np.float32)
    attention, whole, products = ScaledDotProductAttention(), [], []
    with no_grad():
        for _ in range(repeats):
            start = time.perf_counter()
            attention(Q, K, V)
            whole.append(time.perf_counter() - start)
            start = time.perf_counter()
            (Q @ K.swapaxes(-1, -2)) @ V
            products.append(time.perf_counter() - start)
        attention.clear()
        tracemalloc.start()
        attention(Q, K, V)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return min(whole), min(products), peak


with threadpool_limits(1, "blas"):
    costs = np.array([cost(n, d) for n in LENGTHS])
seconds, product_seconds, peaks = costs.T
n = np.array(LENGTHS)
time_slope, formula_slope = (np.polyfit(np.log(n), np.log(y), 1)[0] for y in (seconds, 2.0 * n**2 * d))
predicted = 4 * (n**2 + 2 * n * d)  # bytes: 4 for a float32
for row in zip(LENGTHS, seconds * 1e3, 100 * (1 - product_seconds / seconds), peaks / 2**20, predicted / 2**20):
    print("n = {:4d}: {:7.2f} ms, {:3.0f} % outside the two products, {:6.2f} MiB, predicted {:6.2f}".format(*row))
print(f"slope of log time against log n: {time_slope:.2f}, the formula's {formula_slope:.2f}")
assert 1.4 < time_slope < 2.8
np.testing.assert_allclose(peaks, predicted, rtol=0.05, atol=40_000)  # and NumPy's own buffers of 8192 numbers

# %%
anchor = seconds[-1] * (n / n[-1]) ** 2
plots.plot_panels(
    {
        "Time of a forward pass": dict(
            lines={"measured": (n, seconds * 1e3), "proportional to n squared": (n, anchor * 1e3)},
            xlabel="tokens n", ylabel="milliseconds", xscale="log", yscale="log",
        ),
        "Largest memory during it": dict(
            lines={"measured": (n, peaks / 2**20), "4 (n squared + 2 n d) bytes": (n, predicted / 2**20)},
            xlabel="tokens n", ylabel="MiB", xscale="log", yscale="log",
        ),
    },
    title=f"Time grows as n to the power {time_slope:.1f}; memory is within "
    f"{100 * np.abs(peaks / predicted - 1).max():.0f} % of the formula",
)  # fmt: skip

# %% [markdown]
# ## Claims of the texts, checked
#
# ### The dot product of random vectors has variance d, and dividing by the root makes it one
#
# Proven above, and measured once more with new pairs at the largest size, the mean as well.

# %%
rng = np.random.default_rng(7)
q, k = rng.standard_normal((2, PAIRS, 1024))
dots = (q * k).sum(axis=1)
error = np.sqrt(1024 / PAIRS)  # standard error of the mean
print(f"d = 1024: mean {dots.mean():+.2f} (standard error {error:.2f}), variance {dots.var():.0f}, ", end="")
print(f"divided by the root of d: variance {(dots / 32).var():.3f}")
assert abs(dots.mean()) < 4 * error
assert abs((dots / 32).var() - 1) < 5 * np.sqrt(2 / PAIRS)

# %% [markdown]
# **Holds if** the components are independent with mean 0 and variance 1. In general the variance is
# $\mathrm{tr}(\Sigma_q \Sigma_k)$; for components with correlation 0.5 it is about a quarter of $d^2$, and the division
# leaves a variance of about $d / 4$.
#
# ### Without the scale the softmax gradient becomes extremely small
#
# The measurement is the plot under "What large scores do to the gradient".

# %%
at = SIZES.index(1024)
for quantity in ("Jacobian", "dQ"):
    for summary in ("median", "rms"):
        without, with_scale = (sizes_of[name, quantity, summary][:, at].mean() for name in ("scale 1", "scaled"))
        print(f"{quantity:8} {summary:6} at d = 1024: without {without:.2e}, with {with_scale:.2e}")
assert (sizes_of["scale 1", "Jacobian", "median"][:, at] < 0.01 * sizes_of["scaled", "Jacobian", "median"][:, at]).all()

# %% [markdown]
# **Holds if** it is said of the typical query: at $d = 1024$ the median norm of the Jacobian falls by a factor of more
# than 100. It does not hold for the sum over queries: the root mean square of $\mathrm{d}Q$ is larger without the scale
# than with it, because the few queries with a near tie get a very large gradient.
#
# ### Without the scale training stalls
#
# Small gradients need not stop training, above all with Adam (Kingma and Ba 2015), an optimizer that divides each
# component of the gradient by a running estimate of its size. So a model is trained.
# It must learn to look up. There are 32 symbols; a symbol has one random vector of 64 numbers when it is a query and
# another when it is a key. A dictionary holds 16 of the symbols, each with a random label out of 8. The query is one of
# the 16, and the answer is its label. $W_q$ and $W_k$ start with independent entries of variance $1/64$, so that
# queries and keys have components of variance 1. Guessing costs $\ln 8 = 2.08$ nats. Three variants, each with several
# learning rates, of which the best counts (the quick version tries one):
#
# - the scale $1/\sqrt{64}$;
# - scale 1;
# - scale 1 with $W_q$ and $W_k$ smaller by the factor $64^{-1/4}$ at the start, so that the scores at the start are
#   exactly those of the first variant.

# %%
SYMBOLS, ENTRIES, LABELS, WIDTH, BATCH = 32, 16, 8, 64, 32


class Lookup(Module):
    def __init__(self, scale, start, rng):
        super().__init__()
        self.query, self.key = (Linear(WIDTH, WIDTH, bias=False, rng=rng) for _ in range(2))
        for linear in (self.query, self.key):
            linear.W.data[...] = start * rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5
        self.attention = ScaledDotProductAttention(scale=scale)
        self.output = Linear(LABELS, LABELS, rng=rng)

    def forward(self, x_query, x_key, values):  # (B, 1, D), (B, n, D), (B, n, labels)
        q, k = self.query(x_query)[:, None], self.key(x_key)[:, None]  # one head
        return self.output(self.attention(q, k, values[:, None])[:, 0, 0])  # (B, labels)

    def backward(self, dy):
        dq, dk, _ = self.attention.backward(self.output.backward(dy)[:, None, None])
        self.query.backward(dq[:, 0])
        self.key.backward(dk[:, 0])


def batch(vectors, rng):
    symbols = np.argsort(rng.random((BATCH, SYMBOLS)), axis=1)[:, :ENTRIES]  # no symbol twice
    labels = rng.integers(LABELS, size=(BATCH, ENTRIES))
    rows, asked = np.arange(BATCH), rng.integers(ENTRIES, size=BATCH)
    one_hot = np.eye(LABELS, dtype=np.float32)[labels]
    return (vectors[0][symbols[rows, asked]][:, None], vectors[1][symbols], one_hot), labels[rows, asked]


# %%
TRAIN_STEPS, TRAIN_SEEDS = (300, 3) if FAST else (600, 5)
RATES = {SGD: [0.3], Adam: [3e-3]} if FAST else {SGD: [0.1, 0.3, 1.0], Adam: [1e-3, 3e-3, 1e-2]}
VARIANTS = {"scaled": (WIDTH**-0.5, 1.0), "scale 1": (1.0, 1.0), "scale 1, small start": (1.0, WIDTH**-0.25)}


def train(scale, start, optimizer, lr, seed):
    """The loss at each step."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((2, SYMBOLS, WIDTH)).astype(np.float32)
    model, loss, losses = Lookup(scale, start, rng), CrossEntropyLoss(), []
    step = optimizer(model.parameters(), lr=lr)
    for _ in range(TRAIN_STEPS):
        inputs, labels = batch(vectors, rng)
        losses.append(float(loss(model(*inputs), labels)))
        model.zero_grad()
        model.backward(loss.backward())
        step.step()
    return losses


curves = {}  # (variant, optimizer): (seeds, steps), at the rate with the lowest mean of the last 50 losses
with threadpool_limits(1, "blas"):  # small matrices are faster on one thread
    for name, (scale, start) in VARIANTS.items():
        for optimizer, rates in RATES.items():
            runs = np.array([[train(scale, start, optimizer, lr, seed) for seed in range(TRAIN_SEEDS)] for lr in rates])
            best = runs[:, :, -50:].mean(axis=(1, 2)).argmin()
            curves[name, optimizer.__name__] = runs[best]

# %%
final = {key: v[:, -50:].mean(axis=1) for key, v in curves.items()}  # one number a seed
for (name, optimizer), v in final.items():
    print(f"{optimizer:4} {name:20} final loss {v.mean():.3f} nats, seeds from {v.min():.3f} to {v.max():.3f}")
for optimizer in ("SGD", "Adam"):
    assert (final["scale 1", optimizer] > final["scaled", optimizer] + 0.3).all()  # same seed, in each of them
assert (final["scale 1, small start", "SGD"] < final["scale 1", "SGD"] - 0.5).all()

window = np.ones(25) / 25  # the mean of 25 steps
panels = {}
for optimizer in ("SGD", "Adam"):
    smooth = {name: np.array([np.convolve(c, window, "valid") for c in curves[name, optimizer]]) for name in VARIANTS}
    panels[optimizer] = dict(
        lines={name: (np.arange(25, TRAIN_STEPS + 1), *(f(v, axis=0) for f in (np.mean, np.min, np.max)))
               for name, v in smooth.items()},
        xlabel="step", ylabel="cross-entropy (nats)",
    )  # fmt: skip
plots.plot_panels(
    panels, share_y=True,
    title=f"Without the scale the lookup is learned late: final loss {final['scale 1', 'SGD'].mean():.2f} against "
    f"{final['scaled', 'SGD'].mean():.2f} nats with SGD, {final['scale 1', 'Adam'].mean():.2f} against "
    f"{final['scaled', 'Adam'].mean():.2f} with Adam",
)  # fmt: skip

# %% [markdown]
# **Holds if** queries and keys start with components of variance 1. Training without the scale does not stop, but it is
# far behind in every seed, with both optimizers, and at the best of the learning rates tried. The third variant tells
# the cause: with SGD smaller weights at the start repair it without any scale. What stalls is the saturated start, not
# the missing factor. With Adam they repair it only in part. (A likely reason, not tested here: a step of Adam has the
# same length for every weight and so changes unscaled scores more than scaled ones.)
#
# ### Time is n squared times d for the products, plus n squared for the softmax
#
# Counted above: $2 n^2 d$ multiplications, exactly; the softmax takes one exponential and one division for each of the
# $n^2$ scores.

# %%
share = 100 * (1 - product_seconds / seconds)
print(f"slope of log time against log n: {time_slope:.2f}; outside the products {share[1:].mean():.0f} % of the time")
print(f"multiplications of the products for each score: {2 * d}, exponentials and divisions: 2")
assert 1.4 < time_slope < 2.8

# %% [markdown]
# **Holds**, as a count and as the measured slope. The two terms are closer in time than in count: one exponential and
# the passes over memory cost as much as dozens of multiplications in a matrix product, so at $d = 64$ the softmax takes
# a large part of the time.
#
# ### Memory is n squared for the attention matrix
#
# Measured above: the largest allocation of a forward pass is that of $n^2 + 2nd$ numbers within 5 %.

# %%
print(f"n = {LENGTHS[-1]}: {peaks[-1] / 2**20:.1f} MiB, the matrix of weights alone {4 * n[-1] ** 2 / 2**20:.1f} MiB")
assert peaks[-1] > 4 * n[-1] ** 2

# %% [markdown]
# **Holds if** the matrix is formed, as here and in the texts. It need not be: the output can be summed up key by key
# with $O(n d)$ memory (exercise 4.4; Rabe and Staats 2021, Dao et al. 2022). The time stays quadratic.
#
# ### Attention is kernel regression with a kernel that depends on the data
#
# Complete the square, with $\lVert \cdot \rVert$ the Euclidean norm. The last factor is the same for all keys and
# cancels:
#
# $$
# e^{q \cdot k / \sqrt d} = e^{-\lVert q - k \rVert^2 / 2 \sqrt d}\; e^{\lVert k \rVert^2 / 2 \sqrt d}\;
# e^{\lVert q \rVert^2 / 2 \sqrt d} .
# $$
#
# So attention is the estimator of Nadaraya and Watson with a Gaussian kernel of bandwidth $d^{1/4}$, in which each key
# has a prior weight that grows with its length. Is it a good estimate of the function? With more data a regression
# estimate should approach the truth. That needs a bandwidth that shrinks with $n$ (for one dimension like $n^{-1/5}$).
# The bandwidth of attention is fixed by the weights.

# %%
rng = np.random.default_rng(3)
Q, K, V = rng.standard_normal((5, 8)), rng.standard_normal((7, 8)), rng.standard_normal((7, 2))
prior = np.exp((K**2).sum(axis=1) / (2 * 8**0.5))  # (Tk,)
gaussian = np.exp(-((Q[:, None] - K) ** 2).sum(axis=-1) / (2 * 8**0.5)) * prior  # (Tq, Tk)
np.testing.assert_allclose(Attention()(Q, K, V), gaussian @ V / gaussian.sum(axis=1, keepdims=True), rtol=1e-12)

few, many = 200, 2000 if FAST else 5000
result = {n: squared_errors(n, [0.4, 0.7 * n**-0.2], seeds=5) for n in (few, many)}
for n, v in result.items():
    print(f"{n} points: squared error {v[:, 0].mean():.4f} at h = 0.4, {v[:, 1].mean():.4f} at h = 0.7 n^(-1/5)")
assert (result[many][:, 0] > 0.5 * result[few][:, 0]).all()  # fixed bandwidth: more data hardly help
assert (result[many][:, 1] < 0.5 * result[few][:, 1]).all()  # shrinking bandwidth: the error falls

# %% [markdown]
# **Holds** as an identity: for keys of equal length the kernel is Gaussian, otherwise each key has the extra weight
# $e^{\lVert k \rVert^2 / 2\sqrt d}$. "Non-parametric estimate" **holds if** one means the form for given weights. With
# a fixed temperature the estimate keeps its bias however much context there is, and $W_q, W_k, W_v$ are parameters.
#
# ### Attention computes weighted averages of the values
#
# Proven and asserted at the start of the chapter: weights positive, sum one, output inside the hull. Again with the
# library's class, larger arrays and scores that are spread widely:

# %%
rng = np.random.default_rng(4)
Q, K, V = (rng.standard_normal((2, 4, 50, 16)) * size for size in (5, 5, 1))
O = library(Q, K, V)
weights = library.attention_weights
assert (weights >= 0).all()
np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)
assert (O <= V.max(axis=2, keepdims=True) + 1e-12).all() and (O >= V.min(axis=2, keepdims=True) - 1e-12).all()
print(f"rows sum to 1 within {np.abs(weights.sum(axis=-1) - 1).max():.1e}")

# %% [markdown]
# **Holds.** In training with dropout of the weights it does not: a row then no longer sums to one
# ([chapter 5](05-masks.ipynb) measures it).
#
# ### Any two tokens interact within one layer, where a recurrent network takes n steps
#
# How much does the output at the last token change with the first token? For self-attention with $q_i = x_i W_q$, $k_j
# = x_j W_k$, $v_j = x_j W_v$ and $j \neq i$, $x_j$ enters $o_i = \sum_m P_{im} v_m$ through $v_j$ and through the score
# $S_{ij}$. With $\partial P_{im} / \partial S_{ij} = P_{im} (\delta_{mj} - P_{ij})$:
#
# $$
# \begin{aligned}
# \frac{\partial o_{ib}}{\partial x_{ja}}
# &= P_{ij} W_{v,ab} + \frac{\partial S_{ij}}{\partial x_{ja}} \sum_{m} P_{im} (\delta_{mj} - P_{ij})\, v_{mb} \\
# &= P_{ij} \Big( W_{v,ab} + \frac{(W_k q_i)_a\, (v_{jb} - o_{ib})}{\sqrt d} \Big) .
# \end{aligned}
# $$
#
# The second line uses $\partial S_{ij} / \partial x_{ja} = (W_k q_i)_a / \sqrt d$, and that the sum over $m$ is
# $P_{ij} v_{jb} - P_{ij} o_{ib}$. The block is $P_{ij}$ times a matrix that does not depend on the distance. The weight
# is about $1/n$ if the scores do not single out a key. A recurrent network $h_t = \tanh(h_{t-1} W + x_t U)$ reaches
# the last token through a product of $n - 1$ Jacobians, which in general shrinks or grows exponentially. Here the
# entries of $W$ are random with standard deviation $g / \sqrt{32}$ for a state of 32 numbers; $g$ is called the
# **gain**.

# %%
WIDTH_X = 32


def attention_block(n, rng, check=False):
    """d o_last / d x_first (D, D) of self-attention over n random tokens."""
    x, (W_q, W_k, W_v) = rng.standard_normal((n, WIDTH_X)), rng.standard_normal((3, WIDTH_X, WIDTH_X)) / WIDTH_X**0.5
    q, K, V = x[-1] @ W_q, x @ W_k, x @ W_v
    p = softmax(K @ q / WIDTH_X**0.5)
    o = p @ V
    block = p[0] * (W_v + np.outer(W_k @ q, V[0] - o) / WIDTH_X**0.5)
    if check:  # column b of the block is the gradient of output b
        attention = Attention()
        for b, dO in enumerate(np.eye(WIDTH_X)):
            attention((x @ W_q)[-1:], K, V)
            _, dK, dV = attention.backward(dO[None])
            np.testing.assert_allclose(block[:, b], dK[0] @ W_k.T + dV[0] @ W_v.T, rtol=1e-9, atol=1e-12)
    return block


def recurrent_blocks(n, gain, rng):
    """Norm of d h_t / d x_0 for t = 0, ..., n - 1."""
    W, U = gain * rng.standard_normal((WIDTH_X, WIDTH_X)), rng.standard_normal((WIDTH_X, WIDTH_X))
    W, U, h, norms = W / WIDTH_X**0.5, U / WIDTH_X**0.5, np.zeros(WIDTH_X), []
    for t in range(n):
        h = np.tanh(h @ W + rng.standard_normal(WIDTH_X) @ U)
        block = (U if t == 0 else block @ W) * (1 - h**2)  # (D, D)
        norms.append(np.linalg.norm(block))
    return np.array(norms)


attention_block(9, np.random.default_rng(0), check=True)
TOKENS, TRIALS = [2, 4, 8, 16, 32, 64, 128], 20
direct = np.array([[np.linalg.norm(attention_block(n, np.random.default_rng(seed))) for n in TOKENS]
                   for seed in range(TRIALS)])  # fmt: skip
last = np.array(TOKENS) - 1
recurrent = {gain: np.array([recurrent_blocks(128, gain, np.random.default_rng(seed))[last] for seed in range(TRIALS)])
             for gain in (1, 4)}  # fmt: skip

# %%
power = np.polyfit(np.log(TOKENS), np.log(np.median(direct, axis=0)), 1)[0]
rates = {gain: np.log10(v[:, -1] / v[:, 2]) / (TOKENS[-1] - TOKENS[2]) for gain, v in recurrent.items()}  # a seed each
print(f"attention: the block shrinks like n to the power {power:.2f}; times n at n = 128, median "
      f"{128 * np.median(direct[:, -1]):.1f}")  # fmt: skip
for gain, rate in rates.items():
    print(f"recurrent, gain {gain}: factor {10 ** np.median(rate):.2f} a step, seeds from {10 ** rate.min():.2f} to "
          f"{10 ** rate.max():.2f}")  # fmt: skip
assert -1.4 < power < -0.6
for gain, sign in ((1, -1), (4, 1)):  # decay and growth, on average over 20 seeds by more than 5 standard errors
    assert sign * rates[gain].mean() > 5 * rates[gain].std() / np.sqrt(TRIALS)
assert (direct[:, -1] > 1e6 * recurrent[1][:, -1]).all()

quantiles = {"attention": direct, "recurrent, gain 1": recurrent[1], "recurrent, gain 4": recurrent[4]}
plots.plot_lines(
    {name: (TOKENS, np.median(v, axis=0), v.min(axis=0), v.max(axis=0)) for name, v in quantiles.items()},
    xlabel="tokens n", ylabel="norm of d(last output) / d(first token)", xscale="log", yscale="log",
    title=f"Across 128 tokens attention keeps a derivative of about {np.median(direct[:, -1]):.2g}; "
    f"a recurrent network has {np.median(recurrent[1][:, -1]):.0e} or {np.median(recurrent[4][:, -1]):.0e}",
)  # fmt: skip

# %% [markdown]
# **Holds**, for the number of steps: one layer, whatever $n$. The strength of the connection is the weight $P_{ij}$,
# which falls like $1/n$ while the scores are not trained. The exponential decay or growth of the recurrent network is
# that of random weights of the given gain; gated networks and orthogonal weights were made to soften it, and they take
# $n$ steps all the same.
#
# ### Forgetting the scale is a common mistake
#
# How would one notice? If it is forgotten in forward **and** in backward, the two agree with each other:


# %%
class Unscaled(Attention):
    def forward(self, Q, K, V):
        P = softmax(Q @ K.T)  # the mistake
        self.save(Q, K, V, P, 1.0)
        return P @ V


rng = np.random.default_rng(5)
Q, K, V = rng.standard_normal((3, 5)), rng.standard_normal((4, 5)), rng.standard_normal((4, 2))
assert gradcheck(Unscaled(), Q, K, V)  # the check passes
difference = np.abs(Unscaled()(Q, K, V) - library(Q[None, None], K[None, None], V[None, None])[0, 0]).max()
print(f"gradcheck passes; the output differs from the library's by up to {difference:.2f}")
assert difference > 0.05

# %% [markdown]
# **Holds**, as far as it is a mistake; how common it is was not measured. And a gradient check does not see it. It
# shows that backward belongs to forward, never that forward is the intended function. Only a comparison of values does,
# with another implementation or with a hand calculation. (Forgotten in backward alone, it is seen: the planted mistake
# above.)
#
# ## Exercises
#
# ### Exercise 4.1: The right scale for other variances
#
# On paper. The components of a query are independent with mean 0 and variance $\alpha^2$, those of a key with variance
# $\beta^2$, and queries and keys are independent of each other. Which scale gives the scores variance 1? What is it if
# the key **equals** the query and one wants the mean score to be 1?
#
# <details><summary>Solution of exercise 4.1</summary>
#
# Each product has variance $\mathbb{E}[q_a^2]\, \mathbb{E}[k_a^2] = \alpha^2 \beta^2$, the sum of $d$ of them
# $d\, \alpha^2 \beta^2$, so the scale is $1 / (\alpha \beta \sqrt d)$. If the key equals the query, the mean of the dot
# product is $\sum_a \mathbb{E}[q_a^2] = d\, \alpha^2$, and the scale is $1 / (d\, \alpha^2)$: a query that was trained
# to match its key gets a score that grows with $d$, also after the division by $\sqrt d$.
#
# </details>
#
# ### Exercise 4.2: A shift of all keys
#
# On paper, show that adding the same vector $t$ to all keys does not change the output. Conclude that the rows of
# $\mathrm{d}K$ sum to zero. Then write `key_gradient_sum(Q, K, V, dO)`, which returns $\sum_j \mathrm{d}K_j$, an array
# of $d$ numbers, with the class `Attention`. For random arrays (say 3 queries, 4 keys, $d = 5$, $d_v = 2$) each of
# these numbers must be zero within $10^{-12}$.
#
# <details><summary>Solution of exercise 4.2</summary>
#
# The score becomes $S_{ij} + c\, q_i \cdot t$. The added number is the same for all $j$, and the softmax of a row does
# not change when all its scores are shifted. Hence $L(K + \mathbf{1} t^\top)$ is constant in $t$, where $\mathbf{1}$ is
# a column of ones, and its gradient with respect to $t$, which by the chain rule is $\sum_j \mathrm{d}K_j$, is zero. In
# formulas: $\sum_j \mathrm{d}S_{ij} = \sum_j P_{ij} (\mathrm{d}P_{ij} - r_i) = r_i - r_i = 0$, and so $\sum_j
# \mathrm{d}K_j = c \sum_i q_i \sum_j \mathrm{d}S_{ij} = 0$. One consequence: a bias in the layer that makes the keys
# never gets a gradient. The same is not true of queries.
#
# </details>

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 4.2
def key_gradient_sum(Q, K, V, dO):
    attention = Attention()
    attention(Q, K, V)
    return attention.backward(dO)[1].sum(axis=0)


dO = np.random.default_rng(6).standard_normal((3, 2))
assert np.abs(key_gradient_sum(Q, K, V, dO)).max() < 1e-12
np.testing.assert_allclose(Attention()(Q, K + np.arange(5), V), Attention()(Q, K, V), rtol=1e-11)

# %% [markdown]
# ### Exercise 4.3: Regression in the plane
#
# Write `plane_regression(x, x_i, y_i, h)`: the estimate of Nadaraya and Watson with a Gaussian kernel of bandwidth $h$
# for points in $p$ dimensions, `x` $(m, p)$, `x_i` $(n, p)$, `y_i` $(n,)$, computed by the library's
# `ScaledDotProductAttention` with scale 1; it returns an array $(m,)$. Check: for 50 random points in two dimensions
# and $h = 0.5$ it equals the direct formula to $10^{-9}$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 4.3
def plane_regression(x, x_i, y_i, h):
    query = np.concatenate([x, np.ones((len(x), 1))], axis=1) / h**2  # (m, p + 1)
    key = np.concatenate([x_i, -(x_i**2).sum(axis=1, keepdims=True) / 2], axis=1)  # (n, p + 1)
    attention = ScaledDotProductAttention(scale=1.0)
    return attention(query[None, None], key[None, None], y_i[None, None, :, None])[0, 0, :, 0]


rng = np.random.default_rng(8)
x_i, x, y_i = rng.standard_normal((50, 2)), rng.standard_normal((9, 2)), rng.standard_normal(50)
kernel_plane = np.exp(-((x[:, None] - x_i) ** 2).sum(axis=-1) / (2 * 0.5**2))
expected = kernel_plane @ y_i / kernel_plane.sum(axis=1)
np.testing.assert_allclose(plane_regression(x, x_i, y_i, 0.5), expected, rtol=1e-9, atol=1e-11)

# %% [markdown]
# ### Exercise 4.4: Attention without the matrix
#
# Write `streaming_attention(q, K, V)` for **one** query `q` $(d,)$, which reads one key and one value at a time and
# keeps three things only: the largest score so far, the sum of the weights so far, and the weighted sum of the values
# so far. When a new largest score comes, what was summed before must be multiplied by a factor; which? It returns an
# array $(d_v,)$. Check: equal to `Attention` to $10^{-12}$ for random arrays, also with scores of several thousand,
# whose exponentials would overflow.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 4.4
def streaming_attention(q, K, V):
    largest, total, summed = -np.inf, 0.0, np.zeros(V.shape[1])
    for k, v in zip(K, V):
        score = q @ k / np.sqrt(len(q))
        new = max(largest, score)
        shrink = np.exp(largest - new)  # the old sums were taken relative to the old largest score
        weight = np.exp(score - new)
        total = total * shrink + weight
        summed = summed * shrink + weight * v
        largest = new
    return summed / total


for size in (1, 100):
    q, K, V = size * rng.standard_normal(16), size * rng.standard_normal((60, 16)), rng.standard_normal((60, 3))
    print(f"largest score {(K @ q).max() / 4:.0f}")
    np.testing.assert_allclose(streaming_attention(q, K, V), Attention()(q[None], K, V)[0], rtol=1e-12, atol=1e-14)

# %% [markdown]
# ## Papers
#
# - Nadaraya (1964), On estimating regression, Theory of Probability and its Applications 9; Watson (1964), Smooth
#   regression analysis, Sankhya A 26: the kernel estimate of a regression curve.
# - Bahdanau, Cho and Bengio (2015), Neural machine translation by jointly learning to align and translate,
#   arXiv:1409.0473: attention with a small network as the score, inside a recurrent translator.
# - Vaswani et al. (2017), Attention is all you need, arXiv:1706.03762: the dot product, its scale (section 3.2.1) and
#   the comparison of path lengths and costs (table 1).
# - Kingma and Ba (2015), Adam: a method for stochastic optimization, arXiv:1412.6980: the optimizer of the lookup task.
# - Tsai et al. (2019), Transformer dissection: a unified understanding of Transformer's attention via the lens of
#   kernel, arXiv:1908.11775: attention as kernel smoothing, and kernels that are not symmetric.
# - Rabe and Staats (2021), Self-attention does not need O(n^2) memory, arXiv:2112.05682: the sum of exercise 4.4.
# - Dao et al. (2022), FlashAttention: fast and memory-efficient exact attention with IO-awareness, arXiv:2205.14135:
#   the same, arranged for the memory of a GPU.
#
# In the library this chapter is `numtrans/layers/attention.py`; the next chapter adds a batch, heads and masks:
# [chapter 5](05-masks.ipynb).
