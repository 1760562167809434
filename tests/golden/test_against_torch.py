"""The committed golden values are what PyTorch gives, and attention agrees with it for any sizes and masks."""

import golden_file
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import record  # noqa: E402 (needs PyTorch)
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from numtrans.layers import MultiHeadAttention, ScaledDotProductAttention  # noqa: E402


@pytest.fixture(scope="module")
def recorded_again(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    record.record(folder)
    return folder


def test_there_is_a_file_for_each_case_and_no_other(recorded_again):
    committed, again = ({path.name for path in folder.iterdir()} for folder in (golden_file.VALUES, recorded_again))
    assert committed == again


@pytest.mark.parametrize("name", record.CASES)
def test_committed_values_are_those_of_torch(recorded_again, name):
    committed, meta = golden_file.read(golden_file.VALUES / f"{name}.safetensors")
    again, meta_again = golden_file.read(recorded_again / f"{name}.safetensors")
    assert meta == meta_again
    assert committed.keys() == again.keys()
    for key, array in committed.items():
        assert array.dtype == again[key].dtype, key
        if array.dtype.kind == "f":
            assert np.linalg.norm(array - again[key]) <= 1e-12 * np.linalg.norm(array) + 1e-14, key
        else:
            assert np.array_equal(array, again[key]), key


def draw(seed):
    """Sizes, and a mask for each sequence and head that may leave a query without any key."""
    rng = np.random.default_rng(seed)
    B, H, Tq, Tk, d, dv = rng.integers(1, (4, 5, 9, 9, 6, 6), endpoint=True).tolist()
    mask_shape = (rng.choice([1, B]), rng.choice([1, H]), rng.choice([1, Tq]), Tk)
    return rng, (B, H, Tq, Tk, d, dv), rng.random(mask_shape) < 0.7


def assert_same(y, gradients, expected, dy, leaves):
    """Output and gradients are those of PyTorch, which has made `expected` from `leaves`."""
    with sdpa_kernel(SDPBackend.MATH):
        expected_gradients = torch.autograd.grad(expected, leaves, torch.tensor(dy), retain_graph=True)
    for value, tensor in zip([y, *gradients], [expected, *expected_gradients], strict=True):
        assert golden_file.relative_error(value, tensor.detach().numpy())[1]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_attention_of_any_size(seed, causal):
    rng, (B, H, Tq, Tk, d, dv), mask = draw(seed)
    inputs = [rng.standard_normal((B, H, T, width)) for T, width in ((Tq, d), (Tk, d), (Tk, dv))]
    dy = rng.standard_normal((B, H, Tq, dv))
    attention = ScaledDotProductAttention(causal=causal)
    y = attention(*inputs, mask=mask)
    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    seen = mask & np.tri(Tq, Tk, Tk - Tq, dtype=bool) if causal else mask
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(*leaves, attn_mask=torch.tensor(seen))
    assert_same(y, attention.backward(dy), expected, dy, leaves)


@pytest.mark.parametrize("seed", range(20))
def test_multi_head_attention_of_any_size(seed):
    rng, (B, H, Tq, Tk, d, _), _ = draw(seed)
    D, keep = H * d, np.arange(Tk) < rng.integers(0, Tk, (B, 1), endpoint=True)
    forbidden = rng.random((Tq, Tk)) < 0.3
    module = torch.nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    module.load_state_dict({n: torch.tensor(rng.standard_normal(p.shape)) for n, p in module.state_dict().items()})
    attention = MultiHeadAttention(D, H).astype(np.float64)
    attention.load_state_dict(numtrans_names(module.state_dict()))
    inputs = [rng.standard_normal((B, T, D)) for T in (Tq, Tk, Tk)]
    dy = rng.standard_normal((B, Tq, D))
    y = attention(*inputs, mask=keep[:, None, None, :] & ~forbidden)
    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    masks = dict(key_padding_mask=torch.tensor(~keep), attn_mask=torch.tensor(forbidden))
    with sdpa_kernel(SDPBackend.MATH):
        expected, _ = module(*leaves, need_weights=False, **masks)
    assert_same(y, attention.backward(dy), expected, dy, leaves)
    expected.backward(torch.tensor(dy))
    expected_gradients = numtrans_names({name: parameter.grad for name, parameter in module.named_parameters()})
    for name, parameter in attention.named_parameters():
        assert golden_file.relative_error(parameter.grad, expected_gradients[name])[1], name


def numtrans_names(state):
    """Weights (or their gradients) of a `torch.nn.MultiheadAttention` under numtrans' names and in its layout."""
    W = [*state["in_proj_weight"].chunk(3), state["out_proj.weight"]]
    b = [*state["in_proj_bias"].chunk(3), state["out_proj.bias"]]
    names = [f"{name}_proj." for name in ("q", "k", "v", "out")]
    weights = {f"{name}W": w.T.numpy() for name, w in zip(names, W, strict=True)}
    return weights | {f"{name}b": bias.numpy() for name, bias in zip(names, b, strict=True)}
