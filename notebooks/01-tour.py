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
# # 1. A tour in ten minutes
#
# [![Open in Colab](images/colab.svg)](https://colab.research.google.com/github/numtrans/numtrans/blob/main/notebooks/01-tour.ipynb)
#
# A Transformer is a function with many adjustable numbers that maps one sequence of symbols to another. In this chapter
# you train one to read dates, write your own date for it to read, look at what it computes on the way, and check one
# of its derivatives. Nothing is explained to the end here: each step names the chapter that does.
#
# **At the end you will understand**
#
# - what a Transformer takes in and gives out, and what number its training makes small;
# - what attention weights are, and how to read a picture of them;
# - that a model is a tree of modules, each with a `forward`, a `backward` and what it saves between the two;
# - what a gradient check compares, and what its report says about a mistake.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import copy
import os
import tempfile

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.data import IGNORE
from numtrans.gradcheck import gradcheck
from numtrans.inspect import plots
from numtrans.layers import ScaledDotProductAttention, causal_mask
from numtrans.layers.multi_head_attention import split_heads
from numtrans.losses import CrossEntropyLoss
from numtrans.runs import StepBatches, cross_attention, default_settings, exact_match, make_run, make_task, train_run

FAST = os.environ.get("NUMTRANS_FAST") == "1"  # small sizes, for a quick look and for the tests

# %% [markdown]
# ## A task
#
# People write dates in many ways; a program wants one. The task `dates` is a list of pairs: a date as somebody may have
# written it, in one of seven languages and with a slip of the finger now and then, and the same date in the form
# year-month-day. It has three sets: `train` is learned from, `valid` is looked at while the model learns, `test` comes
# at the end. No date of `valid` or `test` occurs in `train`, in any form.

# %%
task = make_task("dates")
print(f"{len(task.train):,} pairs to learn from, {len(task.test):,} to be tested on. Five of them:\n")
for written, iso in task.train[:5]:
    print(f"{written:32s} -> {iso}")
assert not {iso for _, iso in task.train} & {iso for _, iso in task.valid + task.test}

# %% [markdown]
# A model computes with numbers, so a **vocabulary** gives each character a number, its token id. Four ids are set
# aside: 0 fills short rows up, 1 begins a text, 2 ends it, 3 is an unknown character.

# %%
ids = task.target_vocab.encode("1989-07-14")
print(ids, "->", task.target_vocab.decode(ids))
print(len(task.source_vocab), "ids for what is read,", len(task.target_vocab), "for what is written")

# %% [markdown]
# ## A model
#
# `make_run` draws a model at random. Its **encoder** reads the date as written, its **decoder** writes the answer. The
# settings that matter here: `d_model` is how many numbers stand for one character inside the model, `layers` how many
# layers the encoder has and how many the decoder has ([chapter 11](11-encoder-decoder.ipynb)), `heads` how many
# attentions work side by side in a layer ([chapter 6](06-multi-head-attention.ipynb)), `steps` how often all numbers
# are adjusted, each time after a look at `batch` pairs.

# %%
small = dict(steps=350, layers=1, d_model=32, batch=32, lr=8e-3, warmup=50)
settings = default_settings("dates", **(small if FAST else {}))
run = make_run(task, settings)
print({name: settings[name] for name in ("layers", "d_model", "heads", "steps", "batch")})
print(f"{run.model.num_parameters():,} numbers to be learned")

# %% [markdown]
# ## What is made small
#
# The model reads the whole source text, and the target up to some character. For the character that comes next it
# gives out one number, a **logit**, for each of the $V$ entries of the vocabulary; the softmax
# ([chapter 3](03-softmax.ipynb)) turns the $V$ logits into probabilities $p$. Training makes the **loss** small,
#
# $$
# L = -\frac{1}{N} \sum_{n=1}^{N} \log p_n(c_n),
# $$
#
# where $n$ counts the target characters of a batch, $c_n$ is the right one in place $n$, and $p_n(c_n)$ the probability
# that the model gives to it. The logarithm is the natural one, and its unit is called a nat. The loss is 0 if every
# right character has probability 1. A model that gives every character the probability $1/V$ has the loss $\log V$.

