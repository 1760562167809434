"""Problem set 5: each typical wrong answer fails the right check, passes those before it, and is told its mistake."""

import re

import numpy as np
import pytest
from assignment import FOLDER, cell_of, checks, outcomes, read, stub

PATH = FOLDER / "ps5-layernorm" / "ps5-layernorm.ipynb"
FORWARD, PARAMETERS, DX, RMS = "layernorm-forward", "layernorm-parameters", "layernorm-dx", "rmsnorm"
RETURN_DX = "return (dxhat - through_mu - xhat * through_sigma) / sigma"
RETURN_RMS = "return (dscaled - scaled * along) / root"

# what -> (cell, text of the solution, what stands there instead, check that fails, what it says)
WRONG = {
    "unbiased variance": (
        FORWARD,
        "variance = (centered * centered).mean(axis=-1, keepdims=True)",
        "variance = x.var(axis=-1, keepdims=True, ddof=1)",
        "check-1",
        r"divided by D - 1 \(unbiased\)",
    ),
    "eps outside the root": (
        FORWARD,
        "np.sqrt(variance + self.eps)",
        "np.sqrt(variance) + self.eps",
        "check-1",
        "eps stands outside the root",
    ),
    "eps forgotten": (FORWARD, "np.sqrt(variance + self.eps)", "np.sqrt(variance)", "check-1", "eps is missing"),
    "divided by the variance": (
        FORWARD,
        "np.sqrt(variance + self.eps)",
        "variance + self.eps",
        "check-1",
        "divided by the variance",
    ),
    "no mean taken": (
        FORWARD,
        "centered = x - x.mean(axis=-1, keepdims=True)",
        "centered = x",
        "check-1",
        "mean of a token of y should be 0",
    ),
    "mean over the batch": (
        FORWARD,
        "centered = x - x.mean(axis=-1, keepdims=True)",
        "centered = x - x.mean(axis=0)",
        "check-1",
        "y has mean 0 over axis 0",
    ),
    "BatchNorm": (
        FORWARD,
        "centered = x - x.mean(axis=-1, keepdims=True)          # (..., D)\n"
        "        variance = (centered * centered).mean(axis=-1, keepdims=True)",
        "centered = x - x.mean(axis=(0, 1))\n        variance = (centered * centered).mean(axis=(0, 1))",
        "check-1",
        "mean 0 over axis",
    ),
    "keepdims forgotten": (
        FORWARD,
        "x.mean(axis=-1, keepdims=True)",
        "x.mean(axis=-1)",
        "check-1",
        "Your code stopped with ValueError: operands could not be broadcast.*in forward, in the line: centered = x",
    ),
    "the input written in place": (
        FORWARD,
        "centered = x - x.mean(axis=-1, keepdims=True)",
        "x -= x.mean(axis=-1, keepdims=True); centered = x",
        "check-1",
        "forward has changed x",
    ),
    "nothing saved": (FORWARD, "self.save(normalized, deviation)", "pass", "check-1", "called self.save 0 times"),
    "saved in another order": (
        FORWARD,
        "self.save(normalized, deviation)",
        "self.save(deviation, normalized)",
        "check-1",
        "in this order",
    ),
    "beta forgotten": (FORWARD, "normalized + self.beta.data", "normalized", "check-1", "beta is missing"),
    "gamma forgotten": (
        FORWARD,
        "return self.gamma.data * normalized",
        "return normalized",
        "check-1",
        "gamma is missing",
    ),
    "no return": (FORWARD, "return self.gamma.data * norm", "self.gamma.data * norm", "check-1", "y is None.*return y"),
    "float64 inside": (
        FORWARD,
        "np.sqrt(variance + self.eps)",
        "np.sqrt(variance + np.float64(self.eps))",
        "check-1",
        "has dtype float64",
    ),
    "a misspelt name": (
        FORWARD,
        "centered / deviation",
        "centred / deviation",
        "check-1",
        "name 'centred' is not defined",
    ),
    "dgamma assigned": (
        PARAMETERS,
        "layer.gamma.add_grad((dy * xhat).reshape(tokens).sum(axis=0))",
        "layer.gamma.grad = (dy * xhat).reshape(tokens).sum(axis=0)",
        "check-2",
        "gamma is replaced by the second backward",
    ),
    "sums over the wrong axis": (
        PARAMETERS,
        "(dy * xhat).reshape(tokens).sum(axis=0)",
        "(dy * xhat).sum(axis=-1)",
        "check-2",
        r"Parameter gamma: gradient has shape \(2, 3\), expected \(6,\).*every axis but the last",
    ),
    "sum over the batch only": (
        PARAMETERS,
        "dy.reshape(tokens).sum(axis=0)",
        "dy.sum(axis=0)",
        "check-2",
        r"Parameter beta: gradient has shape \(3, 6\)",
    ),
    "a mean for a sum": (
        PARAMETERS,
        "(dy * xhat).reshape(tokens).sum(axis=0)",
        "(dy * xhat).reshape(tokens).mean(axis=0)",
        "check-2",
        "0.166667 times the right one",
    ),
    "gamma and beta exchanged": (
        PARAMETERS,
        "layer.beta.add_grad(",
        "layer.gamma.add_grad(",
        "check-2",
        "beta: backward gives no gradient",
    ),
    "dy instead of dy * xhat": (PARAMETERS, "(dy * xhat)", "dy", "check-2", "right gradient of beta"),
    "grad added to None": (
        PARAMETERS,
        "layer.beta.add_grad(dy.reshape(tokens).sum(axis=0))",
        "layer.beta.grad += dy.reshape(tokens).sum(axis=0)",
        "check-2",
        "Your code stopped with TypeError.*add_grad",
    ),
    "dy written in place": (
        PARAMETERS,
        "layer.gamma.add_grad((dy * xhat)",
        "layer.gamma.add_grad(np.multiply(dy, xhat, out=dy)",
        "check-2",
        "writes into dy",
    ),
    "dx without the mean terms": (
        DX,
        "(dxhat - through_mu - xhat * through_sigma)",
        "dxhat",
        "check-3",
        "path through mu is missing",
    ),
    "dx without the path through mu": (DX, " - through_mu", "", "check-3", "path through mu is missing"),
    "dx without the path through sigma": (
        DX,
        " - xhat * through_sigma",
        "",
        "check-3",
        "path through sigma is missing",
    ),
    "dx with a wrong sign": (
        DX,
        "- xhat * through",
        "+ xhat * through",
        "check-3",
        "path through sigma is missing or has a wrong",
    ),
    "gamma left out of dx": (DX, "dy * gamma", "dy", "check-3", "right when gamma is 1"),
    "gamma after the means": (
        DX,
        "dxhat = dy * gamma",
        "dxhat, sigma = dy, sigma / gamma",
        "check-3",
        "right when gamma is 1",
    ),
    "sigma left out of dx": (DX, ") / sigma", ")", "check-3", "differs from token to token"),
    "means over the tokens": (
        DX,
        "dxhat.mean(axis=-1, keepdims=True)",
        "dxhat.mean(axis=1, keepdims=True)",
        "check-3",
        "its mean goes over another axis",
    ),
    "sums for means in dx": (
        DX,
        "dxhat.mean(axis=-1, keepdims=True)",
        "dxhat.sum(axis=-1, keepdims=True)",
        "check-3",
        "path through mu is missing",
    ),
    "xhat saved as a list": (
        FORWARD,
        "self.save(normalized,",
        "self.save(normalized.tolist(),",
        "check-1",
        "as it was saved, is a list",
    ),
    **{
        f"dx {what}": (DX, RETURN_DX, new.format(RETURN_DX.removeprefix("return ")), "check-3", says)
        for what, new, says in (
            ("as a list", "return ({}).tolist()", "dx is a list"),
            ("in float32", "return ({}).astype(np.float32)", "has dtype float32 and should have float64"),
            ("infinite", "return ({}) * np.inf", "NaN or an infinity"),
            ("in a tuple", "return {}, 1", "dx is a tuple"),
            ("masked", "return np.ma.masked_array({})", "dx is a MaskedArray"),
            ("that overwrites xhat", "return [{}, xhat.fill(0)][0]", "writes into xhat"),
        )
    },
    **{
        f"dx of RMSNorm {what}": (RMS, RETURN_RMS, new.format(RETURN_RMS.removeprefix("return ")), "check-5", says)
        for what, new, says in (
            ("as a list", "return ({}).tolist()", "dx is a list"),
            ("in float32", "return ({}).astype(np.float32)", "has dtype float32 and should have float64"),
            ("infinite", "return ({}) * np.inf", "NaN or an infinity"),
        )
    },
    "dx not returned": (DX, "return (dxhat", "(dxhat", "check-3", "layer_norm_dx returns None"),
    "dy scaled in place": (DX, "dxhat = dy * gamma", "dy *= gamma; dxhat = dy", "check-3", "writes into dy"),
    "RMSNorm subtracts the mean": (
        RMS,
        "scaled = x / root",
        "scaled = (x - x.mean(axis=-1, keepdims=True)) / root",
        "check-4",
        "a mean is subtracted",
    ),
    "RMSNorm by the standard deviation": (
        RMS,
        "np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)",
        "np.sqrt(x.var(axis=-1, keepdims=True) + self.eps)",
        "check-4",
        "standard deviation",
    ),
    "RMSNorm, eps outside the root": (
        RMS,
        "(x * x).mean(axis=-1, keepdims=True) + self.eps)",
        "(x * x).mean(axis=-1, keepdims=True)) + self.eps",
        "check-4",
        "eps stands outside the root",
    ),
    "RMSNorm, sum of squares": (RMS, "(x * x).mean(", "(x * x).sum(", "check-4", "root of the sum of the squares"),
    "RMSNorm saves in an attribute": (
        RMS,
        "self.save(scaled, root)",
        "self.kept = scaled, root",
        "check-4",
        "does not call self.save exactly once",
    ),
    "RMSNorm, mean term in dx": (
        RMS,
        "(dscaled - scaled * along)",
        "(dscaled - dscaled.mean(axis=-1, keepdims=True) - scaled * along)",
        "check-5",
        "a mean is subtracted, and in RMSNorm there is no path",
    ),
    "RMSNorm, dx centered": (
        RMS,
        "return (dscaled - scaled * along) / root",
        "dx = (dscaled - scaled * along) / root\n        return dx - dx.mean(axis=-1, keepdims=True)",
        "check-5",
        "a mean is subtracted, and in RMSNorm there is no path",
    ),
    "RMSNorm, no path through r": (RMS, " - scaled * along", "", "check-5", "path through r is missing"),
    "RMSNorm, dgamma assigned": (
        RMS,
        "self.gamma.add_grad((dy * scaled).reshape(-1, self.d_model).sum(axis=0))",
        "self.gamma.grad = (dy * scaled).reshape(-1, self.d_model).sum(axis=0)",
        "check-5",
        "gamma is replaced by the second backward",
    ),
    "RMSNorm, gamma left out of dx": (
        RMS,
        "dscaled = dy * self.gamma.data",
        "dscaled = dy",
        "check-5",
        "right when gamma is 1",
    ),
}

