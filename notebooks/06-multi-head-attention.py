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
# # 6. Multi-head attention
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/06-multi-head-attention.ipynb)
#
# One attention gives each query one average over the values. This chapter shows what one average cannot do, lets
# several attentions work side by side at no additional cost in parameters, derives the backward pass of the whole, and
# then looks at the heads of a trained translator: how unlike they are, what each does, and which of them it needs.
#
# **At the end you will understand**
#
# - which tasks one head cannot learn, at any width, and what narrow heads cannot do;
# - how heads are split and merged, and why the reshape that looks right mixes tokens, and passes a gradient check;
# - the backward pass of multi-head attention, index by index, and the count $4D^2$ of its parameters;
# - what entropy, maximum, distance, divergence and rank say about a head, and what they do not say;
# - what happens to a trained translator when one of its heads is taken away.
#
# You need [chapter 5](05-masks.ipynb), the backward pass of attention.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import os
import tempfile

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans import no_grad
from numtrans.data import DateTask, Seq2SeqBatches
from numtrans.gradcheck import gradcheck
from numtrans.inspect import attention_patterns, head_divergence, plots
from numtrans.layers import MultiHeadAttention, RotaryPositionalEncoding, ScaledDotProductAttention, causal_mask
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module, Parameter
from numtrans.optim import Adam
from numtrans.runs import default_settings, exact_match, make_run, train_run

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests

# %% [markdown]
# ## What one head cannot do
#
# Throughout: $B$ is the batch, $T$ the number of tokens, $D$ the width of the model (`d_model`), $H$ the number of
# heads and $d = D/H$ the features of one head, called $d_k$ and $d_v$ in the papers. A head computes, for query $i$,
#
# $$
# o_i = \sum_j P_{ij}\, v_j, \qquad P_{ij} \ge 0, \qquad \sum_j P_{ij} = 1 .
# $$
#
# There is one distribution $P_i$ for each query. Suppose now that a query needs **two** tokens and has to tell them
# apart: let $v_j \in \mathbb{R}^m$ be random vectors with independent components of mean 0 and variance 1, and let the
# right answer to a query that names the places $a_1, \dots, a_k$ be all $k$ vectors, one after another,
# $y = (v_{a_1}, \dots, v_{a_k}) \in \mathbb{R}^{km}$. A layer with $H$ heads answers
#
# $$
# \hat y = \sum_{h=1}^{H} W_h \sum_j P_{hj}\, v_j ,
# $$
#
# with a matrix $W_h$ ($km \times m$) for each head. Take first weights $P_{hj}$ that depend on the places alone, and
# not on what stands there. Then $\hat y$ is a linear function $A$ of the $k$ vectors that were asked for (weight on
# others only adds error). Each head contributes a matrix of rank at most $m$, since it passes through a vector of $m$
# numbers, so $A$ has rank at most $Hm$. The answer would be the identity matrix, of rank $km$. All singular values of
# an identity are 1, and a matrix of rank $r$ misses at least the squares of the rest (Eckart and Young 1936):
#
# $$
# \frac{\mathrm{E}\,\lVert \hat y - y \rVert^2}{\mathrm{E}\,\lVert y \rVert^2}
# = \frac{\lVert A - I \rVert_F^2}{km} \;\ge\; \frac{km - Hm}{km} = 1 - \frac{H}{k} .
# $$
#
# One head misses at least half of the variance of two look-ups, **at any width**. The best matrix for given weights is
# the pseudoinverse of what the weights do; with it, one head misses exactly half whatever its weights are (for instance
# with weight 1/2 on both places and the average as the answer to both), and two heads with different weights miss
# nothing. For $m = 4$, first the formula for the error, on random vectors, and then the bound:

# %%
def least_error(P, m=4):
    """Smallest relative error of heads with the weights P (H, k), in expectation."""
    seen = np.kron(P, np.eye(m))  # (H m, k m): the heads' averages as a function of the k vectors
    A = np.linalg.pinv(seen) @ seen  # the best matrix for them, times them
    return np.sum((A - np.eye(len(A))) ** 2) / len(A)


rng = np.random.default_rng(0)
A, y = rng.standard_normal((8, 8)), rng.standard_normal((100_000, 8))  # any A; k m = 8; rows are draws of y
drawn = np.sum((y @ A.T - y) ** 2) / np.sum(y**2)
np.testing.assert_allclose(drawn, np.sum((A - np.eye(8)) ** 2) / 8, rtol=0.03)  # 100,000 draws: about 0.2 % off
for H, k in ((1, 2), (2, 2), (1, 4), (2, 4), (3, 4)):
    errors = [least_error(rng.dirichlet(np.ones(k), H)) for _ in range(200)]
    print(f"H = {H}, k = {k}: from {min(errors):.3f} to {max(errors):.3f} over 200 draws; bound {1 - H / k:.3f}")
    np.testing.assert_allclose(errors, 1 - H / k, atol=1e-9)
np.testing.assert_allclose(least_error(np.array([[0.5, 0.5]])), 0.5, rtol=1e-12)  # the average as both answers

# %% [markdown]
# This is about linear answers to weights that do not depend on the values. A trained layer could do more, since its
# keys see the values as well. So train it. A token is its place (one of 8, one-hot) and its vector ($m = 4$); a query
# names $k$ places, one-hot each; the layer is the library's `MultiHeadAttention` of width $D = 32$, with nothing
# before or behind. Only the number of heads varies, and with it the features of a head $d = 32/H$.

# %%
PLACES, M, D = 8, 4, 32


def look_ups(rng, batch, k):
    """Queries (B, 1, D), tokens (B, 8, D) and right answers (B, 1, k * M)."""
    v = rng.standard_normal((batch, PLACES, M))
    asked = np.argsort(rng.random((batch, PLACES)), axis=1)[:, :k]  # (B, k): different places
    tokens = np.zeros((batch, PLACES, D))
    tokens[:, :, :PLACES], tokens[:, :, PLACES : PLACES + M] = np.eye(PLACES), v
    query = np.zeros((batch, 1, D))
    for i in range(k):
        query[np.arange(batch), 0, i * PLACES + asked[:, i]] = 1
    y = np.take_along_axis(v, asked[:, :, None], axis=1).reshape(batch, 1, k * M)
    return query.astype(np.float32), tokens.astype(np.float32), y.astype(np.float32)


def train_look_ups(k, H, seed, steps, **sizes):
    """The relative error on new data of a layer with H heads, trained to look up k vectors."""
    rng = np.random.default_rng(seed)
    layer = MultiHeadAttention(D, H, rng=rng, **sizes)
    adam = Adam(layer.parameters())
    for step in range(steps):
        adam.lr = 0.01 * min(1, 2 - 2 * step / steps)  # falls to zero in the second half
        query, tokens, y = look_ups(rng, 64, k)
        out = layer(query, tokens)
        dout = np.zeros_like(out)
        dout[..., : k * M] = 2 * (out[..., : k * M] - y) / y.size  # mean squared error
        layer.zero_grad()
        layer.backward(dout)
        adam.step()
    query, tokens, y = look_ups(rng, 2000, k)
    with no_grad():
        return float(np.sum((layer(query, tokens)[..., : k * M] - y) ** 2) / np.sum(y**2))


HEADS = (1, 2, 32) if FAST else (1, 2, 4, 8, 16, 32)
ASKED, SEEDS, STEPS = ((2,), 2, 200) if FAST else ((2, 4), 3, 600)
with threadpool_limits(1, "blas"):  # small matrices are faster on one thread
    missed = {
        k: np.array([[train_look_ups(k, H, seed, STEPS) for seed in range(SEEDS)] for H in HEADS]) for k in ASKED
    }  # (heads, seeds)
for k in ASKED:
    for H, row in zip(HEADS, missed[k]):
        print(f"k = {k}, H = {H:2d}, d = {D // H:2d}: {row.mean():.4f} missed ({row.min():.4f} to {row.max():.4f}), "
              f"bound {max(0, 1 - H / k):.2f}")

# %%
bars = {}
for k in ASKED:
    bars[f"{k} look-ups, trained"] = missed[k].mean(axis=1)
    bars[f"{k} look-ups, bound 1 - H / {k}"] = [max(0, 1 - H / k) for H in HEADS]
plots.plot_bars(
    bars, categories=[f"{H} of {D // H}" for H in HEADS], xlabel="H heads of d features", ylabel="error / variance",
    title=f"Two look-ups: one head misses {missed[2][0].mean():.2f} of the variance, "
    f"two heads {missed[2][1].mean():.3f}",
)

