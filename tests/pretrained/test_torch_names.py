"""Weights of PyTorch's modules: the same outputs in float64, an exact way back, and what is refused."""

import numpy as np
import pytest
from helpers import generic, normal

from numtrans import layers as nt
from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from numtrans.errors import ConfigError, StateDictError
from numtrans.models import Transformer, TransformerConfig
from numtrans.pretrained import load_torch_state_dict, to_torch_state_dict

torch = pytest.importorskip("torch")
nn = torch.nn
SIZES = dict(d_model=6, num_heads=2, d_ff=5)
TORCH_SIZES = dict(d_model=6, nhead=2, dim_feedforward=5, dropout=0.0, batch_first=True)
IDS = np.array([[1, 3, 0], [2, 2, 4]])


def draw(module, seed=0):
    """`module` in float64 with generic values everywhere, buffers too."""
    module = module.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                value.copy_(noise.abs() + 0.5 if "var" in name else noise)
    return module


def stack(kind, layer, **options):
    return kind(layer, 2, nn.LayerNorm(6) if layer.norm_first else None, **options)


X, MEMORY = normal(2, 3, 6), normal(2, 4, 6, seed=1)
CASES = {
    "Linear": (nt.Linear(6, 4), nn.Linear(6, 4), [X]),
    "Linear without bias": (nt.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False), [X]),
    "Embedding": (nt.Embedding(5, 6), nn.Embedding(5, 6), [IDS]),
    "LayerNorm": (nt.LayerNorm(6), nn.LayerNorm(6), [X]),
    "LayerNorm without bias": (nt.LayerNorm(6, bias=False), nn.LayerNorm(6, bias=False), [X]),
    "RMSNorm": (nt.RMSNorm(6, eps=1e-5), nn.RMSNorm(6, eps=1e-5), [X]),
    "BatchNorm": (nt.BatchNorm(6), nn.BatchNorm1d(6), [X[0]]),
    "MultiHeadAttention": (
        nt.MultiHeadAttention(6, 2), nn.MultiheadAttention(6, 2, batch_first=True), [X, MEMORY, MEMORY],
    ),
    "MultiHeadAttention without bias": (
        nt.MultiHeadAttention(6, 3, bias=False), nn.MultiheadAttention(6, 3, bias=False, batch_first=True),
        [X, MEMORY, MEMORY],
    ),
    "EncoderLayer post": (EncoderLayer(**SIZES), nn.TransformerEncoderLayer(**TORCH_SIZES), [X]),
    "EncoderLayer pre gelu": (
        EncoderLayer(**SIZES, norm_placement="pre", feedforward="gelu"),
        nn.TransformerEncoderLayer(**TORCH_SIZES, norm_first=True, activation="gelu"), [X],
    ),
    "DecoderLayer post": (DecoderLayer(**SIZES), nn.TransformerDecoderLayer(**TORCH_SIZES), [X, MEMORY]),
    "Encoder post": (
        Encoder(2, **SIZES), stack(nn.TransformerEncoder, nn.TransformerEncoderLayer(**TORCH_SIZES),
                                   enable_nested_tensor=False), [X],
    ),
    "Decoder pre": (
        Decoder(2, **SIZES, norm_placement="pre"),
        stack(nn.TransformerDecoder, nn.TransformerDecoderLayer(**TORCH_SIZES, norm_first=True)), [X, MEMORY],
    ),
}  # fmt: skip


def torch_output(module, inputs):
    inputs = [torch.from_numpy(x) for x in inputs]
    with torch.no_grad():
        if isinstance(module, (nn.TransformerDecoderLayer, nn.TransformerDecoder)):
            T = inputs[0].shape[1]
            return module(*inputs, tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1)).numpy()
        y = module(*inputs)
        return (y[0] if isinstance(y, tuple) else y).numpy()


def assert_close(found, expected):
    assert np.linalg.norm(found - expected) <= 1e-12 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", CASES)
def test_the_same_output_and_the_way_back(name):
    ours, theirs, inputs = CASES[name]
    theirs, ours = draw(theirs), generic(ours, seed=7).eval()
    state = theirs.state_dict()
    kept = {key: value.clone() for key, value in state.items()}
    assert load_torch_state_dict(ours, state) is ours
    assert_close(ours(*inputs), torch_output(theirs, inputs))
    assert all(torch.equal(state[key], kept[key]) for key in kept)
    back = to_torch_state_dict(ours)
    assert list(back) == [key for key in state if not key.endswith("num_batches_tracked")]
    for key, array in back.items():
        np.testing.assert_array_equal(array, state[key].numpy())
        assert array.flags.c_contiguous
    draw(theirs, seed=3).load_state_dict({key: torch.from_numpy(a) for key, a in back.items()}, strict=False)
    assert_close(torch_output(theirs, inputs), ours(*inputs))


def test_transformer_without_and_with_prefix():
    theirs = draw(nn.Transformer(6, 2, 2, 2, 5, dropout=0.0, batch_first=True, norm_first=True))
    model = generic(Transformer(TransformerConfig(
        9, 9, d_model=6, num_heads=2, d_ff=5, num_encoder_layers=2, num_decoder_layers=2, norm_placement="pre",
    ))).eval()  # fmt: skip
    table = model.src_embedding.embedding.E.data.copy()
    load_torch_state_dict(model, theirs.state_dict())
    memory = model.encoder(MEMORY)
    T = torch.ones(3, 3, dtype=torch.bool).triu(1)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(MEMORY), torch.from_numpy(X), tgt_mask=T).numpy()
    assert_close(model.decoder(X, memory), expected)
    np.testing.assert_array_equal(model.src_embedding.embedding.E.data, table)
    assert set(to_torch_state_dict(model)) == set(theirs.state_dict())
    alone = generic(Decoder(2, **SIZES, norm_placement="pre"))
    load_torch_state_dict(alone, theirs.state_dict(), prefix="decoder.")
    assert_close(alone(X, memory), expected)
    assert set(to_torch_state_dict(alone, "decoder.")) == {n for n in theirs.state_dict() if n.startswith("decoder.")}


