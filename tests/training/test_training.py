"""The training loop on small modules: it learns, resumes bit for bit, and loses nothing when something goes wrong."""

import contextlib
import errno
import gc
import json
import math
import os
import signal
import threading
import tracemalloc
from functools import partial

import numpy as np
import pytest

from numtrans import checkpoint
from numtrans.checkpoint import load_weights, read_arrays, save_weights
from numtrans.errors import CheckpointError, ConfigError
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.module import Module, Parameter, grad_enabled
from numtrans.optim import SGD, Adam, AdamW, NonFiniteError, no_decay, warmup_cosine
from numtrans.training import Trainer


class Noise(Module):
    """A stand-in for dropout: a mask that depends on a counter, which each training forward advances."""

    def __init__(self):
        super().__init__()
        self.counter = 0

    def forward(self, x):
        if not self.training:
            self.save(1.0)
            return x
        self.counter += 1
        mask = np.random.default_rng(self.counter).integers(0, 2, x.shape).astype(x.dtype)
        self.save(mask)
        return x * mask

    def backward(self, dy):
        (mask,) = self.saved()
        return dy * mask


class Net(Module):
    """Table -> noise -> matrix, with a running statistic: ids (B, T) to logits (B, T, 5)."""

    def __init__(self, seed=0):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.E = Parameter(rng.standard_normal((5, 8)).astype(np.float32))
        self.noise = Noise()
        self.W = Parameter(rng.standard_normal((8, 5)).astype(np.float32) / 3)
        self.b = Parameter(np.zeros(5, np.float32))
        self.register_buffer("seen", np.zeros(1))

    def forward(self, ids):
        h = self.noise(self.E.data[ids])
        if self.training:
            self.seen += h.mean()
        self.save(ids, h)
        return h @ self.W.data + self.b.data

    def backward(self, dy):
        ids, h = self.saved()
        self.W.add_grad(np.einsum("btd,btv->dv", h, dy))
        self.b.add_grad(dy.sum((0, 1)))
        hot = np.eye(5, dtype=np.float32)[ids]
        self.E.add_grad(np.einsum("btv,btd->vd", hot, self.noise.backward(dy @ self.W.data.T)))


class Successors:
    """Ids and their successors modulo 5; some targets do not count. A function of (seed, step)."""

    def __init__(self, seed=0, size=6, fault=None):
        self.seed, self.size, self.fault = seed, size, fault or {}

    def batch(self, step):
        if step in self.fault:
            self.fault[step]()
        rng = np.random.default_rng((self.seed, step))
        ids = rng.integers(0, 5, (self.size, 3))
        targets = (ids + 1) % 5
        targets[rng.random(ids.shape) < 0.3] = -100
        return (ids,), targets


def make(out=None, **settings):
    net = Net()
    optimizer = AdamW(no_decay(net, 0.1), lr=1e-2)
    schedule = partial(warmup_cosine, peak=0.05, warmup=5, total=60)
    settings = {"schedule": schedule, "log_every": 1, "progress": False, **settings}
    return Trainer(net, CrossEntropyLoss(label_smoothing=0.1), optimizer, out=out, **settings)


def accuracy(trainer):
    """A validate that compares the model's answers with the right ones."""

    def validate():
        assert not trainer.model.training
        assert not grad_enabled()
        ids = np.arange(5)[None]
        logits = trainer.model(ids)
        loss = CrossEntropyLoss()(logits, (ids + 1) % 5)
        return {"valid_loss": loss, "exact_match": (logits.argmax(-1) == (ids + 1) % 5).mean()}

    return validate


def assert_same(trainer, other):
    """Bit for bit: parameters, buffers, moments, counters, history."""
    for state, expected in [
        (trainer.model.state_dict(), other.model.state_dict()),
        (trainer.optimizer.state_dict()["arrays"], other.optimizer.state_dict()["arrays"]),
    ]:
        assert state.keys() == expected.keys()
        for name in expected:
            np.testing.assert_array_equal(state[name], expected[name], err_msg=name)
    assert trainer.model.random_state() == other.model.random_state()
    assert trainer.history == other.history
    assert trainer.step == other.step


# ---- learning


def test_it_learns_and_keeps_a_history(tmp_path):
    trainer = make(tmp_path, log_every=5, evaluate_every=20, best="exact_match")
    history = trainer.fit(Successors(), 60, accuracy(trainer))
    assert history is not trainer.history
    assert history == trainer.history
    assert history["step"] == list(range(5, 61, 5))
    assert history["valid_step"] == [20, 40, 60]
    assert len(history["loss"]) == len(history["lr"]) == len(history["grad_norm"]) == 12
    assert len(history["valid_loss"]) == len(history["exact_match"]) == 3
    assert history["lr"][0] == 0.05
    assert history["lr"][-1] == 0.0
    assert history["loss"][-1] < 1.0 < history["loss"][0]
    assert history["exact_match"][-1] == 1.0
    assert trainer.model.training
    assert not trainer.interrupted
    assert not trainer.stopped_early
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == trainer.records
    assert lines[3].keys() == {"step", "loss", "lr", "grad_norm", "valid_loss", "exact_match"}
    assert sorted(os.listdir(tmp_path)) == ["best.safetensors", "checkpoint.safetensors", "history.jsonl"]