# Right for the shapes that a student sees, and wrong: only the hidden tests can tell.
HIDDEN = {
    "axes written out in the parameters": (
        PARAMETERS,
        "(dy * xhat).reshape(tokens).sum(axis=0)",
        "(dy * xhat).sum(axis=(0, 1))",
        "check-2",
    ),
    "the third axis in forward": (FORWARD, "x.mean(axis=-1,", "x.mean(axis=2,", "check-1"),
    "the third axis in dx": (DX, "dxhat.mean(axis=-1,", "dxhat.mean(axis=2,", "check-3"),
    "the third axis in RMSNorm": (RMS, "(x * x).mean(axis=-1,", "(x * x).mean(axis=2,", "check-4"),
    "variance as a difference of squares": (
        FORWARD,
        "variance = (centered * centered).mean(axis=-1, keepdims=True)",
        "variance = ((x * x).mean(axis=-1, keepdims=True) - x.mean(axis=-1, keepdims=True) ** 2)",
        "check-1",
    ),
}


def answered(notebook, cell, old, new):
    """`notebook` with the solution of the reference in `cell`, in which `new` stands for `old`."""
    solution = "\n".join(line for line in cell_of(read(PATH), cell)["source"].split("\n") if "#>" not in line)
    assert solution.count(old) == 1
    cell_of(notebook, cell)["source"] = solution.replace(old, new)
    return notebook


