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
# # 11. The whole encoder-decoder
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/11-encoder-decoder.ipynb)
#
# The chapters before this one built the parts. This one puts them together: the Transformer of Vaswani et al. (2017),
# which reads a source sequence and writes a target sequence. One training step is followed through every array, first
# forward, then backward, in plain NumPy, and ends with the gradients of the library to twelve digits. Then the model
# learns, and we read what its cross-attention looks at.
#
# **At the end you will understand**
#
# - how the parts are wired, and which array has which shape at each place;
# - why training can look at all target positions at once (teacher forcing) although writing goes one by one;
# - how the gradient of one loss reaches every parameter of both stacks, and where gradients add;
# - how many parameters a Transformer has, and in which part;
# - what the cross-attention of a trained model shows.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import math
import os
import tempfile

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.data import DateTask, Seq2SeqBatches, SequenceTask
from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.losses import CrossEntropyLoss
from numtrans.models import Transformer, TransformerConfig
from numtrans.module import Module, Parameter, no_grad
from numtrans.optim import AdamW, warmup_cosine
from numtrans.runs import (
    Run,
    StepBatches,
    cross_attention,
    default_settings,
    exact_match,
    make_run,
    make_task,
    train_run,
)
from numtrans.training import Trainer

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests

# %% [markdown]
# ## What is modeled
#
# A source is a sequence of $T_s$ tokens $x_1, \dots, x_{T_s}$, a target a sequence of $T_t$ tokens
# $y_1, \dots, y_{T_t}$, each token a number from a vocabulary. The model gives the probability of the target, taken
# apart by the product rule of probability, which holds for any distribution:
#
# $$
# p(y \mid x) = \prod_{t=1}^{T_t} p(y_t \mid y_1, \dots, y_{t-1}, x)
# $$
#
# The loss is the mean of $-\log p(y_t \mid \dots)$ over the positions: the cross-entropy of
# [chapter 3](03-softmax.ipynb), one term for each target token. The task of this chapter is to read a date as people
# write it and to write it as `year-month-day`. Two examples make a batch; the shorter source is filled up with the
# padding token, whose number is 0.

# %%
task = DateTask(seed=0)
pairs = [("14 july 1989", "1989-07-14"), ("3 may 2021", "2021-05-03")]
batch = next(iter(Seq2SeqBatches(task.encode_pairs(pairs), batch_size=2, shuffle=False).epoch(0)))
src, tgt, labels = batch.src, batch.tgt_in, batch.tgt_out                   # (B, Ts), (B, Tt), (B, Tt)
print("source\n", src, "\ndecoder reads\n", tgt, "\nand has to say\n", labels)

# %% [markdown]
# What the decoder reads is the target moved one place to the right behind a begin token (number 1); what it has to say
# is the target with an end token (number 2) behind it. So at place $t$ it reads $y_{t-1}$ and is asked for $y_t$. A
# label of $-100$ does not count.

# %%
for read, said in zip(tgt, labels):
    counted = said != -100
    assert read[0] == 1 and said[counted][-1] == 2
    assert (read[1 : counted.sum()] == said[: counted.sum() - 1]).all()

# %% [markdown]
# ## The machine, and its shapes
#
# With $B$ rows in the batch, width $D$, $H$ heads, hidden width $F$ of the feed-forward network and target vocabulary
# $V$, the model (pre-norm, see [chapter 9](09-residuals-and-depth.ipynb)) is
#
# $$
# \begin{aligned}
# X^{(0)} &= \sqrt{D}\, E_s[\text{src}] + P, & Y^{(0)} &= \sqrt{D}\, E_t[\text{tgt}] + P \\
# A^{(l)} &= X^{(l-1)} + \mathrm{Att}(N(X^{(l-1)}), N(X^{(l-1)})), & X^{(l)} &= A^{(l)} + \mathrm{FFN}(N(A^{(l)})) \\
# M &= N(X^{(L)}) \\
# S^{(l)} &= Y^{(l-1)} + \mathrm{Att}(N(Y^{(l-1)}), N(Y^{(l-1)})), & C^{(l)} &= S^{(l)} + \mathrm{Att}(N(S^{(l)}), M) \\
# Y^{(l)} &= C^{(l)} + \mathrm{FFN}(N(C^{(l)})) \\
# Z &= N(Y^{(L)})\, E_t^\top
# \end{aligned}
# $$
#
# $E_s$ and $E_t$ are the embedding tables, $P$ the position encoding ([chapter 7](07-position.ipynb)), $N$ a LayerNorm
# (each with its own parameters), $\mathrm{Att}(Q, K)$ multi-head attention with queries from the first argument and keys
# and values from the second, $M$ the memory that the encoder hands to the decoder, and $Z$ the logits. The three uses of
# attention differ only in who asks whom, and in the mask: padding in the encoder, the causal mask in the decoder's
# self-attention, the padding of the source in the cross-attention. The output layer uses the table $E_t$ a second time.
#
# In NumPy, part by part. Each function writes the arrays that its backward will need into a dictionary `A`, under the
# name of its place; `W` holds the weights under the names that the library gives them. First the three that the
# earlier chapters derived.

# %%
def linear(x, W, A, at):
    A[at + ".in"] = x
    return x @ W[at + ".W"] + W[at + ".b"]


def norm(x, W, A, at):
    xhat = x - x.mean(axis=-1, keepdims=True)
    sigma = np.sqrt((xhat**2).mean(axis=-1, keepdims=True) + 1e-5)          # (B, T, 1)
    A[at + ".sigma"], A[at + ".xhat"] = sigma, xhat / sigma
    return W[at + ".gamma"] * A[at + ".xhat"] + W[at + ".beta"]


