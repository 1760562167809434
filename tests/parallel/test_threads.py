"""The gradient of a batch does not depend on how many threads and pieces it is worked through in."""

import threading

import numpy as np
import pytest

from numtrans.errors import ConfigError, ShapeError
from numtrans.layers import BatchNorm, Dropout, Linear
from numtrans.layers.dropout_mask import keep_mask
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.models import BERT, GPT, BERTConfig, GPTConfig, Transformer, TransformerConfig
from numtrans.module import Module, Parameter
from numtrans.optim import SGD, AdamW
from numtrans.parallel import Shards, available_cores, split_batch
from numtrans.parallel.pool import Pool
from numtrans.parallel.twins import GradientSum
from numtrans.training import Trainer

SPLITS = [(2, 1), (3, 1), (2, 2), (1, 3), (50, 1)]


def gpt(dropout=0.3, **changes):
    config = GPTConfig(17, max_len=6, d_model=8, num_heads=2, num_layers=2, dropout=dropout, **changes)
    return GPT(config, rng=np.random.default_rng(0)).astype(np.float64)


def batch(B=7, T=6, V=17):
    rng = np.random.default_rng(1)
    ids, targets = rng.integers(1, V, (B, T)), rng.integers(0, V, (B, T))
    targets[0], targets[3, 2:] = -100, -100  # the pieces count unequal numbers of tokens
    return ids, targets


def gradients(model, inputs, targets, workers, micro_batches=1, loss=None):
    """Loss and gradients of one batch, drawn from the same random numbers each time."""
    model.zero_grad()
    model.load_random_state(dict.fromkeys(model.random_state(), 4))
    shards = Shards(model, loss or CrossEntropyLoss(label_smoothing=0.1), workers, micro_batches)
    value = shards.gradients(inputs, targets)
    assert model.pending == 0
    assert set(model.random_state().values()) <= {5}
    return value, {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_close(got, expected):
    assert got[0] == pytest.approx(expected[0], rel=1e-13)
    for name, gradient in expected[1].items():
        np.testing.assert_allclose(got[1][name], gradient, rtol=0, atol=1e-13 * np.linalg.norm(gradient) + 1e-16)


@pytest.mark.parametrize(("workers", "micro_batches"), SPLITS)
def test_gpt_with_dropout(workers, micro_batches):
    model = gpt()
    ids, targets = batch()
    assert_close(gradients(model, ids, targets, workers, micro_batches), gradients(model, ids, targets, 1))


@pytest.mark.parametrize(("workers", "micro_batches"), SPLITS)
def test_encoder_decoder_with_dropout_and_padding(workers, micro_batches):
    config = TransformerConfig(17, 17, d_model=8, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=2,
                               dropout=0.2)  # fmt: skip
    model = Transformer(config, rng=np.random.default_rng(0)).astype(np.float64)
    ids, targets = batch()
    src = batch(T=9)[0]
    src[2, 5:] = 0
    assert_close(
        gradients(model, (src, ids), targets, workers, micro_batches), gradients(model, (src, ids), targets, 1)
    )


def test_bert_with_a_mask_for_all_rows():
    config = BERTConfig(17, d_model=8, num_heads=2, d_ff=16, num_layers=1, max_len=6, dropout=0.2, head="mlm")
    model = BERT(config, rng=np.random.default_rng(0)).astype(np.float64)
    ids, targets = batch()
    mask = np.ones((1, 1, 6, 6), bool)
    mask[..., -1] = False
    inputs = (ids, None, mask)
    assert_close(gradients(model, inputs, targets, 2), gradients(model, inputs, targets, 1))


def test_gradients_are_added_and_frozen_parameters_left_alone():
    model = gpt()
    ids, targets = batch()
    once = {name: gradient.copy() for name, gradient in gradients(model, ids, targets, 2)[1].items()}
    model.load_random_state(dict.fromkeys(model.random_state(), 4))
    Shards(model, CrossEntropyLoss(label_smoothing=0.1), 3).gradients(ids, targets)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.grad, 2 * once[name], rtol=0, atol=1e-13)
    model.freeze()
    frozen = gradients(model, ids, targets, 2)
    assert all(gradient is None for gradient in frozen[1].values())


