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
# # 5. The backward pass of attention, and masks
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/05-masks.ipynb)
#
# A mask says which keys a query may attend to. It hides the future from a model that must predict it, and it hides the
# filler that makes texts of different lengths fit into one array. This chapter adds a batch, heads and masks to the
# attention of [chapter 4](04-attention.ipynb), derives the whole backward pass, and shows how a leak is found.
#
# **At the end you will understand**
#
# - the backward pass of batched, masked attention, and why self-attention adds three gradients;
# - why a mask is $-\infty$ before the softmax and not 0 after it;
# - causal masks, padding masks, both together, their shapes, and a row with no key left;
# - how to find a leak by changing the future, and by a matrix of derivatives;
# - what a leak does to training and to generation.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import os

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import (
    Dropout,
    Embedding,
    LearnedPositionalEncoding,
    Linear,
    ScaledDotProductAttention,
    causal_mask,
    padding_mask,
)
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module, no_grad
from numtrans.optim import Adam

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests

# %% [markdown]
# ## A batch and heads
#
# A model works on $B$ texts at once, and each attention layer has $H$ heads ([chapter 6](06-multi-head-attention.ipynb)
# says what for). Queries have shape $(B, H, T_q, d)$, keys $(B, H, T_k, d)$, values $(B, H, T_k, d_v)$. With $n$ for
# the text, $h$ for the head and the scale $c = 1 / \sqrt d$:
#
# $$
# S_{nhij} = c \sum_{a} Q_{nhia} K_{nhja}, \qquad
# P_{nhij} = \frac{e^{S_{nhij}}}{\sum_{m} e^{S_{nhim}}}, \qquad
# O_{nhib} = \sum_{j} P_{nhij} V_{nhjb} .
# $$
#
# No sum runs over $n$ or $h$: texts and heads do not see each other. NumPy's `@` multiplies the matrices of the last
# two axes and runs over the others, so the code is that of one head.


# %%
def softmax(S):
    e = np.exp(S - S.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


rng = np.random.default_rng(0)
B, H, Tq, Tk, d, dv = 2, 3, 4, 5, 6, 2
Q, K, V = (rng.standard_normal(shape) for shape in ((B, H, Tq, d), (B, H, Tk, d), (B, H, Tk, dv)))

S = Q @ K.swapaxes(-1, -2) / np.sqrt(d)  # (B, H, Tq, Tk)
P = softmax(S)  # (B, H, Tq, Tk)
O = P @ V  # (B, H, Tq, dv)
for n, h in np.ndindex(B, H):
    one_head = softmax(Q[n, h] @ K[n, h].T / np.sqrt(d)) @ V[n, h]
    np.testing.assert_allclose(O[n, h], one_head, rtol=1e-12)

# %% [markdown]
# ## A mask, before the softmax
#
# A **mask** $M$ is an array of booleans. $M_{ij}$ is true if query $i$ may attend to key $j$. The weights should be
# those that one would get if the forbidden keys did not exist: the softmax over the allowed keys only. With $[M_{im}]$
# equal to 1 if $M_{im}$ is true and 0 otherwise,
#
# $$
# P_{ij} = \frac{[M_{ij}]\, e^{S_{ij}}}{\sum_{m} [M_{im}]\, e^{S_{im}}} .
# $$
#
# This is the plain softmax of changed scores, because $e^{-\infty} = 0$, in mathematics and in floating point exactly:
#
# $$
# P = \mathrm{softmax}(S + A), \qquad
# A_{ij} = \begin{cases} 0 & \text{if } M_{ij} \\ -\infty & \text{otherwise.} \end{cases}
# $$

# %%
M = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 0]], bool)  # (Tq, Tk)
P = softmax(np.where(M, S, -np.inf))  # (B, H, Tq, Tk)
by_formula = M * np.exp(S) / (M * np.exp(S)).sum(axis=-1, keepdims=True)
np.testing.assert_allclose(P, by_formula, rtol=1e-12)
assert (P[..., ~M] == 0).all()  # exactly
for i in range(Tq):  # as if the forbidden keys did not exist
    kept = M[i]
    np.testing.assert_allclose(P[:, :, i, kept], softmax(S[:, :, i, kept]), rtol=1e-12)

# %% [markdown]
# Why not set the weights to 0 **after** the softmax? Because the denominator then still contains the forbidden keys.
# Two things go wrong.
#
# - The rows no longer sum to one, so the output is too small.
# - A forbidden key still acts. The larger its score, the smaller all the allowed weights: information passes through
#   the denominator.
#
# Dividing each row by its new sum repairs both in exact arithmetic, since the old denominator cancels. In floating
# point it fails when a forbidden score is much larger than the allowed ones: all allowed weights underflow to 0, and
# the division is 0/0. A score of $-\infty$ has no such case, because the largest **allowed** score is subtracted.

# %%
after = softmax(S) * M
print("row sums with the mask after the softmax:", np.round(after[0, 0].sum(axis=1), 3))
assert (after.sum(axis=-1)[..., :2] < 0.999).all()
higher = softmax(np.where(M, S, S + 1)) * M  # larger forbidden scores make every allowed weight smaller
assert (higher < after)[:, :, M & ~M.all(axis=1, keepdims=True)].all()
np.testing.assert_allclose(after / after.sum(axis=-1, keepdims=True), P, rtol=1e-11)  # repaired, here

scores, allowed = np.array([1.0, 2.0, 900.0]), np.array([True, True, False])
with np.errstate(invalid="ignore"):
    late = softmax(scores) * allowed / (softmax(scores) * allowed).sum()
early = softmax(np.where(allowed, scores, -np.inf))
print("renormalized after:", late, " masked before:", np.round(early, 4))
assert np.isnan(late).all()
np.testing.assert_allclose(early[:2], softmax(scores[:2]), rtol=1e-12)