def test_post_norm_transformer_needs_a_closing_norm():
    theirs = draw(nn.Transformer(6, 2, 1, 1, 5, dropout=0.0, batch_first=True))
    model = generic(Transformer(TransformerConfig(
        9, 9, d_model=6, num_heads=2, d_ff=5, num_encoder_layers=1, num_decoder_layers=1,
        dropout=0.0,
    )))  # fmt: skip
    with pytest.raises(StateDictError, match=r"LayerNorm\(d_model\)"):
        load_torch_state_dict(model, theirs.state_dict())
    model.encoder.norm, model.decoder.norm = nt.LayerNorm(6).astype(np.float64), nt.LayerNorm(6).astype(np.float64)
    load_torch_state_dict(model, theirs.state_dict())
    with torch.no_grad():
        expected = theirs.encoder(torch.from_numpy(MEMORY)).numpy()
    assert_close(model.encoder(MEMORY), expected)


def test_separate_projections():
    """nn.MultiheadAttention names three matrices when keys or values have another width; both spellings are read."""
    packed = draw(nn.MultiheadAttention(6, 2, batch_first=True))
    state = packed.state_dict()
    weight = state.pop("in_proj_weight")
    for name, part in zip("qkv", weight.chunk(3)):
        state[f"{name}_proj_weight"] = part
    ours = load_torch_state_dict(generic(nt.MultiHeadAttention(6, 2)), state)
    assert_close(ours(X, MEMORY, MEMORY), torch_output(packed, [X, MEMORY, MEMORY]))
    wide = nn.MultiheadAttention(6, 2, kdim=4, vdim=3)
    with pytest.raises(StateDictError, match=r"k_proj_weight is \(6, 4\), expected \(6, 6\)"):
        load_torch_state_dict(ours, wide.state_dict())


def test_all_problems_are_listed_and_nothing_changes():
    ours = generic(EncoderLayer(**SIZES))
    before = ours.state_dict()
    state = to_torch_state_dict(ours)
    state["linear1.weight"] = state["linear1.weight"].T
    state["extra"] = np.zeros(2)
    del state["norm2.bias"]
    state["norm1.weight"] = state["norm1.weight"] + 1
    with pytest.raises(StateDictError) as caught:
        load_torch_state_dict(ours, state)
    for part in ("missing: norm2.bias", "unexpected: extra", "linear1.weight is (6, 5), expected (5, 6)"):
        assert part in str(caught.value)
    state = to_torch_state_dict(ours) | {"norm1.weight": np.full(6, 9.0), "norm2.bias": np.array(["a"] * 6)}
    with pytest.raises(ValueError):
        load_torch_state_dict(ours, state)
    for name, array in ours.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_torch_values_of_many_kinds():
    """bfloat16, parameters with a gradient, and float32 into float64."""
    theirs = nn.Linear(3, 2).bfloat16()
    ours = load_torch_state_dict(nt.Linear(3, 2).astype(np.float64), dict(theirs.named_parameters()))
    np.testing.assert_array_equal(ours.W.data, theirs.weight.detach().double().numpy().T)
    assert ours.W.data.dtype == np.float64
    assert ours.W.data.flags.c_contiguous
    theirs.weight.data.zero_()
    assert np.abs(ours.W.data).min() > 0  # a copy


@pytest.mark.parametrize(("module", "message"), [
    (nt.ReLU(), "no counterpart of ReLU"),
    (nt.MultiHeadAttention(8, 4, num_kv_heads=2), "grouped queries"),
    (EncoderLayer(**SIZES, feedforward="swiglu"), "gated"),
    (Encoder(1, **SIZES, position="t5"), "counterpart of .*position.W"),
])  # fmt: skip
def test_what_pytorch_has_not(module, message):
    with pytest.raises(ConfigError, match=message):
        to_torch_state_dict(module)


def test_values_that_are_no_weights():
    """Complex and whole numbers, and tensors without data, are not taken as weights; nothing is changed."""
    from numtrans.layers import Linear

    torch = pytest.importorskip("torch")
    ours, bias = Linear(3, 2), np.ones(2)
    before = ours.state_dict()
    for weight, message in (
        (np.ones((2, 3), complex), "weight has dtype complex128"), (np.ones((2, 3), np.int8), "weight has dtype int8"),
        (np.full((2, 3), None), "weight has dtype object"), ([[1.0] * 3] * 2, "weight is no array"),
        (torch.empty(2, 3, device="meta"), "cannot be read"), (torch.ones(2, 3).to_sparse(), "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(StateDictError, match=message):
            load_torch_state_dict(ours, {"weight": weight, "bias": bias})
    for arrays in (None, [bias], {5: bias}):
        with pytest.raises(StateDictError, match="expected a mapping: name -> array"):
            load_torch_state_dict(ours, arrays)
    with pytest.raises(StateDictError, match="prefix is 5, expected a string"):
        load_torch_state_dict(ours, {"bias": bias}, prefix=5)
    for name, array in ours.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