# %% [markdown]
# With too few heads the trained layers sit on the bound. All seeds are required to show it, with margins far wider than
# the spread over the seeds.

# %%
for k in ASKED:
    for H, row in zip(HEADS, missed[k]):
        bound = max(0, 1 - H / k)
        assert (row > bound - 0.05).all()  # none beats the bound by more than the noise of 2000 test rows
        assert (row < bound + 0.05).all() or H > k  # and with H <= k all come close to it

# %% [markdown]
# The right end of the picture needs another explanation. The total width is the same, so why do 32 heads of one feature
# do worse than two of sixteen? Is it the capacity, or the training? Train four times as long:

# %%
with threadpool_limits(1, "blas"):
    longer = {H: train_look_ups(2, H, 0, 4 * STEPS) for H in (1, 32)}
for H, error in longer.items():
    print(f"H = {H:2d}: {missed[2][HEADS.index(H), 0]:.3f} after {STEPS} steps, {error:.3f} after {4 * STEPS}")
assert missed[2][HEADS.index(32)].min() > missed[2][HEADS.index(2)].max() + 0.02  # 32 are worse than two, at first
assert longer[1] > 0.45  # time does not help one head
assert longer[32] < 0.5 * missed[2][HEADS.index(32), 0]  # and helps 32 a lot

# %% [markdown]
# For one head the bound stays where it is. The 32 narrow heads get there in the end: they were slow, not unable. A
# **single** narrow head is unable. With one feature for queries and keys it scores key $j$ by a product of two numbers,
# $q k_j$. Whatever $q$ is, the largest score belongs to the largest or to the smallest $k_j$: for given tokens, six of
# the eight places can never get the largest weight. So: one look-up, one head, values of full size ($d_v = m$), and
# only the features $d_k$ of queries and keys vary (`d_kv` in the library).

# %%
WIDTHS, NARROW_SEEDS, NARROW_STEPS = ((1, 4), 1, 300) if FAST else ((1, 2, 4), 2, 1800)
with threadpool_limits(1, "blas"):
    narrow = {
        d_k: [train_look_ups(1, 1, seed, NARROW_STEPS, d_kv=d_k, d_v=M) for seed in range(NARROW_SEEDS)]
        for d_k in WIDTHS
    }
for d_k, errors in narrow.items():
    print(f"d_k = {d_k}: " + " ".join(f"{error:.3f}" for error in errors) + " of the variance missed")
assert min(narrow[1]) > 0.4 and max(narrow[4]) < 0.1

# %% [markdown]
# Four features pick one of eight places with ease. Two features can as well (the keys on a circle, exercise 6.4): that
# row is in the output at full size. Bhojanapalli et al. (2020) prove the general fact: with $d_k$ below the number of
# tokens there are inputs, and attention matrices, that no choice of $W^Q$ and $W^K$ produces.
#
# ## Forward: project, split, attend, merge, project
#
# Let $X$ be the input (B, T, D). Three linear layers make queries, keys and values, each of width $D = Hd$; head $h$
# owns the columns $hd, \dots, hd + d - 1$ of each (all indices count from 0). For the queries, with $e = 0, \dots,
# d - 1$:
#
# $$
# Q_{bhte} = \sum_i X_{bti}\, W^Q_{i,\,hd+e} + b^Q_{hd+e} .
# $$
#
# So one product $XW^Q$ computes the queries of all heads, and **splitting** renames the index $c = hd + e$ to the pair
# $(h, e)$ and puts $h$ beside $b$, so that the heads are independent problems as the rows of a batch are:
#
# $$
# \mathrm{split}(Y)_{bhte} = Y_{bt,\,hd+e}, \qquad \mathrm{merge}(O)_{bt,\,hd+e} = O_{bhte} .
# $$
#
# A row-major array (B, T, D) is stored with its last axis running fastest, so cutting the last axis in two,
# (B, T, D) to (B, T, H, d), moves nothing. The swap of $t$ and $h$ comes after that, and in NumPy is a view as well.