# %% [markdown]
# ## The kinds of mask
#
# **Causal.** A model that predicts the next token must not see it. Position $i$ may attend to the positions $j \le i$,
# itself included: a lower triangle.
#
# **Padding.** Texts of different lengths are filled up with a padding token to fit one array. No real token may attend
# to it. The mask depends on the text and the key, not on the head or the query, so it has shape $(B, 1, 1, T_k)$, and
# broadcasting repeats it along the other axes. It is made from the lengths or from the token ids.
#
# **Both.** A key must pass each mask, so two masks are combined by `and` (`&`): $(T, T)$ and $(B, 1, 1, T)$ broadcast
# to $(B, 1, T, T)$.
#
# **Fewer queries than keys.** When a model writes, the keys of the earlier tokens are kept, and only the newest tokens
# come as queries. The last query is then the last token, so the triangle is aligned to the **bottom right**: query $i$
# sees the keys $j \le i + T_k - T_q$.

# %%
T = 6
by_hand = np.array([[j <= i for j in range(T)] for i in range(T)])
np.testing.assert_array_equal(causal_mask(T), by_hand)

ids = np.array([[7, 4, 9, 3, 0, 0], [5, 2, 8, 6, 1, 4]])  # 0 is the padding
from_ids, from_lengths = padding_mask(ids=ids, pad_id=0), padding_mask(np.array([4, 6]))
np.testing.assert_array_equal(from_ids, from_lengths)
both = causal_mask(T) & from_ids
print("shapes: causal", causal_mask(T).shape, " padding", from_ids.shape, " both", both.shape)
for n, i, j in np.ndindex(2, T, T):
    assert both[n, 0, i, j] == (j <= i and ids[n, j] != 0)
np.testing.assert_array_equal(causal_mask(2, T), causal_mask(T)[-2:])  # the last two queries of six

# %%
scores = np.random.default_rng(1).standard_normal((T, T))
pictures = {
    "none": np.ones((T, T), bool), "causal": causal_mask(T), "padding, 4 real tokens": np.broadcast_to(from_ids[0, 0],
    (T, T)), "causal and padding": both[0, 0],
}  # fmt: skip
pictures = {name: softmax(np.where(mask, scores, -np.inf)) for name, mask in pictures.items()}
for weights in pictures.values():
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-14)
plots.plot_heatmaps(
    pictures, xlabel="key", ylabel="query", colorbar="attention weight",
    title="A mask takes keys away from a query; the weights of what is left still sum to 1",
)  # fmt: skip

# %%
right, wrong = (np.where(mask, scores[-2:], -np.inf) for mask in (causal_mask(2, T), np.tri(2, T, dtype=bool)))
corners = {"aligned to the bottom right": softmax(right), "wrong: to the top left": softmax(wrong)}
np.testing.assert_array_equal(corners["aligned to the bottom right"], pictures["causal"][-2:])
assert corners["wrong: to the top left"][0, 0] == 1
plots.plot_heatmaps(
    corners, xlabel="key", ylabel="query", colorbar="attention weight", yticks=["4", "5"],
    title="Two queries, six keys: aligned to the wrong corner, the query at position 4 sees key 0 and nothing else",
)  # fmt: skip

# %% [markdown]
# ### A row with no key left
#
# A mask can forbid every key of a query, for instance when a text is empty. The formula is then 0/0, and the plain code
# computes $-\infty - (-\infty)$, which is NaN (not a number). NaN spreads: one such row in a batch makes the gradient
# of every key and value of its text NaN, and a training run that sums over the batch is lost. A large negative number
# such as $-10^9$ in place of $-\infty$ gives no NaN but something worse to find: all scores of the row are then equal,
# so the query attends to all forbidden keys.
#
# The library's answer: such a query gets output 0 and gradient 0. No allowed key, no information.

# %%
M0 = M.copy()
M0[1] = False  # query 1 may attend to nothing
R = rng.standard_normal((B, H, Tq, dv))  # the loss is sum(O * R), so dO = R
with np.errstate(invalid="ignore"):
    naive = softmax(np.where(M0, S, -np.inf))
    dP = R @ V.swapaxes(-1, -2)
    naive_dS = naive * (dP - (dP * naive).sum(axis=-1, keepdims=True))
    naive_dK = naive_dS.swapaxes(-1, -2) @ Q / np.sqrt(d)
    naive_dV = naive.swapaxes(-1, -2) @ R
print("naive weights of the row:", naive[0, 0, 1], " dK all NaN:", np.isnan(naive_dK).all())
assert np.isnan(naive[:, :, 1]).all() and np.isnan(naive_dK).all() and np.isnan(naive_dV).all()
large_negative = softmax(np.where(M0, S, -1e9))
print("with -1e9:", large_negative[0, 0, 1])
np.testing.assert_allclose(large_negative[:, :, 1], 1 / Tk)

library = ScaledDotProductAttention()
assert (library(Q, K, V, mask=M0)[:, :, 1] == 0).all()
dQ, dK, dV = library.backward(R)
assert (dQ[:, :, 1] == 0).all() and np.isfinite(dK).all() and np.isfinite(dV).all()

