"""Activation recomputation: the plain module's gradients bit for bit, its names, and the memory of one layer."""

import copy
import dataclasses
import gc
import tracemalloc

import numpy as np
import pytest
from helpers import generic, normal
from small_configs import MODELS, small

from numtrans import no_grad
from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from numtrans.errors import BackwardError, ConfigError, ShapeError
from numtrans.generation import generate, lay_out_weights, translate
from numtrans.gradcheck import gradcheck
from numtrans.inspect import summary
from numtrans.layers import (
    BatchNorm,
    Checkpoint,
    Dropout,
    Embedding,
    GatedFeedForward,
    KVCache,
    Linear,
    MultiHeadAttention,
    checkpoint_layers,
    padding_mask,
)
from numtrans.layers.relative_bias import T5RelativeBias
from numtrans.losses import CrossEntropyLoss
from numtrans.models import GPT, GPTConfig, Transformer
from numtrans.module import Module, enable_grad, grad_enabled
from numtrans.parallel import Shards
from numtrans.pretrained import load_torch_state_dict
from numtrans.pretrained.torch_names import to_torch_state_dict

X = normal(2, 3, 4)
MASK = padding_mask([3, 2])


class Pair(Module):
    """y = a W b: two inputs of one shape whose gradients differ, with dropout and running statistics on the way."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout, self.norm = Linear(4, 4, rng=rng()), Dropout(0.4, rng=rng()), BatchNorm(4)

    def forward(self, a, b, weight=1.0):
        c = self.norm(self.dropout(self.linear(a)))
        self.save(b, c, weight)
        return weight * c * b

    def backward(self, dy):
        b, c, weight = self.saved()
        return self.linear.backward(self.dropout.backward(self.norm.backward(weight * dy * b))), weight * dy * c


def rng():
    return np.random.default_rng(3)


def state(module):
    """Everything that training changes or reads besides the gradients."""
    modes = [part.training for part in module.modules() if not isinstance(part, Checkpoint)]
    return {**module.state_dict(), **module.random_state(), "modes": modes}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def results(module, *calls):
    """Outputs, input gradients, parameter gradients and state after a forward for each call, then the backwards.

    A call is a tuple of inputs and a dict of keywords.
    """
    ys = [module(*inputs, **kwargs) for *inputs, kwargs in calls]
    grads = [module.backward(normal(*y.shape, seed=i).astype(y.dtype)) for i, y in reversed(list(enumerate(ys)))]
    assert module.pending == 0
    grads = [g for given in grads for g in (given if isinstance(given, tuple) else (given,)) if g is not None]
    found = {f"output {i}": y for i, y in enumerate(ys)} | {f"input {i}": g for i, g in enumerate(grads)}
    found |= {f"grad of {name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    return found | state(module)


def assert_as_plain(make, *calls, wrap=Checkpoint):
    """The wrapped module has the bits of the plain one, in a first pass and added up in a second."""
    plain, wrapped = make(), wrap(make())
    for _ in range(2):
        assert_same(results(wrapped, *calls), results(plain, *calls))


def inputs_of(config, seed):
    """Inputs for the model of `config`: token ids, or images."""
    draw = np.random.default_rng(seed)
    if hasattr(config, "image_size"):
        return (draw.standard_normal((2, config.channels, config.image_size, config.image_size)).astype(np.float32),)
    T = min(getattr(config, "max_len", 5), 5)
    sizes = (config.src_vocab_size, config.tgt_vocab_size) if hasattr(config, "src_vocab_size") else ()
    sizes = sizes or (config.vocab_size,) * (2 if hasattr(config, "num_decoder_layers") else 1)
    return tuple(draw.integers(1, V, size=(2, T)) for V in sizes)


# ---- the gradients


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_models_have_the_same_bits(model, dtype):
    for seed in range(3):
        config = small(model, np.random.default_rng(seed), dropout=0.3)
        inputs = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in inputs_of(config, seed))
        assert_as_plain(lambda c=config: model(c, rng=1).astype(dtype), (*inputs, {}), wrap=checkpoint_layers)


@pytest.mark.parametrize("wrap", [Checkpoint, lambda module: Checkpoint(Checkpoint(module))], ids=["once", "nested"])
def test_several_inputs_and_two_uses_in_one_pass(wrap):
    first = (X, normal(2, 3, 4, seed=1), {"weight": 2.0})
    second = (normal(2, 3, 4, seed=2), X, {})
    assert_as_plain(lambda: generic(Pair()), first, wrap=wrap)
    assert_as_plain(lambda: generic(Pair()), first, second, wrap=wrap)


def test_parts_and_whole_wrapped():
    def everything(stack):
        stack = checkpoint_layers(stack)
        layer = stack.layers[0]
        layer.feedforward = Checkpoint(layer.feedforward)
        return Checkpoint(stack)

    assert_as_plain(lambda: generic(Encoder(2, 4, 2, 6, dropout=0.3, rng=rng())), (X, {"mask": MASK}), wrap=everything)


def test_masks_and_memory_reach_the_second_forward():
    memory, mask = normal(2, 5, 4, seed=1), padding_mask([2, 5])
    assert_as_plain(
        lambda: generic(DecoderLayer(4, 2, 6, dropout=0.3, rng=rng())), (X, memory, {"memory_mask": mask})
    )
    layer = Checkpoint(generic(EncoderLayer(4, 2, 6, feedforward="gelu", dropout=0.3, rng=rng())))
    assert gradcheck(layer, X, mask=MASK)
    assert gradcheck(Checkpoint(generic(Pair())), X, normal(2, 3, 4, seed=1), weight=2.0)
    assert gradcheck(layer.eval(), X, method="complex")


def test_attention_in_tiles():
    """Whose backward draws the masks of dropout again, too."""
    def make():
        return generic(MultiHeadAttention(4, 2, dropout=0.3, causal=True, block_size=2, rng=rng()))

    assert_as_plain(make, (X, {"mask": MASK}), (normal(2, 3, 4, seed=1), {}))


def test_integers_have_no_gradient():
    assert_as_plain(lambda: Embedding(5, 4, rng=rng()), (np.array([[1, 2, 1]]), {}))


def test_a_shared_position_table_collects_from_all_layers():
    position = T5RelativeBias(2, 4, max_distance=9, rng=rng())
    assert_as_plain(
        lambda: generic(Encoder(3, 4, 2, 6, position=copy.deepcopy(position), rng=rng())), (X, {}),
        wrap=checkpoint_layers,
    )  # fmt: skip


def test_frozen_parameters_stay_without_gradient():
    module = Checkpoint(generic(Pair()))
    module.linear.freeze()
    module(X, X)
    module.backward(X)
    assert module.linear.W.grad is None
    assert module.norm.gamma.grad is not None


# ---- what a forward reads and changes


def test_running_statistics_move_once():
    """By hand: two batches, momentum 0.1."""
    module, mean = Checkpoint(BatchNorm(4).astype(np.float64)), np.zeros(4)
    for seed in (0, 1):
        x = normal(5, 4, seed=seed)
        module(x)
        mean = 0.9 * mean + 0.1 * x.mean(axis=0)
        np.testing.assert_allclose(module.running_mean, mean, rtol=1e-12)
    for _ in range(2):
        module.backward(normal(5, 4, seed=2))
        np.testing.assert_allclose(module.running_mean, mean, rtol=1e-12)


def test_statistics_and_modes_of_the_forward_hold_in_backward():
    """Forward in evaluation; before backward the mode is changed and the statistics move."""
    x, dy = normal(5, 4), normal(5, 4, seed=1)
    plain, module = BatchNorm(4).astype(np.float64).eval(), Checkpoint(BatchNorm(4).astype(np.float64)).eval()
    plain(x), module(x)
    module.train()
    module.running_var = module.running_var + 3
    np.testing.assert_array_equal(module.backward(dy), plain.backward(dy))
    assert module.training
    assert module.module.training
    np.testing.assert_array_equal(module.running_var, 4)


def test_statistics_that_are_written_in_place():
    class Mean(Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", np.zeros(4))

        def forward(self, x):
            self.mean += x.mean(axis=0)
            self.save(self.mean.copy())
            return x * self.mean

        def backward(self, dy):
            return dy * self.saved()[0]

    assert_as_plain(Mean, (normal(5, 4), {}), (normal(5, 4, seed=1), {}))


def test_masks_drawn_in_between_do_not_matter():
    plain, module = Dropout(0.5, rng=rng()), Checkpoint(Dropout(0.5, rng=rng()))
    y = module(X)
    np.testing.assert_array_equal(y, plain(X))
    with no_grad():
        module(X)
    np.testing.assert_array_equal(module.backward(X), plain.backward(X))
    assert module.counter == module.random_state()[""] == 2


def test_rows_of_a_batch_that_are_dropped_from():
    """A piece of the batch draws its part of the mask, also when another piece has come since."""
    plain, module = Dropout(0.5, rng=rng()), Checkpoint(Dropout(0.5, rng=rng()))
    for layer in (plain, module):
        layer.rows = (2, 2)
        layer(X)
        layer.rows = (0, 2)
    np.testing.assert_array_equal(module.backward(X), plain.backward(X))
    assert module.rows == (0, 2)


# ---- no_grad, errors


def test_no_grad_saves_nothing_and_keeps_the_weights_for_a_look():
    model = checkpoint_layers(GPT(GPTConfig(7, 6, d_model=4, num_heads=2, num_layers=2), rng=0))
    ids = np.array([[1, 2, 3]])
    with no_grad():
        model(ids)
    assert model.pending == 0
    attention = model.layers.layers[0].self_attention.sublayer.attention
    assert attention.attention_weights.shape == (1, 2, 3, 3)
    y = model(ids)
    assert attention.attention_weights is None
    model.backward(np.ones_like(y))
    assert attention.attention_weights is None


def test_backward_inside_no_grad():
    plain, module = generic(Pair()), Checkpoint(generic(Pair()))
    plain(X, X), module(X, X)
    expected = plain.backward(X)
    with no_grad():
        found = module.backward(X)
        assert not grad_enabled()
        with enable_grad():
            assert grad_enabled()
        assert not grad_enabled()
    for dx, dx_expected in zip(found, expected):
        np.testing.assert_array_equal(dx, dx_expected)


def test_an_error_in_the_second_forward_leaves_a_clean_module(monkeypatch):
    def broken(x):
        raise ValueError("broken")

    plain, module = generic(Pair()), Checkpoint(generic(Pair()))
    plain(X, X), module(X, X)
    before = state(module)
    with monkeypatch.context() as patch:
        patch.setattr(module.norm, "forward", broken)
        with pytest.raises(ValueError, match="broken"):
            module.backward(X)
    assert module.pending > 0  # of the linear layer, whose second forward had run
    module.clear(), plain.clear()
    assert module.pending == 0
    assert_same(state(module), before)
    assert_same(results(module, (X, X, {})), results(plain, (X, X, {})))


def test_a_cache_with_gradients_on_is_refused_as_without():
    """And is as it was afterwards; within `no_grad` it is used."""
    attention, memory = MultiHeadAttention(4, 2, causal=True), normal(2, 5, 4).astype(np.float32)
    x = X.astype(np.float32)
    caches = [KVCache(), KVCache(), (KVCache(), KVCache(fixed=True))]
    calls = [
        (attention, (x,), {"cache": caches[0]}),
        (EncoderLayer(4, 2, 5, causal=True), (x, None, caches[1]), {}),
        (DecoderLayer(4, 2, 5), (x, memory), {"cache": caches[2]}),
    ]
    for module, inputs, options in calls:
        for layer in (module, Checkpoint(module), Checkpoint(Checkpoint(module))):
            with pytest.raises(BackwardError, match="a cache was given and gradients are on"):
                layer(*inputs, **options)
            module.clear()
        assert Checkpoint(module).pending == 0
    assert all(cache.length == 0 for cache in (*caches[:2], *caches[2]))
    with no_grad():
        Checkpoint(attention)(x, cache=caches[0])
    assert caches[0].length == 3


def test_after_lay_out_weights_gradients_are_the_same_but_for_rounding():
    plain = GatedFeedForward(16, 32, rng=np.random.default_rng(0))
    x = normal(64, 16).astype(np.float32)
    y, dx = plain(x), plain.backward(x)
    wrapped = Checkpoint(lay_out_weights(plain))
    np.testing.assert_allclose(wrapped(x), y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(wrapped.backward(x), dx, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [None, 3, len, Linear])
@pytest.mark.parametrize("use", [Checkpoint, checkpoint_layers, lay_out_weights])
def test_no_module(use, wrong):
    with pytest.raises(ConfigError, match=rf"{use.__name__}: mod(ule|el) is .*, expected a Module"):
        use(wrong)


def test_misuse_is_named():
    module = Checkpoint(generic(Linear(4, 4)))
    with pytest.raises(BackwardError, match="Checkpoint: backward without a pending forward"):
        module.backward(X)
    with pytest.raises(ConfigError, match="Linear has no stack"):
        checkpoint_layers(Linear(2, 2))
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018
    module(X)
    with pytest.raises(ShapeError, match="Linear: dy has shape"):
        module.backward(X[:1])


# ---- one with the module


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_names_weights_and_counters_are_those_of_the_plain_model(model):
    config = small(model, np.random.default_rng(5), dropout=0.3)
    plain, wrapped = model(config, rng=0), checkpoint_layers(model(config, rng=1))
    names = [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in wrapped.named_parameters()] == names
    assert list(wrapped.state_dict()) == list(plain.state_dict())
    assert wrapped.random_state() == plain.random_state()
    assert wrapped.num_parameters() == plain.num_parameters()
    wrapped.load_state_dict(plain.state_dict())
    assert_same(wrapped.state_dict(), plain.state_dict())
    model(config, rng=2).load_state_dict(wrapped.state_dict())
    wrapped.load_random_state(dict.fromkeys(plain.random_state(), 7))
    assert set(wrapped.random_state().values()) <= {7}
    layers = [part for part in wrapped.modules() if isinstance(part, Checkpoint)]
    assert len(layers) == sum(value for name, value in vars(config).items() if name.endswith("layers"))
    checkpoint_layers(wrapped)
    assert [part for part in wrapped.modules() if isinstance(part, Checkpoint)] == layers


def test_attributes_are_those_of_the_module():
    layer = EncoderLayer(4, 2, 6)
    wrapped = Checkpoint(layer)
    assert wrapped.feedforward is layer.feedforward
    wrapped.feedforward = other = EncoderLayer(4, 2, 6).feedforward
    assert layer.feedforward is other
    assert dict(wrapped.named_parameters()).keys() == dict(layer.named_parameters()).keys()
    assert [path for path, _ in wrapped.named_modules()][:3] == ["", "", "self_attention"]


def test_a_copy_is_a_module_of_its_own():
    wrapped = checkpoint_layers(Encoder(2, 4, 2, 6, dropout=0.3, rng=rng()))
    x = X.astype(np.float32)
    wrapped(x)
    for twin in (copy.deepcopy(wrapped), copy.copy(wrapped.layers[0])):
        assert isinstance(twin, (Encoder, Checkpoint))
    twin = copy.deepcopy(wrapped)
    dy = np.ones_like(x)
    np.testing.assert_array_equal(twin.backward(dy), wrapped.backward(dy))
    assert wrapped.layers[0].module is not twin.layers[0].module


def test_generation_goes_on():
    config = GPTConfig(11, 12, d_model=8, num_heads=2, num_layers=2)
    plain, wrapped = GPT(config, rng=0), checkpoint_layers(GPT(config, rng=0))
    written = generate(wrapped, [[1, 2]], 6, temperature=0)
    np.testing.assert_array_equal(written, generate(plain, [[1, 2]], 6, temperature=0))
    config = small(Transformer, np.random.default_rng(1))
    plain, wrapped = Transformer(config, rng=0), checkpoint_layers(Transformer(config, rng=0))
    src = np.array([[1, 1]])
    for found, expected in zip(translate(wrapped, src, 4), translate(plain, src, 4), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_weights_of_pytorch_load(stack):
    plain, wrapped = stack(2, 4, 2, 6), checkpoint_layers(stack(2, 4, 2, 6))
    load_torch_state_dict(wrapped, to_torch_state_dict(plain))
    assert_same(wrapped.state_dict(), plain.state_dict())
    assert_same(to_torch_state_dict(wrapped), to_torch_state_dict(plain))


def test_threads_that_share_a_batch():
    """The twins of a wrapped model: each shard recomputes its own rows with its own part of the dropout masks."""
    config = GPTConfig(11, 6, d_model=8, num_heads=2, num_layers=2, dropout=0.3)
    ids = np.random.default_rng(0).integers(11, size=(5, 7))
    found = []
    for model in (GPT(config, rng=0), checkpoint_layers(GPT(config, rng=0))):
        shards = Shards(model, CrossEntropyLoss(), workers=2, micro_batches=2)
        losses = [float(shards.gradients(ids[:, :-1], ids[:, 1:])) for _ in range(2)]
        found.append({"losses": losses, **{name: p.grad for name, p in model.named_parameters()}, **state(model)})
    assert_same(*found)


# ---- memory


def peaks(model, ids):
    """Traced bytes above the start: after a forward, and the most during forward and backward."""
    y = model(ids)
    model.backward(np.ones_like(y))  # caches, and gradients that are added to
    model.clear()
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        y = model(ids)
        held = tracemalloc.get_traced_memory()[0] - start - y.nbytes
        model.backward(np.ones_like(y))
        return held, tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


def test_memory_of_a_deep_model():
    """Twelve layers hold their inputs; the most there is at a time is that of a model of one layer besides."""
    B, T = 4, 64
    config = GPTConfig(50, T, d_model=32, num_heads=2, num_layers=12, dropout=0.1)
    single = dataclasses.replace(config, num_layers=1)
    ids = np.random.default_rng(0).integers(50, size=(B, T))
    loss = B * 4 * T * (config.vocab_size + 1)  # which is not computed here
    full, one = (summary(c, T, B).activation_bytes - loss for c in (config, single))
    layer, inputs = (full - one) // 11, 12 * 4 * B * T * config.d_model
    small = 100_000  # lists, counters, views
    held, peak = peaks(GPT(config, rng=0), ids)
    held_wrapped, peak_wrapped = peaks(checkpoint_layers(GPT(config, rng=0)), ids)
    assert full <= held <= full + small
    assert inputs + one - layer <= held_wrapped <= inputs + one - layer + small
    later = 4 * B * T * (2 * 50 + 32)  # logits, their gradient and that of the layer are there in the second forward
    assert peak_wrapped <= peaks(GPT(single, rng=0), ids)[1] + inputs + later + small
    assert peak_wrapped < peak / 4
