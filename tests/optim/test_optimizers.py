"""Optimizers against numbers worked out by hand, PyTorch, and what groups and states promise."""

import json

import numpy as np
import pytest

from numtrans.cache_blocks import BLOCK
from numtrans.errors import ConfigError, StateDictError
from numtrans.module import Module, Parameter
from numtrans.optim import SGD, Adam, AdamW, no_decay
from numtrans.optim.optimizer import Optimizer


def run(optimizer, parameter, gradients):
    """The values of `parameter` after each step."""
    path = []
    for gradient in gradients:
        parameter.grad = np.full_like(parameter.data, gradient)
        optimizer.step()
        path.append(float(parameter.data.flat[0]))
    return path


def scalar(value=1.0):
    return Parameter(np.array([value]), "w")


def test_sgd_by_hand():
    w = scalar()
    assert run(SGD([w], 0.1), w, [1, 2]) == pytest.approx([0.9, 0.7])
    w = scalar()  # m: 1, 1.5, 1.75
    assert run(SGD([w], 0.1, momentum=0.5), w, [1, 1, 1]) == pytest.approx([0.9, 0.75, 0.575])
    w = scalar()  # g + m/2: 1.5, 1.75
    assert run(SGD([w], 0.1, momentum=0.5, nesterov=True), w, [1, 1]) == pytest.approx([0.85, 0.675])
    w = scalar()  # 1 - 0.1 (0 + 0.5)
    assert run(SGD([w], 0.1, weight_decay=0.5), w, [0]) == pytest.approx([0.95])


def test_adam_by_hand():
    w = scalar()  # m = 0.1, 0.29; v = 0.001, 0.004999; mhat = 1, 0.29/0.19; vhat = 1, 0.004999/0.001999
    expected = [0.9, 0.9 - 0.1 * (0.29 / 0.19) / (0.004999 / 0.001999) ** 0.5]
    assert run(Adam([w], lr=0.1, eps=0.0), w, [1, 2]) == pytest.approx(expected, rel=1e-12)