# %% [markdown]
# ## The backward pass
#
# $\mathrm{d}X$ stands for $\partial L / \partial X$, and $\delta_{ij}$ is 1 if $i = j$ and 0 otherwise. In the
# derivatives below, $n'$ and $h'$ are the text and the head of the variable.
#
# ### Index form
#
# **Values**, $O_{nhib} = \sum_j P_{nhij} V_{nhjb}$:
#
# $$
# \begin{aligned}
# \frac{\partial O_{nhib}}{\partial V_{n'h'me}} &= \delta_{nn'}\, \delta_{hh'} \sum_{j} P_{nhij}\, \delta_{jm}\,
#   \delta_{be} = \delta_{nn'}\, \delta_{hh'}\, \delta_{be}\, P_{nhim} \\
# \mathrm{d}V_{n'h'me} &= \sum_{n,h,i,b} \mathrm{d}O_{nhib}\, \delta_{nn'}\, \delta_{hh'}\, \delta_{be}\, P_{nhim}
#   = \sum_{i} P_{n'h'im}\, \mathrm{d}O_{n'h'ie}
# \end{aligned}
# $$
#
# The deltas of text and head pick one term each, here and in every step: the backward pass runs for each text and head
# alone, as the forward pass does. They are left out from here on, as are the indices $n, h$.
#
# **Weights:**
#
# $$
# \mathrm{d}P_{im} = \sum_{b} \mathrm{d}O_{ib}\, V_{mb}
# $$
#
# **Masked scores**, $\tilde S = S + A$ and $P = \mathrm{softmax}(\tilde S)$, by the Jacobian of
# [chapter 3](03-softmax.ipynb):
#
# $$
# \mathrm{d}\tilde S_{im} = \sum_{j} \mathrm{d}P_{ij}\, P_{ij} \left( \delta_{jm} - P_{im} \right)
# = P_{im} \Big( \mathrm{d}P_{im} - \sum_{j} \mathrm{d}P_{ij}\, P_{ij} \Big)
# $$
#
# **Scores.** The mask is a constant. Where it allows, $\partial \tilde S_{im} / \partial S_{im} = 1$. Where it forbids,
# $\tilde S_{im} = -\infty$ whatever $S_{im}$ is, so the derivative is 0. But there $P_{im} = 0$, and the line above is
# 0 already. Both cases give
#
# $$
# \mathrm{d}S_{im} = \mathrm{d}\tilde S_{im} ,
# $$
#
# so **the mask does not appear in the backward pass**: the saved weights carry it. A row without any key has $P_{im} =
# 0$ for all $m$, and so gradient 0.
#
# **Queries and keys**, as in chapter 4:
#
# $$
# \begin{aligned}
# \frac{\partial S_{ij}}{\partial Q_{mb}} &= c\, \delta_{im} K_{jb}, &
#   \mathrm{d}Q_{mb} &= c \sum_{j} \mathrm{d}S_{mj} K_{jb} \\
# \frac{\partial S_{ij}}{\partial K_{mb}} &= c\, \delta_{jm} Q_{ib}, &
#   \mathrm{d}K_{mb} &= c \sum_{i} \mathrm{d}S_{im} Q_{ib}
# \end{aligned}
# $$
#
# If key $m$ is masked for all queries, then $P_{im} = 0$ for all $i$, and $\mathrm{d}V_m = 0$ and $\mathrm{d}K_m = 0$:
# a masked key learns nothing.
#
# ### Matrix form
#
# For each text and head, with $\odot$ for the product entry by entry and $r$ $(T_q, 1)$ the row sums of $\mathrm{d}P
# \odot P$:
#
# $$
# \mathrm{d}V = P^\top \mathrm{d}O, \qquad \mathrm{d}P = \mathrm{d}O\, V^\top, \qquad
# \mathrm{d}S = P \odot (\mathrm{d}P - r), \qquad
# \mathrm{d}Q = c\, \mathrm{d}S\, K, \qquad \mathrm{d}K = c\, \mathrm{d}S^\top Q .
# $$
#
# In code $P^\top$ is a swap of the last two axes. The loops below are the index form with all indices.

# %%
c, dO = d**-0.5, R  # P is the softmax with the mask M
dV = P.swapaxes(-1, -2) @ dO  # (B, H, Tk, dv)
dP = dO @ V.swapaxes(-1, -2)  # (B, H, Tq, Tk)
dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))  # (B, H, Tq, Tk)
dQ = c * dS @ K  # (B, H, Tq, d)
dK = c * dS.swapaxes(-1, -2) @ Q  # (B, H, Tk, d)

dV_loop, dP_loop, dS_loop, dQ_loop, dK_loop = (np.zeros_like(x) for x in (dV, dP, dS, dQ, dK))
for n, h, i, m in np.ndindex(B, H, Tq, Tk):
    for b in range(dv):
        dV_loop[n, h, m, b] += P[n, h, i, m] * dO[n, h, i, b]
        dP_loop[n, h, i, m] += dO[n, h, i, b] * V[n, h, m, b]
for n, h, i, m in np.ndindex(B, H, Tq, Tk):
    r = sum(dP_loop[n, h, i, j] * P[n, h, i, j] for j in range(Tk))
    dS_loop[n, h, i, m] = P[n, h, i, m] * (dP_loop[n, h, i, m] - r)
    for b in range(d):
        dQ_loop[n, h, i, b] += c * dS_loop[n, h, i, m] * K[n, h, m, b]
        dK_loop[n, h, m, b] += c * dS_loop[n, h, i, m] * Q[n, h, i, b]
for matrix, loop in ((dV, dV_loop), (dP, dP_loop), (dS, dS_loop), (dQ, dQ_loop), (dK, dK_loop)):
    np.testing.assert_allclose(matrix, loop, rtol=1e-11, atol=1e-14)


# %%
def loss():
    scores = np.where(M, Q @ K.swapaxes(-1, -2) / np.sqrt(d), -np.inf)
    return np.sum(softmax(scores) @ V * R)


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
# ### Self-attention: one input, three gradients
#
# In self-attention the same array is used three times: $Q = K = V = x$ (or three linear maps of it). This is the fork
# of [chapter 2](02-backpropagation.ipynb), so the gradients add. Each of the three derivatives below is $\delta_{im}\,
# \delta_{ab}$:
#
# $$
# \mathrm{d}x_{ma} = \sum_{i,b} \mathrm{d}Q_{ib} \frac{\partial Q_{ib}}{\partial x_{ma}}
# + \sum_{i,b} \mathrm{d}K_{ib} \frac{\partial K_{ib}}{\partial x_{ma}}
# + \sum_{i,b} \mathrm{d}V_{ib} \frac{\partial V_{ib}}{\partial x_{ma}}
# = \mathrm{d}Q_{ma} + \mathrm{d}K_{ma} + \mathrm{d}V_{ma} .
# $$
#
# A token's gradient tells three things at once: how it should have asked, how it should have been found, and what it
# should have said.