def test_the_twins_follow_the_model():
    model = gpt(dropout=0.0)
    ids, targets = batch()
    shards, loss = Shards(model, CrossEntropyLoss(), 2), CrossEntropyLoss()
    shards.gradients(ids, targets)
    for change in (
        lambda: model.load_state_dict({name: 2 * array for name, array in model.state_dict().items()}),
        lambda: model.astype(np.float32),
        lambda: model.layers.layers.pop(),
        lambda: model.layers.layers[0].feedforward.sublayer.linear1.b.__setattr__("requires_grad", False),
    ):
        change()
        model.zero_grad()
        value = shards.gradients(ids, targets)
        got = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()
        expected = loss(model(ids), targets)
        model.backward(loss.backward())
        assert value == pytest.approx(float(expected), rel=1e-6)
        for name, parameter in model.named_parameters():
            assert (got[name] is None) == (parameter.grad is None)
            if parameter.grad is not None:
                np.testing.assert_allclose(got[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_a_tied_parameter_of_a_twin_collects_both_of_its_gradients():
    model = gpt(dropout=0.0)
    assert model.output.E is model.embedding.embedding.E
    twin = Shards(model, CrossEntropyLoss(), 2).prepare(2)[0].model
    assert twin.output.E is twin.embedding.embedding.E is not model.output.E
    assert twin.output.E.data is model.output.E.data


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_trained_parameters_do_not_depend_on_the_workers(workers):
    def train(workers):
        model = gpt()
        optimizer = AdamW(model.parameters(), lr=1e-2)
        trainer = Trainer(model, CrossEntropyLoss(), optimizer, workers=workers, progress=False)

        class Batches:
            def batch(self, step):
                return batch()

        trainer.fit(Batches(), 6)
        return model.state_dict(), optimizer.state_dict()["arrays"]

    for got, expected in zip(train(workers), train(1), strict=True):
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-10, err_msg=name)


def test_the_same_number_of_workers_gives_the_same_bits():
    model = gpt()
    ids, targets = batch()
    first, second = gradients(model, ids, targets, 3), gradients(model, ids, targets, 3)
    assert first[0] == second[0]
    assert all((first[1][name] == second[1][name]).all() for name in first[1])


def test_dropout_of_some_rows_is_that_part_of_the_whole_mask():
    x = np.ones((6, 5, 4))
    whole = Dropout(0.5, rng=np.random.default_rng(0))
    y = whole(x)
    whole.counter, whole.rows = 0, (2, 3)
    np.testing.assert_array_equal(whole(x[2:5]), y[2:5])
    whole.counter = 0
    np.testing.assert_array_equal(whole(x[:1])[0], y[0])  # no batch of 3 rows: the same in every piece
    assert keep_mask(np, (3,), 0.5, 1, 1, 2**32 - 1).shape == (3,)


@pytest.mark.parametrize("rows", [None, np.array([0, 2])])
def test_a_gradient_sum_is_in_the_order_of_the_shards(rows):
    """Whatever the order of arrival, the bits are those of ((a0 + a1) + b0) + b1."""
    rng = np.random.default_rng(0)
    data = np.zeros((3, 2))
    gradients = rng.standard_normal((2, 2, 3 if rows is None else 2, 2))  # number, shard
    expected = np.zeros((3, 2))
    for gradient in gradients.reshape(4, -1, 2):
        expected[slice(None) if rows is None else rows] += gradient
    for arrival in ([0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]):
        total, given = GradientSum(Parameter(data)), [0, 0]
        total.begin(2)
        for shard in arrival:
            total.add(shard, gradients[given[shard], shard].copy(), rows)
            given[shard] += 1
        assert not total.early
        np.testing.assert_array_equal(total.end(), expected)
        assert total.end() is None
    total.begin(2)
    total.add(1, gradients[0, 1], rows)  # shard 0 has none
    assert total.total is None
    np.testing.assert_array_equal(total.end()[slice(None) if rows is None else rows], gradients[0, 1])


# ---- what is refused, and what the default does


class Norm(Module):
    def __init__(self):
        super().__init__()
        self.norm = BatchNorm(3)
        self.last = Linear(3, 4)

    def forward(self, x):
        return self.last(self.norm(x))

    def backward(self, dy):
        return self.norm.backward(self.last.backward(dy))


def test_a_module_that_needs_the_whole_batch_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"Norm: BatchNorm needs the whole batch.*workers=1"):
        Shards(Norm(), CrossEntropyLoss(), 2)
    x, t = np.ones((8, 3), np.float32), np.zeros(8, int)
    shards = Shards(Norm(), CrossEntropyLoss())
    assert shards.number_of_shards(x, t) == 1
    shards.gradients(x, t)


