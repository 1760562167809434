"""Feed-forward networks, plain and gated."""

import numpy as np
import pytest
from helpers import check_gradients, generic, normal

from numtrans.errors import ConfigError
from numtrans.gradcheck import gradcheck
from numtrans.layers import GEGLU, FeedForward, GatedFeedForward, ReGLU, SwiGLU
from numtrans.layers.activations import ACTIVATIONS, make_activation
from numtrans.layers.feedforward import GATES, make_feedforward

NAMES = [*ACTIVATIONS, *GATES]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("bias", "dropout"), [(True, 0.0), (False, 0.3)])
def test_gradients(name, bias, dropout):
    layer = generic(make_feedforward(name, 3, 5, bias=bias, dropout=dropout, rng=np.random.default_rng(2)))
    check_gradients(layer, normal(2, 2, 3))
    assert len(layer.parameters()) == (3 if name in GATES else 2) * (1 + bias)


@pytest.mark.parametrize("name", NAMES)
def test_complex_step(name):
    assert gradcheck(make_feedforward(name, 3, 5, rng=np.random.default_rng(2)), normal(2, 3), method="complex")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_plain(name):
    layer, x = generic(FeedForward(3, 5, name)), normal(2, 3)
    h = make_activation(name)(x @ layer.linear1.W.data + layer.linear1.b.data)
    np.testing.assert_allclose(layer(x), h @ layer.linear2.W.data + layer.linear2.b.data, rtol=1e-12)


@pytest.mark.parametrize("name", GATES)
def test_gated(name):
    layer, x = generic(make_feedforward(name, 3, 5, bias=False)), normal(2, 3)
    g = make_activation(GATES[name])(x @ layer.gate_proj.W.data)
    np.testing.assert_allclose(layer(x), g * (x @ layer.up_proj.W.data) @ layer.down_proj.W.data, rtol=1e-12)


@pytest.mark.parametrize(("make", "gate"), [(SwiGLU, "silu"), (GEGLU, "gelu"), (ReGLU, "relu")])
def test_named_gates(make, gate):
    named, plain = generic(make(3, 5)), generic(GatedFeedForward(3, 5, gate))
    plain.load_state_dict(named.state_dict())
    x = normal(2, 3)
    assert (named(x) == plain(x)).all()


def test_swiglu_is_the_default_gate_and_has_no_bias():
    layer = GatedFeedForward(3, 5)
    assert type(layer.activation).__name__ == "SiLU"
    assert layer.num_parameters() == 3 * 15


def test_dropout_falls_on_hidden_units():
    layer, x = generic(FeedForward(4, 2000, "identity", dropout=0.5, bias=False)), normal(1, 4)
    layer.linear2.W.data = np.eye(2000)[:, :2000]
    layer.linear2.d_out = 2000
    y = layer(x)
    assert 0.4 < (y == 0).mean() < 0.6
    assert not (layer.eval()(x) == 0).any()


def test_tokens_do_not_see_each_other():
    layer, x = generic(SwiGLU(3, 5)), normal(2, 4, 3)
    y = layer(x)
    x[0, 1] += 1
    changed = (layer(x) != y).any(-1)
    np.testing.assert_array_equal(np.argwhere(changed), [[0, 1]])


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"unknown activation 'swish'.*relu.*or a gated unit: swiglu"):
        make_feedforward("swish", 3, 5)
