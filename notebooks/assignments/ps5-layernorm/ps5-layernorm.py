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
# # Problem set 5. LayerNorm and RMSNorm, forward and backward
#
# Each Transformer layer normalizes its tokens twice or more. You write the two norms that are in use, with the backward
# passes that you derive yourself. A gradient checker tells whether they are right.
#
# **At the end you will be able to**
#
# - write LayerNorm and RMSNorm so that the dtype, the input and the axes are right;
# - derive the gradient of an output that depends on its input along three paths;
# - say what a gradient must satisfy before any number is compared (what it is orthogonal to, what it sums to);
# - read the diagnosis of a gradient check.
#
# | task | what you write | points |
# |---|---|---|
# | 1 | `LayerNorm.forward` | 4 |
# | 2 | the gradients of $\gamma$ and $\beta$ | 4 |
# | 3 | the gradient of $x$, and all of LayerNorm together | 6 + 1 |
# | 4 | `RMSNorm.forward` | 3 |
# | 5 | `RMSNorm.backward` | 4 |
# | 6 | a question, answered in words | 3 |
# | | sum | 25 |
#
# **How to work.** Run the cells from the top. Each task has a cell to write in: it stops with
# `NotImplementedError("Write ...")`, which says what is missing; replace that statement. Then run the check below it. A
# check stops at the first mistake, says what it is, and names a next step. Run it as often as you like. Your teacher's
# copy holds further checks of the same tasks, with other shapes and numbers. Hints are folded; take them one at a time.
# Needed: chapters 1 and 2 of the book (the protocol of `Module`, vector-Jacobian products). The names of functions and
# arguments, and the cells of the checks, are to stay as they are.

# %% tags=["hide-cell"]
# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    # %pip install -q git+https://github.com/numtrans/numtrans

# %%
import numpy as np

from numtrans import layers as library
from numtrans.course import Check
from numtrans.gradcheck import gradcheck
from numtrans.module import Module, Parameter

# %% [markdown]
# ## Notation
#
# $x$ has the shape $(\ldots, D)$: $D$ features for each token, and any number of axes before them, here mostly
# $(B, T, D)$ with $B$ sequences of $T$ tokens. Everything below is about one token $x \in \mathbb{R}^D$, and happens for
# each token alone. A bar is the mean over the features of one token,
#
# $$
# \bar a = \frac{1}{D} \sum_{i=1}^{D} a_i .
# $$
#
# $L$ is the loss, a number. $\mathrm{d}a$ stands for $\partial L / \partial a$, which has the shape of $a$; in code
# it is `da`. Backward is given $\mathrm{d}y$.

# %% [markdown]
# ## Task 1. The forward pass of LayerNorm (4 points)
#
# Ba, Kiros and Hinton (2016) normalize each token to mean 0 and variance 1, and let the network choose a gain
# $\gamma \in \mathbb{R}^D$ and a shift $\beta \in \mathbb{R}^D$ for each feature:
#
# $$
# \mu = \bar x, \qquad
# \sigma = \sqrt{\overline{(x - \mu)^2} + \epsilon}, \qquad
# \hat x = \frac{x - \mu}{\sigma}, \qquad
# y = \gamma \odot \hat x + \beta .
# $$
#
# $\odot$ multiplies entry by entry. $\epsilon$ is a small constant that keeps $\sigma$ from 0 when all features of a
# token are equal. Three details decide whether two programs agree: the variance is the mean of the squares (divided by
# $D$, not $D - 1$); $\epsilon$ stands inside the root; the mean goes over the features of one token and over nothing
# else.
#
# The class below follows the protocol of the library. `forward` keeps what backward will need with `self.save(...)`,
# and `self.saved()` takes it back. `backward` is complete: it calls the functions of tasks 2 and 3.
#
# <details><summary>Hint 1</summary>
#
# `x.mean(axis=-1)` has the shape $(B, T)$ and cannot be subtracted from $x$, of shape $(B, T, D)$. With
# `keepdims=True` it has the shape $(B, T, 1)$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Center first: call $x - \mu$ something. The variance is the mean of its square, and $\hat x$ is it over $\sigma$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `x -= mu` writes into the array of the caller. `x - mu` makes a new one.
#
# </details>