def test_random_numbers_without_a_place_in_the_batch_are_refused():
    class Noise(Linear):
        counter = 0

    with pytest.raises(ConfigError, match="Noise needs the whole batch"):
        Shards(Noise(2, 2), MSELoss(), 2)


def test_the_default_is_the_cores_if_the_step_is_large_enough(monkeypatch):
    model, loss = gpt(), CrossEntropyLoss()
    ids, targets = batch()
    assert Shards(model, loss).number_of_shards(ids, targets) == 1
    monkeypatch.setattr("numtrans.parallel.threads.SMALLEST_STEP", 0)
    assert Shards(model, loss).number_of_shards(ids, targets) == available_cores() >= 1
    mask = np.ones((6, 6), bool)  # no batch axis
    assert Shards(model, loss).number_of_shards((ids, mask), targets) == 1
    with pytest.raises(ShapeError, match=r"input 1 has shape \(6, 6\), expected first axis 7, the batch, or 1"):
        Shards(model, loss, 2).gradients((ids, mask), targets)


def test_what_is_split_and_what_is_not():
    ids, mask = np.zeros((4, 3)), np.ones((1, 1, 3, 3))
    parts = split_batch((ids, mask, None), np.arange(4), 3)
    assert [part.inputs[0].shape[0] for part in parts] == [1, 1, 2]
    assert all(part.inputs[1] is mask and part.inputs[2] is None for part in parts)
    assert [list(part.targets) for part in parts] == [[0], [1], [2, 3]]
    assert [(part.first, part.count) for part in parts] == [(0, 1), (1, 1), (2, 2)]
    with pytest.raises(ShapeError, match=r"input 1 has shape \(3, 3\)"):
        split_batch((ids, np.ones((3, 3))), np.arange(4), 2)


# ---- errors


class Fails(Linear):
    """Raises in the shard that sees the number 5, when it has saved what it needs."""

    def forward(self, x):
        y = super().forward(x)
        if (x == 5).any():
            raise MemoryError
        return y


@pytest.mark.parametrize("row", [0, 3])
def test_an_error_in_a_shard_surfaces_as_itself_and_leaves_nothing(row):
    model, loss = Fails(2, 2), MSELoss()
    trainer = Trainer(model, loss, SGD(model.parameters(), 0.1), workers=2, progress=False)
    x = np.ones((4, 2), np.float32)
    before = model.state_dict()

    class Batches:
        def batch(self, step):
            return np.where(np.arange(4)[:, None] == row, np.float32(5), x), x

    with pytest.raises(MemoryError):
        trainer.fit(Batches(), 2)
    for shard in trainer.shards.shards:
        assert shard.model.pending == shard.loss.pending == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all((before[name] == array).all() for name, array in model.state_dict().items())
    trainer.compute_gradients(x, x)


def test_a_pool_gives_results_in_order_and_the_first_error():
    pool = Pool(3)
    assert pool.map(lambda i: i * i, range(20)) == [i * i for i in range(20)]
    with pytest.raises(ZeroDivisionError):
        pool.map(lambda i: 1 // i, [2, 0, 1])
    barrier = threading.Barrier(3)

    def overflow(i):
        barrier.wait(10)
        return np.float32(1e38) * np.float32(i) if i else 0

    with np.errstate(over="raise"), pytest.raises(FloatingPointError):  # the caller's setting holds in each thread
        pool.map(overflow, [0, 1, 100])


def test_no_target_that_counts_gives_a_warning_and_zero():
    model = gpt()
    ids, targets = batch()
    with pytest.warns(UserWarning, match="every target is ignored"):
        value, gradient = gradients(model, ids, np.full_like(targets, -100), 2)
    assert value == 0
    assert all((g == 0).all() for g in gradient.values())