def students():
    """A student's copy with the right solutions in it: without the hidden tests."""
    mine = stub(PATH)
    for name in (FORWARD, PARAMETERS, DX, RMS):
        cell_of(mine, name)["source"] = cell_of(read(PATH), name)["source"]
    return mine


def test_the_students_copy_with_the_right_solutions_passes():
    assert outcomes(students()) == dict.fromkeys(checks(students()))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_answer_fails_its_check_and_is_told_why(what):
    """In a student's copy; the hidden tests of the teacher's change nothing, for they come last in each check."""
    cell, old, new, check, says = WRONG[what]
    said = outcomes(answered(students(), cell, old, new), check)
    before = checks(read(PATH))
    before = before[: before.index(check)]
    assert {name: said[name] for name in before} == dict.fromkeys(before)
    text = said[check]
    print(text)
    assert re.search(says, text, re.DOTALL)
    assert "Next step: " in text
    assert "Traceback" not in text
    assert ".py" not in text
    assert outcomes(answered(read(PATH), cell, old, new), check) == said


@pytest.mark.parametrize("what", HIDDEN)
def test_hidden_tests_catch_what_fits_the_shown_shapes_only(what):
    cell, old, new, check = HIDDEN[what]
    assert outcomes(answered(students(), cell, old, new), check)[check] is None
    said = outcomes(answered(read(PATH), cell, old, new), check)
    assert said[check] is not None
    assert "Next step: " in said[check]