# %%
# src: the sources; tgt: what the decoder reads, id 1 and then the target; targets: what it should write, the target and
# then id 2. So targets are tgt, one place further on.
(src, tgt), targets = StepBatches(task.encode_pairs(task.valid), batch_size=100).batch(1)  # each (B, T)
logits = run.model(src, tgt)  # (B, T, V): batch of pairs, characters, vocabulary
run.model.clear()  # forget what was kept for a backward pass
p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)  # (B, T, V)
counts = targets != IGNORE  # what only fills up a short row does not count
right = np.take_along_axis(p, np.where(counts, targets, 0)[..., None], axis=-1)[..., 0]  # (B, T): p_n(c_n)
by_hand = -np.log(right[counts]).mean()
loss = CrossEntropyLoss()
np.testing.assert_allclose(by_hand, loss(logits, targets), rtol=1e-5)  # the model computes in float32
loss.clear()
untrained = float(by_hand)
print(f"before training: {untrained:.2f} nats per character; log V is {np.log(logits.shape[-1]):.2f}")
assert untrained > np.log(logits.shape[-1])

# %% [markdown]
# The untrained model is even worse than $\log V$, since its random opinions are wrong as often as they are right and
# a strong wrong opinion costs more than a right one gains.
#
# ## Training
#
# Each step computes the loss of a batch, the derivative of the loss with respect to every number of the model, and
# moves each number a little against its derivative. With the full settings this takes one to two minutes, and prints
# nothing until it is done.

# %%
with tempfile.TemporaryDirectory() as folder, threadpool_limits(1, "blas"):  # small matrices: one thread is fastest
    trainer = train_run(run, task, folder)
history = trainer.history
trained = history["valid_loss"][-1]
print(f"loss on dates it has not seen: {trained:.2g} nats per character, before training {untrained:.2f}")
assert trained < untrained / 3

# %%
plots.plot_loss(
    history, title=f"Training brings the loss on unseen dates from {untrained:.2f} nats down to {trained:.2g}"
)

# %% [markdown]
# The measure that counts is whether the whole date is right. The model writes one character after another, each time
# the likeliest, and reads what it has written so far.

# %%
share, written = exact_match(run, task.test)
print(f"{100 * share:.1f} % of {len(task.test):,} test dates are right in every character\n")
wrong = [(text, iso, answer) for (text, iso), answer in zip(task.test, written) if answer != iso]
for text, iso, answer in wrong[:5]:
    print(f"{text:32s} is {iso}, written: {answer}")
assert share >= (0.05 if FAST else 0.95)

# %% [markdown]
# The years run from 1930 to 2049, which is 43,830 days: a guess at random would be right once in as many. The bound of
# 95 % leaves room for another processor, which adds in another order and so ends with slightly different weights. (With
# `NUMTRANS_FAST=1` a smaller model is trained for ten seconds only, and is right on about a third of the dates.)
#
# ## Your own date
#
# Put yours in place of the first. English, French, German, Spanish, Italian, Portuguese and Dutch are known, years
# from 1930 to 2049.

# %%
my_date = "3rd of march 2021"
for text in (my_date, "le 14 juillet 1989", "MONDAY, JUNE 5, 2006", "24. Dez. 1999"):
    print(f"{text:24s} -> {run.translate([text])[0]}")

# %% [markdown]
# ## Where it looks
#
# To write a character the decoder takes an average over all characters of the source, and computes the weights of the
# average anew for each character that it writes. These are the **attention weights**. They are nowhere negative and sum
# to one, so they tell where the model looks. A layer does this several times side by side, once in each **head**. In
# the picture further below each row of a panel is one written character, each column one character read, and each panel
# one head.

# %%
text = "le 14 juillet 1989"
translation, weights, rows, columns = cross_attention(run, text)
for layer in weights:  # each (H, Tt, Ts): heads, target characters, source characters
    np.testing.assert_allclose(layer.sum(axis=-1), 1, rtol=1e-5)
    assert (layer >= 0).all()