# %%
x, dy = rng.standard_normal((1, 2, T, 4)), rng.standard_normal((1, 2, T, 4))
library(x, mask=causal_mask(T))
dx = library.backward(dy)  # one input, one gradient
library(x, x, x, mask=causal_mask(T))
np.testing.assert_allclose(dx, sum(library.backward(dy)), rtol=1e-12)  # three inputs, three gradients

# %% [markdown]
# ## A class, equal to the library's


# %%
class MaskedAttention(Module):
    """Q (B, H, Tq, d), K (B, H, Tk, d), V (B, H, Tk, dv), mask broadcast to (B, H, Tq, Tk): (B, H, Tq, dv)."""

    def forward(self, Q, K, V, mask=None):
        scale = Q.shape[-1] ** -0.5
        # 1. scores
        S = Q @ K.swapaxes(-1, -2) * scale  # (B, H, Tq, Tk)
        # 2. mask
        if mask is not None:
            S = np.where(mask, S, -np.inf)
        # 3. softmax; a row without a key: its largest score is -inf, and 0 is subtracted instead
        largest = S.max(axis=-1, keepdims=True)
        P = np.exp(S - np.where(np.isfinite(largest), largest, 0))  # (B, H, Tq, Tk)
        total = P.sum(axis=-1, keepdims=True)
        P = P / np.where(total > 0, total, 1)
        # 4. average
        self.save(Q, K, V, P, scale)
        return P @ V  # (B, H, Tq, dv)

    def backward(self, dO):
        Q, K, V, P, scale = self.saved()
        # 4. O = P V
        dV, dP = P.swapaxes(-1, -2) @ dO, dO @ V.swapaxes(-1, -2)
        # 3. and 2.: the weights carry the mask
        dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))
        # 1. S = scale * Q K^T
        return scale * dS @ K, scale * dS.swapaxes(-1, -2) @ Q, dV


# %%
per_head = rng.random((B, H, Tq, Tk)) < 0.6
masks = {"none": None, "one for all": M, "row without a key": M0, "causal": causal_mask(Tq, Tk),
         "padding": padding_mask(np.array([3, 5])), "causal and padding": causal_mask(Tq, Tk) & padding_mask(
         np.array([3, 5])), "a text of padding only": padding_mask(np.array([0, 5])), "random": per_head}  # fmt: skip
ours = MaskedAttention()
for name, mask in masks.items():
    np.testing.assert_allclose(ours(Q, K, V, mask), library(Q, K, V, mask=mask), rtol=1e-12, atol=1e-15)
    for mine, theirs in zip(ours.backward(R), library.backward(R)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-14)

causal = ScaledDotProductAttention(causal=True)  # the mask made inside
np.testing.assert_allclose(causal(Q, K, V), ours(Q, K, V, causal_mask(Tq, Tk)), rtol=1e-12)
ours(Q, K, V, masks["padding"])
_, dK, dV = ours.backward(R)
assert (dK[0, :, 3:] == 0).all() and (dV[0, :, 3:] == 0).all()  # masked keys get gradient 0

# %%
report = gradcheck(MaskedAttention(), Q, K, V, mask=M0)
assert report
report

# %% [markdown]
# ### A planted mistake
#
# The mask is applied after the softmax, and the backward pass of the right class is kept, with the masked weights. What
# is wrong with the gradient? In truth $O = (P \odot M) V$ with the **unmasked** $P$, so that forbidden scores do act,
# through the denominator, and have gradient $-P_{im} \sum_j \mathrm{d}P_{ij} P_{ij}$ (with $\mathrm{d}P$ masked). The
# backward pass returns 0 for them. The checker sees it in the queries and the keys, and not in the values.


# %%
class MaskAfter(MaskedAttention):
    def forward(self, Q, K, V, mask=None):
        scale = Q.shape[-1] ** -0.5
        P = softmax(Q @ K.swapaxes(-1, -2) * scale) * mask  # the mistake: 0 after, in place of -inf before
        self.save(Q, K, V, P, scale)
        return P @ V


report = gradcheck(MaskAfter(), Q, K, V, mask=M)
assert not report
assert report["V"].passed and not report["Q"].passed and not report["K"].passed
report

# %% [markdown]
# A gradient check compares backward with **its own** forward. Someone who derives the backward pass of the wrong
# forward correctly passes it, with the future in plain sight. A different test is needed for that.


# %%
class MaskAfterConsistent(MaskAfter):
    def forward(self, Q, K, V, mask=None):
        scale = Q.shape[-1] ** -0.5
        P = softmax(Q @ K.swapaxes(-1, -2) * scale)
        self.save(Q, K, V, P, mask, scale)
        return (P * mask) @ V

    def backward(self, dO):
        Q, K, V, P, mask, scale = self.saved()
        dV, dP = (P * mask).swapaxes(-1, -2) @ dO, dO @ V.swapaxes(-1, -2) * mask
        dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))
        return scale * dS @ K, scale * dS.swapaxes(-1, -2) @ Q, dV


assert gradcheck(MaskAfterConsistent(), Q, K, V, mask=M)  # passes, and is wrong

# %% [markdown]
# ## Finding a leak
#
# **By a change of the future.** Take an input, change all tokens after position $t$, and compare the outputs up to $t$.
# In a causal model they are the same. One tries every $t$. The test needs no gradient and no knowledge of the model.


# %%
def leaks(model, x, seed=0):
    """Largest change of the outputs up to t when the tokens after t are changed: one number for t = 0, ..., T - 2.

    `model` is a function of x: token ids (B, T), or vectors (B, T, D).
    """
    rng, before, found = np.random.default_rng(seed), model(x), []
    for t in range(x.shape[1] - 1):
        other = x.copy()
        if x.dtype.kind in "iu":
            other[:, t + 1 :] = (x[:, t + 1 :] + 1) % (x.max() + 1)  # another token at every later place
        else:
            other[:, t + 1 :] += rng.standard_normal(other[:, t + 1 :].shape)
        found.append(np.abs(model(other)[:, : t + 1] - before[:, : t + 1]).max())
    return np.array(found)


def self_attention(attention, mask):
    def model(x):  # (B, T, D)
        y = attention(x[:, None], x[:, None], x[:, None], mask)[:, 0]
        attention.clear()  # no backward follows
        return y

    return model