def test_tasks_are_judged_alone():
    """A wrong forward costs the points of task 1 and of all together, and not those of tasks 2 and 3."""
    cell, old, new, _, _ = WRONG["eps outside the root"]
    said = outcomes(answered(read(PATH), cell, old, new))
    assert [name for name in said if said[name]] == ["check-1", "check-together"]


def test_the_reference_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    names = {}
    for cell in (FORWARD, PARAMETERS, DX, RMS):
        exec(
            "import numpy as np\nfrom numtrans.module import Module, Parameter\n" + cell_of(read(PATH), cell)["source"],
            names,
        )
    rng = np.random.default_rng(0)
    x, dy, gamma, beta = rng.standard_normal((2, 3, 6)), rng.standard_normal((2, 3, 6)), *rng.standard_normal((2, 6))
    for name, theirs in (("LayerNorm", torch.nn.LayerNorm(6, eps=1e-5)), ("RMSNorm", torch.nn.RMSNorm(6, eps=1e-6))):
        mine, theirs = names[name](6).astype(np.float64), theirs.double()
        mine.gamma.data, theirs.weight.data = gamma, torch.tensor(gamma)
        if name == "LayerNorm":
            mine.beta.data, theirs.bias.data = beta, torch.tensor(beta)
        given = torch.tensor(x, requires_grad=True)
        y = theirs(given)
        y.backward(torch.tensor(dy))
        np.testing.assert_allclose(mine(x), y.detach().numpy(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(mine.backward(dy), given.grad.numpy(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(mine.gamma.grad, theirs.weight.grad.numpy(), rtol=0, atol=1e-12)
        if name == "LayerNorm":
            np.testing.assert_allclose(mine.beta.grad, theirs.bias.grad.numpy(), rtol=0, atol=1e-12)