CASES = {
    "sgd": (SGD, "SGD", {"lr": 0.1}),
    "momentum": (SGD, "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (SGD, "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (Adam, "Adam", {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "adamw": (AdamW, "AdamW", {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1}),
    "adamw defaults": (AdamW, "AdamW", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_as_pytorch(case):
    torch = pytest.importorskip("torch")
    ours, theirs, settings = CASES[case]
    rng = np.random.default_rng(0)
    start = rng.standard_normal((3, 4))
    w, wt = Parameter(start.copy()), torch.tensor(start.copy(), requires_grad=True)
    a, b = ours([w], **settings), getattr(torch.optim, theirs)([wt], **settings)
    for _ in range(20):
        gradient = rng.standard_normal((3, 4))
        w.grad, wt.grad = gradient.copy(), torch.tensor(gradient)
        a.step(), b.step()
    np.testing.assert_allclose(w.data, wt.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", ["rows", "columns", "columns in gradient"])
def test_pieces_give_what_single_values_give(case, layout):
    """A matrix of more than one block, in any memory layout, steps as each of its values would alone."""
    make, _, settings = CASES[case]
    rng = np.random.default_rng(1)
    start = rng.standard_normal((3, BLOCK // 2))
    gradients = [rng.standard_normal(start.shape) for _ in range(3)]
    picks = [(0, 0), (2, BLOCK // 2 - 1), (1, 7), (2, 5)]
    alone = []
    for pick in picks:
        w = Parameter(start[pick].reshape(1).copy())
        optimizer = make([w], **settings)
        for gradient in gradients:
            w.grad = gradient[pick].reshape(1).copy()
            optimizer.step()
        alone.append(w.data[0])
    w = Parameter(np.asfortranarray(start) if layout == "columns" else start.copy())
    held = w.data
    optimizer = make([w], **settings)
    for gradient in gradients:
        w.grad = np.asfortranarray(gradient) if layout == "columns in gradient" else gradient.copy()
        kept = w.grad.copy()
        optimizer.step()
        np.testing.assert_array_equal(w.grad, kept)
    assert w.data is held  # in place: other holders of the array see the step
    np.testing.assert_allclose([w.data[pick] for pick in picks], alone, rtol=1e-13)


def test_float32_stays_float32():
    w = Parameter(np.ones(3, np.float32))
    optimizer = AdamW([w], lr=np.float64(0.1))
    w.grad = np.ones(3, np.float32)
    optimizer.step()
    assert w.data.dtype == optimizer.state[w]["m"].dtype == optimizer.state[w]["v"].dtype == np.float32


def test_state_follows_a_conversion_of_the_parameter():
    w = Parameter(np.ones(3, np.float32))
    optimizer = SGD([w], 0.5, momentum=0.5)
    w.grad = np.ones(3, np.float32)
    optimizer.step()
    w.data, w.grad = w.data.astype(np.float64), np.ones(3)
    optimizer.step()
    assert optimizer.state[w]["m"].dtype == np.float64
    np.testing.assert_array_equal(w.data, [-0.25, -0.25, -0.25])


def test_frozen_and_unused_parameters_are_left_alone():
    used, frozen, unused = scalar(), scalar(), scalar()
    frozen.requires_grad = False
    used.grad = frozen.grad = np.ones(1)
    optimizer = AdamW([used, frozen, unused], lr=0.1)
    optimizer.step()
    assert used.data[0] < 1
    assert frozen.data[0] == unused.data[0] == 1.0
    assert list(optimizer.state) == [used]


def test_groups_keep_their_own_settings_and_lr_ratio():
    a, b = scalar(), scalar()
    optimizer = SGD([{"params": [a]}, {"params": [b], "lr": 0.3, "weight_decay": 1.0}], lr=0.1)
    optimizer.lr = 0.01
    assert [group["lr"] for group in optimizer.groups] == pytest.approx([0.01, 0.03])
    a.grad, b.grad = np.ones(1), np.ones(1)
    optimizer.step()
    assert (a.data[0], b.data[0]) == pytest.approx((0.99, 1 - 0.03 * 2))
    optimizer.zero_grad()
    assert a.grad is None
    assert b.grad is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda w: SGD([], 0.1), "SGD: got no parameters"),
        (lambda w: AdamW([{"params": [w]}, {"params": [w]}]), "AdamW: .*two groups"),
        (lambda w: AdamW([{"params": [w], "decay": 1}]), "keys .*decay"),
        (lambda w: AdamW([w.data]), "expected Parameter objects, got ndarray"),
        (lambda w: AdamW([w], lr=-1), "lr is -1"),
        (lambda w: AdamW([w], lr=float("nan")), "lr is nan"),
        (lambda w: AdamW([w], betas=(0.9, 1.0)), "betas"),
        (lambda w: SGD([w], 0.1, nesterov=True), "nesterov needs momentum"),
        (lambda w: SGD([{"params": [w], "lr": 1.0}], 0.0), "while the lr of the optimizer is 0"),
    ],
)
def test_refusals(make, match):
    with pytest.raises(ConfigError, match=match):
        make(scalar())


def test_base_class_says_what_is_missing():
    w = scalar()
    w.grad = np.ones(1)
    with pytest.raises(TypeError, match="Optimizer does not define update"):
        Optimizer([w], lr=0.1).step()


class Net(Module):
    def __init__(self):
        super().__init__()
        self.W, self.b, self.gain = Parameter(np.ones((2, 2))), Parameter(np.ones(2)), Parameter(np.ones(2))
        self.tied = self.W


def test_no_decay_puts_every_parameter_in_one_group():
    net = Net()
    decay, rest = no_decay(net, 0.1)
    assert ([p.name for p in decay["params"]], decay["weight_decay"]) == (["W"], 0.1)
    assert ([p.name for p in rest["params"]], rest["weight_decay"]) == (["b", "gain"], 0.0)


@pytest.mark.parametrize("case", CASES)
def test_saved_state_goes_on_bit_for_bit(case):
    make, _, settings = CASES[case]
    rng = np.random.default_rng(5)
    gradients = rng.standard_normal((6, 2, 3)).astype(np.float32)
    w, late = Parameter(np.ones((2, 3), np.float32)), Parameter(np.ones((2, 3), np.float32))
    optimizer = make([w, late], **settings)

    def steps(optimizer, w, late, part):
        for i, gradient in part:
            w.grad = gradient.copy()
            late.grad = gradient.copy() if i > 0 else None  # its own step count is one less
            optimizer.step()

    steps(optimizer, w, late, list(enumerate(gradients))[:3])
    optimizer.lr = optimizer.lr / 2
    state = optimizer.state_dict()
    state["settings"] = json.loads(json.dumps(state["settings"]))
    w2, late2 = Parameter(w.data.copy()), Parameter(late.data.copy())
    steps(optimizer, w, late, list(enumerate(gradients))[3:])
    again = make([w2, late2], **{**settings, "lr": 7.0})
    again.load_state_dict(state)
    assert again.lr == optimizer.lr
    steps(again, w2, late2, list(enumerate(gradients))[3:])
    np.testing.assert_array_equal(w2.data, w.data)
    np.testing.assert_array_equal(late2.data, late.data)


def test_state_dict_holds_copies():
    w = scalar()
    optimizer = SGD([w], 0.1, momentum=0.9)
    run(optimizer, w, [1])
    state = optimizer.state_dict()
    other = SGD([scalar()], 0.1, momentum=0.9)
    other.load_state_dict(state)
    run(optimizer, w, [1])
    assert state["arrays"]["0.m"][0] == 1.0
    assert next(iter(other.state.values()))["m"][0] == 1.0


def test_states_that_do_not_fit_change_nothing():
    w = scalar()
    saved = Adam([w])
    run(saved, w, [1])
    state = saved.state_dict()
    other = Adam([scalar()])
    for target, change, match in [
        (AdamW([scalar()]), {}, "AdamW: .*\n  saved by Adam"),
        (Adam([scalar(), scalar()]), {}, r"\[1\] parameters in its groups, expected \[2\]"),
        (other, {"0.m": None}, "missing: 0.m"),
        (other, {"0.q": np.ones(1)}, "unexpected: 0.q"),
        (other, {"0.v": np.ones(2)}, r"wrong shape: 0.v is \(2,\), expected \(1,\)"),
    ]:
        arrays = {k: v for k, v in {**state["arrays"], **change}.items() if v is not None}
        with pytest.raises(StateDictError, match=match):
            target.load_state_dict({"settings": state["settings"], "arrays": arrays})
        assert target.state == {}