T = 10
x = np.random.default_rng(2).standard_normal((2, T, 4))
suspects = {
    "right": (MaskedAttention(), causal_mask(T)),
    "one key too many": (MaskedAttention(), np.tri(T, k=1, dtype=bool)),  # diagonal 1 in place of 0
    "mask after the softmax": (MaskAfterConsistent(), causal_mask(T)),
    "no mask": (MaskedAttention(), np.ones((T, T), bool)),
}
for name, (attention, mask) in suspects.items():
    changes = leaks(self_attention(attention, mask), x)
    print(f"{name:24} largest change of an output {changes.max():.1e}, smallest over t {changes.min():.1e}")
    assert changes.max() < 1e-13 if name == "right" else changes.min() > 1e-3

# %% [markdown]
# **By derivatives.** The output at $t$ must not depend on the input at $j > t$: $\partial y_t / \partial x_j = 0$. All
# these derivatives form the **influence matrix**, here with the Frobenius norm of each block,
#
# $$
# I_{tj} = \Big( \sum_{b} \sum_{a} \Big( \frac{\partial y_{tb}}{\partial x_{ja}} \Big)^2 \Big)^{1/2} .
# $$
#
# One backward pass gives one row of one block: with $\mathrm{d}y$ equal to 1 at $(t, b)$ and 0 elsewhere,
# $\mathrm{d}x_{ja} = \partial y_{tb} / \partial x_{ja}$. All $T \cdot D$ of them can be put in one batch. A causal
# model has a lower triangle. (The picture leaves out the diagonal, the influence of a token on itself, which would set
# the scale of the colors.)


# %%
def influence(attention, x, mask):
    """Influence matrix (T, T) of self-attention at x (T, D)."""
    T, D = x.shape
    attention(*3 * [np.broadcast_to(x, (T * D, 1, T, D))], mask)
    dx = sum(attention.backward(np.eye(T * D).reshape(T * D, 1, T, D)))  # (T D, 1, T, D): row t D + b
    return np.sqrt((dx.reshape(T, D, T, D) ** 2).sum(axis=(1, 3)))  # (T, T)


matrices = {name: influence(attention, x[0], mask) for name, (attention, mask) in suspects.items()}
future = np.triu(np.ones((T, T), bool), 1)
for name, matrix in matrices.items():
    share = matrix[future].sum() / matrix.sum()
    print(f"{name:24} share of the influence that comes from the future: {share:.3f}")
    assert (matrix[future] == 0).all() if name == "right" else share > 0.02

late = matrices["mask after the softmax"]
others = {name: np.where(np.eye(T, dtype=bool), np.nan, matrix) for name, matrix in matrices.items()}
plots.plot_heatmaps(
    others, xlabel="input token j", ylabel="output token t", colorbar="norm of the derivative",
    title="A causal model has a lower triangle; with the mask after the softmax "
    f"{100 * late[future].sum() / late.sum():.0f} % of the influence comes from the future",
)  # fmt: skip

# %% [markdown]
# ### A leak of padding
#
# The same two tests find a padding mask that is missing: change the padding, and look at the outputs of real tokens. A
# third test says it in one line: a text must give the same outputs alone and padded. Only the outputs of **real**
# tokens count. A padding token is still a query: its own output depends on it, nobody attends to it, and the loss must
# leave it out ([chapter 3](03-softmax.ipynb): targets that do not count).

# %%
length, T = 5, 8
x = np.random.default_rng(3).standard_normal((1, T, 4))  # tokens 5, 6, 7 are padding
changed = x.copy()
changed[:, length:] += 1.0
found = {}
for name, mask in (("padding mask", padding_mask(np.array([length]), T)), ("no mask", np.ones((1, 1, 1, T), bool))):
    model = self_attention(MaskedAttention(), mask)
    change = np.abs(model(changed) - model(x))[:, :length].max()
    alone = self_attention(MaskedAttention(), None)(x[:, :length])
    apart = np.abs(model(x)[:, :length] - alone).max()
    found[name] = influence(MaskedAttention(), x[0], mask)
    print(f"{name:12} change of a real output {change:.1e}, distance from the text alone {apart:.1e}, "
          f"influence of the padding on it {found[name][:length, length:].max():.1e}")  # fmt: skip
    if name == "padding mask":
        assert change < 1e-13 and apart < 1e-13 and (found[name][:length, length:] == 0).all()
    else:
        assert change > 1e-2 and apart > 1e-2 and found[name][:length, length:].min() > 1e-3

plots.plot_heatmaps(
    found, xlabel="input token j (5, 6, 7 are padding)", ylabel="output token t", colorbar="norm of the derivative",
    title=f"Without a mask the padding has up to {found['no mask'][:length, length:].max():.2f} influence on a real "
    "token, with it exactly 0",
)  # fmt: skip

# %% [markdown]
# ## Training with a leak
#
# Nothing crashes when a mask leaks. The training loss even looks better, which is why the mistake lives long. To see
# it, one needs data of which the best possible loss is known.
#
# **Data.** A Markov chain on 8 symbols: the next symbol depends on the last one only. Each symbol has three successors,
# drawn once for each seed, with probabilities 0.5, 0.3 and 0.2; the five other transitions never occur. Given the past,
# the next symbol has entropy
#
# $$
# \eta = -\left( 0.5 \ln 0.5 + 0.3 \ln 0.3 + 0.2 \ln 0.2 \right) \approx 1.03 \text{ nats,}
# $$
#
# and no predictor that sees only the past has a smaller expected cross-entropy, since cross-entropy exceeds entropy by
# a Kullback-Leibler divergence, which is not negative. A loss clearly below $\eta$ on fresh data **proves** a leak.
#
# **Model.** One attention head over embeddings with a learned vector for each position (chapter 7), added to the token
# itself (chapter 9), then a linear layer. Every batch is new, so nothing can be learned by heart.