# %% nbgrader={"grade": false, "grade_id": "layernorm-forward", "locked": false, "schema_version": 3, "solution": true, "task": false}
class LayerNorm(Module):
    """y = gamma * xhat + beta, xhat = (x - mu) / sigma, each token normalized over its features."""

    def __init__(self, d_model, *, eps=1e-5):
        super().__init__()
        self.d_model, self.eps = d_model, eps
        self.gamma = Parameter(np.ones(d_model, np.float32))   # (D,)
        self.beta = Parameter(np.zeros(d_model, np.float32))   # (D,)

    def forward(self, x):
        ### BEGIN SOLUTION
        #> Write LayerNorm.forward: y = gamma * xhat + beta.
        #> 1. mu, the mean of x over the last axis, shape (..., 1), and sigma = sqrt(mean((x - mu)**2) + self.eps),
        #>    shape (..., 1)
        #> 2. xhat = (x - mu) / sigma, shape (..., D), in a new array: x stays as it is
        #> 3. save for backward, in this order: self.save(xhat, sigma)
        #> 4. return y = self.gamma.data * xhat + self.beta.data, with the shape and the dtype of x
        centered = x - x.mean(axis=-1, keepdims=True)          # (..., D)
        variance = (centered * centered).mean(axis=-1, keepdims=True)
        deviation = np.sqrt(variance + self.eps)               # (..., 1)
        normalized = centered / deviation                      # (..., D)
        self.save(normalized, deviation)
        return self.gamma.data * normalized + self.beta.data
        ### END SOLUTION

    def backward(self, dy):
        xhat, sigma = self.saved()
        layer_norm_parameter_gradients(self, dy, xhat)         # task 2
        return layer_norm_dx(dy, self.gamma.data, xhat, sigma)   # task 3