print(text, "->", translation)

# %% [markdown]
# Is it true that the decoder looks at the year when it writes the year? One picture proves little. So over those of the
# first 150 test dates that spell the year with four digits: the share of the weight that falls on these four
# characters, averaged over all heads, while the four digits of the year are written, and while the rest is written.

# %%
shares, chance = {"year": [], "rest": []}, []
for text_i, iso in task.test[:150]:
    if text_i.count(iso[:4]) != 1:
        continue
    at = text_i.index(iso[:4])
    source, target = run.source_vocab.encode(text_i), run.target_vocab.encode(iso)
    run.model(np.array([source]), np.array([[1, *target]]))  # the decoder reads the right date
    w = np.concatenate([layer.cross_attention.sublayer.attention_weights[0] for layer in run.model.decoder.layers])
    run.model.clear()
    # w: (heads of all layers, Tt, Ts); row i belongs to the step that writes character i of the date
    on_year = w[:, :, at : at + 4].sum(axis=-1).mean(axis=0)  # (Tt,): the weight on the year, mean over heads
    shares["year"].append(on_year[:4].mean())
    shares["rest"].append(on_year[4:].mean())
    chance.append(4 / len(text_i))
year, rest = np.mean(shares["year"]), np.mean(shares["rest"])
print(f"{len(chance)} dates. On the year while it writes the year: {100 * year:.0f} %, while it writes the rest: "
      f"{100 * rest:.0f} %. Weights all alike: {100 * np.mean(chance):.0f} %")
assert year > 1.5 * rest and year > 1.5 * np.mean(chance)

# %%
plots.plot_attention(
    weights, rows, columns,
    title=f"{100 * year:.0f} % of the weight is on the year while the year is written, {100 * rest:.0f} % later",
)

# %% [markdown]
# Read the first four rows: most of the bright fields lie in the columns of the year, at the right end. The next rows,
# those of the month, are bright mostly in columns of its name, and those of the day in the columns of the day. (The
# small model of the fast mode is less clear.) [Chapter 6](06-multi-head-attention.ipynb) asks what each head
# does, and which of them the model can do without.
#
# ## A model is a tree
#
# Every part is a `Module`, and modules are made of modules. Numbers that are learned are `Parameter` objects, and each
# has a path in the tree. Here is one layer of the encoder.

# %%
layer = run.model.encoder.layers[0]
for name, parameter in layer.named_parameters():
    print(f"{name:40s} {parameter.data.shape!s:12s} {parameter.data.size:6d}")
total = sum(parameter.data.size for _, parameter in run.model.named_parameters())
assert total == run.model.num_parameters()

# %% [markdown]
# A module has a `forward`, which is run by calling the module, and a `backward`. What `backward` will need, `forward`
# saves. Look at the first part in the list, `q_proj`. It computes $xW + b$; such a linear map is called a
# **projection**. It saves its input $x$, since the derivative of $xW$ with respect to $W$ contains $x$
# ([chapter 2](02-backpropagation.ipynb)).

# %%
source = np.array([run.source_vocab.encode(text)])  # (1, T): one text
x = layer.self_attention.norm(run.model.src_embedding(source))  # (1, T, D): what the attention of the layer reads
attention = layer.self_attention.sublayer
q = attention.q_proj(x)  # (1, T, D)
(saved,) = attention.q_proj.saved()
print("saved by the query projection:", saved.shape)
assert saved is x
run.model.clear()

# %% [markdown]
# ## Attention in five lines
#
# Attention itself has no parameters. It takes a **query** $q_i$ (what place $i$ asks for), **keys** $k_j$ (what place
# $j$ offers) and **values** $v_j$ (what place $j$ hands over), all of them vectors. With queries as the rows of $Q$,
# keys as the rows of $K$, values as the rows of $V$, and $d$ the length of a query,
#
# $$
# O = P V, \qquad P_{ij} = \frac{e^{S_{ij}}}{\sum_l e^{S_{il}}}, \qquad S = \frac{Q K^\top}{\sqrt{d}}.
# $$
#
# In five lines, with a sixth that keeps the exponential from overflowing (chapter 3), and equal to the library. Here
# queries, keys and values are three projections of the same $x$, that of the cell above, with weights that the training
# found; `split_heads` deals the $D$ numbers of each out to the $H$ heads, $d = D / H$ for each.