# %%
def split(Y, H):
    B, T, D = Y.shape
    return Y.reshape(B, T, H, D // H).transpose(0, 2, 1, 3)  # (B, H, T, d)


def merge(O):
    B, H, T, d = O.shape
    return O.transpose(0, 2, 1, 3).reshape(B, T, H * d)  # (B, T, D)


rng = np.random.default_rng(1)
Y, R = rng.standard_normal((2, 5, 12)), rng.standard_normal((2, 3, 5, 4))  # B = 2, T = 5, H = 3, d = 4
for b, h, t, e in np.ndindex(R.shape):
    assert split(Y, 3)[b, h, t, e] == Y[b, t, h * 4 + e]
assert np.shares_memory(split(Y, 3), Y)  # nothing was copied
np.testing.assert_array_equal(merge(split(Y, 3)), Y)
np.testing.assert_array_equal(split(merge(R), 3), R)

# %% [markdown]
# The two are inverse to each other, and they only move numbers, so each is also the other's backward pass: with
# $\mathrm{d}X$ for the gradient $\partial L / \partial X$ of the loss $L$ with respect to any array $X$, from
# $L = \sum \mathrm{split}(Y) \odot R$ follows $\mathrm{d}Y = \mathrm{merge}(R)$.

# %%
np.testing.assert_allclose(np.sum(split(Y, 3) * R), np.sum(Y * merge(R)), rtol=1e-13)

# %% [markdown]
# ## The reshape that looks right
#
# The wanted shape is (B, H, T, d), so why not ask for it at once?

# %%
def wrong_split(Y, H):
    B, T, D = Y.shape
    return Y.reshape(B, H, T, D // H)


def wrong_merge(O):
    B, H, T, d = O.shape
    return O.reshape(B, T, H * d)


assert wrong_split(Y, 3).shape == split(Y, 3).shape
np.testing.assert_array_equal(wrong_merge(wrong_split(Y, 3)), Y)  # also inverse to each other
assert not np.allclose(wrong_split(Y, 3), split(Y, 3))

# %% [markdown]
# The shape is right, no error comes, and the result is another one. Number the elements of one row of the batch as they
# lie in memory: $Y_{tc}$ has the number $tD + c$, and the wrong split reads its element $(h, t, e)$ from the number
# $(hT + t)d + e$. The token is this number divided by $D = Hd$, rounded down; $e < d$ is too small to change it, since
# $(hT + t)d$ is a multiple of $d$: token $\lfloor (hT + t)d / (Hd) \rfloor = \lfloor (hT + t) / H \rfloor$. Where does
# token 3 go?

# %%
moved = Y.copy()
moved[:, 3] += 1  # change token 3 and see what changes
for name, function in (("split", split), ("wrong split", wrong_split)):
    changed = (function(moved, 3) != function(Y, 3)).any(axis=-1)[0]  # (H, T)
    print(f"{name:12s} token 3 is in (head, row):", [(int(h), int(t)) for h, t in np.argwhere(changed)])
    if name == "split":
        assert [tuple(place) for place in np.argwhere(changed)] == [(0, 3), (1, 3), (2, 3)]
    else:
        assert [tuple(place) for place in np.argwhere(changed)] == [(1, 4), (2, 0), (2, 1)]
        assert all(changed[h, t] == ((h * 5 + t) // 3 == 3) for h, t in np.ndindex(3, 5))  # the formula above

# %% [markdown]
# With the right split token 3 has one row in each head. With the wrong one its three thirds stand in rows 4, 0 and 1
# as if they were three tokens, and each head holds a part of the text only. A row is no longer a place, and what that
# does to the outputs is seen below.
#
# ## Merging is a sum over heads
#
# Let $O_h$ (B, T, d) be the output of head $h$, and $W^O_h$ the rows $hd, \dots, hd + d - 1$ of $W^O$ (d, D). Then
#
# $$
# \mathrm{Concat}(O_0, \dots, O_{H-1})\, W^O = \sum_{h=0}^{H-1} O_h\, W^O_h ,
# $$
#
# because $\sum_c M_{btc} W^O_{co} = \sum_h \sum_e O_{bhte} W^O_{hd+e,\,o}$ for $M = \mathrm{merge}(O)$: the same
# terms in groups. Each head writes into the output with a matrix of its own and nothing else joins them.

# %%
WO = rng.standard_normal((12, 12))
sum_of_heads = sum(R[:, h] @ WO[h * 4 : (h + 1) * 4] for h in range(3))  # (B, T, D)
np.testing.assert_allclose(merge(R) @ WO, sum_of_heads, rtol=1e-12, atol=1e-12)

# %% [markdown]
# ## Backward
#
# Write $c = hd + e$ for the column of head $h$, feature $e$; $i$ is an input feature in line (1), and in lines (2) and
# (3) a query, with $j$ and $l$ for keys. Forward, with the scores $S$ and weights $P$ of
# [chapter 4](04-attention.ipynb):
#
# $$
# \begin{aligned}
# &(1) & Q_{bhte} &= \textstyle\sum_i X_{bti} W^Q_{ic} + b^Q_c, \quad \text{and so } K \text{ and } V \\
# &(2) & S_{bhij} &= \tfrac{1}{\sqrt d} \textstyle\sum_e Q_{bhie} K_{bhje}, \qquad P_{bhij} = \exp S_{bhij} / \textstyle\sum_l \exp S_{bhil} \\
# &(3) & O_{bhie} &= \textstyle\sum_j P_{bhij} V_{bhje} \\
# &(4) & M_{btc} &= O_{bhte} \\
# &(5) & y_{bto} &= \textstyle\sum_c M_{btc} W^O_{co} + b^O_o
# \end{aligned}
# $$
#
# **In index form**, from the last line to the first. $[\,\cdot = \cdot\,]$ is 1 if the two are equal and 0 if not
# (Kronecker).
#
# Line (5): $\partial y_{bto} / \partial M_{b't'c} = [b = b'][t = t']\, W^O_{co}$, and
# $\partial y_{bto} / \partial W^O_{co'} = [o = o']\, M_{btc}$, so that
#
# $$
# \mathrm{d}M_{btc} = \sum_o \mathrm{d}y_{bto}\, W^O_{co}, \qquad
# \mathrm{d}W^O_{co} = \sum_{b,t} M_{btc}\, \mathrm{d}y_{bto}, \qquad
# \mathrm{d}b^O_o = \sum_{b,t} \mathrm{d}y_{bto} .
# $$
#
# Line (4) moves numbers, $\partial M_{btc} / \partial O_{b'h't'e'} = [b = b'][t = t'][c = h'd + e']$:
#
# $$
# \mathrm{d}O_{bhte} = \mathrm{d}M_{bt,\,hd+e} .
# $$
#
# Lines (3) and (2) are attention, for each $(b, h)$ on its own, derived in [chapter 5](05-masks.ipynb). A mask changes
# none of these lines: where it hides a key, $P_{bhij} = 0$ and so $\mathrm{d}S_{bhij} = 0$.
#
# $$
# \begin{aligned}
# \mathrm{d}V_{bhje} &= \textstyle\sum_i P_{bhij}\, \mathrm{d}O_{bhie}, &
# \mathrm{d}P_{bhij} &= \textstyle\sum_e \mathrm{d}O_{bhie} V_{bhje}, &
# \mathrm{d}S_{bhij} &= P_{bhij} \bigl( \mathrm{d}P_{bhij} - \textstyle\sum_l \mathrm{d}P_{bhil} P_{bhil} \bigr), \\
# \mathrm{d}Q_{bhie} &= \tfrac{1}{\sqrt d} \textstyle\sum_j \mathrm{d}S_{bhij} K_{bhje}, &
# \mathrm{d}K_{bhje} &= \tfrac{1}{\sqrt d} \textstyle\sum_i \mathrm{d}S_{bhij} Q_{bhie} .
# \end{aligned}
# $$
#
# Line (1): $\partial Q_{bhte} / \partial X_{b't'i} = [b = b'][t = t']\, W^Q_{ic}$ and
# $\partial Q_{bhte} / \partial W^Q_{ic'} = [c = c']\, X_{bti}$. The input feeds queries, keys and values of all
# heads, so its gradient is a sum over all of these:
#
# $$
# \mathrm{d}W^Q_{i,\,hd+e} = \sum_{b,t} X_{bti}\, \mathrm{d}Q_{bhte}, \qquad
# \mathrm{d}b^Q_{hd+e} = \sum_{b,t} \mathrm{d}Q_{bhte},
# $$
#
# $$
# \mathrm{d}X_{bti} = \sum_{h,e} \bigl( \mathrm{d}Q_{bhte} W^Q_{i,\,hd+e} + \mathrm{d}K_{bhte} W^K_{i,\,hd+e} + \mathrm{d}V_{bhte} W^V_{i,\,hd+e} \bigr) .
# $$
#
# **In matrix form**, with the rows of all texts below one another ($BT$ rows) where a weight is met, and for each
# $(b, h)$ on its own between split and merge ($\mathbf{1}$ is the column of $T$ ones):
#
# $$
# \begin{aligned}
# \mathrm{d}M &= \mathrm{d}y\, {W^O}^\top, & \mathrm{d}W^O &= M^\top \mathrm{d}y, & \mathrm{d}O &= \mathrm{split}(\mathrm{d}M), \\
# \mathrm{d}V &= P^\top \mathrm{d}O, & \mathrm{d}P &= \mathrm{d}O\, V^\top, & \mathrm{d}S &= P \odot \bigl( \mathrm{d}P - (\mathrm{d}P \odot P)\, \mathbf{1} \mathbf{1}^\top \bigr), \\
# \mathrm{d}Q &= \mathrm{d}S\, K / \sqrt d, & \mathrm{d}K &= \mathrm{d}S^\top Q / \sqrt d, \\
# \mathrm{d}W^Q &= X^\top\, \mathrm{merge}(\mathrm{d}Q), & \mathrm{d}W^K &= X^\top\, \mathrm{merge}(\mathrm{d}K), & \mathrm{d}W^V &= X^\top\, \mathrm{merge}(\mathrm{d}V),
# \end{aligned}
# $$
#
# $$
# \mathrm{d}X = \mathrm{merge}(\mathrm{d}Q)\, {W^Q}^\top + \mathrm{merge}(\mathrm{d}K)\, {W^K}^\top + \mathrm{merge}(\mathrm{d}V)\, {W^V}^\top .
# $$
#
# The gradient of each bias is the sum of the rows of the matrix that stands at the right of its weight's gradient.
#
# ## From nothing
#
# Self-attention with a mask, all of it in one class. Splitting and merging are methods, so that a subclass can get them
# wrong.

# %%
class MultiHead(Module):
    def __init__(self, D, H, rng):
        super().__init__()
        self.H = H
        for name in "qkvo":
            setattr(self, f"W_{name}", Parameter(rng.standard_normal((D, D)) / D**0.5))
            setattr(self, f"b_{name}", Parameter(rng.standard_normal(D)))

    def split(self, Y):
        return split(Y, self.H)

    def merge(self, O):
        return merge(O)

    def forward(self, X, mask=None):
        Q = self.split(X @ self.W_q.data + self.b_q.data)  # (B, H, T, d)
        K = self.split(X @ self.W_k.data + self.b_k.data)
        V = self.split(X @ self.W_v.data + self.b_v.data)
        S = Q @ K.swapaxes(-1, -2) * Q.shape[-1] ** -0.5  # (B, H, T, T)
        if mask is not None:
            S = np.where(mask, S, -np.inf)
        P = np.exp(S - S.max(axis=-1, keepdims=True))
        P /= P.sum(axis=-1, keepdims=True)
        M = self.merge(P @ V)  # (B, T, D)
        self.save(X, Q, K, V, P, M)
        return M @ self.W_o.data + self.b_o.data  # (B, T, D)

    def backward(self, dy):
        X, Q, K, V, P, M = self.saved()
        dO = self.split(self.linear_backward("o", M, dy))  # (B, H, T, d)
        dV = P.swapaxes(-1, -2) @ dO
        dP = dO @ V.swapaxes(-1, -2)  # (B, H, T, T)
        dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True)) * Q.shape[-1] ** -0.5
        dQ, dK = dS @ K, dS.swapaxes(-1, -2) @ Q
        return sum(self.linear_backward(name, X, self.merge(g)) for name, g in zip("qkv", (dQ, dK, dV)))

    def linear_backward(self, name, x, dy):
        """Backward of y = x W + b: adds the gradients of W and b, returns dx."""
        W, b = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        W.add_grad(np.einsum("bti,bto->io", x, dy))
        b.add_grad(dy.sum(axis=(0, 1)))
        return dy @ W.data.T


# %% [markdown]
# It equals the library's class: the output, the gradient of the input, and the gradients of all eight parameters.

# %%
rng = np.random.default_rng(2)
B, T, D6, H6 = 2, 5, 12, 3
mine, library = MultiHead(D6, H6, rng), MultiHeadAttention(D6, H6).astype(np.float64)
pairs = {"q": library.q_proj, "k": library.k_proj, "v": library.v_proj, "o": library.out_proj}
for name, linear in pairs.items():
    linear.W.data, linear.b.data = getattr(mine, f"W_{name}").data.copy(), getattr(mine, f"b_{name}").data.copy()
X, dy, mask = rng.standard_normal((B, T, D6)), rng.standard_normal((B, T, D6)), causal_mask(T)
np.testing.assert_allclose(mine(X, mask), library(X, mask=mask), rtol=1e-12, atol=1e-12)
dX = mine.backward(dy)
np.testing.assert_allclose(dX, library.backward(dy), rtol=1e-12, atol=1e-12)
for name, linear in pairs.items():
    np.testing.assert_allclose(getattr(mine, f"W_{name}").grad, linear.W.grad, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(getattr(mine, f"b_{name}").grad, linear.b.grad, rtol=1e-12, atol=1e-12)

# %% [markdown]
# And the gradient of the input is right: differences made by hand, of $L = \sum y \odot \mathrm{d}y$.

# %%
numeric, h = np.zeros_like(X), 1e-5
with no_grad():
    for index in np.ndindex(X.shape):
        up, down = X.copy(), X.copy()
        up[index] += h
        down[index] -= h
        numeric[index] = np.sum((mine(up, mask) - mine(down, mask)) * dy) / (2 * h)
error = np.linalg.norm(dX - numeric) / np.linalg.norm(numeric)
print(f"relative difference: {error:.1e}")
assert error < 1e-7

# %%
report = gradcheck(mine, X, mask=mask)
assert report
report

# %% [markdown]
# Look at the row of `b_k`: its gradient is zero, to rounding. A constant added to all keys adds the same number to all
# scores of a query, and softmax does not see it: a bias of the keys computes nothing, here 12 of the 624
# parameters. (With the rotary positions of [chapter 7](07-position.ipynb) between projection and scores it does: they
# turn the bias by an angle that differs from key to key. The last lines show it.)

# %%
print(f"largest gradient of b_k: {np.abs(mine.b_k.grad).max():.0e}, of b_q: {np.abs(mine.b_q.grad).max():.2f}")
assert np.abs(mine.b_k.grad).max() < 1e-12 < 1e-3 < np.abs(mine.b_q.grad).max()
assert sum(W.data.size for W in mine.parameters()) == 624 and mine.b_k.data.size == 12
rotary = MultiHeadAttention(D6, H6, position=RotaryPositionalEncoding(D6 // H6), rng=rng).astype(np.float64)
rotary(X)
rotary.backward(dy)
print(f"with rotary positions, of b_k: {np.abs(rotary.k_proj.b.grad).max():.2f}")
assert np.abs(rotary.k_proj.b.grad).max() > 1e-3

# %% [markdown]
# ## What a gradient check cannot see
#
# Now the class with the wrong split and merge, in forward and backward alike.

# %%
class MixedTokens(MultiHead):
    def split(self, Y):
        return wrong_split(Y, self.H)

    def merge(self, O):
        return wrong_merge(O)


mixed = MixedTokens(D6, H6, np.random.default_rng(2))  # the same weights
mixed_report = gradcheck(mixed, X, mask=mask)
assert mixed_report  # it passes
mixed_report

# %% [markdown]
# Every gradient is right: they are the exact derivatives of a function that is not multi-head attention. **A gradient
# check compares backward with forward. It says nothing about whether forward is what you meant.** Two tests do: compare
# with an independent implementation, or change a token and look at what depends on it. With the causal mask, output $t$
# must depend on the tokens $j \le t$, on each of them, and on no other. A third class has the wrong split and the right
# merge.

# %%
class MixedBefore(MultiHead):
    def split(self, Y):
        return wrong_split(Y, self.H)


def dependence(layer):
    """The change of output t (row) when token j (column) changes, (T, T)."""
    change = np.zeros((T, T))
    with no_grad():
        for j in range(T):
            moved = X.copy()
            moved[:, j] += 1
            change[:, j] = np.abs(layer(moved, mask) - layer(X, mask)).max(axis=(0, 2))
    return change


before = MixedBefore(D6, H6, np.random.default_rng(2))
depends = {"right": dependence(mine), "split and merge wrong": dependence(mixed), "split wrong": dependence(before)}
with no_grad():
    differ = np.abs(mixed(X, mask) - library(X, mask=mask)).max()
print(f"largest difference of the wrong output from the library's: {differ:.1f}")
assert differ > 0.1
lower = np.tri(T, dtype=bool)
assert ((depends["right"] > 0) == lower).all()
blind = np.sum((depends["split and merge wrong"] == 0) & lower)
leaks = np.sum((depends["split wrong"] > 0) & ~lower)
assert blind > 0 and leaks > 0
assert not ((depends["split and merge wrong"] > 0) & ~lower).any()  # wrong on both sides, nothing leaks

# %%
plots.plot_heatmaps(
    {name: (change > 0).astype(float) for name, change in depends.items()},
    xlabel="token changed", ylabel="output", colorbar="depends (1) or not (0)",
    title=f"Wrong on both sides, {blind} of 15 places to see are not seen; wrong before, {leaks} later tokens leak",
)

# %% [markdown]
# Wrong on both sides, nothing leaks, because the rows of each head stand in the order of the text. But each head sees a
# third of the text only, and the last outputs know nothing of the first tokens. Wrong on one side, outputs depend on
# tokens that the mask should hide: a language model with this mistake can read tokens that it is asked to predict, and
# its loss in training says nothing about how it writes. The gradient check does fail for this one, because the
# inherited backward pass splits wrongly what forward merged rightly. With an automatic backward pass, which is right
# for any forward, nothing would be noticed.

# %%
assert not gradcheck(before, X, mask=mask)

# %% [markdown]
# ## A mistake that it does see
#
# Forward is right, and in backward the gradients of the queries, keys and values are merged without the transpose.

# %%
class MergeForgotten(MultiHead):
    def backward(self, dy):
        self.merge = wrong_merge  # for this backward
        try:
            return super().backward(dy)
        finally:
            del self.merge


forgotten = MergeForgotten(D6, H6, np.random.default_rng(2))
report = gradcheck(forgotten, X, mask=mask)
assert not report
assert not any(report[name].passed for name in ("X", "W_q", "W_k", "W_v"))
assert report["W_o"].passed and report["b_o"].passed
assert not any(report[name].passed for name in ("b_q", "b_k", "b_v"))
report

# %% [markdown]
# What stands behind the mistake in forward order ($W^O$, $b^O$) is right and the rest is wrong, which already tells
# where to look: between the two. The biases tell more. A sum over tokens does not care about their order, but the wrong
# merge puts numbers into other columns, so the biases `b_q`, `b_k` and `b_v` are wrong as well.
#
# ## How many parameters, how much work
#
# Four matrices $D \times D$ and four biases:
#
# $$
# \underbrace{D \cdot Hd}_{W^Q} + \underbrace{D \cdot Hd}_{W^K} + \underbrace{D \cdot Hd}_{W^V} + \underbrace{Hd \cdot D}_{W^O}
# = 4D^2 \quad \text{for } d = D/H, \qquad \text{and } 4D \text{ more with biases.}
# $$
#
# The number of heads is not in it. With $G$ key-value heads (grouped-query attention, Ainslie et al. 2023; $G = 1$ is
# multi-query attention, Shazeer 2019) each key and value serves $H/G$ heads, and $W^K, W^V$ have $Gd$ columns:
# $2D^2 + 2D^2 G/H$.

# %%
def count(D, H, G, bias):
    return 2 * D * D + 2 * D * D * G // H + bias * (2 * D + 2 * D * G // H)


print("  D   H   G  without biases  with biases")
for D_, H_, G_ in ((64, 1, 1), (64, 4, 4), (64, 16, 16), (64, 16, 4), (64, 16, 1), (512, 8, 8)):
    numbers = [MultiHeadAttention(D_, H_, G_, bias=bias).num_parameters() for bias in (False, True)]
    assert numbers == [count(D_, H_, G_, False), count(D_, H_, G_, True)]
    print(f"{D_:3d} {H_:3d} {G_:3d} {numbers[0]:15,d} {numbers[1]:12,d}")

# %% [markdown]
# The work: a product of an (a, b) and a (b, c) matrix takes $abc$ multiplications and about as many additions, $2abc$
# operations. For one text of $T$ tokens:
#
# $$
# 4 \cdot 2TD^2 + H \cdot (2T^2 d + 2T^2 d) = 8TD^2 + 4T^2 D \quad \text{operations, and } HT^2 \text{ exponentials.}
# $$
#
# Only the exponentials and the memory for $P$ grow with $H$. Counted through the shapes of the products:

# %%
def operations(T, D, H):
    d = D // H
    products = [((T, D), (D, D))] * 4 + [((T, d), (d, T)), ((T, T), (T, d))] * H
    return sum(2 * a * b * c for (a, b), (_, c) in products)


for H_ in (1, 4, 16):
    assert operations(50, 64, H_) == 8 * 50 * 64**2 + 4 * 50**2 * 64
print(f"T = 50, D = 64: {operations(50, 64, 4):,} operations for any number of heads")

# %% [markdown]
# ## A trained translator
#
# The rest of the chapter looks at the heads of the date translator of [chapter 1](01-tour.ipynb), trained a little
# shorter. It has three kinds of attention: the encoder's over the source, the decoder's over what it has written, and
# the one across, from what is written to the source. The main model comes with smaller ones from other seeds, so that
# no statement rests on one training.

# %%
task = DateTask(n_train=8_000, n_valid=200, n_test=200) if FAST else DateTask()
SMALL = dict(layers=1, d_model=32, batch=32, lr=8e-3, warmup=50, steps=250 if FAST else 300)
LARGE = dict(layers=2, d_model=64, batch=32, warmup=100, steps=1200)


def translator(seed, sizes):
    """A translator trained from the given seed."""
    run = make_run(task, default_settings("dates", seed=seed, **sizes))
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1, "blas"):
        train_run(run, task, folder)
    return run


main = translator(0, SMALL if FAST else LARGE)
others = [] if FAST else [translator(seed, SMALL) for seed in (1, 2)]
print(f"main model: {100 * exact_match(main, task.test[:200])[0]:.1f} % of test dates exactly right")
print("others:", [f"{100 * exact_match(run, task.test[:200])[0]:.1f} %" for run in others])

# %% [markdown]
# One batch of 200 validation dates; the attention weights of each head; and three numbers for each head, averaged over
# the queries that are no padding, which the brackets $\langle \cdot \rangle_{b,i}$ stand for (entropy in nats, with
# $0 \log 0 = 0$):
#
# $$
# E_h = \Bigl\langle -\sum_j P_{bhij} \log P_{bhij} \Bigr\rangle_{b,i}, \qquad
# \mathrm{max}_h = \Bigl\langle \max_j P_{bhij} \Bigr\rangle_{b,i}, \qquad
# \mathrm{dist}_h = \Bigl\langle \sum_j P_{bhij}\, |i - j| \Bigr\rangle_{b,i} .
# $$
#
# Across, $i$ and $j$ are places in two different texts, and $\mathrm{dist}_h$ is no more than the difference of their
# numbers.

# %%
src, tgt, targets = next(Seq2SeqBatches(task.encode_pairs(task.valid[:200]), 200, shuffle=False).epoch())


def attentions(model):
    """Name -> (attention, which queries are no padding) for each attention of the model."""
    found = {}  # `sublayer` is the attention inside its residual connection; token 0 is padding
    for i, layer in enumerate(model.encoder.layers, 1):
        found[f"encoder {i}"] = layer.self_attention.sublayer, src != 0
    for i, layer in enumerate(model.decoder.layers, 1):
        found[f"decoder {i}"] = layer.self_attention.sublayer, tgt != 0
        found[f"across {i}"] = layer.cross_attention.sublayer, tgt != 0
    return found


def look(model):
    """Name -> (weights (B, H, Tq, Tk), which queries count) of the batch."""
    model.eval()
    with no_grad():
        model(src, tgt)
    return {name: (part.attention_weights, counts) for name, (part, counts) in attentions(model).items()}


weights = look(main.model)
patterns = {name: attention_patterns(*seen) for name, seen in weights.items()}
w, real = weights["decoder 1"]
logs = np.log(np.where(w > 0, w, 1), dtype=np.float64)
by_hand = -(w * logs).sum(axis=-1).transpose(0, 2, 1)[real].mean(axis=0)  # (H,)
np.testing.assert_allclose(patterns["decoder 1"]["entropy"], by_hand, rtol=1e-6)
largest = w.max(axis=-1).transpose(0, 2, 1)[real].mean(axis=0)
i, j = np.indices(w.shape[2:])
distance = (w * np.abs(i - j)).sum(axis=-1).transpose(0, 2, 1)[real].mean(axis=0)
np.testing.assert_allclose(patterns["decoder 1"]["maximum"], largest, rtol=1e-4)  # the weights are float32
np.testing.assert_allclose(patterns["decoder 1"]["distance"], distance, rtol=1e-4)
encoder, decoder = (np.mean([patterns[n]["entropy"] for n in patterns if kind in n]) for kind in ("encoder", "decoder"))
assert encoder > 1.3 * decoder
print("               entropy (nats)            largest weight            distance (tokens)")
for name, p in patterns.items():
    print(f"{name:12s}", "   ".join(" ".join(f"{x:5.2f}" for x in values) for values in p.values()))

# %%
names = list(patterns)
spread = [np.exp(patterns[name]["entropy"]) for name in names]
plots.plot_bars(
    {f"head {h + 1}": [values[h] for values in spread] for h in range(4)}, categories=names,
    ylabel="exp(entropy): keys looked at", xlabel="attention",
    title=f"A head looks at {min(map(min, spread)):.1f} to {max(map(max, spread)):.1f} keys at once",
)

# %% [markdown]
# $e^{E}$ is the number of keys that an even distribution with this entropy would cover. The encoder's heads are wide,
# the decoder's narrow. To say what a head does, look at what it attends to. In the decoder: the begin token, the
# token just read, the one before. Across: the year, when the year is written (where the source spells it with four
# digits).

# %%
def roles(run):
    """Decoder: mean weight on the begin, previous, current token. Across: on the year, as it or the rest is written."""
    found = {}
    seen = look(run.model)
    texts = [text_of(b) for b in range(len(src))]
    at = [(b, text.index(iso[:4])) for b, (text, iso) in enumerate(texts) if text.count(iso[:4]) == 1]
    for name, (w, _) in seen.items():
        if name.startswith("decoder"):
            i = np.arange(2, 10)  # queries after the first two
            found[name] = [w[:, :, i, 0].mean((0, 2)), w[:, :, i, i - 1].mean((0, 2)), w[:, :, i, i].mean((0, 2))]
        elif name.startswith("across"):
            on = np.array([w[b, :, :10, a : a + 4].sum(-1) for b, a in at])  # (dates, H, 10 characters written)
            found[name] = [on[:, :, :4].mean((0, 2)), on[:, :, 4:].mean((0, 2))]
    return found


def text_of(b):
    """Source and target of row b of the batch, as strings."""
    return main.source_vocab.decode(src[b][src[b] != 0]), main.target_vocab.decode(targets[b])


main_roles = roles(main)
for name, rows in main_roles.items():
    labels = ("begin", "previous", "current") if len(rows) == 3 else ("year while year", "year while rest")
    shown = [f"{label}: " + " ".join(f"{x:.2f}" for x in row) for label, row in zip(labels, rows)]
    print(f"{name:12s}", "  ".join(shown))
on_year = np.mean([rows[0] for name, rows in main_roles.items() if name.startswith("across")])
off_year = np.mean([rows[1] for name, rows in main_roles.items() if name.startswith("across")])
assert on_year > 1.5 * off_year

# %% [markdown]
# All heads across turn to the year when it is written, some more than others. Heads differ by degree; there is not one
# for the year and one for the month.
#
# ## How unlike the heads are
#
# The Jensen-Shannon divergence (Lin 1991) of two distributions $p$ and $q$ is 0 if they are equal and $\log 2 = 0.69$
# if they have no key in common; with the entropy $E$,
#
# $$
# J(p, q) = E\bigl[\tfrac12 (p + q)\bigr] - \tfrac12 E[p] - \tfrac12 E[q] .
# $$
#
# `head_divergence` gives its mean over the queries for each pair of heads. Diversity alone proves nothing about
# learning: heads drawn at random differ as well. So it is compared with that of untrained models, three seeds each.

# %%
def entropy(p):
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)


w, real = weights["across 1"]
p, q = (w[:, h][real].astype(np.float64) for h in (0, 1))  # (queries, keys)
J = entropy((p + q) / 2) - entropy(p) / 2 - entropy(q) / 2
np.testing.assert_allclose(J.mean(), head_divergence(w, real)[0, 1], rtol=1e-9)


def diversity(model):
    """Mean divergence over the pairs of heads, for each attention."""
    found = {}
    for name, (w, counts) in look(model).items():
        J = head_divergence(w, counts)
        found[name] = J[np.triu_indices(len(J), 1)].mean()
    return found


def untrained(run, seed):
    return make_run(task, {**run.settings, "seed": seed}).model


compared = []
for run in [main, *others]:
    after, before = diversity(run.model), [diversity(untrained(run, seed)) for seed in range(100, 103)]
    compared.append((after, before))
    means = [np.mean(list(b.values())) for b in before]
    mean = np.mean(list(after.values()))
    print(f"trained {mean:.3f}, untrained {min(means):.3f} to {max(means):.3f}")
    assert mean > 1.4 * max(means)

# %%
after, before = compared[0]
gain = np.mean(list(after.values())) / np.mean([np.mean(list(b.values())) for b in before])
plots.plot_bars(
    {"trained": [after[n] for n in names], "untrained, 3 seeds": [np.mean([b[n] for b in before]) for n in names]},
    categories=names, xlabel="attention", ylabel="mean divergence of two heads (nats)",
    title=f"Training makes the heads {gain:.1f} times as unlike as they were drawn",
)

# %% [markdown]
# ## The rank of a head
#
# Without biases the scores of head $h$ are a bilinear form of the inputs, and its way to the output is a linear map:
#
# $$
# S_h = \tfrac{1}{\sqrt d}\, X \bigl( W^Q_h {W^K_h}^\top \bigr) X^\top, \qquad
# y = \sum_h P_h X \bigl( W^V_h W^O_h \bigr).
# $$
#
# Both matrices in brackets are $D \times D$, and products through $d$ columns: their rank is at most $d = D/H$. Their
# singular values show it.

# %%
def head_products(attention):
    """W_q W_k^T and W_v W_o of each head, in float64: two lists of (D, D)."""
    H = attention.num_heads
    Wq, Wk, Wv = (
        np.split(p.W.data.astype(np.float64), H, axis=1) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )  # (D, d) each
    Wo = np.split(attention.out_proj.W.data.astype(np.float64), H, axis=0)  # (d, D) each
    return [q @ k.T for q, k in zip(Wq, Wk)], [v @ o for v, o in zip(Wv, Wo)]


attention = main.model.encoder.layers[0].self_attention.sublayer
x = np.random.default_rng(3).standard_normal((1, 6, attention.d_model))
bare = MultiHeadAttention(attention.d_model, 4, bias=False).astype(np.float64)
for to, of in zip((bare.q_proj, bare.k_proj, bare.v_proj, bare.out_proj),
                  (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)):
    to.W.data = of.W.data.astype(np.float64)
y = bare(x)  # against the formula above, head by head
QK, VO = head_products(attention)
for h in range(4):
    P = np.exp(x @ QK[h] @ x.swapaxes(1, 2) / np.sqrt(len(QK[h]) / 4))  # (1, T, T); d = D / 4
    np.testing.assert_allclose(bare.attention_weights[:, h], P / P.sum(axis=-1, keepdims=True), rtol=1e-10, atol=1e-12)
np.testing.assert_allclose(y, sum(bare.attention_weights[:, h] @ x @ VO[h] for h in range(4)), rtol=1e-10, atol=1e-12)
d_head = attention.d_model // 4
products = [m for part, _ in attentions(main.model).values() for both in head_products(part) for m in both]
ranks = [np.linalg.matrix_rank(m) for m in products]
print(f"D = {attention.d_model}, d = {d_head}: ranks of the {len(ranks)} products from {min(ranks)} to {max(ranks)}")
assert max(ranks) <= d_head

# %%
values = {f"W_q W_k^T, head {h + 1}": np.linalg.svd(m, compute_uv=False) for h, m in enumerate(QK[:2])}
values |= {f"W_v W_o, head {h + 1}": np.linalg.svd(m, compute_uv=False) for h, m in enumerate(VO[:2])}
number = np.arange(1, attention.d_model + 1)
plots.plot_lines(
    {label: (number, np.maximum(s / s[0], 1e-17)) for label, s in values.items()}, yscale="log",
    xlabel="number of the singular value", ylabel="singular value / largest",
    title=f"Encoder layer 1: all but d = {d_head} of the {attention.d_model} singular values are zero to rounding",
)

# %% [markdown]
# ## Without one head
#
# Setting the rows $W^O_h$ of a head to zero takes the head away, since the output is a sum over heads. Each head of the
# main model in turn: what does the loss on the batch become, and what share of the dates is still right? (A date is
# right if at each place the right character is the likeliest after the right beginning. Then the greedy translation is
# the target, so this is the exact match of chapter 1.)

# %%
def evaluate(model):
    """Loss and share of dates that are right."""
    loss = CrossEntropyLoss()
    with no_grad():
        logits = model(src, tgt)
        value = float(loss(logits, targets))
    return value, float(((logits.argmax(-1) == targets) | (targets == loss.ignore_index)).all(axis=1).mean())


def without(model, attention, heads):
    """`evaluate`, with the given heads of one attention taken away."""
    W = attention.out_proj.W
    whole, d = W.data, W.data.shape[0] // attention.num_heads
    W.data = whole.copy()
    for h in heads:
        W.data[h * d : (h + 1) * d] = 0
    try:
        return evaluate(model)
    finally:
        W.data = whole


def ablation(model):
    """The rise of the loss without each head (name -> H numbers), without all of an attention, and the dates right."""
    loss, right = evaluate(model)
    single, whole, kept = {}, {}, {}
    for name, (part, _) in attentions(model).items():
        results = [without(model, part, [h]) for h in range(part.num_heads)]
        single[name] = [value - loss for value, _ in results]
        kept[name] = [share for _, share in results]
        whole[name] = without(model, part, range(part.num_heads))[0] - loss
    return (loss, right), single, whole, kept


(base, right), single, whole, kept = ablation(main.model)
print(f"all heads: loss {base:.4f}, {100 * right:.1f} % right")
for name in names:
    print(f"{name:12s} without one head, % right: {' '.join(f'{100 * x:5.1f}' for x in kept[name])}   loss: "
          f"{' '.join(f'{x:+.3f}' for x in single[name])}   without all four: {whole[name]:+.3f}")

# %%
lost = 100 * (right - np.array([kept[name] for name in names]))  # points lost, (attentions, heads)
plots.plot_bars(
    {f"without head {h + 1}": lost[:, h] for h in range(4)}, categories=names,
    xlabel="attention", ylabel="loss of exact match (percentage points)",
    title=f"One head costs {lost.max():.0f} of {100 * right:.0f} points, the median head {np.median(lost):.1f}",
)

# %% [markdown]
# Two findings, each asserted for the main model and for those of other seeds:
#
# - **Heads are very unequal.** What the worst one costs is more than twice what the median one costs.
# - **Heads of the attention across stand in for each other.** Taking all four away costs more than the four single
#   costs together. The likely reason: while one is missing, others still bring a part of what it would have brought.

# %%
for run in [main, *others]:
    _, single_i, whole_i, _ = (0, single, whole, 0) if run is main else ablation(run.model)
    rises = np.concatenate(list(single_i.values()))
    together = sum(whole_i[name] for name in whole_i if name.startswith("across"))
    alone = sum(sum(single_i[name]) for name in single_i if name.startswith("across"))
    print(f"worst head {rises.max():+.3f}, median {np.median(rises):+.3f}; "
          f"across, all together {together:+.3f}, sum of the single ones {alone:+.3f}")
    assert rises.max() > 2 * np.median(rises)
    assert together > 1.1 * alone

# %% [markdown]
# ## Claims
#
# What the three texts of the project say about multi-head attention, in other words, and what came out.
#
# ### Multi-head attention has four times the square of the width parameters
#
# $W^Q, W^K, W^V$ and $W^O$ have $D^2$ entries each, since $Hd = D$; counted in the library above for $H$ from 1 to 16.
# **Holds if** there are no biases and $d_k = d_v = D/H$; biases add $4D$, and fewer key-value heads take
# $2D^2(1 - G/H)$ away.

# %%
for H_ in (1, 2, 4, 8, 16):
    assert MultiHeadAttention(64, H_, bias=False).num_parameters() == 4 * 64**2
    assert MultiHeadAttention(64, H_, bias=True).num_parameters() == 4 * 64**2 + 4 * 64

# %% [markdown]
# ### The texts' layer of width 512 with 8 heads has 1,050,624 parameters
#
# Their code leaves the biases of its four linear layers on: $4 \cdot 512^2 + 4 \cdot 512$. **Does not hold** that this
# is $4D^2 = 1{,}048{,}576$, as their formula has it: it is 2,048 more, 0.2 percent.

# %%
assert MultiHeadAttention(512, 8).num_parameters() == 1_050_624 == 4 * 512**2 + 2048

# %% [markdown]
# ### Each head works in a subspace of few dimensions
#
# The queries, keys and values of a head have $d = D/H$ features, and the products $W^Q_h {W^K_h}^\top$ and $W^V_h
# W^O_h$ have rank at most $d$: measured above on every head of the trained translator. **Holds**, by proof. The
# subspaces are learned, and nothing makes those of two heads orthogonal. Take the subspaces from which two heads of
# one attention read values, and the closest pair of directions in them: their cosine, on average, and that for
# subspaces drawn at random.

# %%
def closest(matrices):
    """Cosine of the closest directions of each two column spaces of (D, d) matrices."""
    bases = [np.linalg.qr(m)[0] for m in matrices]
    return [np.linalg.norm(bases[g].T @ bases[h], 2) for g in range(len(bases)) for h in range(g)]


rng = np.random.default_rng(7)
overlap, drawn = [], []
for part, _ in attentions(main.model).values():
    W = part.v_proj.W.data.astype(np.float64)
    overlap += closest(np.split(W, 4, axis=1))
    drawn += closest(np.split(rng.standard_normal(W.shape), 4, axis=1))
print(f"mean cosine of the closest directions of two heads: {np.mean(overlap):.2f}, at random {np.mean(drawn):.2f} "
      "(orthogonal: 0)")
assert min(overlap) > 0.3

# %% [markdown]
# ### Different heads learn different patterns
#
# The mean divergence of two heads in nats, and that of untrained models, were measured above over one training of the
# main model and trainings of small ones from other seeds. **Holds** for this task and these sizes: training makes the
# heads more unlike by a factor asserted to be above 1.4. A part of the difference may be that trained heads are sharper
# (their mean entropy is below); two sharp distributions can differ more than two flat ones.

# %%
for after_i, before_i in compared:
    most = np.max([np.mean(list(b.values())) for b in before_i])
    print(f"factor over the most diverse of three untrained models: {np.mean(list(after_i.values())) / most:.2f}")
flat = [np.mean([attention_patterns(*seen)["entropy"] for seen in look(untrained(main, seed)).values()])
        for seed in range(100, 103)]
sharp = np.mean([p["entropy"] for p in patterns.values()])
print(f"mean entropy of the main model's heads: trained {sharp:.2f}, untrained {min(flat):.2f} to {max(flat):.2f} nats")
assert sharp < 0.9 * min(flat)

# %% [markdown]
# ### Heads specialize in kinds of information
#
# The texts name syntax, meaning and position; dates have little syntax. What was measured: the year's share of the
# weight for each head across, the spread of the heads' distances and entropies, and what each loss costs. **Holds if**
# "specialize" means by degree: heads differ in how far and how sharply they look, and one may be needed where another
# is not; but all heads across attend to the year when the year is written, so none of them is *the* head of the year.
# For language models Voita et al. (2019) and Clark et al. (2019) found heads for single syntactic relations, in some
# heads.

# %%
across = np.concatenate([rows[0] for name, rows in main_roles.items() if name.startswith("across")])
elsewhere = np.concatenate([rows[1] for name, rows in main_roles.items() if name.startswith("across")])
print(f"weight on the year while it is written: from {across.min():.2f} to {across.max():.2f} over the heads across; "
      f"while the rest is written, from {elsewhere.min():.2f} to {elsewhere.max():.2f}")
assert (across > elsewhere).all()

# %% [markdown]
# ### Several heads give redundancy and robustness
#
# **Holds if** it is said of most heads and not of all. The median head costs less than half of what the worst one
# costs, in loss, and at full size few of the dates; and heads across stand in for each other (above). But the model is
# not robust against the loss of any one head: the worst loss is shown here. Michel et al. (2019) found the same in
# large translators: most heads can go, a few cannot.

# %%
worst = np.unravel_index(np.argmax(lost), lost.shape)
print(f"median head: {np.median(lost):.1f} of {100 * right:.1f} points lost; "
      f"the worst, head {worst[1] + 1} of {names[worst[0]]}: {lost.max():.1f} points")
rises = np.concatenate(list(single.values()))
print(f"loss {base:.4f}; the median head adds {np.median(rises):.4f}, the worst {rises.max():.3f}")
assert rises.max() > base and np.median(rises) < 0.5 * rises.max()

# %% [markdown]
# ### Too few heads limit what a layer can represent
#
# **Holds**, by the bound $1 - H/k$ for tasks that need $k$ tokens kept apart in one layer, and by measurement; four
# times the training did not help. There is another side: at a fixed width many heads make $d = D/H$ small. A head
# whose queries and keys have one feature cannot pick any key it wants (measured), while 32 such heads together
# learned the task, only more slowly than two wide ones.

# %%
print(f"two look-ups at width 32: 1 head {missed[2][0].mean():.3f}, 2 heads {missed[2][1].mean():.4f} of the variance; "
      f"32 heads {missed[2][-1].mean():.3f}, after four times the steps {longer[32]:.3f}")
assert missed[2][0].min() > 0.4 and missed[2][1].max() < 0.1 and longer[1] > 0.4

# %% [markdown]
# ### Several heads attend to several places at once, one head cannot
#
# **Holds if** the places have to be kept apart. One head can well put weight on two places, but it returns one average:
# $v_a + v_b$ is within its reach (exercise 6.1), the pair $(v_a, v_b)$ is not. The proof is the bound; the numbers are
# 0.5 against 0. With $H$ heads there are $H$ distributions for each query, each summing to one:

# %%
w, _ = weights["across 1"]
np.testing.assert_allclose(w.sum(axis=-1), 1, rtol=1e-5)
places = w[:, :, :4].argmax(axis=-1)  # (B, H, 4): the favorite key of each head for the characters of the year
several = np.mean([len(set(places[b, :, t])) > 1 for b in range(len(places)) for t in range(4)])
print(f"the heads of the first attention across have different favorites in {100 * several:.0f} % of the cases")
assert several > 0.3

# %% [markdown]
# ### The output projection takes the concatenated heads, and a head has a share of the width
#
# $W^O$ has shape $(H d_v, D)$. **Holds**; and $d_k = d_v = D/H$ **holds if** nothing else is chosen. It is a convention
# that keeps the parameters at $4D^2$. The library takes other sizes:

# %%
free = MultiHeadAttention(12, 3, d_kv=7, d_v=2)
assert free.out_proj.W.data.shape == (3 * 2, 12) and free.q_proj.W.data.shape == (12, 3 * 7)
usual = MultiHeadAttention(12, 3)
assert usual.out_proj.W.data.shape == (12, 12) and usual.v_proj.W.data.shape[1] // 3 == 12 // 3
assert free(np.ones((1, 4, 12), np.float32)).shape == (1, 4, 12)

# %% [markdown]
# ### Heads are split by a reshape to tokens and heads, then a transpose
#
# The texts write `.view(B, -1, h, d_k).transpose(1, 2)`. In NumPy that is `reshape(B, -1, H, d).transpose(0, 2, 1, 3)`.
# **Holds**: it equals the definition, element by element. Reshaping at once to (B, H, T, d) does not: it has the right
# shape and mixes tokens: outputs miss earlier tokens, or see later ones (above); and it can pass a gradient check.

# %%
np.testing.assert_array_equal(Y.reshape(2, -1, 3, 4).transpose(0, 2, 1, 3), split(Y, 3))
assert np.mean(Y.reshape(2, 3, -1, 4) == split(Y, 3)) < 0.5

# %% [markdown]
# ## Exercises
#
# ### Exercise 6.1: the sum of two
#
# Write `sum_of_two(V, a, b)`: for values V (T, m) and two different tokens a and b return $v_a + v_b$ (m,) with **one**
# distribution $P$ over the tokens, as `scale * (P @ V)`. Which scale? Check: equal to `V[a] + V[b]`, and P sums to one.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 6.1
def sum_of_two(V, a, b):
    P = np.zeros(len(V))
    P[a] = P[b] = 0.5
    assert P.sum() == 1
    return 2 * (P @ V)  # the scale is a part of W_o


V6 = np.random.default_rng(0).standard_normal((6, 4))
np.testing.assert_allclose(sum_of_two(V6, 1, 4), V6[1] + V6[4], rtol=1e-14)

# %% [markdown]
# ### Exercise 6.2: one head at a time
#
# Write `by_heads(layer, X)`: the output of a `MultiHeadAttention` (H heads, biases, no mask) without splitting or
# merging: loop over the heads, take their columns of the three projections (`layer.q_proj.W.data` and `.b.data`, the
# same of `k_proj` and `v_proj`), attend, and add up $O_h W^O_h$ and, once, the bias of `layer.out_proj`. Check: for
# `library` and `X` of the section "From nothing", equal to `library(X)` to 1e-12.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 6.2
def by_heads(layer, X):
    d = layer.d_model // layer.num_heads
    y = np.zeros_like(X) + layer.out_proj.b.data
    for h in range(layer.num_heads):
        own = slice(h * d, (h + 1) * d)
        q, k, v = (X @ p.W.data[:, own] + p.b.data[own] for p in (layer.q_proj, layer.k_proj, layer.v_proj))
        o = ScaledDotProductAttention()(q[:, None], k[:, None], v[:, None])[:, 0]  # (B, T, d)
        y += o @ layer.out_proj.W.data[own]
    return y


np.testing.assert_allclose(by_heads(library, X), library(X), rtol=1e-12, atol=1e-12)

# %% [markdown]
# ### Exercise 6.3: shared keys and values
#
# In grouped-query attention key-value head $g$ serves the heads $gH/G, \dots, (g+1)H/G - 1$. Write `share(K, H)`, from
# (B, G, T, d) to (B, H, T, d), and `share_backward(dK, G)`, its backward pass: from the gradient of what `share`
# returned, (B, H, T, d), to that of what it was given, (B, G, T, d). Check: the dot products
# $\sum \mathrm{share}(K) \odot R$ and $\sum K \odot \mathrm{share\_backward}(R)$ are equal for random $K$ (B, G, T, d)
# and $R$ (B, H, T, d), with $G = 2$ and $H = 6$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 6.3
def share(K, H):
    return np.repeat(K, H // K.shape[1], axis=1)


def share_backward(dK, G):
    B, H, T, d = dK.shape
    return dK.reshape(B, G, H // G, T, d).sum(axis=2)  # a value used H / G times collects H / G gradients


rng = np.random.default_rng(4)
K6, R6 = rng.standard_normal((2, 2, 5, 3)), rng.standard_normal((2, 6, 5, 3))
np.testing.assert_allclose(np.sum(share(K6, 6) * R6), np.sum(K6 * share_backward(R6, 2)), rtol=1e-12)
np.testing.assert_array_equal(share(K6, 6)[:, 2], K6[:, 0])  # heads 0, 1, 2 use key-value head 0

# %% [markdown]
# ### Exercise 6.4: which key can win
#
# Write `winners(K, rng, draws)`: draw `draws` random queries (standard normal, of the size of a key), and return the
# set of the keys (rows of K (T, d)) that have the largest score for one of them. Check: for 8 distinct keys with $d =
# 1$ the set has two elements, the smallest and the largest; for 8 keys evenly on a circle, $d = 2$, it has all eight.
# So two features would do for 8 places. What speaks against it? (Hint: the gap between the two largest scores.)

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 6.4
def winners(K, rng, draws):
    queries = rng.standard_normal((draws, K.shape[1]))
    return set((queries @ K.T).argmax(axis=1).tolist())


rng = np.random.default_rng(5)
line = rng.standard_normal((8, 1))
assert winners(line, rng, 1000) == {int(line.argmin()), int(line.argmax())}
angle = 2 * np.pi * np.arange(8) / 8
circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
assert winners(circle, rng, 1000) == set(range(8))
# A query that points at a key scores 1 there and cos(45 degrees) = 0.71 at its neighbors: the weights of the three are
# nearly alike unless the query is long. Long queries mean large scores, and a softmax that hardly learns (chapter 4).
assert np.isclose(np.sort(circle @ circle[0])[-2], np.sqrt(0.5))

# %% [markdown]
# ### Exercise 6.5: what the weights of a head do not mean
#
# On paper: let $A$ be any invertible $d \times d$ matrix. Show that $W^Q_h A$ and $W^K_h A^{-\top}$ give the same
# scores as $W^Q_h$ and $W^K_h$, and $W^V_h A$ and $A^{-1} W^O_h$ the same output (no biases). What follows for a
# reader who looks for a meaning in a single column of $W^Q_h$? How many of the $4D^2$ numbers does this make
# superfluous?
#
# <details><summary>Solution of exercise 6.5</summary>
#
# $(X W^Q_h A)(X W^K_h A^{-\top})^\top = X W^Q_h A A^{-1} {W^K_h}^\top X^\top$, the old scores. And
# $P_h X W^V_h A A^{-1} W^O_h = P_h X W^V_h W^O_h$, the old output. Only the products $W^Q_h {W^K_h}^\top$ and
# $W^V_h W^O_h$ mean something; a single column can be turned into any other nonzero combination of the $d$ columns by
# a choice of $A$ without a change of the function. Each head has $2d^2$ such freedoms, all heads $2Hd^2 = 2D^2/H$: for
# one head half of the $4D^2$ numbers, for 8 heads a sixteenth.
#
# </details>

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Exercise 6.5, checked with numbers
rng = np.random.default_rng(6)
A = rng.standard_normal((4, 4))
Wq, Wk, Wv, Wo = (rng.standard_normal(shape) for shape in ((12, 4), (12, 4), (12, 4), (4, 12)))
np.testing.assert_allclose((Wq @ A) @ (Wk @ np.linalg.inv(A).T).T, Wq @ Wk.T, rtol=1e-9, atol=1e-9)
np.testing.assert_allclose((Wv @ A) @ (np.linalg.inv(A) @ Wo), Wv @ Wo, rtol=1e-9, atol=1e-9)

# %% [markdown]
# ## Papers
#
# - Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser and Polosukhin (2017), Attention is all you need,
#   arXiv:1706.03762. Section 3.2.2 introduces multi-head attention; its Table 3 varies the number of heads at a fixed
#   cost.
# - Bhojanapalli, Yun, Rawat, Reddi and Kumar (2020), Low-rank bottleneck in multi-head attention models,
#   arXiv:2002.07028. The other side: heads too narrow for the length of the text.
# - Michel, Levy and Neubig (2019), Are sixteen heads really better than one?, arXiv:1905.10650. Heads taken away after
#   training, as above, in large models.
# - Voita, Talbot, Moiseev, Sennrich and Titov (2019), Analyzing multi-head self-attention: specialized heads do the
#   heavy lifting, the rest can be pruned, arXiv:1905.09418. What single heads of a translator do.
# - Clark, Khandelwal, Levy and Manning (2019), What does BERT look at? An analysis of BERT's attention,
#   arXiv:1906.04341. Entropies, distances and roles of heads in a language model.
# - Shazeer (2019), Fast Transformer decoding: one write-head is all you need, arXiv:1911.02150; Ainslie, Lee-Thorp,
#   de Jong, Zemlyanskiy, Lebrón and Sanghai (2023), GQA: training generalized multi-query Transformer models from
#   multi-head checkpoints, arXiv:2305.13245. Shared keys and values.
# - Lin (1991), Divergence measures based on the Shannon entropy, IEEE Transactions on Information Theory 37(1);
#   Eckart and Young (1936), The approximation of one matrix by another of lower rank, Psychometrika 1(3). The measure
#   of diversity, and the theorem behind the bound.
#
# The class lives in `numtrans/layers/multi_head_attention.py`, the measures in `numtrans/inspect/attention.py`; next is
# [chapter 7](07-position.ipynb), how a model knows the order of its tokens.