# %% nbgrader={"grade": true, "grade_id": "check-1", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with Check("Check 1 (LayerNorm.forward)") as check:
    x = 3 + 2 * np.random.default_rng(1).standard_normal((2, 3, 6))   # (B, T, D), its mean is not 0
    layer, kept = LayerNorm(6, eps=0.5).astype(np.float64), x.copy()   # a large eps, so that its place shows
    check.hint = "Go through the four steps that the text of the task lists."
    y = layer(x)
    check.array("y", y, x.shape, x.dtype)
    check.that((x == kept).all(), "forward has changed x, which belongs to the caller.",
               "Write x - mu into a new array; x -= mu and out=x write into x.")

    # With gamma = 1 and beta = 0 each token of y has mean 0 and the variance v / (v + eps), v that of the token of x.
    check.hint = "Every mean of this task goes over the last axis: axis=-1, keepdims=True."
    far = np.abs(y.mean(axis=-1)).max()
    for axis in (0, 1, (0, 1)):
        check.that(far < 1e-9 or np.abs(y.mean(axis=axis)).max() > 1e-9,
                   f"y has mean 0 over axis {axis}, and should have it over the features of each token, axis -1.")
    check.that(far < 1e-9, f"The mean of a token of y should be 0, and is {far:.3g} in size: mu is not the mean over "
               "the features of each token, or it is not subtracted.")
    v, eps, var = x.var(axis=-1), layer.eps, y.var(axis=-1)
    check.hint = "variance = mean of (x - mu)**2, divided by D; then sigma = sqrt(variance + eps)."
    check.equal("the variance of the tokens of y", var, v / (v + eps), mistakes=[
        ("The variance is divided by D - 1 (unbiased), and should be divided by D.", v / (v * 6 / 5 + eps)),
        ("eps stands outside the root: it is sqrt(variance + eps), not sqrt(variance) + eps.", v / (v**0.5 + eps) ** 2),
        ("eps is missing: add it to the variance, inside the root.", np.ones_like(v)),
        ("x - mu is divided by the variance, and should be divided by its root.", v / (v + eps) ** 2),
    ])
    check.hint = "backward reads two arrays: self.save(xhat, sigma)."
    check.that(layer.pending == 1, f"forward has called self.save {layer.pending} times, and should do so once.")
    saved = layer.saved()
    check.that(len(saved) == 2, f"forward has saved {len(saved)} arrays, and should save two.")
    check.that(np.shape(saved[0]) == (2, 3, 6) and np.shape(saved[1]) == (2, 3, 1),
               f"The saved arrays have the shapes {np.shape(saved[0])} and {np.shape(saved[1])}, and should have "
               "(2, 3, 6) for xhat and (2, 3, 1) for sigma, in this order.")
    for name, array, shape in (("xhat", saved[0], (2, 3, 6)), ("sigma", saved[1], (2, 3, 1))):
        check.array(f"{name}, as it was saved,", array, shape, x.dtype)
    check.equal("sigma, as it was saved,", saved[1][..., 0], np.sqrt(v + eps))
    check.that(np.allclose(saved[0], y, rtol=0, atol=1e-12), "The saved xhat is not the normalized x.")

    # Now gamma and beta; y was xhat when they were 1 and 0.
    layer.gamma.data, layer.beta.data = np.linspace(0.5, 2, 6), np.linspace(-1, 1, 6)
    check.hint = "y = gamma * xhat + beta, with self.gamma.data and self.beta.data."
    check.equal("y with a gamma and a beta", layer(x), layer.gamma.data * y + layer.beta.data, mistakes=[
        ("beta is missing in y.", layer.gamma.data * y),
        ("gamma is missing in y.", y + layer.beta.data),
        ("gamma and beta are missing in y.", y),
        ("gamma multiplies beta, too: y = gamma * xhat + beta.", layer.gamma.data * (y + layer.beta.data)),
    ])
    check.array("y of a float32 input", LayerNorm(6)(x.astype(np.float32)), x.shape, np.float32)
    ### BEGIN HIDDEN TESTS
    check.hint = "x may have any number of axes, and any numbers in it: x is (..., D)."
    for shape in ((6,), (5, 6), (2, 1, 3, 6)):
        x = 1e5 + np.random.default_rng(2).standard_normal(shape)
        right = library.LayerNorm(6).astype(np.float64)
        check.equal(f"y of an input of shape {shape}", LayerNorm(6).astype(np.float64)(x), right(x))
    constant = np.full((2, 6), 7.0)
    check.equal("y of tokens whose features are equal", LayerNorm(6).astype(np.float64)(constant), np.zeros((2, 6)))
    ### END HIDDEN TESTS

# %% [markdown]
# ## Task 2. The gradients of the gain and the shift (4 points)
#
# The entry $j$ of $\gamma$ and of $\beta$ acts on feature $j$ of **every** token. With $n = 1, \ldots, N$ for the tokens,
#
# $$
# y_{nj} = \gamma_j \, \hat x_{nj} + \beta_j .
# $$
#
# **Derive on paper** $\mathrm{d}\gamma_j$ and $\mathrm{d}\beta_j$: write the chain rule
# $\mathrm{d}\gamma_j = \sum_{n, i} \mathrm{d}y_{ni} \, \partial y_{ni} / \partial \gamma_j$, and see which terms are
# not 0. Check the shapes: both results are $(D,)$, whatever axes stand before the features.
#
# **Gradients add up.** A layer may be used twice in one pass, and a batch may come in pieces, so backward never sets
# `gamma.grad`: it adds. `layer.gamma.add_grad(g)` does so, also the first time, when `gamma.grad` is still `None`.
#
# <details><summary>Hint 1</summary>
#
# $\partial y_{ni} / \partial \gamma_j = \delta_{ij} \, \hat x_{ni}$, where $\delta_{ij}$ is 1 if $i = j$ and else 0. What
# is left of the sum over $i$, and what of the sum over $n$?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The sum over tokens goes over every axis but the last. `a.reshape(-1, a.shape[-1])` is $(N, D)$ for any number of axes.
#
# </details>