# %%
def attention_by_hand(Q, K, V):
    S = Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])  # (..., Tq, Tk): every query meets every key
    S = S - S.max(axis=-1, keepdims=True)  # changes no weight
    P = np.exp(S)
    P = P / P.sum(axis=-1, keepdims=True)  # each row sums to one
    O = P @ V  # (..., Tq, d): an average of the values
    return O


x64 = x.astype(np.float64)
heads = settings["heads"]
Q, K, V = (
    split_heads(x64 @ linear.W.data.astype(np.float64) + linear.b.data, heads)  # (1, H, T, d)
    for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
)
O = attention_by_hand(Q, K, V)
np.testing.assert_allclose(O, ScaledDotProductAttention()(Q, K, V), rtol=1e-12, atol=1e-14)
print("queries, keys and values of the trained model:", Q.shape, "output:", O.shape)

# %% [markdown]
# An average stays between the smallest and the largest of what is averaged. This is the content of the claim below.
#
# ### Attention returns weighted averages of the values
#
# The texts say that attention computes weighted averages of the values, with weights from the similarity of queries and
# keys. With $P_{ij} \ge 0$ and $\sum_j P_{ij} = 1$ each output $O_i = \sum_j P_{ij} V_j$ is such an average, so that
# each of its components lies within the range of that component over the values:

# %%
assert (O >= V.min(axis=-2, keepdims=True) - 1e-12).all()
assert (O <= V.max(axis=-2, keepdims=True) + 1e-12).all()
inside = np.ptp(O, axis=-2).mean() / np.ptp(V, axis=-2).mean()
print(f"the outputs span {100 * inside:.0f} % of the range of the values")
assert inside < 1

# %% [markdown]
# **Holds.** The "similarity" is a dot product of two learned projections, and so need not be symmetric:

# %%
S = Q @ K.swapaxes(-1, -2)
asymmetry = np.linalg.norm(S - S.swapaxes(-1, -2)) / np.linalg.norm(S + S.swapaxes(-1, -2))
print(f"size of the antisymmetric part of the scores, relative to the symmetric one: {asymmetry:.2f}")
assert asymmetry > 0.1

# %% [markdown]
# ## A derivative, checked
#
# Training needs the derivative of the loss $L$ with respect to each of the model's numbers $w$. `backward` computes all
# of them in one pass. A derivative can be checked without any theory: move the number a little and look.
#
# $$
# \frac{\partial L}{\partial w} \approx \frac{L(w + h) - L(w - h)}{2h}
# $$
#
# Here for one number deep inside the trained model: an entry of the key projection of the first encoder layer, the one
# with the largest derivative. A copy in float64 (16 digits instead of 7) makes small differences visible.

# %%
model = copy.deepcopy(run.model).astype(np.float64)
model.zero_grad()  # backward adds to what is there, here the gradient of the last step of the training
loss(model(src, tgt), targets)
model.backward(loss.backward())  # the derivative with respect to every number of the model
w = model.encoder.layers[0].self_attention.sublayer.k_proj.W
index = np.unravel_index(np.argmax(np.abs(w.grad)), w.grad.shape)


def loss_at(value):
    """The loss of the batch from above, with the chosen number set to `value`."""
    old, w.data[index] = w.data[index], value
    result = float(loss(model(src, tgt), targets))
    w.data[index] = old
    return result


middle, h = w.data[index], 1e-6
numeric = (loss_at(middle + h) - loss_at(middle - h)) / (2 * h)
print(f"backward: {w.grad[index]:+.8e}\nnumeric:  {numeric:+.8e}")
np.testing.assert_allclose(w.grad[index], numeric, rtol=1e-3)
model.clear()
loss.clear()