# %%
SYMBOLS, LENGTH, WIDTH = 8, 16, 32
CHANCES = np.array([0.5, 0.3, 0.2])
ENTROPY = -(CHANCES * np.log(CHANCES)).sum()


class TinyLM(Module):
    def __init__(self, mask, rng):
        super().__init__()
        self.mask = mask  # (T, T)
        self.embedding = Embedding(SYMBOLS, WIDTH, std=1.0, rng=rng)
        self.position = LearnedPositionalEncoding(WIDTH, LENGTH, rng=rng)
        self.query, self.key, self.value = (Linear(WIDTH, WIDTH, rng=rng) for _ in range(3))
        self.attention = ScaledDotProductAttention()
        self.output = Linear(WIDTH, SYMBOLS, rng=rng)

    def forward(self, ids):  # (B, T)
        x, T = self.position(self.embedding(ids)), ids.shape[1]  # (B, T, D)
        q, k, v = (linear(x)[:, None] for linear in (self.query, self.key, self.value))  # (B, 1, T, D)
        return self.output(x + self.attention(q, k, v, mask=self.mask[:T, :T])[:, 0])  # (B, T, symbols)

    def backward(self, dlogits):
        dy = self.output.backward(dlogits)  # (B, T, D)
        dq, dk, dv = self.attention.backward(dy[:, None])
        dx = dy + self.query.backward(dq[:, 0]) + self.key.backward(dk[:, 0]) + self.value.backward(dv[:, 0])
        self.embedding.backward(self.position.backward(dx))


def draw(chances, rng):
    """One symbol for each row of chances (B, symbols)."""
    return (rng.random((len(chances), 1)) > chances.cumsum(axis=1)).sum(axis=1).clip(max=SYMBOLS - 1)


# %%
def sample(chain, rows, rng):
    ids = rng.integers(SYMBOLS, size=(rows, 1))
    for _ in range(LENGTH):
        ids = np.concatenate([ids, draw(chain[ids[:, -1]], rng)[:, None]], axis=1)
    return ids  # (rows, LENGTH + 1)


def write(model, rows, rng):
    """Continue random first symbols, one symbol at a time."""
    ids = rng.integers(SYMBOLS, size=(rows, 1))
    with no_grad():
        for _ in range(LENGTH):
            logits = model(ids)[:, -1].astype(np.float64)
            ids = np.concatenate([ids, draw(softmax(logits), rng)[:, None]], axis=1)
    return ids


def honest_loss(model, ids):
    """Cross-entropy of each next symbol when the model is given nothing but the symbols before it."""
    with no_grad():
        losses = [float(CrossEntropyLoss()(model(ids[:, : t + 1])[:, -1], ids[:, t + 1])) for t in range(LENGTH)]
    return np.mean(losses)


# %%
STEPS, SEEDS = (300, 3) if FAST else (400, 5)
LEAKY = {"causal": causal_mask(LENGTH), "one key too many": np.tri(LENGTH, k=1, dtype=bool),
         "no mask": np.ones((LENGTH, LENGTH), bool)}  # fmt: skip


def experiment(mask, seed):
    rng = np.random.default_rng(seed)
    chain = np.zeros((SYMBOLS, SYMBOLS))
    for row in chain:
        row[rng.choice(SYMBOLS, 3, replace=False)] = CHANCES
    model, loss, losses = TinyLM(mask, rng), CrossEntropyLoss(), []
    optimizer = Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        ids = sample(chain, 32, rng)
        losses.append(float(loss(model(ids[:, :-1]), ids[:, 1:])))
        model.zero_grad()
        model.backward(loss.backward())
        optimizer.step()
    written = write(model, 200, rng)
    forbidden = np.mean(chain[written[:, :-1], written[:, 1:]] == 0)
    return np.array(losses), honest_loss(model, sample(chain, 200, rng)), forbidden, model


with threadpool_limits(1, "blas"):  # small matrices are faster on one thread
    results = {name: [experiment(mask, seed) for seed in range(SEEDS)] for name, mask in LEAKY.items()}

# %%
final = {name: np.array([r[0][-50:].mean() for r in rs]) for name, rs in results.items()}
honest = {name: np.array([r[1] for r in rs]) for name, rs in results.items()}
forbidden = {name: np.array([r[2] for r in rs]) for name, rs in results.items()}
print(f"the best possible loss is {ENTROPY:.3f} nats; {SEEDS} seeds")
for name in LEAKY:
    print(f"{name:17} training {final[name].mean():.3f} ({final[name].min():.3f} to {final[name].max():.3f}), "
          f"given only the past {honest[name].mean():.2f} ({honest[name].min():.2f} to {honest[name].max():.2f}), "
          f"impossible steps when it writes {100 * forbidden[name].mean():.1f} % ({100 * forbidden[name].min():.1f} to "
          f"{100 * forbidden[name].max():.1f})")  # fmt: skip
noise = 0.03  # over 10 standard errors: one symbol's best loss has deviation 0.36, and 50 * 32 * 16 are averaged
assert noise > 10 * np.sqrt((CHANCES * np.log(CHANCES) ** 2).sum() - ENTROPY**2) / np.sqrt(50 * 32 * LENGTH)
assert (final["causal"] > ENTROPY - noise).all() and (honest["causal"] < ENTROPY + 0.1).all()
assert (final["one key too many"] < 0.3 * ENTROPY).all() and (final["no mask"] < ENTROPY - noise).all()
for name in ("one key too many", "no mask"):
    assert (honest[name] > ENTROPY + 0.1).all() and (forbidden[name] > forbidden["causal"]).all()

# %%
curves = {}
for name, rs in results.items():
    smooth = np.array([np.convolve(r[0], np.ones(20) / 20, "valid") for r in rs])
    curves[name] = (np.arange(20, STEPS + 1), smooth.mean(axis=0), smooth.min(axis=0), smooth.max(axis=0))
curves["best possible from the past"] = ([20, STEPS], [ENTROPY, ENTROPY])
plots.plot_lines(
    curves, xlabel="step", ylabel="training loss (nats per symbol)",
    title=f"One key too many: training loss {final['one key too many'].mean():.2f}, below the possible {ENTROPY:.2f}; "
    f"given only the past it is {honest['one key too many'].mean():.1f}",
)  # fmt: skip

