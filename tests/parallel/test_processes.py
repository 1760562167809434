"""Processes over shared memory: the gradients of one process, and a clean end whatever happens."""

import functools
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_threads import SPLITS, Fails, Norm, assert_close, batch, gpt

from numtrans.checkpoint import read_arrays
from numtrans.errors import ConfigError, WorkerError
from numtrans.layers import Linear
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.module import Parameter
from numtrans.optim import SGD, AdamW
from numtrans.parallel import Processes, available_cores, make_workers
from numtrans.parallel.forks import RemoteTraceback, write_gradient
from numtrans.training import Trainer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are for Linux")


class Batches:
    def batch(self, step):
        return batch()


def gradients(model, workers, micro_batches=1, inputs=None):
    """Loss and gradients of one batch from `workers` processes, drawn from the same random numbers each time."""
    model.zero_grad()
    model.load_random_state(dict.fromkeys(model.random_state(), 4))
    ids, targets = batch() if inputs is None else inputs
    value = Processes(model, CrossEntropyLoss(label_smoothing=0.1), workers, micro_batches).gradients(ids, targets)
    assert model.pending == 0
    assert set(model.random_state().values()) == {5}
    return value, {name: parameter.grad for name, parameter in model.named_parameters()}


def shared_mappings():
    """Number of places in memory that this process shares with forks."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum("/dev/zero" in line for line in file)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


def ended(pids, seconds=20):
    """Whether the processes have ended after at most so many seconds."""
    stop = time.monotonic() + seconds
    while any(running(pid) for pid in pids) and time.monotonic() < stop:
        time.sleep(0.02)
    return not any(running(pid) for pid in pids)


def running(pid):
    """Whether there is such a process, one that has ended and that nobody asks after left out."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("workers", "micro_batches"), SPLITS[:4])
def test_gradients_with_dropout(workers, micro_batches):
    model = gpt()
    assert_close(gradients(model, workers, micro_batches), gradients(model, 1))


def test_fewer_rows_than_workers():
    model, few = gpt(), tuple(x[1:3] for x in batch())
    assert_close(gradients(model, 4, inputs=few), gradients(model, 1, inputs=few))


def test_trained_parameters_are_those_of_one_process_and_lie_where_they_were():
    def train(**options):
        model = gpt()
        model.layers.layers[0].feedforward.sublayer.linear1.b.requires_grad = False
        arrays = [parameter.data for parameter in model.parameters()]
        optimizer = AdamW(model.parameters(), lr=1e-2)
        trainer = Trainer(model, CrossEntropyLoss(), optimizer, progress=False, **options)
        trainer.fit(Batches(), 6)
        assert all(parameter.data is array for parameter, array in zip(model.parameters(), arrays))
        return {**model.state_dict(), **optimizer.state_dict()["arrays"], **model.random_state()}

    before = shared_mappings()
    got, expected = train(workers=3, worker_kind="processes"), train(workers=1)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-10, err_msg=name)
    assert children(os.getpid()) == []
    assert shared_mappings() == before


def test_gradients_are_added_and_the_workers_follow_the_model():
    model = gpt(dropout=0.0)
    ids, targets = batch()
    with Processes(model, CrossEntropyLoss(), 2) as workers:
        workers.gradients(ids, targets)
        pids, doubled = children(os.getpid()), {name: 2 * array for name, array in model.state_dict().items()}
        for change in (
            lambda: model.load_state_dict(doubled),
            lambda: model.layers.layers[0].feedforward.sublayer.linear1.b.__setattr__("requires_grad", False),
            lambda: None,
        ):
            change()
            model.zero_grad()
            for _ in range(2):
                workers.gradients(ids, targets)
            got = {name: parameter.grad for name, parameter in model.named_parameters()}
            assert_follows(model, ids, targets, got)
        assert children(os.getpid()) == pids
        assert all((model.state_dict()[name] == array).all() for name, array in doubled.items())
        for change in (lambda: model.layers.layers.pop(), lambda: model.astype(np.float32)):
            change()
            model.zero_grad()
            for _ in range(2):
                workers.gradients(ids, targets)
            got = {name: parameter.grad for name, parameter in model.named_parameters()}
            assert_follows(model, ids, targets, got, rtol=1e-4, atol=1e-6)
        assert children(os.getpid()) != pids


