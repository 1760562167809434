"""Equal to PyTorch: outputs and every gradient, in float64, over random configurations."""
# ruff: noqa: E402 (imports that need PyTorch follow the line that skips without it)

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from hypothesis import strategies as st
from parity import torch_checks
from parity.drawing import MASKS, compare_each, configurations

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
FEATURES = st.integers(3, 5)  # of a head: a norm over one or two features has a gradient that is rounding alone
LAYER = dict(
    d=FEATURES, d_ff=st.integers(2, 9), norm=st.sampled_from(["pre", "post"]), mask=MASKS,
    activation=st.sampled_from(["relu", "gelu", "gelu_tanh"]), eps=st.sampled_from([1e-5, 1e-3]),
)  # fmt: skip
KEYS = st.integers(1, 9)
LAYERS = dict(encoder_layers=st.integers(1, 2), decoder_layers=st.integers(1, 2))


def test_scaled_dot_product_attention():
    compare_each(torch_checks.check_attention_function, 12, configurations(
        Tk=KEYS, d=st.integers(1, 5), dv=st.integers(1, 4), groups=st.integers(1, 3), causal=st.booleans(), mask=MASKS,
        scale=st.sampled_from([None, 1.0, 0.3]),
    ))  # fmt: skip


def test_multi_head_attention():
    compare_each(torch_checks.check_multi_head_attention, 12, configurations(
        Tk=KEYS, d=st.integers(1, 5), bias=st.booleans(), causal=st.booleans(), mask=MASKS, inputs=st.integers(1, 3),
        weights=st.booleans(),
    ))  # fmt: skip


def test_encoder_layer():
    compare_each(torch_checks.check_encoder_layer, 10, configurations(causal=st.booleans(), **LAYER))


def test_decoder_layer():
    compare_each(torch_checks.check_decoder_layer, 10, configurations(Tk=KEYS, target_mask=MASKS, **LAYER))


def test_transformer():
    compare_each(torch_checks.check_transformer, 8, configurations(Tk=KEYS, target_mask=MASKS, **LAYERS, **LAYER))


def test_transformer_with_embeddings():
    compare_each(torch_checks.check_seq2seq, 8, configurations(
        Tk=KEYS, vocab=st.integers(4, 11), **LAYERS, **{k: LAYER[k] for k in ("d", "d_ff", "norm")},
        mask=st.sampled_from(["none", "padding"]),
    ))  # fmt: skip