def feedforward(x, W, A, at):
    h = linear(x, W, A, at + ".linear1")                                    # (B, T, F)
    return linear(np.maximum(h, 0), W, A, at + ".linear2")                  # (B, T, D)


# %%
def split(x, H):
    B, T, D = x.shape
    return x.reshape(B, T, H, D // H).transpose(0, 2, 1, 3)                 # (B, H, T, d)


def merge(x):
    B, H, T, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * d)                     # (B, T, D)


def attend(x, m, W, A, at, H, mask):
    q, k, v = (split(linear(z, W, A, f"{at}.{name}_proj"), H) for z, name in ((x, "q"), (m, "k"), (m, "v")))
    S = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])                     # (B, H, Tq, Tk)
    S = np.where(mask, S, -np.inf)
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    P /= P.sum(axis=-1, keepdims=True)
    A.update({at + ".q": q, at + ".k": k, at + ".v": v, at + ".weights": P})
    return linear(merge(P @ v), W, A, at + ".out_proj")                     # (B, Tq, D)


# %% [markdown]
# The wiring. `residual` is the pre-norm block $x + f(N(x))$, written once and used five times.

# %%
def residual(x, sublayer, W, A, at):
    return x + sublayer(norm(x, W, A, at + ".norm"), at + ".sublayer")


def embed(ids, W, A, at):
    E = W[at + ".embedding.E"]                                              # (V, D)
    D, T = E.shape[1], ids.shape[1]
    t, i = np.arange(T)[:, None], np.arange(0, D, 2)[None, :]
    angle = t / 10000.0 ** (i / D)                                          # (T, D / 2)
    position = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(T, -1)[:, :D]
    A[at + ".ids"] = ids
    return math.sqrt(D) * E[ids] + position.astype(E.dtype)                 # (B, T, D)


def encoder_layer(x, W, A, at, H, mask):
    x = residual(x, lambda n, place: attend(n, n, W, A, place, H, mask), W, A, at + ".self_attention")
    return residual(x, lambda n, place: feedforward(n, W, A, place), W, A, at + ".feedforward")


def decoder_layer(y, memory, W, A, at, H, tgt_mask, src_mask):
    y = residual(y, lambda n, place: attend(n, n, W, A, place, H, tgt_mask), W, A, at + ".self_attention")
    y = residual(y, lambda n, place: attend(n, memory, W, A, place, H, src_mask), W, A, at + ".cross_attention")
    return residual(y, lambda n, place: feedforward(n, W, A, place), W, A, at + ".feedforward")


# %%
def transformer(src, tgt, W, A, L, H):
    src_mask = (src != 0)[:, None, None, :]                                 # (B, 1, 1, Ts), True = may attend
    tgt_mask = np.tril(np.ones((tgt.shape[1],) * 2, bool))                  # (Tt, Tt)
    x, y = embed(src, W, A, "src_embedding"), embed(tgt, W, A, "tgt_embedding")
    for l in range(L[0]):
        A[f"encoder.{l}"] = x = encoder_layer(x, W, A, f"encoder.layers.{l}", H, src_mask)
    A["memory"] = memory = norm(x, W, A, "encoder.norm")                    # (B, Ts, D)
    for l in range(L[1]):
        A[f"decoder.{l}"] = y = decoder_layer(y, memory, W, A, f"decoder.layers.{l}", H, tgt_mask, src_mask)
    A["h"] = norm(y, W, A, "decoder.norm")                                  # (B, Tt, D)
    return A["h"] @ W["tgt_embedding.embedding.E"].T                        # (B, Tt, V)


# %% [markdown]
# The library's `Transformer` holds the same weights under the same names. Its logits are the same numbers.

# %%
L, H = (2, 2), 2                                                            # layers of encoder and decoder, heads
config = TransformerConfig(
    len(task.source_vocab), len(task.target_vocab), d_model=8, num_heads=H, d_ff=16, num_encoder_layers=L[0],
    num_decoder_layers=L[1], dropout=0.0, norm_placement="pre",
)  # fmt: skip
model = Transformer(config, rng=0).astype(np.float64)
rng = np.random.default_rng(1)
for parameter in model.parameters():                                        # gains and biases that are not 1 and 0
    parameter.data += 0.1 * rng.standard_normal(parameter.data.shape)
W, A = model.state_dict(), {}
logits = transformer(src, tgt, W, A, L, H)
np.testing.assert_allclose(logits, model(src, tgt), rtol=1e-11, atol=1e-12)
print(f"logits {logits.shape}: equal to the library's to", f"{np.abs(logits - model(src, tgt)).max():.0e}")
model.clear()

# %% [markdown]
# Every array of the forward pass, in the order in which it was made (the second layers look like the first):

# %%
for name, array in A.items():
    if ".layers.1." not in name and not name.endswith(".in"):
        size = f"root mean square {math.sqrt((array.astype(float) ** 2).mean()):.3f}" if array.dtype.kind == "f" else ""
        print(f"{name:52s} {array.shape!s:16s} {size}")

# %% [markdown]
# ## Teacher forcing
#
# When the model writes, it makes $y_1$, reads it back, makes $y_2$, and so on: $T_t$ runs of the decoder. In training the
# right $y_1, \dots, y_{T_t}$ are known, so the decoder is given all of them at once. This is called teacher forcing
# (Williams and Zipser, 1989). It computes the same numbers, because the causal mask keeps place $t$ from the places
# after it:
#
# $$
# Z_{t}(y_0, \dots, y_{T_t - 1}) = Z_{t}(y_0, \dots, y_{t-1})
# $$
#
# with $y_0$ the begin token and $Z_t$ the logits that predict $y_t$. Checked on the batch, one prefix after another:

# %%
for t in range(1, tgt.shape[1] + 1):
    prefix = transformer(src, tgt[:, :t], W, {}, L, H)                      # (B, t, V)
    np.testing.assert_allclose(prefix[:, -1], logits[:, t - 1], rtol=1e-10, atol=1e-12)
print(f"{tgt.shape[1]} runs of the decoder, one prefix each, give the numbers of one run")

# %% [markdown]
# ### Training looks at all positions at once
#
# Two of the texts say that a Transformer processes all positions at once in training, where a recurrent network goes
# one after another. The cell above is the proof for the forward pass: one pass with a mask gives what $T_t$ passes
# give. **Holds** for training. Writing remains one token after another, since each input is the output before it.
#
# ## The loss and its gradient
#
# With $N$ the number of labels that count, $p$ the softmax of a row of logits, and $[\cdot]$ equal to 1 where the
# condition holds and 0 elsewhere ([chapter 3](03-softmax.ipynb)):
#
# $$
# \mathcal{L} = -\frac{1}{N} \sum_{b,t} \log p_{b,t,\,y_{b,t}}, \qquad
# \mathrm{d}Z_{b,t,v} = \frac{1}{N} \left( p_{b,t,v} - [v = y_{b,t}] \right)
# $$
#
# where $\mathrm{d}Z$ stands for $\partial \mathcal{L} / \partial Z$, here and below for every array. A row that does
# not count has loss 0 and gradient 0.

# %%
counts = labels != -100
p = np.exp(logits - logits.max(axis=-1, keepdims=True))
p /= p.sum(axis=-1, keepdims=True)
b, t = np.nonzero(counts)
loss = -np.log(p[b, t, labels[b, t]]).mean()
dlogits = np.where(counts[..., None], p, 0)
dlogits[b, t, labels[b, t]] -= 1
dlogits /= counts.sum()

ce = CrossEntropyLoss()
np.testing.assert_allclose(loss, ce(model(src, tgt), labels), rtol=1e-12)
np.testing.assert_allclose(dlogits, ce.backward(), rtol=1e-10, atol=1e-15)
print(f"loss {loss:.4f} nats per token; a uniform guess would have log V = {math.log(logits.shape[-1]):.4f}")

# %% [markdown]
# ## Backward, line by line
#
# The rule for the whole is one sentence: go through the forward lines from the last to the first, and wherever an array
# was used more than once, **add** what comes back from each use. Four places add.
#
# **The residual.** $y = x + f(x)$ uses $x$ twice. In index form, with $J_{ji} = \partial f_j / \partial x_i$:
#
# $$
# \mathrm{d}x_i = \sum_j \mathrm{d}y_j \frac{\partial y_j}{\partial x_i} = \sum_j \mathrm{d}y_j \left( [i = j] + J_{ji} \right)
# = \mathrm{d}y_i + \sum_j \mathrm{d}y_j J_{ji}, \qquad \mathrm{d}x = \mathrm{d}y + \mathrm{d}y\, J
# $$
#
# **Self-attention.** One array $n = N(x)$ is the source of queries, keys and values, $Q = n W_q + b_q$ and so on. With
# $t$ the token and $i$ the feature:
#
# $$
# \mathrm{d}n_{ti} = \sum_j \mathrm{d}Q_{tj} (W_q)_{ij} + \sum_j \mathrm{d}K_{tj} (W_k)_{ij} + \sum_j \mathrm{d}V_{tj} (W_v)_{ij},
# \qquad \mathrm{d}n = \mathrm{d}Q\, W_q^\top + \mathrm{d}K\, W_k^\top + \mathrm{d}V\, W_v^\top
# $$
#
# **The memory.** Every decoder layer $l$ takes keys and values from the same $M$; its own queries come from $S^{(l)}$:
#
# $$
# \mathrm{d}M_{si} = \sum_{l=1}^{L} \sum_j \left( \mathrm{d}K^{(l)}_{sj} (W_k^{(l)})_{ij} + \mathrm{d}V^{(l)}_{sj} (W_v^{(l)})_{ij} \right),
# \qquad \mathrm{d}M = \sum_l \left( \mathrm{d}K^{(l)} W_k^{(l)\top} + \mathrm{d}V^{(l)} W_v^{(l)\top} \right)
# $$
#
# This sum is the only way by which the loss reaches the encoder.
#
# **The table $E_t$.** It is read by every place that holds token $v$, and used again as the output matrix,
# $Z_{btv} = \sum_i h_{bti} (E_t)_{vi}$ with $h = N(Y^{(L)})$:
#
# $$
# (\mathrm{d}E_t)_{vi} = \sqrt{D} \sum_{b,t} [\text{tgt}_{bt} = v]\, \mathrm{d}Y^{(0)}_{bti} + \sum_{b,t} \mathrm{d}Z_{btv}\, h_{bti},
# \qquad \mathrm{d}E_t = \sqrt{D}\, O^\top \mathrm{d}Y^{(0)} + \mathrm{d}Z^\top h
# $$
#
# where $O$ is the matrix whose row for place $(b, t)$ is 1 at $\text{tgt}_{bt}$ and 0 elsewhere, and the rows of
# $\mathrm{d}Y^{(0)}$, $\mathrm{d}Z$ and $h$ are the places.
#
# In code, each function below undoes the forward function of its name. `G` collects the gradients of the weights, and
# always by adding.

# %%
def add(G, name, value):
    G[name] = G.get(name, 0) + value


def linear_backward(dy, W, A, G, at):
    add(G, at + ".W", np.einsum("bti,btj->ij", A[at + ".in"], dy))          # dW = x^T dy over all places
    add(G, at + ".b", dy.sum(axis=(0, 1)))
    return dy @ W[at + ".W"].T