# %% nbgrader={"grade": false, "grade_id": "layernorm-parameters", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_norm_parameter_gradients(layer, dy, xhat):
    """Add the gradients of gamma and beta to layer.gamma.grad and layer.beta.grad; dy and xhat are (..., D)."""
    ### BEGIN SOLUTION
    #> Write layer_norm_parameter_gradients: from dy and xhat, both (..., D), the sums over all tokens.
    #> 1. the gradient of gamma, shape (D,), added with layer.gamma.add_grad(...)
    #> 2. the gradient of beta, shape (D,), added with layer.beta.add_grad(...)
    #> Nothing is returned, and dy stays as it is.
    tokens = (-1, dy.shape[-1])
    layer.gamma.add_grad((dy * xhat).reshape(tokens).sum(axis=0))
    layer.beta.add_grad(dy.reshape(tokens).sum(axis=0))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-2", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with Check("Check 2 (gradients of gamma and beta)") as check:
    class Judged(library.LayerNorm):
        """The library's forward with your gradients of gamma and beta, so that this check judges task 2 alone."""

        def forward(self, *, x):   # given by keyword, x is a constant for the gradient check
            return super().forward(x)

        def backward(self, dy):
            xhat, _ = self.saved()
            layer_norm_parameter_gradients(self, dy, xhat)

    x = 3 + 2 * np.random.default_rng(1).standard_normal((2, 3, 6))
    check.hint = ("Both gradients have the shape (D,): sum over every axis but the last. Add them with add_grad, which "
                  "also serves when grad is still None.")
    report = gradcheck(Judged(6), x=x)
    check.gradients(report, causes=[
        ("has shape", "", "Sum over every axis but the last, the one of the features."),
        ("no gradient", "", "Add each gradient to its own parameter with add_grad."),
        ("a mean where a sum is right", "", "The loss adds over the tokens, so their shares add up, without 1 / N."),
        ("is replaced", "", "Use layer.gamma.add_grad(...): a second backward must add to what the first one left."),
        ("writes into dy", "Your code writes into dy, which belongs to the caller.", "Write dy * xhat, not dy *= xhat."),
        ("are two swapped", "", "gamma multiplies xhat, beta is added: whose gradient holds xhat?"),
    ])
    ### BEGIN HIDDEN TESTS
    check.hint = "dy is (..., D), with any number of axes before the last one."
    for shape in ((6,), (5, 6), (2, 3, 4, 6)):
        check.gradients(gradcheck(Judged(6), x=np.random.default_rng(3).standard_normal(shape)))
    ### END HIDDEN TESTS

# %% [markdown]
# ## Task 3. The gradient of the input of LayerNorm (6 points)
#
# One token again. Write $\mathrm{d}\hat x$ for the gradient of $\hat x$. The entry $x_j$ acts on the loss along three
# paths: through its own $\hat x_j$, through $\mu$, and through $\sigma$; the last two act on **all** $\hat x_i$.
#
# **Derive on paper**, in this order:
#
# 1. $\mathrm{d}\hat x$ from $\mathrm{d}y$ and $\gamma$.
# 2. $\partial \mu / \partial x_j$ and $\partial \sigma / \partial x_j$. The second one is short once it is written with
#    $\hat x_j$.
# 3. $\partial \hat x_i / \partial x_j$, by the quotient rule: three terms, each with $1 / \sigma$.
# 4. $\mathrm{d}x_j = \sum_i \mathrm{d}\hat x_i \, \partial \hat x_i / \partial x_j$. The sums over $i$ become two bars.
#
# **Before any number.** Adding a constant to all features changes nothing in $\hat x$, so $\mathrm{d}x$ sums to 0 over
# the features. Scaling $x - \mu$ changes almost nothing (nothing at all for $\epsilon = 0$), so $\mathrm{d}x$ is almost
# orthogonal to $\hat x$. Does your formula do both?
#
# <details><summary>Hint 1</summary>
#
# $\partial \mu / \partial x_j = 1 / D$. From $\sigma^2 = \overline{(x - \mu)^2} + \epsilon$ follows
# $2 \sigma \, \partial \sigma / \partial x_j = \frac{2}{D} \sum_i (x_i - \mu)(\delta_{ij} - \frac{1}{D})$, and
# $\sum_i (x_i - \mu) = 0$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# $\partial \sigma / \partial x_j = \hat x_j / D$. The quotient rule gives
# $\partial \hat x_i / \partial x_j = \frac{1}{\sigma} (\delta_{ij} - \frac{1}{D}) - \frac{x_i - \mu}{\sigma^2} \, \partial
# \sigma / \partial x_j$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# $\sum_i \mathrm{d}\hat x_i \cdot \frac{1}{D}$ is the mean of $\mathrm{d}\hat x$ over the features: one number for each
# token, `mean(axis=-1, keepdims=True)`. The third term is a mean of a product, times $\hat x_j$.
#
# </details>