# %% [markdown]
# The causal model, given only the past, comes within 0.1 nats of the entropy, and its training loss does not fall below
# it by more than the noise. The leaky ones copy the answer from the
# future. When they write, the future is not there: the last token has no next key, and what they have learned to read
# is missing. In the figure the model without any mask finds the leak later. A likely reason, not tested here: it must
# first learn to pick the next position out of sixteen.
#
# ## Claims of the texts, checked
#
# ### A causal mask before the softmax guarantees that no position sees a later one
#
# Proof: for $j > i$ the weight is $P_{ij} = e^{-\infty} / \dots = 0$ exactly, so $o_i = \sum_{j \le i} P_{ij} v_j$, and
# the $P_{ij}$ with $j \le i$ are a softmax over the scores of these keys alone. Nothing in it comes from a later token.
# The other operations of a Transformer (chapters 7 to 10) work on each token alone, so a stack of layers inherits the
# property. In floating point there is one exception: $0 \cdot \mathrm{NaN}$ is NaN.

# %%
T = 10
x = np.random.default_rng(4).standard_normal((2, T, 4))
model = self_attention(ScaledDotProductAttention(causal=True), None)
print(f"largest change of an output when the future is changed: {leaks(model, x).max():.0e}")
assert leaks(model, x).max() < 1e-13
x[:, -1] = np.nan
assert np.isnan(model(x)[:, 0]).all()  # a NaN in the last token reaches the first output

# %% [markdown]
# **Holds if** the masked values are finite. A NaN in a later token reaches every output through the product with the
# values.
#
# ### Filling forbidden scores with minus infinity, then a softmax, is right
#
# The masks tested above against the formula and the library have this form. The exception is the row with no key:

# %%
with np.errstate(invalid="ignore"):
    rows_with_a_key = softmax(np.where(M, S, -np.inf))
    row_without = softmax(np.where(M0, S, -np.inf))[0, 0, 1]
assert np.isfinite(rows_with_a_key).all()
assert np.isnan(row_without).all()
print("row without a key:", row_without, "; in the library: weights", end=" ")
library(Q, K, V, mask=M0)
print(library.attention_weights[0, 0, 1])

# %% [markdown]
# **Holds if** every query keeps at least one key. Otherwise the row is NaN, and the NaN spreads to the gradient of all
# keys and values of the text.
#
# ### Not masking the future in a decoder is a mistake
#
# Measured under "Training with a leak".

# %%
for name in ("one key too many", "no mask"):
    print(f"{name}: training loss {final[name].mean():.2f}, honest loss {honest[name].mean():.2f}, best {ENTROPY:.2f}")
    assert (final[name] < honest[name] - 0.2).all()

# %% [markdown]
# **Holds.** The training loss falls below what is possible, the loss given only the past is above that of a masked
# model, and the model writes steps that never occur in the data.
#
# ### The weights that attention returns are the attention distribution
#
# The code of the texts applies dropout to the weights and returns **these**. Dropout sets a share $p$ of them to zero
# and divides the others by $1 - p$. The sum of a row is then random, with mean 1 and variance
#
# $$
# \mathrm{Var}\Big[ \sum_{j} \frac{P_{ij}\, m_{ij}}{1 - p} \Big] = \sum_{j} P_{ij}^2\, \frac{p (1 - p)}{(1 - p)^2}
# = \frac{p}{1 - p} \sum_{j} P_{ij}^2 ,
# $$
#
# where $m_{ij}$ is 1 with probability $1 - p$ and 0 otherwise. An entropy or a picture made of these weights in
# training mode is not that of a distribution.

# %%
rng, p = np.random.default_rng(5), 0.1
weights = softmax(rng.standard_normal((8, 4, 50, 50)))
dropped = Dropout(p, rng=rng)(weights)
sums = dropped.sum(axis=-1)
predicted = np.sqrt((p / (1 - p) * (weights**2).sum(axis=-1)).mean())
print(f"row sums after dropout of {p}: from {sums.min():.2f} to {sums.max():.2f}, standard deviation {sums.std():.4f}, "
      f"predicted {predicted:.4f}")  # fmt: skip
assert np.abs(sums - 1).max() > 0.1
np.testing.assert_allclose(sums.std(), predicted, rtol=0.15)  # 1600 rows: 8 times the standard error of 1.8 %

with_dropout = ScaledDotProductAttention(dropout=p, rng=rng)
with_dropout(*rng.standard_normal((3, 2, 2, 9, 4)))
np.testing.assert_allclose(with_dropout.attention_weights.sum(axis=-1), 1, rtol=1e-12)  # the library: before dropout

# %% [markdown]
# **Does not hold** in training mode: rows do not sum to one. It holds in evaluation, where dropout does nothing. The
# library keeps the weights from before the dropout.
#
# ### In training all positions are processed at once
#
# One masked pass over a text gives at each position what a pass over the tokens up to there gives. So a text of $T$
# tokens trains on $T$ predictions in one pass. Asserted for the trained causal model; the leaky one fails.

# %%
ids = sample(np.full((SYMBOLS, SYMBOLS), 1 / SYMBOLS), 20, np.random.default_rng(6))[:, :LENGTH]
for name in ("causal", "one key too many"):
    model = results[name][0][3]
    with no_grad():
        at_once = model(ids)  # (B, T, symbols): one pass
        steps = np.stack([model(ids[:, : t + 1])[:, -1] for t in range(LENGTH)], axis=1)  # T passes
    print(f"{name}: largest difference of a logit {np.abs(at_once - steps).max():.1e}")
    assert np.abs(at_once - steps).max() < 1e-4 if name == "causal" else np.abs(at_once - steps).max() > 0.1