# %% [markdown]
# The two agree to several digits. They need not agree to all: the loss is rounded, and the feed-forward networks of the
# model have kinks ([chapter 10](10-feed-forward.ipynb)), which one of its thousands of units may cross within the step
# $h$.
#
# `gradcheck` does this for every number that goes into a module, chooses the steps and the measure of error with care
# ([chapter 2](02-backpropagation.ipynb)), and reports. The column `error` is the size of the difference of the two
# gradients, as a fraction of the larger of the two; the limit is $10^{-7}$. Attention has no parameters, so the three
# rows are its inputs.

# %%
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 2, tokens, 4)) for tokens in (3, 5, 5))  # (B, H, T, d)
report = gradcheck(ScaledDotProductAttention(), q, k, v)
assert report
report

# %% [markdown]
# ## A mistake
#
# Now a backward pass with a mistake that is easy to make: the factor $1/\sqrt{d}$ of the scores is forgotten on the way
# back to the keys. Nothing crashes, and each number of that gradient still has the right sign. That makes it hard to
# notice.

# %%
class ForgetfulAttention(ScaledDotProductAttention):
    """Attention whose gradient of the keys lacks the factor 1 / sqrt(d)."""

    def backward(self, dO):
        dquery, dkey, dvalue = super().backward(dO)
        return dquery, dkey * dquery.shape[-1] ** 0.5, dvalue


report = gradcheck(ForgetfulAttention(), q, k, v)
assert not report
assert not report["key"].passed and report["query"].passed and report["value"].passed
report

# %% [markdown]
# The check fails in the row of the key, and only there. The diagnosis at the end says that the gradient is 2 times the
# right one, and where a factor of 2 could come from; the root of the size $d = 4$ is among the candidates. In the
# chapters to come you will write such passes yourself, and this report is what you work with.
#
# ## The way from here
#
# | chapter | what it explains |
# |---|---|
# | [2](02-backpropagation.ipynb) | how all derivatives come out of one backward pass, and how the checker works |
# | [3](03-softmax.ipynb) | softmax and the loss: where the logits become probabilities |
# | [4](04-attention.ipynb) | the five lines of attention: why the root, what they cost, what kind of average they are |
# | [5](05-masks.ipynb) | the backward pass of attention, and how a decoder is kept from reading what it has yet to write |
# | [6](06-multi-head-attention.ipynb) | why there are several heads, and what each does in this translator |
# | [7](07-position.ipynb) | how a model knows the order of the characters |
# | [8](08-normalization.ipynb) | the norms between the layers |
# | [9](09-residuals-and-depth.ipynb) | how gradients get through many layers |
# | [10](10-feed-forward.ipynb) | the other half of a layer, and where the time goes |
# | [11](11-encoder-decoder.ipynb) | all of it together: one training step of this translator, array by array |
#
# ## Exercises
#
# ### Exercise 1.1: the measure
#
# Write `share_right(run, pairs)`: translate the sources of `pairs` (a list of (source, target) strings) with
# `run.translate` (a list of strings in, a list of strings out), and return the share of those that equal their target,
# a number from 0 to 1. Check: it equals `exact_match(run, pairs)[0]` on the first 50 test pairs.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 1.1
def share_right(run, pairs):
    answers = run.translate([source for source, _ in pairs])
    return np.mean([answer == target for answer, (_, target) in zip(answers, pairs)])


assert share_right(run, task.test[:50]) == exact_match(run, task.test[:50])[0]

# %% [markdown]
# ### Exercise 1.2: where the numbers are
#
# Write `parameters_by_part(model)`: a dict from the first component of each parameter's path (`encoder`, `decoder`,
# ...) to the number of learned values below it. Check with `run.model`: the values sum to
# `run.model.num_parameters()`, and the decoder has more than the encoder. (Why?)

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 1.2
def parameters_by_part(model):
    numbers = {}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        numbers[part] = numbers.get(part, 0) + parameter.data.size
    return numbers