# %% nbgrader={"grade": false, "grade_id": "layernorm-dx", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_norm_dx(dy, gamma, xhat, sigma):
    """The gradient of x; dy and xhat are (..., D), gamma is (D,), sigma is (..., 1)."""
    ### BEGIN SOLUTION
    #> Write layer_norm_dx: the gradient of the loss with respect to x.
    #> 1. the gradient of xhat, from dy and gamma, shape (..., D)
    #> 2. two means over the last axis, shape (..., 1): one for the path through mu, one for the path through sigma
    #> 3. dx = (three terms) / sigma, as you derived it
    #> Return dx, with the shape and the dtype of dy; dy stays as it is.
    dxhat = dy * gamma                                         # (..., D)
    through_mu = dxhat.mean(axis=-1, keepdims=True)            # (..., 1)
    through_sigma = (dxhat * xhat).mean(axis=-1, keepdims=True)
    return (dxhat - through_mu - xhat * through_sigma) / sigma
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-3", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
with Check("Check 3 (gradient of x)") as check:
    class Judged(library.LayerNorm):
        """The library's forward with your dx, so that this check judges task 3 alone."""

        def backward(self, dy):
            xhat, sigma = self.saved()
            return layer_norm_dx(dy, self.gamma.data, xhat, sigma)

    def judge(gamma, shape=(2, 3, 6)):
        judged = Judged(6)
        judged.gamma.data = np.array(gamma, np.float32)
        for parameter in judged.parameters():   # constants here: only x is differentiated
            parameter.requires_grad = False
        return gradcheck(judged, 3 + 2 * np.random.default_rng(1).standard_normal(shape))

    check.hint = ("Means of this task go over the last axis and keep it, mean(axis=-1, keepdims=True), so that they "
                  "are (..., 1), as sigma is.")
    x = 3 + 2 * np.random.default_rng(1).standard_normal((2, 3, 6))
    for dtype in (np.float64, np.float32):
        xhat = ((x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)).astype(dtype)
        sigma, dy, gamma = x.std(-1, keepdims=True).astype(dtype), x[::-1].astype(dtype), np.ones(6, dtype)
        given, kept = (dy, gamma, xhat, sigma), [array.copy() for array in (dy, gamma, xhat, sigma)]
        dx = layer_norm_dx(*given)
        check.that(dx is not None, "layer_norm_dx returns None.", "End it with return.")
        check.array("dx", dx, x.shape, dtype)
        for name, array, before in zip(("dy", "gamma", "xhat", "sigma"), given, kept):
            check.that((array == before).all(), f"Your code writes into {name}, which belongs to the caller.",
                       "Write dy * gamma, not dy *= gamma: each step into a new array.")
    one, any_gamma = judge(np.ones(6)), judge([0.5, 2.0, -1.0, 1.5, 0.7, 1.2])
    check.hint = "Test your formula on paper: does dx sum to 0 over the features, and is it orthogonal to xhat?"
    causes = [
        ("has shape", "", "dx has the shape of x."),
        ("gives no gradient", "layer_norm_dx returns None.", "End it with return."),
        ("writes into dy", "Your code writes into dy, which belongs to the caller.", "Write dy * gamma, not dy *= gamma."),
        ("zero everywhere", "", "Begin with the gradient of xhat."),
        ("the sign is wrong", "", "Go through the signs of the three terms of step 4."),
        ("should sum to zero", "dx does not sum to 0 over the features of a token: the path through mu is missing, or its "
         "mean goes over another axis than the last.", "A constant added to all features changes nothing in xhat. "
         "Which term of your formula sees to that? See hints 1 and 3."),
        ("should be orthogonal", "dx is not orthogonal to x - mu: the path through sigma is missing or has a wrong "
         "factor.", "Scaling x - mu changes nothing in xhat. Which term sees to that? See hint 2."),
    ]
    right, yours = one["x"].numeric, one["x"].analytic
    if not one and yours is not None and right is not None and yours.shape == right.shape:
        ratio = yours / right   # (B, T, D): the same for all features of a token if only a factor like sigma is wrong
        check.that(np.ptp(ratio, axis=-1).max() > 1e-4 or np.ptp(ratio) < 1e-4,
                   "dx is the right one times a number that differs from token to token.",
                   "A power of sigma is wrong: each of the three terms has 1 / sigma once.")
    check.gradients(one, causes)
    check.that(any_gamma or any_gamma["x"].passed, "dx is right when gamma is 1, and wrong for any other gamma.",
               "Is gamma in the gradient of xhat (step 1), and is it there before the two means are taken?")
    check.gradients(any_gamma, causes)
    ### BEGIN HIDDEN TESTS
    check.hint = "dy is (..., D), with any number of axes before the last one, and D may be as small as 1."
    for shape in ((6,), (5, 6), (2, 3, 4, 6)):
        check.gradients(judge([1.5, 0.5, -2.0, 1.0, 0.3, 1.1], shape), causes)
    zero = layer_norm_dx(np.ones((2, 1)), np.ones(1), np.zeros((2, 1)), np.ones((2, 1)))
    check.equal("dx for a single feature", zero, np.zeros((2, 1)))
    ### END HIDDEN TESTS