# %% [markdown]
# **Holds if** the mask is causal and the true tokens are known, as in training. (The model is in float32, hence a
# difference in the last digits.) When a model writes, each token is needed before the next, and the passes follow one
# another.
#
# ## Exercises
#
# ### Exercise 5.1: What the mask saves
#
# On paper. How many of the $T^2$ weights of a causal head are not zero? What share of the multiplications of
# $Q K^\top$ and $P V$ does a program waste that computes all of them? Let $T$ be large.
#
# <details><summary>Solution of exercise 5.1</summary>
#
# Row $i$ (counted from 1) has $i$ weights, in all $1 + 2 + \dots + T = T (T + 1) / 2$. For large $T$ that is one half,
# so a program that forms the whole matrix wastes about half of its multiplications. It is often still faster than many
# small products, unless whole blocks above the diagonal are skipped.
#
# </details>
#
# ### Exercise 5.2: The first query
#
# On paper: show that in a causal self-attention with $Q$, $K$, $V$ as separate inputs the gradient of the **first**
# query is zero, whatever the loss. Then write `first_query_gradient(Q, K, V, dO)`, which returns $\mathrm{d}Q$ at
# position 0 for every text and head, $(B, H, d)$, with `MaskedAttention` and a causal mask ($T_q = T_k$). For
# random arrays no entry may be larger than $10^{-15}$ in size.
#
# <details><summary>Solution of exercise 5.2</summary>
#
# The first query sees one key. A softmax over one score is 1 whatever the score is, so $o_1 = v_1$ does not depend on
# $q_1$. In formulas: $P_{11} = 1$ and $\mathrm{d}S_{11} = P_{11} (\mathrm{d}P_{11} - \mathrm{d}P_{11} P_{11}) = 0$. So
# the first token of a text learns nothing about how to ask.
#
# </details>

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 5.2
def first_query_gradient(Q, K, V, dO):
    attention = MaskedAttention()
    attention(Q, K, V, causal_mask(Q.shape[2]))
    return attention.backward(dO)[0][:, :, 0]


Q, K, V, dO = np.random.default_rng(7).standard_normal((4, 2, 3, 6, 4))
assert np.abs(first_query_gradient(Q, K, V, dO)).max() < 1e-15

# %% [markdown]
# ### Exercise 5.3: A window
#
# Write `window_mask(T, width)`, a mask $(T, T)$ in which each query sees itself and the `width - 1` tokens before it.
# Checks: `window_mask(T, T)` is the causal mask; `window_mask(T, 1)` gives the values themselves as output; and with
# two layers of attention, the output at $t$ depends on the input at $j$ exactly if $0 \le t - j \le 2\,(\text{width} -
# 1)$. For the last check write `two_layer_influence(x, mask)` with `x` $(T, D)$: two `ScaledDotProductAttention`
# one after the other, each with its input as queries, keys and values and with the same mask; it returns an array $(T,
# T)$ of booleans, true at $(t, j)$ if some component of the output at $t$ has a derivative that is not zero with
# respect to some component of $x_j$. (The batch of `influence` above does it.) Use $T = 12$ and width 3.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 5.3
def window_mask(T, width):
    distance = np.arange(T)[:, None] - np.arange(T)
    return (distance >= 0) & (distance < width)


def two_layer_influence(x, mask):
    T, D = x.shape
    first, second = ScaledDotProductAttention(), ScaledDotProductAttention()
    y = first(np.broadcast_to(x, (T * D, 1, T, D)), mask=mask)
    second(y, mask=mask)
    dx = first.backward(second.backward(np.eye(T * D).reshape(T * D, 1, T, D)))
    return (dx.reshape(T, D, T, D) ** 2).sum(axis=(1, 3)) > 0


T = 12
x = np.random.default_rng(8).standard_normal((T, 4))
np.testing.assert_array_equal(window_mask(T, T), causal_mask(T))
np.testing.assert_allclose(ScaledDotProductAttention()(x[None, None], mask=window_mask(T, 1))[0, 0], x, rtol=1e-12)
distance = np.arange(T)[:, None] - np.arange(T)
np.testing.assert_array_equal(two_layer_influence(x, window_mask(T, 3)), (distance >= 0) & (distance <= 4))

# %% [markdown]
# ### Exercise 5.4: Several texts in one row
#
# To waste no padding, short texts are put one after the other in one row. A text must not see its neighbors. Write
# `packed_mask(segments)`: `segments` $(B, T)$ holds the number of the text that each token belongs to, and the result
# is a causal mask $(B, 1, T, T)$ in which a token sees only its own text. Check: self-attention over a row that holds
# texts of 3, 4 and 2 tokens equals self-attention over each text alone to $10^{-12}$.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 5.4
def packed_mask(segments):
    same = segments[:, None, :, None] == segments[:, None, None, :]  # (B, 1, T, T)
    return same & causal_mask(segments.shape[1])


texts = [np.random.default_rng(9 + i).standard_normal((1, 1, n, 4)) for i, n in enumerate((3, 4, 2))]
segments = np.repeat([0, 1, 2], (3, 4, 2))[None]
together = ScaledDotProductAttention()(np.concatenate(texts, axis=2), mask=packed_mask(segments))
alone = [ScaledDotProductAttention(causal=True)(text) for text in texts]
np.testing.assert_allclose(together, np.concatenate(alone, axis=2), rtol=1e-12)

# %% [markdown]
# ## Papers
#
# - Vaswani et al. (2017), Attention is all you need, arXiv:1706.03762: the causal mask as scores of minus infinity
#   (section 3.2.3), dropout.
# - Liu et al. (2018), Generating Wikipedia by summarizing long sequences, arXiv:1801.10198: a language model that is a
#   masked decoder alone.
# - Radford et al. (2019), Language models are unsupervised multitask learners: GPT-2, trained on all positions at once.
# - Child et al. (2019), Generating long sequences with sparse Transformers, arXiv:1904.10509: masks that leave out most
#   keys, like the window of exercise 5.3.
# - Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting, JMLR 15.
#
# In the library this chapter is `numtrans/layers/attention.py` and `numtrans/layers/masks.py`; the next chapter splits
# the tokens' vectors into heads: [chapter 6](06-multi-head-attention.ipynb).