def norm_backward(dy, W, A, G, at):
    sigma, xhat = A[at + ".sigma"], A[at + ".xhat"]
    add(G, at + ".gamma", (dy * xhat).sum(axis=(0, 1)))
    add(G, at + ".beta", dy.sum(axis=(0, 1)))
    d = W[at + ".gamma"] * dy
    return (d - d.mean(axis=-1, keepdims=True) - xhat * (d * xhat).mean(axis=-1, keepdims=True)) / sigma


def feedforward_backward(dy, W, A, G, at):
    dh = linear_backward(dy, W, A, G, at + ".linear2")                      # (B, T, F)
    dh = dh * (A[at + ".linear2.in"] > 0)                                   # the ReLU
    return linear_backward(dh, W, A, G, at + ".linear1")


# %%
def attend_backward(dy, W, A, G, at, H):
    q, k, v, P = (A[f"{at}.{name}"] for name in ("q", "k", "v", "weights"))
    dO = split(linear_backward(dy, W, A, G, at + ".out_proj"), H)           # (B, H, Tq, d)
    dv = P.swapaxes(-1, -2) @ dO
    dP = dO @ v.swapaxes(-1, -2)
    dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True)) / math.sqrt(q.shape[-1])
    dq, dk = dS @ k, dS.swapaxes(-1, -2) @ q
    dx = linear_backward(merge(dq), W, A, G, at + ".q_proj")                # (B, Tq, D)
    dm = linear_backward(merge(dk), W, A, G, at + ".k_proj") + linear_backward(merge(dv), W, A, G, at + ".v_proj")
    return dx, dm


def residual_backward(dy, sublayer_backward, W, A, G, at):
    return dy + norm_backward(sublayer_backward(dy, at + ".sublayer"), W, A, G, at + ".norm")


# %%
def encoder_layer_backward(dx, W, A, G, at, H):
    dx = residual_backward(dx, lambda dy, place: feedforward_backward(dy, W, A, G, place), W, A, G, at + ".feedforward")

    def self_attention(dy, place):
        dquery, dmemory = attend_backward(dy, W, A, G, place, H)
        return dquery + dmemory                                             # one array was query, key and value

    return residual_backward(dx, self_attention, W, A, G, at + ".self_attention")


def decoder_layer_backward(dy, W, A, G, at, H):
    dy = residual_backward(dy, lambda d, place: feedforward_backward(d, W, A, G, place), W, A, G, at + ".feedforward")
    dquery, dmemory = attend_backward(dy, W, A, G, at + ".cross_attention.sublayer", H)
    dy = dy + norm_backward(dquery, W, A, G, at + ".cross_attention.norm")  # the memory has no norm here
    dquery, dself = attend_backward(dy, W, A, G, at + ".self_attention.sublayer", H)
    return dy + norm_backward(dquery + dself, W, A, G, at + ".self_attention.norm"), dmemory


def embed_backward(dx, W, A, G, at):
    dE = np.zeros_like(W[at + ".embedding.E"])
    np.add.at(dE, A[at + ".ids"], math.sqrt(dE.shape[1]) * dx)              # a token that occurs twice adds twice
    add(G, at + ".embedding.E", dE)


# %%
def transformer_backward(dlogits, W, A, G, dA, L, H):
    E = "tgt_embedding.embedding.E"
    add(G, E, np.einsum("btv,bti->vi", dlogits, A["h"]))                    # the output matrix is the table
    dy = norm_backward(dlogits @ W[E], W, A, G, "decoder.norm")
    dmemory = 0
    for l in reversed(range(L[1])):
        dA[f"decoder.{l}"] = dy
        dy, dm = decoder_layer_backward(dy, W, A, G, f"decoder.layers.{l}", H)
        dmemory = dmemory + dm                                              # each layer has read the memory
    dA["memory"] = dmemory
    dx = norm_backward(dmemory, W, A, G, "encoder.norm")
    for l in reversed(range(L[0])):
        dA[f"encoder.{l}"] = dx
        dx = encoder_layer_backward(dx, W, A, G, f"encoder.layers.{l}", H)
    embed_backward(dy, W, A, G, "tgt_embedding")
    embed_backward(dx, W, A, G, "src_embedding")


# %% [markdown]
# One backward pass by hand against one of the library: every gradient of every parameter.

# %%
G, dA = {}, {}
transformer_backward(dlogits, W, A, G, dA, L, H)
model.backward(dlogits)
assert set(G) == {name for name, _ in model.named_parameters()}
for name, parameter in model.named_parameters():
    np.testing.assert_allclose(G[name], parameter.grad, rtol=1e-9, atol=1e-14)
print(f"{len(G)} parameter arrays, {sum(g.size for g in G.values()):,} numbers: all gradients equal the library's")
for name, gradient in dA.items():
    print(f"d {name:12s} {gradient.shape!s:12s} root mean square {math.sqrt((gradient**2).mean()):.2e}")

# %% [markdown]
# The same chain as a check of one number: move the parameters a little way $\varepsilon$ along a random direction $u$,
# and the loss changes by $\varepsilon \sum_i G_i u_i$, to first order.

# %%
rng = np.random.default_rng(2)
u = {name: rng.standard_normal(array.shape) for name, array in W.items()}


def loss_along(step):
    moved = {name: array + step * u[name] for name, array in W.items()}
    return float(CrossEntropyLoss()(transformer(src, tgt, moved, {}, L, H), labels))


numeric = (loss_along(1e-6) - loss_along(-1e-6)) / 2e-6
analytic = sum((G[name] * u[name]).sum() for name in G)
np.testing.assert_allclose(numeric, analytic, rtol=1e-7)
print(f"slope along a random direction: numeric {numeric:.9f}, by hand {analytic:.9f}")

