"""Weights laid out for cached steps: the same values in another order in memory, and one product for several layers."""

import copy

import numpy as np
import pytest
from helpers import generic, normal

from numtrans.generation import Continuation, generate, lay_out_weights
from numtrans.layers import GatedFeedForward, Linear
from numtrans.layers.side_by_side import map_together, side_by_side
from numtrans.losses import CrossEntropyLoss
from numtrans.models import GPT, T5, GPTConfig, Llama, LlamaConfig, T5Config
from numtrans.module import no_grad
from numtrans.optim import AdamW

V, SIZES = 11, dict(d_model=8, num_heads=4, d_ff=12)
IDS = np.random.default_rng(0).integers(1, V, (2, 7))


def gpt():
    return generic(GPT(GPTConfig(V, max_len=20, num_layers=2, **SIZES), rng=0))


def llama():
    return generic(Llama(LlamaConfig(V, max_len=20, num_layers=2, num_kv_heads=2, tie_output=False, **SIZES), rng=0))


def t5():
    sizes = SIZES | dict(d_kv=3, num_encoder_layers=1, num_decoder_layers=2, num_buckets=6)
    return generic(T5(T5Config(V, feedforward="geglu_tanh", **sizes), rng=0))


makers = pytest.mark.parametrize("make", [gpt, llama, t5])


def linears(*widths, bias=True, d_in=6):
    """Linear layers with one input, in float64, with matrices and biases drawn."""
    return [generic(Linear(d_in, width, bias), seed=i) for i, width in enumerate(widths)]


class Together(GatedFeedForward):
    """A module that names any layers as siblings."""

    def __init__(self, layers):
        super().__init__(2, 2)
        self.layers = layers

    def siblings(self):
        return self.layers


@pytest.mark.parametrize("shape", [(1, 1, 6), (2, 3, 6), (4, 6), (0, 6)])
@pytest.mark.parametrize("widths", [(6, 2, 2), (1, 1), (2, 1, 2), (3, 9)])  # wider than the input, and not
@pytest.mark.parametrize("bias", [True, False])
def test_one_product_is_the_products_of_each(shape, widths, bias):
    layers, x = linears(*widths, bias=bias), normal(*shape)
    expected = [x @ layer.W.data + (layer.b.data if bias else 0) for layer in layers]
    lay_out_weights(Together(layers))
    W = side_by_side(layers)
    assert W.flags.c_contiguous == (sum(widths) > 6)
    with no_grad():
        for found, right in zip(map_together(x, *layers), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=0, atol=1e-14)


def exchange(layers):
    layers[1].W.data, layers[2].W.data = layers[2].W.data, layers[1].W.data


def replace(layers):
    layers[2].W.data = layers[2].W.data.copy()


def convert(layers):
    for layer in layers:
        layer.W.data = layer.W.data.astype(np.float64)


def forget(layers):
    layers.pop()


@pytest.mark.parametrize("change", [exchange, replace, convert, forget])
@pytest.mark.parametrize("widths", [(6, 2, 2), (2, 1, 1)])
def test_matrices_that_have_changed_are_multiplied_each(change, widths):
    layers, x = linears(*widths), normal(2, 6)
    lay_out_weights(Together(layers))
    change(layers)
    with no_grad():
        for found, layer in zip(map_together(x, *layers), layers, strict=True):
            np.testing.assert_array_equal(found, x @ layer.W.data + layer.b.data)
    assert side_by_side(layers) is None


def test_values_that_are_written_into_the_matrices_are_used():
    layers, x = linears(6, 2), normal(2, 6)
    lay_out_weights(Together(layers))
    layers[1].W.data[...] = 3
    with no_grad():
        found = map_together(x, *layers)[1] - layers[1].b.data
    np.testing.assert_allclose(found, 3 * x.sum(axis=1, keepdims=True) * [1, 1], rtol=1e-13)
    assert side_by_side(layers) is not None


@makers
def test_values_stay_and_a_model_writes_the_same(make):
    model = make()
    options = {"src": IDS} if make is t5 else {}
    state, plain = model.state_dict(), generate(model, IDS, 8, temperature=0, **options)
    assert lay_out_weights(model) is model
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, state[name])
    for cache in (True, False):
        np.testing.assert_array_equal(generate(model, IDS, 8, temperature=0, cache=cache, **options), plain)
    lay_out_weights(model)
    np.testing.assert_array_equal(generate(model, IDS, 8, temperature=0, **options), plain)


def test_narrow_matrices_lie_column_by_column():
    for name, parameter in lay_out_weights(llama()).named_parameters():
        if name.endswith(("out_proj.W", "down_proj.W")):
            assert parameter.data.flags.f_contiguous, name
        if name.endswith(("output.W", "embedding.E")):
            assert parameter.data.flags.c_contiguous, name


def test_every_group_is_found_and_one_product_is_used(monkeypatch):
    """In a step of Llama the layers of the groups are not called, and without the layout they are."""
    model, called = lay_out_weights(llama()), []
    forward = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, x: called.append(self) or forward(self, x))
    generate(model, IDS, 3, temperature=0)
    names = {id(part): name for name, part in model.named_modules()}
    assert {names[id(part)].rsplit(".", 1)[-1] for part in called} == {"out_proj", "down_proj", "output"}
    called.clear()
    generate(llama(), IDS, 3, temperature=0)
    assert len({id(part) for part in called}) == 2 * 7 + 1


def steps(model):
    """The parameters after two steps of AdamW."""
    loss, optimizer = CrossEntropyLoss(), AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        loss(model(IDS[:, :-1]), IDS[:, 1:])
        model.backward(loss.backward())
        optimizer.step()
        model.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("make", [gpt, llama])
def test_training_goes_on_and_a_copy_has_weights_of_its_own(make):
    expected = steps(make().train(False))
    model = lay_out_weights(make().train(False))
    twin = copy.deepcopy(model)
    before = generate(twin, IDS, 5, temperature=0)
    found = steps(model)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(generate(twin, IDS, 5, temperature=0), before)
    steps(twin)  # from its own weights: in place, as all training
    for changed in (model, twin):
        fresh = make()
        fresh.load_state_dict(changed.state_dict())
        right = Continuation(fresh, IDS).logits()
        np.testing.assert_allclose(Continuation(changed, IDS).logits(), right, rtol=0, atol=1e-12)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, found[name])