def assert_follows(model, ids, targets, got, rtol=1e-12, atol=1e-13):
    """The gradients in `got` are twice those of `model` now."""
    model.zero_grad()
    loss = CrossEntropyLoss()
    loss(model(ids), targets)
    model.backward(loss.backward())
    for name, parameter in model.named_parameters():
        assert (got[name] is None) == (parameter.grad is None) == (not parameter.requires_grad)
        if parameter.grad is not None:
            np.testing.assert_allclose(got[name], 2 * parameter.grad, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("rows", [None, np.array([2, 0])])
def test_a_gradient_is_written_into_shared_memory(rows):
    given = Parameter(np.zeros((3, 2)), "E")
    place, gradient = np.full((3, 2), 9.0), np.arange(6.0).reshape(3, 2)[: 3 if rows is None else 2]
    for _ in range(2):  # as in two steps
        shared = Parameter(given.data, "E")
        shared.collect = functools.partial(write_gradient, shared, place)
        for parameter in (shared, given):
            parameter.grad = None
            parameter.add_grad(gradient.copy(), rows)
            parameter.add_grad(np.ones((3, 2)))
            parameter.add_grad(gradient.copy(), rows)
        assert shared.grad is place
        np.testing.assert_array_equal(place, given.grad)


# ---- errors


@pytest.mark.parametrize("row", [0, 3])
def test_an_error_in_a_process_surfaces_as_itself_and_leaves_nothing(row):
    model, loss, x = Fails(2, 2), MSELoss(), np.ones((4, 2), np.float32)
    trainer = Trainer(model, loss, SGD(model.parameters(), 0.1), workers=2, worker_kind="processes", progress=False)
    before = model.state_dict()

    class Bad:
        def batch(self, step):
            return np.where(np.arange(4)[:, None] == row, np.float32(5), x), x

    with pytest.raises(MemoryError) as caught:
        trainer.fit(Bad(), 2)
    if row == 3:
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in forward" in str(caught.value.__cause__)
    assert model.pending == loss.pending == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all((before[name] == array).all() for name, array in model.state_dict().items())
    assert children(os.getpid()) == []
    trainer.compute_gradients(x, x)


class Odd(Linear):
    """In a worker it does not compute, but raises what cannot travel, or dies."""

    how, parent = "raise", os.getpid()

    def forward(self, x):
        if os.getpid() != self.parent:
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise type("Local", (Exception,), {})("of no module")
        return super().forward(x)


def test_an_error_that_cannot_travel_keeps_its_name_and_text():
    with pytest.raises(WorkerError, match="Local: of no module"):
        Processes(Odd(2, 2), MSELoss(), 2).gradients(np.ones((4, 2), np.float32), np.ones((4, 2), np.float32))


def test_a_killed_worker_is_an_error_and_the_next_step_has_new_ones():
    model, x = Odd(2, 2), np.ones((4, 2), np.float32)
    model.how = "die"
    with Processes(model, MSELoss(), 2) as workers:
        with pytest.raises(WorkerError, match=r"a worker process has ended \(killed by SIGKILL"):
            workers.gradients(x, x)
        assert children(os.getpid()) == []
    with Processes(Linear(2, 2), MSELoss(), 2) as workers:
        os.kill(children(os.getpid())[0], signal.SIGKILL)  # while it has nothing to do
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            workers.gradients(x, x)
        workers.gradients(x, x)
        assert len(children(os.getpid())) == 1


def test_what_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"Norm: BatchNorm needs the whole batch.*workers=1"):
        Processes(Norm(), CrossEntropyLoss(), 2)
    with pytest.raises(ConfigError, match="worker_kind is 'fibers', expected 'threads' or 'processes'"):
        make_workers(gpt(), CrossEntropyLoss(), kind="fibers")
    with pytest.raises(ConfigError, match="no meaning with MPI"):
        make_workers(gpt(), CrossEntropyLoss(), kind="processes", comm=object())
    monkeypatch.setattr("numtrans.parallel.processes.backend_name", lambda array: "cupy")
    with pytest.raises(ConfigError, match="the model is on cupy"):
        Processes(gpt(), CrossEntropyLoss(), 2).gradients(*batch())
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match="darwin does not do safely; use threads"):
        Processes(gpt(), CrossEntropyLoss(), 2)


# ---- the end of the parent

SCRIPT = """
import sys, time
import numpy as np
from numtrans.layers import Linear
from numtrans.losses import MSELoss
from numtrans.optim import SGD
from numtrans.training import Trainer

class Batches:
    def batch(self, step):
        print(step, flush=True)
        time.sleep(0.01)
        return np.ones((6, 2), np.float32), np.zeros((6, 2), np.float32)

model = Linear(2, 2)
trainer = Trainer(model, MSELoss(), SGD(model.parameters(), 0.1), workers=3, worker_kind="processes", out=sys.argv[1])
if sys.argv[2] == "left open":
    trainer.shards.__enter__()
    trainer.compute_gradients(*Batches().batch(1))
else:
    trainer.fit(Batches(), 10**6)
    print("ended", flush=True)
"""


@pytest.mark.parametrize("how", ["killed", "interrupted", "left open"])
def test_workers_end_with_the_parent(tmp_path, how):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path, how], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    first = [process.stdout.readline() for _ in range(1 if how == "left open" else 2)]
    pids = children(process.pid)
    if how == "interrupted":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    elif how == "killed":
        process.kill()
    out, err = process.communicate(timeout=60)
    assert ended(pids)
    assert "Traceback" not in err
    if how == "interrupted":
        *steps, last = [*first, *out.split()]
        assert process.returncode == 0
        assert last == "ended"
        assert read_arrays(tmp_path / "checkpoint.safetensors")[2]["step"] == int(steps[-1])
    elif how == "left open":
        assert process.returncode == 0
    else:
        assert len(pids) == 2


def test_the_script_of_the_guide_that_measures():
    path = Path(__file__).parents[2] / "docs" / "guides" / "scaling.py"
    medians = runpy.run_path(str(path))["measure"]("tiny", 0.1)
    assert list(medians) == ["one core", f"{available_cores()} threads", f"{available_cores()} processes"]
    assert all(value > 0 for value, _ in medians.values())
