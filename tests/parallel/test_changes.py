"""Workers see the model as it is now, however it is built, and what cannot be split is refused by name."""

import copy
import multiprocessing
import sys
import threading

import numpy as np
import pytest
from test_threads import Norm, batch, gpt
from threadpoolctl import threadpool_info, threadpool_limits

from numtrans.errors import BackwardError, ConfigError, ShapeError
from numtrans.layers import BatchNorm, Dropout, Linear, ScaledDotProductAttention
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.module import Module, Parameter, no_grad
from numtrans.optim import SGD
from numtrans.parallel import Shards, make_workers
from numtrans.parallel.pool import Pool
from numtrans.parallel.threads import one_blas_thread
from numtrans.training import Trainer

KINDS = ["threads", pytest.param("processes", marks=pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks are for Linux"))]  # fmt: skip


def gradients(workers, model, inputs, targets):
    """Loss and gradients that `workers` give, by name."""
    model.zero_grad()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.counter = 0
    loss = workers.gradients(inputs, targets)
    return {"loss": np.float64(loss)} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same(model, loss, inputs, targets, workers):
    expected = gradients(Shards(model, loss, 1), model, inputs, targets)
    found = gradients(workers, model, inputs, targets)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


def tokens():
    return batch()[0], batch()[1]


def settings_change(model, loss):
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0


def smoothing_changes(model, loss):
    loss.label_smoothing = 0.3


def scale_changes(model, loss):
    for module in model.modules():
        if isinstance(module, ScaledDotProductAttention):
            module.scale, module.window = 0.1, 2


def layer_is_repeated(model, loss):
    model.layers.layers.append(model.layers.layers[0])


def layer_is_tied(model, loss):
    first, second = model.layers.layers
    second.feedforward.sublayer.linear1 = first.feedforward.sublayer.linear1


CHANGES = [settings_change, smoothing_changes, scale_changes, layer_is_repeated, layer_is_tied]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_steps_is_seen(change, kind):
    model, loss = gpt(), CrossEntropyLoss()
    before = gradients(Shards(model, loss, 1), model, *tokens())
    # the processes run on, so that it is they that must see it
    with make_workers(model, loss, 2, kind=kind) as workers:
        assert_same(model, loss, *tokens(), workers)
        change(model, loss)
        assert_same(model, loss, *tokens(), workers)
    assert abs(before["loss"] - gradients(Shards(model, loss, 1), model, *tokens())["loss"]) > 1e-4


# ---- models that are built in other ways


class TwoLinear(Module):
    """Two linear layers, which forward and backward reach by `self.reach`."""

    def __init__(self, reach):
        super().__init__()
        rng = np.random.default_rng(3)
        self.a, self.b = Linear(4, 4, rng=rng), Linear(4, 4, rng=rng)
        self.astype(np.float64)
        reach(self)

    def pair(self):
        return self.a, self.b

    def forward(self, x):
        a, b = self.parts()
        return b(a(x))

    def backward(self, dy):
        a, b = self.parts()
        return a.backward(b.backward(dy))


class ByDict(TwoLinear):
    def parts(self):
        return self.named["a"], self.named["b"]


class Helper:
    def __init__(self, *parts):
        self.parts = parts


class ByHelper(TwoLinear):
    def parts(self):
        return self.helper.parts


class MyList(list):
    pass


class ByList(TwoLinear):
    def parts(self):
        return self.some


WAYS = {
    "dict": (ByDict, lambda m: setattr(m, "named", {"a": m.a, "b": m.b})),
    "bound method": (TwoLinear, lambda m: setattr(m, "parts", m.pair)),
    "helper object": (ByHelper, lambda m: setattr(m, "helper", Helper(m.a, m.b))),
    "list subclass": (ByList, lambda m: setattr(m, "some", MyList([m.a, m.b]))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_modules_that_are_reached_in_other_ways(way, kind):
    cls, reach = WAYS[way]
    model, loss = cls(reach), MSELoss()
    x = np.random.default_rng(0).standard_normal((6, 4))
    with make_workers(model, loss, 2, kind=kind) as workers:
        assert_same(model, loss, x, x, workers)
        if kind == "threads":  # each thread has its own, or they would race
            twins = [shard.model for shard in workers.shards]
            assert len({id(part) for twin in twins for part in twin.parts()}) == 6


def test_each_thread_has_its_own_scratch_arrays():
    class Scratch(Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.room = np.zeros((3, 4), np.float32)

    model, loss = Scratch(), MSELoss()
    x = np.ones((6, 4), np.float32)
    workers = Shards(model, loss, 2)
    workers.gradients(x, x)
    assert len({id(shard.model.room) for shard in workers.shards}) == 3
    assert all(shard.model.W.data is model.W.data for shard in workers.shards)


class Doubling(Parameter):
    """A parameter with an attribute, whose gradient is masked and counts twice."""

    def add_grad(self, grad, rows=None):
        super().add_grad(2 * grad * self.mask, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_with_its_own_add_grad_is_asked_once(kind):
    model, loss = Linear(3, 3, rng=np.random.default_rng(0)).astype(np.float64), MSELoss()
    model.W = Doubling(model.W.data, "W")
    model.W.mask = np.eye(3)
    x = np.random.default_rng(1).standard_normal((6, 3))
    with make_workers(model, loss, 2, kind=kind) as workers:
        assert_same(model, loss, x, x**2, workers)
        if kind == "threads":
            model.W.mask = np.ones((3, 3))
            assert_same(model, loss, x, x**2, workers)


@pytest.mark.parametrize("kind", KINDS)
def test_two_parameters_over_one_array_stay_tied(kind):
    def train(workers, kind):
        rng = np.random.default_rng(0)
        model = TwoLinear(lambda m: setattr(m, "parts", m.pair)).astype(np.float64)
        model.b.W.data = model.a.W.data
        x = rng.standard_normal((6, 4))

        class Batches:
            def batch(self, step):
                return x, x**2

        trainer = Trainer(model, MSELoss(), SGD(model.parameters(), 0.1), workers=workers, worker_kind=kind,
                          progress=False)  # fmt: skip
        trainer.fit(Batches(), 3)
        assert model.a.W.data is model.b.W.data
        return model.a.W.data

    np.testing.assert_allclose(train(2, kind), train(1, "threads"), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_with_parameters_and_one_that_holds_the_model(kind):
    class Scaled(MSELoss):
        def __init__(self, model):
            super().__init__()
            self.model, self.s = model, Parameter(np.array([2.0]), "s")

        def forward(self, y, targets, normalizer=None):
            self.y = y
            return super().forward(y * self.s.data, targets, normalizer=normalizer)

        def backward(self):
            dy = super().backward()
            self.s.add_grad(np.array([(dy * self.y).sum()]))
            return dy * self.s.data

    model = Linear(3, 3, rng=np.random.default_rng(0)).astype(np.float64)
    loss, x = Scaled(model), np.random.default_rng(1).standard_normal((6, 3))
    Shards(model, loss, 1).gradients(x, x)
    expected, loss.s.grad = loss.s.grad, None
    with make_workers(model, loss, 2, kind=kind) as workers:
        workers.gradients(x, x)
    np.testing.assert_allclose(loss.s.grad, expected, rtol=1e-12)


@pytest.mark.parametrize("rows", [4, 16])
def test_a_mask_over_a_table_is_the_same_in_every_piece(rows):
    """A table of `rows` rows that is no part of the batch, also if they are a multiple of those of a piece."""

    class Table(Module):
        def __init__(self):
            super().__init__()
            self.table, self.drop = Parameter(np.ones((rows, 2))), Dropout(0.5, rng=np.random.default_rng(0))

        def forward(self, x):
            return x + self.drop(self.table.data)

        def backward(self, dy):
            self.table.add_grad(self.drop.backward(dy.sum(0)))
            return dy

    model, loss = Table(), MSELoss()
    x = np.random.default_rng(1).standard_normal((16, rows, 2))
    for workers in (Shards(model, loss, 2), Shards(model, loss, 8), Shards(model, loss, 1, micro_batches=2)):
        assert_same(model, loss, x, x, workers)


# ---- what is refused


class NeedsAll(MSELoss):
    needs_whole_batch = True


class Noise(Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.rng = np.random.default_rng(0)


class Average(Linear):
    """Keeps a running mean of its inputs."""

    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("mean", np.zeros(3, np.float32))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "loss", "message"), [
    (Linear(3, 3), NeedsAll(), "Linear: NeedsAll needs the whole batch at once"),
    (Noise(), MSELoss(), "Noise: Noise needs the whole batch at once"),
    (Norm(), MSELoss(), "Norm: BatchNorm needs the whole batch at once"),
])  # fmt: skip
def test_what_needs_the_whole_batch_is_refused(model, loss, message, kind):
    with pytest.raises(ConfigError, match=message):
        make_workers(model, loss, 2, kind=kind)


def test_the_whole_batch_is_needed_whatever_splits_it():
    model, x = Linear(3, 3), np.ones((4, 3), np.float32)
    with pytest.raises(ConfigError, match="BatchNorm needs the whole batch"):
        Shards(Norm(), MSELoss(), 1, micro_batches=2)
    workers = Shards(model, MSELoss(), 2)
    model.norm = BatchNorm(3)  # after the workers were made
    with pytest.raises(ConfigError, match="BatchNorm needs the whole batch"):
        workers.gradients(x, x)
    Shards(Noise(), MSELoss(), 1, micro_batches=2).gradients(x, x)  # drawn in turn, by one
    assert make_workers(Norm(), MSELoss(), kind="threads").number_of_shards(x, x) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_that_changes_a_buffer_is_refused(kind):
    x = np.ones((4, 3), np.float32)
    model = Average()
    message = r"Average: forward has changed the buffer 'mean'"
    with make_workers(model, MSELoss(), 2, kind=kind) as workers, pytest.raises(ConfigError, match=message):
        workers.gradients(x, x)
    Shards(model, MSELoss(), 1).gradients(x, x)
    np.testing.assert_allclose(model.mean, 0.1, atol=0.1)


class NoCount(Module):
    def forward(self, y, targets):
        return float(((y - targets) ** 2).mean())

    def backward(self):
        return None


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_targets_that_do_not_fit(kind):
    x = np.ones((4, 3), np.float32)
    model = Linear(3, 3)

    def raises(error, message, loss, targets):
        with make_workers(model, loss, 2, kind=kind) as workers, pytest.raises(error, match=message):
            workers.gradients(x, targets)

    raises(ConfigError, r"NoCount: the batch is split.*count\(targets\)", NoCount(), x)
    raises(ConfigError, "MSELoss: reduction is 'none', expected 'mean' or 'sum'", MSELoss(reduction="none"), x)
    raises(ShapeError, "MSELoss: targets are list, expected an array", MSELoss(), x.tolist())
    raises(ShapeError, r"MSELoss: targets are an array of shape \(\)", MSELoss(), np.array(1.0))


def test_an_empty_batch_with_dropout_is_no_error():
    model, ids = gpt(), np.zeros((0, 6), np.int64)
    with pytest.warns(UserWarning, match="every target is ignored"):
        assert Shards(model, CrossEntropyLoss(), 2, micro_batches=2).gradients(ids, ids) == 0


def test_what_cannot_be_copied_is_refused():
    model, x = Linear(3, 3), np.ones((4, 3), np.float32)
    model.lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"Linear: a part of it cannot be copied .*lock.*workers=1"):
        Shards(model, MSELoss(), 2).gradients(x, x)
    Shards(model, MSELoss(), 1).gradients(x, x)


def test_numbers_of_workers():
    model = Linear(3, 3)

    def trainer(workers):
        return Trainer(model, MSELoss(), SGD(model.parameters(), 0.1), workers=workers)

    assert trainer(np.int64(2)).shards.workers == 2
    for wrong in (True, 0, 1.5, "2"):
        with pytest.raises(ConfigError, match=r"Trainer: workers is .*expected an integer of at least 1"):
            trainer(wrong)
    for kind in ("threads", "processes"):
        with pytest.raises(ConfigError, match=r"workers is -1, expected an integer of at least 1"):
            make_workers(model, MSELoss(), -1, kind=kind)
    with pytest.raises(ConfigError, match=r"Shards: micro_batches is 0, expected"):
        Shards(model, MSELoss(), 1, 0)


def test_a_gradient_of_another_shape_is_refused_before_anything_changes():
    for shape, wrong in [((200, 400), (400, 200)), ((4, 2), (2, 4)), ((4, 4), (1, 4))]:
        parameters = [Parameter(np.zeros(3), "a"), Parameter(np.zeros(shape), "b")]
        parameters[0].grad, parameters[1].grad = np.ones(3), np.ones(wrong)
        with pytest.raises(ShapeError, match=r"SGD: the gradient of b has shape .*, expected"):
            SGD(parameters, 1.0).step()
        assert not parameters[0].data.any()


def test_an_optimizer_of_ones_own_steps_without_threads():
    class Plain(SGD):
        def step(self):
            super().step()

    model, x = Linear(3, 3), np.ones((4, 3), np.float32)

    class Batches:
        def batch(self, step):
            return x, x

    Trainer(model, MSELoss(), Plain(model.parameters(), 0.1), workers=1, progress=False).fit(Batches(), 1)


# ---- threads and processes beside others


class Steady:
    def batch(self, step):
        return batch()


def trainer(workers=2, kind="threads"):
    model = gpt()
    return Trainer(model, CrossEntropyLoss(), SGD(model.parameters(), 0.1), workers=workers, worker_kind=kind,
                   progress=False)  # fmt: skip


def test_threads_end_with_training_and_a_trainer_can_be_copied():
    before = threading.active_count()
    own = trainer(4)
    own.fit(Steady(), 1)
    assert threading.active_count() == before
    copied = copy.deepcopy(own)
    own.fit(Steady(), 2)
    copied.fit(Steady(), 2)
    for name, array in own.model.state_dict().items():
        np.testing.assert_array_equal(copied.model.state_dict()[name], array)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are for Linux")
def test_a_fork_after_threads_starts_its_own():
    pool = Pool(2)
    both = threading.Barrier(2)

    def work(i):
        both.wait(30)  # both threads are there
        return i

    assert pool.map(work, range(2)) == [0, 1]
    other = multiprocessing.get_context("fork").Process(target=pool.map, args=(work, range(2)))
    other.start()
    other.join(60)
    assert other.exitcode == 0
    pool.end()


def test_gradients_off_is_so_in_all_threads():
    workers = Shards(gpt(), CrossEntropyLoss(), 3)
    with no_grad(), pytest.raises(BackwardError):
        workers.gradients(*tokens())
    workers.clear()
    pool, seen = Pool(3), []
    both = threading.Barrier(3)

    def work(i):
        both.wait(30)
        layer = Linear(2, 2)
        layer(np.ones((1, 2), np.float32))
        seen.append(layer.pending)

    with no_grad():
        pool.map(work, range(3))
    assert seen == [0, 0, 0]
    pool.end()


def blas_threads():
    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


@pytest.mark.skipif(not blas_threads(), reason="no BLAS that threadpoolctl knows")
def test_contexts_of_one_blas_thread_that_overlap():
    with threadpool_limits(2, "blas"):
        before = blas_threads()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert set(blas_threads()) == {1}
        first.__exit__(None, None, None)
        assert set(blas_threads()) == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are for Linux")
def test_processes_leave_a_frozen_read_only_parameter_alone(monkeypatch):
    own = trainer(2, "processes")
    frozen = own.model.parameters()[0]
    frozen.requires_grad = False
    frozen.data.flags.writeable = False
    data = frozen.data
    own.fit(Steady(), 2)
    assert frozen.data is data
    monkeypatch.setattr(multiprocessing.current_process().__class__, "daemon", property(lambda self: True))
    with pytest.raises(ConfigError, match="this process is a daemon"):
        own.fit(Steady(), 3)