def test_one_step_is_what_it_says():
    """Against the same step written out."""
    net, ce = Net(), CrossEntropyLoss()
    inputs, targets = Successors().batch(1)
    ce(net(*inputs), targets)
    net.backward(ce.backward())
    norm = math.sqrt(sum((p.grad.astype(float) ** 2).sum() for p in net.parameters()))
    expected = [p.data - 0.5 * p.grad * (0.1 / norm) for p in net.parameters()]
    model = Net()
    trainer = Trainer(model, CrossEntropyLoss(), SGD(model.parameters(), 0.5), max_grad_norm=0.1, log_every=1)
    assert trainer.fit(Successors(), 1)["grad_norm"] == pytest.approx([norm], rel=1e-5)
    for parameter, value in zip(model.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.data, value, rtol=1e-4, atol=1e-6)


def test_without_clipping_the_norm_is_still_measured():
    trainer = make(max_grad_norm=None)
    assert trainer.fit(Successors(), 1)["grad_norm"][0] > 0


class Line(Module):
    """y = x w: a model with an input that is an array of its own, not a tuple."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(np.zeros(2))

    def forward(self, x):
        self.save(x)
        return x @ self.w.data

    def backward(self, dy):
        (x,) = self.saved()
        self.w.add_grad(x.T @ dy)


class Points:
    def batch(self, step):
        x = np.random.default_rng(step).standard_normal((7, 2))
        return x, x @ np.array([1.0, -2.0])


@pytest.mark.parametrize("micro_batches", [1, 3, 50])
def test_regression_with_micro_batches(micro_batches):
    line = Line()
    trainer = Trainer(line, MSELoss(), Adam(line.parameters(), lr=0.1), micro_batches=micro_batches, max_grad_norm=None)
    trainer.fit(Points(), 200)
    np.testing.assert_allclose(line.w.data, [1, -2], atol=0.05)


@pytest.mark.parametrize("micro_batches", [2, 4, 6])
def test_micro_batches_weigh_tokens_and_not_batches(micro_batches):
    whole, pieces = make(), make(micro_batches=micro_batches)
    for trainer in (whole, pieces):
        trainer.model.eval()  # no noise: the masks of pieces and whole would differ
    inputs, targets = Successors().batch(1)
    targets[0] = -100  # the pieces have unequal counts
    expected = whole.compute_gradients(inputs, targets)
    loss = pieces.compute_gradients(inputs, targets)
    assert loss == pytest.approx(expected, rel=1e-6)
    for a, b in zip(whole.model.parameters(), pieces.model.parameters(), strict=True):
        np.testing.assert_allclose(b.grad, a.grad, rtol=1e-4, atol=1e-7)
    assert whole.model.pending == pieces.model.pending == 0


# ---- best and patience


def test_best_weights_are_kept_as_copies_and_on_disk(tmp_path):
    trainer = make(tmp_path, evaluate_every=1, patience=3, schedule=None)
    losses = iter([5.0, 3.0, math.nan, 4.0, 3.0, 1.0])
    at = {}

    def validate():
        at[trainer.step] = trainer.model.state_dict()
        return {"valid_loss": next(losses)}

    trainer.fit(Successors(), 50, validate)
    assert trainer.stopped_early
    assert trainer.step == 5
    assert (trainer.best["step"], trainer.best["value"]) == (2, 3.0)
    net = Net(seed=9)
    assert load_weights(net, tmp_path / "best.safetensors") == {"step": 2, "valid_loss": 3.0}
    for name, value in at[2].items():
        np.testing.assert_array_equal(trainer.best["weights"][name], value)
        np.testing.assert_array_equal(net.state_dict()[name], value)
    assert json.loads((tmp_path / "history.jsonl").read_text().splitlines()[2])["valid_loss"] is None
    again = make(tmp_path, evaluate_every=1, patience=3, schedule=None).resume()
    assert again.fit(Successors(), 50, validate)["step"] == [1, 2, 3, 4, 5]
    assert again.stopped_early


def test_accuracy_is_best_when_high():
    trainer = make(evaluate_every=1, best="exact_match")
    values = iter([0.1, 0.9, 0.5])
    trainer.fit(Successors(), 3, lambda: {"exact_match": next(values)})
    assert (trainer.best["step"], trainer.best["value"]) == (2, 0.9)


@pytest.mark.parametrize("values", [{"accuracy": 1.0}, {"valid_loss": 1.0, "loss": 2.0}])
def test_validate_must_return_the_number_that_decides(values):
    trainer = make()
    with pytest.raises(ConfigError, match="validate returned"):
        trainer.fit(Successors(), 1, lambda: values)
    assert trainer.model.training


# ---- resume


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_resumed_run_is_bit_identical(tmp_path, optimizer, micro_batches):
    def trainer(out):
        new = make(out, micro_batches=micro_batches, evaluate_every=4, save_every=7)
        if optimizer == "momentum":
            new.optimizer = SGD(new.model.parameters(), 0.1, momentum=0.9, nesterov=True)
        return new

    whole = trainer(tmp_path / "a")
    whole.fit(Successors(), 20, accuracy(whole))

    class KilledError(Exception):
        pass

    def kill():
        raise KilledError

    first = trainer(tmp_path / "b")
    with pytest.raises(KilledError):
        first.fit(Successors(fault={18: kill}), 20, accuracy(first))
    assert len((tmp_path / "b" / "history.jsonl").read_text().splitlines()) == 17
    second = trainer(tmp_path / "b").resume()
    assert second.step == 14
    assert len((tmp_path / "b" / "history.jsonl").read_text().splitlines()) == 14
    second.fit(Successors(), 20, accuracy(second))
    assert_same(second, whole)
    assert second.best["step"] == whole.best["step"]
    for name in ("history.jsonl", "best.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
    # the comparison can fail: without the counter of the noise the runs part
    third = trainer(tmp_path / "b").resume()
    fourth = trainer(tmp_path / "b").resume()
    fourth.model.noise.counter = 0
    third.fit(Successors(), 22), fourth.fit(Successors(), 22)
    assert not np.array_equal(third.model.W.data, fourth.model.W.data)


def test_resume_refuses_what_does_not_fit(tmp_path):
    trainer = make(tmp_path)
    trainer.fit(Successors(), 2)
    save_weights(Net(), tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="holds weights, expected a training checkpoint"):
        make(tmp_path).resume(tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="no such file"):
        make(tmp_path / "other").resume()
    with pytest.raises(ConfigError, match="needs a path"):
        make().resume()
    other = make(tmp_path)
    other.optimizer = SGD(other.model.parameters(), 0.1)
    with pytest.raises(CheckpointError, match=r"checkpoint.safetensors: does not fit. SGD: .*\n  saved by AdamW"):
        other.resume()
    load_weights(Net(), tmp_path / "checkpoint.safetensors")  # the model of a checkpoint can be read alone
    whole = (tmp_path / "checkpoint.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").write_bytes(whole[:-10])
    with pytest.raises(CheckpointError, match="truncated"):
        make(tmp_path).resume()


def test_a_new_run_does_not_overwrite_an_old_one(tmp_path):
    make(tmp_path).fit(Successors(), 2)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with pytest.raises(ConfigError, match="already holds a run"):
        make(tmp_path).fit(Successors(), 3)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    assert make(tmp_path, overwrite=True).fit(Successors(), 3)["step"] == [1, 2, 3]
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 3


# ---- interrupts and failures


def press(times=1):
    def ctrl_c():
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    return ctrl_c


@pytest.mark.skipif(os.name == "nt", reason="os.kill cannot send SIGINT to itself on Windows")
def test_ctrl_c_ends_after_the_step_and_saves(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    whole = make(evaluate_every=4)
    whole.fit(Successors(), 12, accuracy(whole))
    trainer = make(tmp_path, evaluate_every=4)
    history = trainer.fit(Successors(fault={8: press()}), 12, accuracy(trainer))
    assert trainer.interrupted
    assert trainer.step == 8
    assert history["valid_step"] == [4, 8]
    assert signal.getsignal(signal.SIGINT) is handler
    again = make(tmp_path, evaluate_every=4).resume()
    again.fit(Successors(), 12, accuracy(again))
    assert not again.interrupted
    assert_same(again, whole)
    # and the same trainer can go on, too
    trainer.fit(Successors(), 12, accuracy(trainer))
    assert_same(trainer, whole)


@pytest.mark.skipif(os.name == "nt", reason="os.kill cannot send SIGINT to itself on Windows")
def test_a_second_ctrl_c_stops_at_once_and_saves_nothing(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    trainer = make(tmp_path, save_every=5)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Successors(fault={8: press(2)}), 12)
    assert read_arrays(tmp_path / "checkpoint.safetensors")[2]["step"] == 5
    assert signal.getsignal(signal.SIGINT) is handler


class Breaks(Noise):
    """Raises `error` in the forward or backward number `at`, after its counter has moved."""

    def __init__(self, at, error, where):
        super().__init__()
        self.at, self.error, self.where, self.calls = at, error, where, 0

    def forward(self, x):
        y = super().forward(x)
        self.calls += 1
        if self.calls == self.at and self.where == "forward":
            self.at = None
            raise self.error
        return y

    def backward(self, dy):
        if self.calls == self.at and self.where == "backward":
            self.at = None
            raise self.error
        return super().backward(dy)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_break_within_a_step_leaves_the_last_whole_step(tmp_path, where, error):
    whole = make(micro_batches=2)
    whole.fit(Successors(), 8)
    trainer = make(tmp_path, micro_batches=2)
    trainer.model.noise = Breaks(10, error, where)  # the second piece of step 5
    with contextlib.nullcontext() if error is KeyboardInterrupt else pytest.raises(MemoryError):
        trainer.fit(Successors(), 8)
    assert trainer.step == 4
    assert trainer.model.random_state() == {"noise": 8}
    assert trainer.interrupted == (error is KeyboardInterrupt)
    assert trainer.model.pending == trainer.loss.pending == 0
    assert all(p.grad is None for p in trainer.model.parameters())
    if error is KeyboardInterrupt:
        again = make(tmp_path, micro_batches=2).resume()
        again.fit(Successors(), 8)
        assert_same(again, whole)
    trainer.fit(Successors(), 8)
    assert_same(trainer, whole)


def test_in_another_thread_signals_are_left_alone():
    handler = signal.getsignal(signal.SIGINT)
    trainer, seen = make(), []
    batches = Successors(fault={1: lambda: seen.append(signal.getsignal(signal.SIGINT))})
    thread = threading.Thread(target=trainer.fit, args=(batches, 2))
    thread.start()
    thread.join()
    assert trainer.step == 2
    assert seen == [handler]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_weights_change(tmp_path, bad):
    trainer = make(tmp_path, save_every=3)
    kept = {}

    def poison():
        kept.update({id(p): p.data.copy() for p in trainer.model.parameters()})
        trainer.model.b.data = trainer.model.b.data + np.float32(bad)

    with np.errstate(invalid="ignore"), pytest.raises(NonFiniteError, match="at step 5 the loss is nan"):
        trainer.fit(Successors(fault={5: poison}), 9)
    for parameter in (trainer.model.E, trainer.model.W):
        np.testing.assert_array_equal(parameter.data, kept[id(parameter)])
    assert make(tmp_path).resume().step == 3


def test_a_gradient_that_is_not_finite_names_step_and_parameter():
    trainer = make()
    backward = trainer.model.backward

    def poisoned(dy):
        backward(dy)
        trainer.model.W.grad[0, 0] = np.nan

    trainer.model.backward = poisoned
    before = trainer.model.W.data.copy()
    with pytest.raises(NonFiniteError, match=r"step 1 stopped before the weights changed.*\['W'\]"):
        trainer.fit(Successors(), 3)
    np.testing.assert_array_equal(trainer.model.W.data, before)


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    trainer = make(tmp_path, save_every=3)

    def fill():
        def full(*args):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(checkpoint.os, "replace", full)

    with pytest.raises(CheckpointError, match="No space left on device"):
        trainer.fit(Successors(fault={5: fill}), 9)
    assert make().resume(tmp_path / "checkpoint.safetensors").step == 3


def test_an_unwritable_folder_is_named_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file/run: not a folder that can be written to"):
        make(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"log_every": 1.5}, "log_every is 1.5"),
        ({"save_every": -1}, "save_every"),
        ({"patience": 0}, "patience"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0"),
    ],
)
def test_settings_out_of_range(settings, match):
    with pytest.raises(ConfigError, match=match):
        make(**settings)


def test_progress_is_silent_when_standard_error_is_no_terminal(capfd):
    make(progress=True).fit(Successors(), 3)
    assert capfd.readouterr() == ("", "")


# ---- memory


def array_bytes():
    """Bytes of all arrays of NumPy that tracemalloc has seen made: without the free lists of Python, which grow."""
    gc.collect()
    arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([arrays]).traces)


def test_a_step_holds_on_to_nothing():
    """Over 200 steps the arrays do not grow; one forgotten array a step would add 200 of them."""
    trainer = make(log_every=10_000, schedule=lambda step: 1e-3)
    batches = Successors(size=64)
    trainer.fit(batches, 20)
    tracemalloc.start()
    try:
        trainer.fit(batches, 30)
        before = array_bytes()
        trainer.fit(batches, 230)
        grown = array_bytes() - before
        trainer.model.save(np.ones((64, 3, 8), np.float32))  # what one forward of one layer saves
        leak = array_bytes() - before - grown
    finally:
        tracemalloc.stop()
    assert leak >= 64 * 3 * 8 * 4
    assert grown < 200 * 8  # less than a number a step