# %% [markdown]
# ### All of LayerNorm together (1 point)
#
# Your forward with your backward, against numeric differences, and against the class of the library. The report below the
# check is what you read in practice: one line for each tensor, then what backward must do besides being right.

# %% nbgrader={"grade": true, "grade_id": "check-together", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with Check("Check of tasks 1 to 3 together") as check:
    check.hint = "Let checks 1, 2 and 3 pass first."
    x = np.random.default_rng(4).standard_normal((2, 3, 6))
    report = gradcheck(LayerNorm(6), x)
    check.gradients(report)
    yours, theirs = LayerNorm(6).astype(np.float64), library.LayerNorm(6).astype(np.float64)
    check.equal("y", yours(x), theirs(x))
    check.equal("dx", yours.backward(np.cos(x)), theirs.backward(np.cos(x)))
    print(report)

# %% [markdown]
# ## Task 4. The forward pass of RMSNorm (3 points)
#
# Zhang and Sennrich (2019) leave out the mean and the shift, and divide by the root mean square of the features:
#
# $$
# r = \sqrt{\overline{x^2} + \epsilon}, \qquad
# \hat x = \frac{x}{r}, \qquad
# y = \gamma \odot \hat x .
# $$
#
# You write this class alone. What does backward need? Save that, and no more. In this task write `forward`; `backward`
# is task 5, in the same cell.
#
# <details><summary>Hint</summary>
#
# It is your LayerNorm with two things taken out. The mean square divides by $D$.
#
# </details>
#
# ## Task 5. The backward pass of RMSNorm (4 points)
#
# **Derive on paper** $\mathrm{d}\gamma$, and $\mathrm{d}x$ in the steps of task 3. How many paths are there from $x_j$ to
# the loss? What is $\mathrm{d}x$ orthogonal to, and does it still sum to 0?
#
# <details><summary>Hint 1</summary>
#
# $\partial r / \partial x_j = x_j / (D \, r) = \hat x_j / D$.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Two paths, so two terms. Which term of task 3 belongs to $\mu$?
#
# </details>