numbers = parameters_by_part(run.model)
print(numbers)
assert sum(numbers.values()) == run.model.num_parameters()
assert numbers["decoder"] > numbers["encoder"]  # each of its layers has a second attention, the one across

# %% [markdown]
# ### Exercise 1.3: no looking ahead
#
# Write `causal_attention_by_hand(Q, K, V)`: as `attention_by_hand`, but query $i$ gives no weight to keys $j > i$. (Set
# their scores to `-np.inf` before the exponential.) Check, with $Q$, $K$, $V$ from above and $T$ the number of tokens:
# it equals `ScaledDotProductAttention()(Q, K, V, mask=causal_mask(T))`, and the first output `[..., 0, :]` is the first
# value.

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 1.3
def causal_attention_by_hand(Q, K, V):
    T = Q.shape[-2]
    S = Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])  # (..., T, T)
    S = np.where(np.arange(T) <= np.arange(T)[:, None], S, -np.inf)
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    return P / P.sum(axis=-1, keepdims=True) @ V


masked = causal_attention_by_hand(Q, K, V)
expected = ScaledDotProductAttention()(Q, K, V, causal_mask(Q.shape[-2]))
np.testing.assert_allclose(masked, expected, rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(masked[..., 0, :], V[..., 0, :], rtol=1e-12)

# %% [markdown]
# ### Exercise 1.4: the step of a difference
#
# Write `slope_error(f, exact, x, h)`: the absolute difference between the central difference of `f` at `x` with step
# `h` and the derivative `exact`. Check: for $f = \sin$ at $x = 1$, the error at $h = 10^{-5}$ is smaller than the one
# at $10^{-1}$ and than the one at $10^{-12}$. Why does it grow again? (The answer is in chapter 2.)

# %% tags=["hide-cell"] jupyter={"source_hidden": true} cellView="form"
# @title Solution of exercise 1.4
def slope_error(f, exact, x, h):
    return abs((f(x + h) - f(x - h)) / (2 * h) - exact)


errors = {h: slope_error(np.sin, np.cos(1.0), 1.0, h) for h in (1e-1, 1e-5, 1e-12)}
print({h: f"{error:.0e}" for h, error in errors.items()})
assert errors[1e-5] < errors[1e-1] and errors[1e-5] < errors[1e-12]

# %% [markdown]
# ### Exercise 1.5: the loss of a guess
#
# On paper: show that a model that gives the probability $1/V$ to every character has the loss $\log V$; and that a
# model which has understood nothing but how often each character occurs can at best reach
# $-\sum_c f_c \log f_c$, where $f_c$ is the share of character $c$ among the targets.
#
# <details><summary>Solution of exercise 1.5</summary>
#
# Every term of the sum is $-\log(1/V) = \log V$, and so is their mean. If the probabilities $p_c$ are the same in every
# place, the terms with $c_n = c$ are alike, and $L = -\sum_c f_c \log p_c$. Subtract the value at $p = f$:
# $-\sum_c f_c \log (p_c / f_c) \ge -\log \sum_c f_c \, p_c / f_c = -\log \sum_c p_c \ge 0$, since the logarithm is
# concave (Jensen's inequality). So no $p$ is better than $p = f$.
#
# </details>
#
# ## Papers
#
# - Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser and Polosukhin (2017), Attention is all you need,
#   arXiv:1706.03762. The model of this chapter, with the norm moved to the front of each sublayer (chapter 9).
# - Bahdanau, Cho and Bengio (2015), Neural machine translation by jointly learning to align and translate,
#   arXiv:1409.0473. Attention between a source and a target, with pictures of it, before the Transformer.
# - Kingma and Ba (2015), Adam: a method for stochastic optimization, arXiv:1412.6980; Loshchilov and Hutter (2019),
#   Decoupled weight decay regularization, arXiv:1711.05101. The rule by which the numbers were moved.
#
# What you ran lives in `numtrans/runs.py` and `numtrans/models/transformer.py`; next is
# [chapter 2](02-backpropagation.ipynb), backpropagation by hand.
