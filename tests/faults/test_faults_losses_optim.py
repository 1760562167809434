"""Known faults of losses, optimizers, schedules and state: the right value holds, and the fault would be seen.

Each test has a check that our code passes and that an implementation with the fault fails.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from numtrans.errors import ConfigError
from numtrans.losses import CrossEntropyLoss
from numtrans.module import Module, Parameter
from numtrans.optim import SGD, Adam, AdamW, clip_grad_norm, no_decay, noam
from numtrans.training import Trainer

FAULTS = {fault["id"]: fault["data"] for fault in json.loads(Path(__file__).with_name("losses_optim.json").read_text())}


def data(name):
    """The input, right and faulty values of a fault."""
    fault = FAULTS[name]
    return fault["input"], fault["right"], fault["faulty"]


def close(got, right, rtol=1e-9, atol=1e-11):
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(right, float), rtol=rtol, atol=atol)


def sees(check, *faulty):
    """Whether `check` fails on the faulty values."""
    with pytest.raises(AssertionError):
        check(*faulty)


def cross_entropy(logits, targets, **settings):
    ce = CrossEntropyLoss(**settings)
    return ce(np.array(logits, float), np.array(targets)), ce.backward()


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


# ---- cross-entropy


def test_ce_01_the_mean_is_over_the_targets_that_count():
    given, right, faulty = data("CE-01")

    def check(loss, dlogits):
        close(loss, right["loss"])
        close(dlogits, right["dlogits"])
        assert not np.any(np.asarray(dlogits)[2])

    check(*cross_entropy(given["logits"], given["targets"]))
    sees(check, faulty["loss"], right["dlogits"])
    sees(check, right["loss"], faulty["dlogits"])
    padded = [*given["logits"], [5.0, -5.0, 1.0]]
    loss, dlogits = cross_entropy(padded, [*given["targets"], -100])
    check(loss, dlogits[:3])
    assert not dlogits[3].any()


def test_ce_03_smoothing_spreads_over_all_classes():
    given, right, faulty = data("CE-03")
    targets = [given["target"]]

    def check(loss, dlogits):
        close(loss, right["loss"])
        close(dlogits, right["dlogits"])

    check(*cross_entropy(given["logits"], targets, label_smoothing=given["eps"]))
    sees(check, *cross_entropy(given["logits"], targets, label_smoothing=faulty["equals_eps"]))  # spread over K - 1
    close(cross_entropy(given["logits"], targets, label_smoothing=faulty["equals_eps"])[0], faulty["loss_K_minus_1"])
    sees(check, right["loss"], faulty["dlogits"])


@pytest.mark.filterwarnings("ignore:CrossEntropyLoss. every target is ignored")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ce_05_nothing_to_score(reduction):
    given, right, faulty = data("CE-05")

    def check(loss, dlogits):
        assert loss == 0.0  # documented: 0, not NaN
        np.testing.assert_array_equal(dlogits, right["dlogits"])

    check(*cross_entropy(given["logits"], given["targets"], reduction=reduction))
    sees(check, 0.0, np.full((2, 3), float(faulty["dlogits"])))
    sees(check, math.nan, right["dlogits"])


def test_ce_06_softmax_is_taken_once():
    given, right, faulty = data("CE-06")

    def check(loss):
        close(loss, right["loss"], rtol=1e-6, atol=0)

    check(cross_entropy(given["logits"], [given["target"]])[0])
    twice = cross_entropy(np.exp(log_softmax(np.array(given["logits"]))), [given["target"]])[0]
    close(twice, faulty["loss"])
    sees(check, twice)


def test_ce_07_no_logarithm_of_a_rounded_probability():
    given, right, faulty = data("CE-07")
    logits, target = np.array(given["logits"]), given["target"]

    def check(loss, dlogits):
        assert loss == right["loss"]
        np.testing.assert_array_equal(dlogits, right["dlogits"])

    check(*cross_entropy(logits, [target]))
    p = np.exp(log_softmax(logits))
    with np.errstate(divide="ignore"):
        sees(check, -np.log(p[0, target]), right["dlogits"])
    close(-np.log(p[0, target] + 1e-9), faulty["loss_with_1e9"])
    sees(check, -np.log(p[0, target] + 1e-9), right["dlogits"])
    sees(check, right["loss"], np.zeros((1, 2)))
    ce = CrossEntropyLoss()
    assert ce(np.array([[0, 50]], np.float32), np.array([0])) == 50
    np.testing.assert_array_equal(ce.backward(), np.array([[-1, 1]], np.float32))


def test_ce_08_one_division():
    given, right, faulty = data("CE-08")

    def check(loss, dlogits):
        close(loss, right["loss"])
        close(dlogits, right["dlogits"])

    loss, dlogits = cross_entropy(given["logits"], given["targets"])
    check(loss, dlogits)
    sees(check, loss, faulty["dlogits_divided_twice"])
    sees(check, loss, faulty["dlogits_sum"])
    sees(check, loss, dlogits / 4)
    summed = cross_entropy(given["logits"], given["targets"], reduction="sum")[1]
    close(summed, faulty["dlogits_sum"])
    loss, dlogits = cross_entropy(given["logits"] * 2, given["targets"] * 2)  # the batch twice
    check(loss, 2 * dlogits[:4])


class Rows(Module):
    """Logits that are parameters, one row for each token: row i of the table is the logits of input i."""

    def __init__(self, logits):
        super().__init__()
        self.table = Parameter(logits)

    def forward(self, ids):
        self.save(ids)
        return self.table.data[ids]

    def backward(self, dy):
        (ids,) = self.saved()
        table = np.zeros_like(self.table.data)
        table[ids] = dy
        self.table.add_grad(table)


def test_ce_09_micro_batches_weigh_tokens():
    given, right, faulty = data("CE-09")
    losses = np.array([*given["A"], 0.0, 0.0, *given["B"]])  # micro-batch A has one token that counts, B has three
    logits = np.stack([np.log(np.expm1(np.maximum(losses, 1))), np.zeros(6)], 1)  # target 1: loss = log(1 + e^z)
    targets = np.array([1, -100, -100, 1, 1, 1])

    def check(loss, dlogits):
        close(loss, right["loss"])
        weight = dlogits[:, 0] / (1 - np.exp(-losses.clip(1)))  # of each token: dz = (1 - p) * weight
        close(weight, np.where(targets == 1, right["token_weight"], 0))

    rows = Rows(logits)
    trainer = Trainer(rows, CrossEntropyLoss(), SGD(rows.parameters(), 0.1), micro_batches=2)
    check(trainer.compute_gradients(np.arange(6), targets), rows.table.grad)
    ce, wrong = CrossEntropyLoss(), []
    for part in (slice(0, 3), slice(3, 6)):  # the mean of the means
        wrong.append((ce(logits[part], targets[part]) / 2, ce.backward(0.5)))
    mean_of_means, dlogits = sum(loss for loss, _ in wrong), np.concatenate([d for _, d in wrong])
    close(mean_of_means, faulty["loss"])
    sees(check, mean_of_means, rows.table.grad)
    sees(check, right["loss"], dlogits)


# ---- optimizers


def path(optimizer, parameter, gradients):
    """The first value of `parameter` after each step."""
    values = []
    for gradient in gradients:
        parameter.grad = np.full_like(parameter.data, gradient)
        optimizer.step()
        values.append(parameter.data.flat[0])
    return values


def adam_with(update, p, gradients, lr, beta1=0.9, beta2=0.999):
    """Adam with its last line replaced: `update(m, v, c1, c2, t)` with the corrections c = 1 - beta^t."""
    m = v = 0.0
    values = []
    for t, g in enumerate(gradients, 1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        p -= lr * update(m, v, 1 - beta1**t, 1 - beta2**t)
        values.append(p)
    return values


@pytest.mark.parametrize("make", [Adam, AdamW])
def test_opt_01_eps_after_the_correction_and_outside_the_root(make):
    given, right, faulty = data("OPT-01")
    gradients, eps = given["g"], 1e-8

    def check(values):
        close(values, right["p"], rtol=1e-8)

    w = Parameter(np.array([given["p"]]))
    check(path(make([w], lr=given["lr"], weight_decay=0.0), w, gradients))
    before = adam_with(lambda m, v, a, b: m / a * math.sqrt(b) / (math.sqrt(v) + eps), 1.0, gradients, given["lr"])
    inside = adam_with(lambda m, v, a, b: m / a / math.sqrt(v / b + eps), 1.0, gradients, given["lr"])
    close(before[0], faulty["p1_eps_before_correction"], rtol=1e-6)
    close(inside[0], faulty["p1_eps_in_root"], rtol=1e-6)
    sees(check, before)
    sees(check, inside)


@pytest.mark.parametrize("make", [Adam, AdamW])
def test_opt_02_bias_correction(make):
    given, right, faulty = data("OPT-02")
    gradients = [given["g"]] * given["steps"]

    def check(values):
        close(values, right["p"])

    w = Parameter(np.zeros(1))
    check(path(make([w], lr=given["lr"], weight_decay=0.0), w, gradients))
    none = adam_with(lambda m, v, a, b: m / math.sqrt(v), 0.0, gradients, given["lr"])
    fixed = adam_with(lambda m, v, a, b: m / 0.1 / math.sqrt(v / 0.001), 0.0, gradients, given["lr"])
    close(none, faulty["no_correction"])
    close(fixed, faulty["correction_without_power"])
    sees(check, none)
    sees(check, fixed)


def test_opt_05_decay_stays_out_of_the_gradient():
    given, right, faulty = data("OPT-05")

    def run(make):
        w = Parameter(np.array([given["p"]]))
        return path(make([w], lr=given["lr"], weight_decay=given["wd"]), w, [given["g"]] * 3)

    def check(values):
        close(values, right["p"])

    check(run(AdamW))
    close(run(Adam), faulty["p"], rtol=1e-8)  # L2, as its docstring says
    sees(check, run(Adam))


class Small(Module):
    """A matrix, a bias, a norm gain and a matrix that is tied."""

    def __init__(self):
        super().__init__()
        self.W, self.b = Parameter(np.full((2, 2), 3.0)), Parameter(np.full(2, 5.0))
        self.gamma, self.tied = Parameter(np.ones(2)), self.W


def test_opt_07_biases_and_gains_do_not_decay():
    given, right, _ = data("OPT-07")

    def run(groups):
        net = Small()
        optimizer = AdamW(groups(net), lr=given["lr"])
        for parameter in net.parameters():
            parameter.grad = np.zeros_like(parameter.data)
        optimizer.step()
        return net

    def check(net):
        close(net.W.data, np.full((2, 2), 3 * right["matrix_factor"]))
        np.testing.assert_array_equal(net.gamma.data, [right["gain"]] * 2)
        np.testing.assert_array_equal(net.b.data, [5 * right["bias_factor"]] * 2)

    check(run(lambda net: no_decay(net, given["wd"])))
    everything = run(lambda net: [{"params": net.parameters(), "weight_decay": given["wd"]}])
    close(everything.gamma.data, [FAULTS["OPT-07"]["faulty"]["gain"]] * 2)
    sees(check, everything)
    decays = {p.name: g["weight_decay"] for g in no_decay(Small(), 0.1) for p in g["params"]}
    assert decays == {"W": 0.1, "b": 0.0, "gamma": 0.0}


def test_opt_08_one_norm_over_all_gradients():
    given, right, faulty = data("OPT-08")

    def gradients():
        parameters = [Parameter(np.zeros(1)), Parameter(np.zeros(1))]
        for parameter, name in zip(parameters, ("g1", "g2"), strict=True):
            parameter.grad = np.array(given[name])
        return parameters

    def check(norm, g1, g2):
        assert norm == right["returned_norm"]
        close(g1, right["g1"], rtol=1e-7)
        close(g2, right["g2"], rtol=1e-7)

    a, b = gradients()
    norm = clip_grad_norm([a, b, a], given["max_norm"])  # a is tied
    check(norm, a.grad, b.grad)
    sees(check, norm, *faulty["per_parameter"])
    sees(check, 1.0, a.grad, b.grad)  # the norm after clipping
    c, d = gradients()
    for each in (c, d):  # one by one
        clip_grad_norm([each], given["max_norm"])
    sees(check, norm, c.grad, d.grad)
    e, f = gradients()
    assert clip_grad_norm([e, f], 10) == 5.0
    assert (e.grad, f.grad) == (3.0, 4.0)  # not scaled up to 6 and 8


def test_sch_01_the_first_step_is_one():
    given, right, _ = data("SCH-01")

    def check(schedule):
        for step, value in right.items():
            close(schedule(int(step)), value)

    def ours(step):
        return noam(step, given["d_model"], given["warmup"])

    check(ours)
    sees(check, lambda step: ours(max(step - 1, 1)))  # counted from 0
    with pytest.raises(ConfigError, match="the first step is 1"):
        ours(0)
    assert noam(1, given["d_model"], 0) == pytest.approx(512**-0.5)
    rising = [ours(step) for step in range(1, 4001)]
    assert rising == sorted(set(rising))
    assert ours(4001) < ours(4000)


# ---- parameters, gradients, state


class Twice(Module):
    """Two names for one matrix."""

    def __init__(self, value):
        super().__init__()
        self.first = Parameter(np.array([value]))
        self.second = self.first


def test_tie_02_a_tied_parameter_is_stepped_once():
    given, right, faulty = data("TIE-02")

    def check(value):
        close(value, right["W"])

    net = Twice(given["W"])
    for parameters in (net.parameters(), [net.first, net.second]):
        net.first.data[:] = given["W"]
        optimizer = SGD(parameters, given["lr"])
        check(path(optimizer, net.first, [2 * given["g"] / 2]))
        assert len(optimizer.parameters) == 1
    optimizer.step()  # what stepping it twice gives
    close(net.first.data, faulty["W"])
    sees(check, net.first.data)
    adam = Adam([net.first, net.second])
    adam.step()
    assert adam.state[net.first]["step"] == 1
    assert len(net.parameters()) == net.num_parameters() == 1


def test_sta_01_snapshots_are_copies():
    given, right, faulty = data("STA-01")

    def check(snapshot):
        np.testing.assert_array_equal(snapshot, right["snapshot"])

    net, other = Twice(1.0), Twice(1.0)
    net.first.data, other.first.data = np.array(given["w"], float), np.zeros(2)
    optimizer = SGD(net.parameters(), given["step"])
    snapshot, reference = net.state_dict()["first"], net.first.data
    net.first.grad = np.ones(2)
    optimizer.step()
    check(snapshot)
    np.testing.assert_array_equal(reference, faulty["snapshot"])
    sees(check, reference)
    # loading copies, into the arrays that an earlier optimizer updates
    net.load_state_dict({"first": snapshot})
    other.load_state_dict({"first": snapshot})
    assert not np.shares_memory(net.first.data, other.first.data)
    assert not np.shares_memory(net.first.data, snapshot)
    net.first.grad = np.ones(2)
    optimizer.step()
    np.testing.assert_array_equal(net.first.data, [0.5, 0.5])
    check(snapshot)
    check(other.first.data)


def test_zro_01_gradients_add_up_until_they_are_cleared():
    given, right, faulty = data("ZRO-01")

    def run(clear, module):
        """The gradient after two backwards, and after a clear and one more."""
        for _ in range(2):
            module.forward(np.array([0]))
            module.backward(np.array([[given["g"]]]))
        two = module.table.grad.copy()
        clear(module)
        module.forward(np.array([0]))
        module.backward(np.array([[given["g"]]]))
        return two, module.table.grad

    def check(two, one):
        close(two, [[right["after_two"]]])
        close(one, [[right["after_zero_and_one"]]])

    rows = Rows(np.zeros((1, 1)))
    check(*run(lambda module: module.zero_grad(), rows))
    check(*run(lambda module: SGD(module.parameters(), 0.1).zero_grad(), Rows(np.zeros((1, 1)))))
    sees(check, *run(lambda module: None, Rows(np.zeros((1, 1)))))  # not cleared: 3 g
    overwritten, added = (np.array([[value]]) for value in faulty["after_two"])
    sees(check, overwritten, [[right["after_zero_and_one"]]])
    sees(check, [[right["after_two"]]], added)

    # the trainer clears: two steps at rate 0 leave the gradient of one
    class One:
        def batch(self, step):
            return np.array([0]), np.array([0])

    rows = Rows(np.array([[1.0, 2.0]]))
    trainer = Trainer(rows, CrossEntropyLoss(), SGD(rows.parameters(), 0.0), max_grad_norm=None)
    trainer.fit(One(), 1)
    first = rows.table.grad.copy()
    trainer.fit(One(), 3)
    np.testing.assert_array_equal(rows.table.grad, first)