# %% nbgrader={"grade": false, "grade_id": "rmsnorm", "locked": false, "schema_version": 3, "solution": true, "task": false}
class RMSNorm(Module):
    """y = gamma * xhat, xhat = x / r, with r the root mean square of the features of each token."""

    def __init__(self, d_model, *, eps=1e-6):
        super().__init__()
        self.d_model, self.eps = d_model, eps
        self.gamma = Parameter(np.ones(d_model, np.float32))   # (D,)

    def forward(self, x):
        ### BEGIN SOLUTION
        #> Write RMSNorm.forward: y = gamma * xhat.
        #> 1. r = sqrt(mean(x**2) + self.eps), the mean over the last axis, shape (..., 1)
        #> 2. xhat = x / r, shape (..., D), in a new array
        #> 3. save what your backward needs with self.save(...)
        #> 4. return y = self.gamma.data * xhat, with the shape and the dtype of x
        root = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)   # (..., 1)
        scaled = x / root                                      # (..., D)
        self.save(scaled, root)
        return self.gamma.data * scaled
        ### END SOLUTION

    def backward(self, dy):
        ### BEGIN SOLUTION
        #> Write RMSNorm.backward: dy is (..., D).
        #> 1. take what forward has saved: ... = self.saved()
        #> 2. add the gradient of gamma, shape (D,), with self.gamma.add_grad(...)
        #> 3. return dx, with the shape and the dtype of dy; dy stays as it is
        scaled, root = self.saved()
        self.gamma.add_grad((dy * scaled).reshape(-1, self.d_model).sum(axis=0))
        dscaled = dy * self.gamma.data                         # (..., D)
        along = (dscaled * scaled).mean(axis=-1, keepdims=True)   # (..., 1)
        return (dscaled - scaled * along) / root
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-4", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with Check("Check 4 (RMSNorm.forward)") as check:
    x = 3 + 2 * np.random.default_rng(5).standard_normal((2, 3, 6))
    layer, kept = RMSNorm(6, eps=0.5).astype(np.float64), x.copy()
    check.hint = "Go through the four steps that the text of the task lists."
    y = layer(x)
    check.array("y", y, x.shape, x.dtype)
    check.that((x == kept).all(), "forward has changed x, which belongs to the caller.", "Write x / r, not x /= r.")
    check.that(np.abs(y.mean(axis=-1)).max() > 1e-9, "Each token of y has mean 0, which RMSNorm does not give it: a mean "
               "is subtracted.", "Take the mean out: RMSNorm only divides. That is its difference from LayerNorm.")

    # With gamma = 1 the mean square of a token of y is m / (m + eps), m that of the token of x.
    m, v, eps, square = (x**2).mean(axis=-1), x.var(axis=-1), layer.eps, (y**2).mean(axis=-1)
    check.hint = "r = sqrt(mean(x**2, axis=-1, keepdims=True) + eps)."
    check.equal("the mean square of the tokens of y", square, m / (m + eps), mistakes=[
        ("eps stands outside the root: it is sqrt(mean square + eps).", m / (m**0.5 + eps) ** 2),
        ("eps is missing: add it to the mean square, inside the root.", np.ones_like(m)),
        ("x is divided by the root of the sum of the squares, and should be by that of their mean.", m / (6 * m + eps)),
        ("x is divided by the mean square, and should be divided by its root.", m / (m + eps) ** 2),
        ("x is divided by its standard deviation; r has no mean in it.", m / (v + eps)),
    ])
    layer.gamma.data = np.linspace(0.5, 2, 6)
    check.hint = "y = gamma * xhat, with self.gamma.data."
    check.equal("y with a gamma", layer(x), layer.gamma.data * y, mistakes=[("gamma is missing in y.", y)])
    check.array("y of a float32 input", RMSNorm(6)(x.astype(np.float32)), x.shape, np.float32)
    check.that(layer.pending == 2, "forward does not call self.save exactly once.", "Save what backward will need.")
    ### BEGIN HIDDEN TESTS
    check.hint = "x may have any number of axes: x is (..., D)."
    for shape in ((6,), (5, 6), (2, 1, 3, 6)):
        x = np.random.default_rng(6).standard_normal(shape)
        check.equal(f"y of an input of shape {shape}", RMSNorm(6).astype(np.float64)(x),
                    library.RMSNorm(6).astype(np.float64)(x))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "check-5", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with Check("Check 5 (RMSNorm.backward)") as check:
    x = 3 + 2 * np.random.default_rng(5).standard_normal((2, 3, 6))
    check.hint = "Let check 4 pass first. Means go over the last axis and keep it; the gradient of gamma is (D,)."
    for dtype in (np.float64, np.float32):
        layer, dy = RMSNorm(6).astype(dtype), x[::-1].astype(dtype)
        layer(x.astype(dtype))
        kept, dx = dy.copy(), layer.backward(dy)
        check.that((dy == kept).all(), "Your code writes into dy, which belongs to the caller.",
                   "Write dy * gamma, not dy *= gamma.")
        check.array("dx", dx, x.shape, dtype)
    report = gradcheck(RMSNorm(6), x)
    check.hint = "Test your formula on paper: is dx orthogonal to x?"
    yours, right = report["x"].analytic, report["x"].numeric
    if yours is not None and not report["x"].passed and yours.shape == right.shape:
        check.that(np.ptp(yours - right, axis=-1).max() > 1e-6, "dx differs from the right one by one number for all "
                   "features of a token: a mean is subtracted, and in RMSNorm there is no path through a mean.",
                   "Which term of task 3 belongs to mu?")
    causes = [
        ("has shape", "", "dx has the shape of x, and the gradient of gamma the shape (D,)."),
        ("no gradient", "", "backward adds the gradient of gamma with add_grad, and returns dx."),
        ("is replaced", "", "Use self.gamma.add_grad(...): a second backward must add to what the first one left."),
        ("writes into dy", "Your code writes into dy, which belongs to the caller.", "Write dy * gamma, not dy *= gamma."),
        ("should be orthogonal", "dx is not orthogonal to x: the path through r is missing or has a wrong factor.",
         "Scaling x changes nothing in xhat. Which term sees to that? See hint 1."),
    ]
    ones = gradcheck(RMSNorm(6), x, randomize=False)   # here gamma stays 1
    check.that(report["x"].passed or not ones["x"].passed, "dx is right when gamma is 1, and wrong for any other gamma.",
               "Is gamma in the gradient of xhat, and is it there before the mean is taken?")
    check.gradients(report, causes)
    ### BEGIN HIDDEN TESTS
    check.hint = "dy is (..., D), with any number of axes before the last one."
    for shape in ((6,), (5, 6), (2, 3, 4, 6)):
        check.gradients(gradcheck(RMSNorm(6), np.random.default_rng(7).standard_normal(shape)), causes)
    ### END HIDDEN TESTS