# %% [markdown]
# ## One step of learning
#
# A step of gradient descent with learning rate $\eta$ changes each weight $w$ by $-\eta\, \mathrm{d}w$. To first order
# the loss then changes by
#
# $$
# \mathcal{L}(w - \eta\, \mathrm{d}w) - \mathcal{L}(w) \approx -\eta \sum_i (\mathrm{d}w_i)^2
# $$

# %%
eta = 1e-5
after = CrossEntropyLoss()(transformer(src, tgt, {n: W[n] - eta * G[n] for n in W}, {}, L, H), labels)
predicted = -eta * sum((g**2).sum() for g in G.values())
np.testing.assert_allclose(after - loss, predicted, rtol=1e-2)
print(f"the loss changes by {after - loss:.4e}; the gradient predicts {predicted:.4e}")

# %% [markdown]
# ## The gradient check of the whole
#
# The functions become a module of the library's protocol: parameters, `forward`, `backward`. `gradcheck` then compares
# every coordinate with central differences ([chapter 2](02-backpropagation.ipynb)).

# %%
class ByHand(Module):
    """The encoder-decoder of this chapter, with the weights of a library model."""

    def __init__(self, weights, L, H):
        super().__init__()
        self.L, self.H = L, H
        for name, value in weights.items():
            setattr(self, name, Parameter(value.copy(), name))

    def forward(self, src, tgt):
        A = {}
        logits = transformer(src, tgt, self.weights(), A, self.L, self.H)
        self.save(A)
        return logits

    def backward(self, dlogits):
        (A,), G = self.saved(), {}
        self.transformer_backward(dlogits, A, G)
        for name, parameter in self.named_parameters():
            parameter.add_grad(G[name])

    def transformer_backward(self, dlogits, A, G):
        transformer_backward(dlogits, self.weights(), A, G, {}, self.L, self.H)

    def weights(self):
        return {name: parameter.data for name, parameter in self.named_parameters()}


# %%
tiny = TransformerConfig(
    7, 6, d_model=6, num_heads=2, d_ff=4, num_encoder_layers=1, num_decoder_layers=2, dropout=0.0, norm_placement="pre"
)
tiny_weights = Transformer(tiny, rng=3).state_dict()
tiny_src = np.array([[3, 4, 5, 6], [6, 3, 0, 0]])                           # the second row is padded
tiny_tgt = np.array([[1, 3, 4], [1, 5, 3]])
report = gradcheck(ByHand(tiny_weights, (1, 2), 2), tiny_src, tiny_tgt)
assert report, str(report)
print(f"pass: {len(report.rows)} tensors, every coordinate")

# %% [markdown]
# ### A mistake planted: the memory hears one layer only
#
# A common slip when the loop over decoder layers is written: `dmemory = dm` in place of `dmemory = dmemory + dm`. The
# shapes are right, the model even learns, since one of two gradients is better than none. Everything on the decoder's
# side is exact; the encoder gets part of its gradient.

# %%
class OneLayerOnly(ByHand):
    def transformer_backward(self, dlogits, A, G):
        W, E = self.weights(), "tgt_embedding.embedding.E"
        add(G, E, np.einsum("btv,bti->vi", dlogits, A["h"]))
        dy = norm_backward(dlogits @ W[E], W, A, G, "decoder.norm")
        for l in reversed(range(self.L[1])):
            dy, dmemory = decoder_layer_backward(dy, W, A, G, f"decoder.layers.{l}", self.H)  # the sum is lost
        dx = norm_backward(dmemory, W, A, G, "encoder.norm")
        for l in reversed(range(self.L[0])):
            dx = encoder_layer_backward(dx, W, A, G, f"encoder.layers.{l}", self.H)
        embed_backward(dy, W, A, G, "tgt_embedding")
        embed_backward(dx, W, A, G, "src_embedding")


broken = gradcheck(OneLayerOnly(tiny_weights, (1, 2), 2), tiny_src, tiny_tgt)
assert not broken
wrong = {row.name.split(".")[0] for row in broken.rows if not row.passed}
assert wrong == {"encoder", "src_embedding"}, wrong
broken

# %% [markdown]
# The report names the place: every tensor of the encoder and of the source embedding is wrong, and none of the decoder.
#
# ## Who may influence whom
#
# The encoder's attention has no causal mask: each source token sees all. The decoder sees the targets before it and all
# of the memory. The size of $\partial h_t / \partial (\text{input of place } s)$ shows it: row $t$, column $s$, computed
# by one backward pass for each row.

# %%
def influence(forward, backward, T, D, rng):
    """Size of the derivative of output place t with respect to input place s, along a random vector at place t."""
    table = np.zeros((T, T))
    for t in range(T):
        dh = np.zeros((1, T, D))
        dh[0, t] = rng.standard_normal(D)
        forward()
        table[t] = np.linalg.norm(backward(dh)[0], axis=-1)                 # (T,)
    return table


D, T = config.d_model, 7
rng = np.random.default_rng(4)
x, y = rng.standard_normal((2, 1, T, D))
encoder, decoder = model.encoder, model.decoder
tables = {
    "encoder: output to source": influence(lambda: encoder(x), encoder.backward, T, D, rng),
    "decoder: output to target": influence(lambda: decoder(y, x), lambda dh: decoder.backward(dh)[0], T, D, rng),
    "decoder: output to memory": influence(lambda: decoder(y, x), lambda dh: decoder.backward(dh)[1], T, D, rng),
}
above = np.triu(np.ones((T, T), bool), 1)
assert (tables["encoder: output to source"] > 0).all()
assert (tables["decoder: output to target"][above] == 0).all()
assert (tables["decoder: output to target"][~above] > 0).all()
assert (tables["decoder: output to memory"] > 0).all()
plots.plot_heatmaps(
    {name: np.log10(table + 1e-6) for name, table in tables.items()}, xlabel="input place", ylabel="output place",
    colorbar="log10 of the derivative's norm",
    title="The encoder looks both ways, the decoder only back, and into all of the memory",
)  # fmt: skip