# %% [markdown]
# ## Task 6. Two norms, one question (3 points)
#
# In a large model nearly all tokens have features whose mean is close to 0 compared with their root mean square. (a) Which
# output does RMSNorm then give, compared with LayerNorm with $\beta = 0$? Show it with the formulas. (b) For which
# changes of $x$ does the output of each norm stay the same, and what follows for $\mathrm{d}x$? (c) Which of the two has
# less to compute in backward, and by what?
#
# Answer in the next cell, in five to ten sentences.

# %% [markdown] nbgrader={"grade": true, "grade_id": "question", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# A model answer; one point for each part.
#
# (a) $\overline{x^2} = \overline{(x - \mu)^2} + \mu^2$. If $\mu^2$ is small against $\overline{x^2}$, then $r$ is close to
# $\sigma$ and $x$ is close to $x - \mu$, so both norms give nearly the same $\hat x$, and with $\beta = 0$ nearly the same
# $y$. The relative difference is of the order of $\mu / r$.
#
# (b) LayerNorm gives the same output for $x + c$ (the same $c$ for all features), and, up to $\epsilon$, for $s\,x$ with
# $s > 0$. RMSNorm gives the same for $s\,x$ only. The derivative of the loss along a direction that changes nothing is 0.
# So $\mathrm{d}x$ of LayerNorm sums to 0 over the features and is orthogonal to $x - \mu$; that of RMSNorm is orthogonal
# to $x$ and has in general another sum than 0.
#
# (c) RMSNorm: it has no path through $\mu$, so one mean over the features and one subtraction fewer for each token, and no
# $\mathrm{d}\beta$, one sum over all tokens fewer.
# ### END SOLUTION

# %% [markdown]
# ## Papers
#
# - J. L. Ba, J. R. Kiros and G. E. Hinton (2016), Layer normalization, arXiv:1607.06450. Defines LayerNorm.
# - B. Zhang and R. Sennrich (2019), Root mean square layer normalization, arXiv:1910.07467. Defines RMSNorm, and asks
#   whether the mean is needed.