# %% [markdown]
# ### The encoder looks both ways, the decoder only back
#
# The texts describe the encoder as bidirectional, the decoder as causal with cross-attention to the encoder's output.
# **Holds**: of the 49 derivatives of the encoder none is 0; in the decoder the 21 above the diagonal are exactly 0, and
# all 49 towards the memory are not.
#
# ## Parameters, counted
#
# With biases, a linear layer from $a$ to $b$ has $ab + b$ parameters, an attention $4 D^2 + 4 D$, a feed-forward network
# $2 D F + F + D$, a LayerNorm $2 D$. An encoder layer has one attention, one network, two norms; a decoder layer two
# attentions, one network, three norms:
#
# $$
# n_{\text{enc}} = 4D^2 + 4D + 2DF + F + D + 4D, \qquad n_{\text{dec}} = n_{\text{enc}} + 4D^2 + 4D + 2D
# $$
#
# For $F = 4D$ and without the small terms these are $12 D^2$ and $16 D^2$.

# %%
def layer_parameters(D, F):
    encoder = 4 * D * D + 4 * D + 2 * D * F + F + D + 4 * D
    return encoder, encoder + 4 * D * D + 4 * D + 2 * D


enc, dec = layer_parameters(config.d_model, config.d_ff)
assert enc == model.encoder.layers[0].num_parameters()
assert dec == model.decoder.layers[0].num_parameters()
enc, dec = layer_parameters(512, 2048)
assert abs(enc / (12 * 512**2) - 1) < 0.003 and abs(dec / (16 * 512**2) - 1) < 0.003
print(f"D = 512, F = 2048: encoder layer {enc:,}, 12 D^2 = {12 * 512**2:,}")
print(f"                   decoder layer {dec:,}, 16 D^2 = {16 * 512**2:,}")

# %% [markdown]
# ### The base model has about 65 million parameters
#
# The base model of Vaswani et al. (2017) has $D = 512$, $F = 2048$, 6 + 6 layers and one table of 37,000 tokens for
# source, target and output. The paper gives 65 million; counted, the layers have $6 (n_{\text{enc}} + n_{\text{dec}})$
# and the table $37000 \cdot 512$:

# %%
layers = 6 * (enc + dec)
base = layers + 37000 * 512
assert abs(base / 65e6 - 1) < 0.05
print(f"layers {layers:,} + table {37000 * 512:,} = {base:,}; the paper says 65 million")
text_example = 30000 * 512 + 6 * enc + 2 * 512
assert text_example == 34_275_328
print(f"an encoder of six such layers with 30,000 tokens and a closing norm: {text_example:,}")

# %% [markdown]
# **Holds if** the table is shared and the vocabulary has about 37,000 tokens: 63.1 million are counted, 3 % below the
# paper's round number. With three separate tables of that size it would be 101 million. The estimate of a model by
# $12 D^2$ per layer holds for encoders and decoder-only models; a decoder layer with cross-attention has $16 D^2$.
#
# ## A mirror, learned
#
# Before the dates, a task whose right attention is known: write a string backwards. To write letter $t$ of a string of
# length $n$ the decoder must look at letter $n + 1 - t$. A model of one layer on each side, over several seeds:

# %%
def train_mirror(seed, steps):
    task = SequenceTask("reverse", seed=seed, min_len=2, max_len=6, n_train=4000, n_valid=100, n_test=200)
    config = TransformerConfig(
        len(task.source_vocab), len(task.target_vocab), d_model=32, num_heads=2, d_ff=128, num_encoder_layers=1,
        num_decoder_layers=1, dropout=0.0, norm_placement="pre",
    )  # fmt: skip
    run = Run(Transformer(config, rng=seed), task.source_vocab, task.target_vocab, {"longest_target": 6})
    optimizer = AdamW(run.model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    batches = StepBatches(task.encode_pairs(task.train), batch_size=32, seed=seed)
    schedule = lambda step: warmup_cosine(step, 5e-3, 50, steps, 5e-5)
    # small matrices are faster on one thread
    with threadpool_limits(1, "blas"), tempfile.TemporaryDirectory() as out:
        trainer = Trainer(run.model, CrossEntropyLoss(), optimizer, out=out, schedule=schedule, progress=False)
        trainer.start()
        trainer.fit(batches, steps)
    run.model.eval()
    return run, task, trainer


def weight_on_mirror(run, task, count=60):
    """Mean weight of the better head on the mirrored letter, and what an even spread would give."""
    found = []
    for source, _ in task.test[:count]:
        n = len(source)
        with threadpool_limits(1, "blas"):
            weights = attention_for(run, source)                            # (H, Tt, Ts)
        head = max(np.mean([weights[h, t, n - 1 - t] for t in range(n)]) for h in range(len(weights)))
        found.append((head, 1 / n))
    return np.mean(found, axis=0)


def attention_for(run, source):
    ids = run.source_vocab.encode(source)
    run.model(np.array([ids]), np.array([[1, *run.target_vocab.encode(source[::-1])]]))
    weights = run.model.decoder.layers[0].cross_attention.sublayer.attention_weights[0]
    run.model.clear()
    return weights


# %%
results = []
for seed in range(2 if FAST else 4):
    run, mirror_task, trainer = train_mirror(seed, 350 if FAST else 1200)
    share, _ = exact_match(run, mirror_task.test)
    weight, even = weight_on_mirror(run, mirror_task)
    results.append((share, weight, even))
    print(
        f"seed {seed}: loss {trainer.history['loss'][-1]:.3f}, {100 * share:.0f} % of strings right, "
        f"weight on the mirrored letter {weight:.2f} (even spread {even:.2f})"
    )
shares, weights, evens = np.array(results).T
assert (weights > 1.5 * evens).all()

# %% [markdown]
# An untrained model spreads its weight about evenly; half as much again is outside what the start can reach, and every
# seed passes it. Nobody told the model where to look: the loss is about letters only.

# %%
source = "35724"
plots.plot_attention(
    attention_for(run, source), [*source[::-1], "end"], list(source),
    title=f"Writing {source[::-1]}: {weights.mean():.2f} of the weight on the mirrored letter",
)

# %% [markdown]
# ## Dates, learned
#
# The same machine with the settings of `numtrans demo`: two layers on each side, width 64.

# %%
small = dict(layers=1, d_model=32, batch=32, steps=250, lr=6e-3, warmup=50, evaluate_every=250)
changes = small if FAST else dict(steps=1500)
settings = default_settings("dates", **changes)
dates = make_task("dates")
run = make_run(dates, settings)
with threadpool_limits(1, "blas"), tempfile.TemporaryDirectory() as out:
    trainer = train_run(run, dates, out)
first, last = trainer.history["loss"][0], trainer.history["loss"][-1]
print(f"{run.model.num_parameters():,} parameters, {settings['steps']} steps: loss {first:.2f} to {last:.4f} nats")
assert last < first / 3

# %%
held_out = dates.test[:200]
share, written = exact_match(run, held_out)
print(f"{100 * share:.1f} % of {len(held_out)} dates it has not seen are right in every character")
for (text, truth), answer in list(zip(held_out, written))[:5]:
    print(f"  {text:36s} {answer:12s}" + ("" if answer == truth else f" wrong, it is {truth}"))
assert FAST or share > 0.9

# %% [markdown]
# ### Cross-attention, read
#
# Many of the sources hold the year in four digits. While the decoder writes the four digits of the year, how much of
# its weight lies on those four characters? For each date the head with the most weight there is taken, of all layers,
# and the number is compared with an even spread, which gives $4 / T_s$.

# %%
def year_weight(run, text, answer):
    """Weight on the year's characters while the year is written: the best head's, and an even spread's."""
    year = answer[:4]
    place = text.index(year)
    _, layers, _, read = cross_attention(run, text)
    weights = np.concatenate(layers)                                        # (all heads, Tt, Ts)
    return weights[:, :4, place : place + 4].sum(axis=-1).mean(axis=-1).max(), 4 / len(read)


examples = [(text, answer) for text, answer in dates.test if answer[:4] in text][: 40 if FAST else 100]
with threadpool_limits(1, "blas"):
    trained = np.array([year_weight(run, *example) for example in examples])
    untrained = make_run(dates, {**settings, "seed": 1})
    untrained.model.eval()
    untrained.settings["longest_target"] = 10
    start = np.array([year_weight(untrained, *example) for example in examples])
print(
    f"weight on the year's digits: trained {trained[:, 0].mean():.2f}, untrained {start[:, 0].mean():.2f}, "
    f"even spread {trained[:, 1].mean():.2f}"
)
assert trained[:, 0].mean() > 1.3 * start[:, 0].mean()

# %%
text = "le 14 juillet 1989"
translation, layers, rows, columns = cross_attention(run, text)
title = f"Where each head of the decoder looks in '{text}' while it writes {translation}"
plots.plot_attention(layers, rows, columns, title=title)

# %% [markdown]
# Read it with care. A weight says which value is mixed in, not what that value holds: after the encoder, the vector at
# one place holds something of its neighbors as well. Chapter 6 measures what happens when a head is taken away, which
# is the stronger test.
#
# ### Dropout while predicting
#
# One of the texts lists dropout during inference among the common mistakes. Two readings of the same batch with
# dropout left on differ from each other, and the loss is higher than with dropout off:

# %%
pool = [run_pair for run_pair in dates.encode_pairs(dates.valid)[:100]]
test_batch = next(iter(Seq2SeqBatches(pool, 100, shuffle=False).epoch(0)))


def loss_with_dropout(p, seed):
    noisy = Transformer(TransformerConfig(**{**run.model.config.to_dict(), "dropout": p}), rng=seed)
    noisy.load_state_dict(run.model.state_dict())
    with no_grad(), threadpool_limits(1, "blas"):
        return float(CrossEntropyLoss()(noisy.train()(test_batch.src, test_batch.tgt_in), test_batch.tgt_out))


off = loss_with_dropout(0.0, 0)
on = [loss_with_dropout(0.1, seed) for seed in range(5)]
print(f"loss with dropout off {off:.4f}; with p = 0.1 left on, five times:", ", ".join(f"{value:.4f}" for value in on))
assert min(on) > 1.05 * off and len(set(on)) == len(on)

# %% [markdown]
# **Holds**: each of five runs is worse, and no two are alike. The size of the harm is that of a model which has never
# met dropout in training; one trained with it loses less, but its answers are random all the same. `model.eval()` turns dropout off; `translate` and
# `generate` of the library do it by themselves.
#
# ### The parts of a layer, as the texts list them
#
# The texts give an encoder layer as self-attention, add and norm, feed-forward, add and norm; a decoder layer as masked
# self-attention and cross-attention besides. **Holds** for the post-norm form; in the pre-norm form of this chapter
# the norm comes first and a closing norm is needed after the stack ([chapter 9](09-residuals-and-depth.ipynb)). The
# library has both, and the parts are the same:

# %%
for placement in ("post", "pre"):
    parts = Transformer(TransformerConfig(9, 9, 8, 2, 16, 1, 1, norm_placement=placement), rng=0)
    reader = [name for name, _ in parts.encoder.layers[0].named_children()]
    writer = [name for name, _ in parts.decoder.layers[0].named_children()]
    assert reader == ["self_attention", "feedforward"]
    assert writer == ["self_attention", "cross_attention", "feedforward"]
    assert (parts.encoder.norm is None) == (placement == "post")
print("encoder layer: self-attention, feed-forward; decoder layer: self-attention, cross-attention, feed-forward")

# %% [markdown]
# ## Exercises
#
# ### Exercise 11.1: Where the loss of the first step comes from
#
# Write `uniform_loss(V)`, the loss of a model whose logits are all equal, and check on a new `Transformer` of the
# configuration `config` with `rng=5`, times a table $E_t$ scaled by 0.01, that its first loss on `src`, `tgt`, `labels`
# lies within 0.01 of it.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 11.1
def uniform_loss(V):
    return math.log(V)


fresh = Transformer(config, rng=5)
fresh.tgt_embedding.embedding.E.data *= 0.01
value = float(CrossEntropyLoss()(fresh(src, tgt), labels))
assert abs(value - uniform_loss(config.tgt_vocab_size)) < 0.01

# %% [markdown]
# ### Exercise 11.2: The gradient that padding gets
#
# Row 2 of `src` is padded. Show with `model` that the gradient of the loss with respect to the embedding of the padding
# token (row 0 of `src_embedding.embedding.E`) is exactly 0, and say why. Then give the encoder no mask (call
# `model.decode` with the memory of `model.encoder(model.src_embedding(src))`) and show that it is not 0.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 11.2
# A padded place is no key, so no other place reads it; its own output is masked in the cross-attention.
model.zero_grad()
model.clear()
model(src, tgt)
model.backward(dlogits)
table = model.src_embedding.embedding.E
assert (table.grad[0] == 0).all()

model.zero_grad()
memory = model.encoder(model.src_embedding(src))
model.decode(tgt, memory)
model.backward(dlogits)
assert np.abs(table.grad[0]).max() > 0

# %% [markdown]
# ### Exercise 11.3: Untie the output
#
# With `tie_output=False` the output layer has a matrix and a bias of its own. Write `extra_parameters(D, V)`, the number
# of parameters this adds, and check it against two library models.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 11.3
def extra_parameters(D, V):
    return D * V + V


untied = Transformer(TransformerConfig(**{**config.to_dict(), "tie_output": False}), rng=0)
assert untied.num_parameters() - model.num_parameters() == extra_parameters(config.d_model, config.tgt_vocab_size)

# %% [markdown]
# ### Exercise 11.4: Free running
#
# Teacher forcing scores each character with the right characters before it; writing uses the model's own. Write
# `teacher_forced_match(run, pairs)`, the share of `pairs` for which the likeliest character is right at **every** place
# when the right characters before it are given. Show that it equals the exact match of greedy writing, and prove why.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 11.4
# If every teacher-forced choice is right, greedy writing makes the first, so it reads what the teacher gives, makes the
# second, and so on. If one is wrong, take the first wrong place: up to there both read the same, so greedy errs there.
def teacher_forced_match(run, pairs):
    right = 0
    for b in Seq2SeqBatches(dates.encode_pairs(pairs), 100, shuffle=False).epoch(0):
        with no_grad(), threadpool_limits(1, "blas"):
            guess = run.model(b.src, b.tgt_in).argmax(axis=-1)
        right += int(((guess == b.tgt_out) | (b.tgt_out == -100)).all(axis=1).sum())
    return right / len(pairs)


assert teacher_forced_match(run, held_out) == exact_match(run, held_out)[0]

# %% [markdown]
# ### Exercise 11.5: The encoder's share of the gradient
#
# With pen and paper: the decoder has $L$ layers. Suppose the $L$ contributions to $\mathrm{d}M$ were random vectors of
# equal length $c$ and independent directions. How long is $\mathrm{d}M$, and how much of it does the planted mistake of
# this chapter lose?
#
# <details><summary>Solution of exercise 11.5</summary>
#
# The squared length of a sum of independent random directions is the sum of the squares in expectation:
# $\mathbb{E}\, |\mathrm{d}M|^2 = L c^2$, so the length is about $\sqrt{L}\, c$. The mistake keeps one vector of length
# $c$, a share of $1 / \sqrt{L}$ of the length, whose direction has the cosine $1 / \sqrt{L}$ with the right one. For six
# layers that is 0.41: the encoder still learns, slowly and not along its gradient.
#
# </details>
#
# ## Papers
#
# - Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser and Polosukhin (2017), Attention is all you need,
#   arXiv:1706.03762: the encoder-decoder of this chapter, and its base configuration.
# - Williams and Zipser (1989), A learning algorithm for continually running fully recurrent neural networks, Neural
#   Computation 1(2): teacher forcing.
# - Press and Wolf (2017), Using the output embedding to improve language models, arXiv:1608.05859: the shared table.
# - Xiong et al. (2020), On layer normalization in the Transformer architecture, arXiv:2002.04745: the pre-norm form.
# - Jain and Wallace (2019), Attention is not explanation, arXiv:1902.10186: why weights must be read with care.
#
# In the library this is `numtrans/models/transformer.py` on top of `numtrans/blocks.py`. It is the last chapter of the
# first half of the book.
