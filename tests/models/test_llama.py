"""Llama."""

import json

import numpy as np
import pytest
from helpers import check_gradients, generic
from huggingface import build, compare, copy_weights, in_float64
from parity.names import of_huggingface

from numtrans.errors import ConfigError, IndexRangeError, ShapeError
from numtrans.layers import GatedFeedForward, Linear, RMSNorm, RotaryPositionalEncoding, TiedLinear
from numtrans.losses import CrossEntropyLoss
from numtrans.models import Llama, LlamaConfig
from numtrans.optim import Adam

IDS = np.array([[3, 4, 4, 1, 0], [6, 5, 2, 2, 2]])
SIZES = dict(max_len=6, d_model=8, num_heads=4, num_layers=2, d_ff=6)


def make(**options):
    return generic(Llama(LlamaConfig(7, **(SIZES | options)), rng=0))


@pytest.mark.parametrize(("kv_heads", "d_kv", "tied", "base", "eps"), [
    (4, 4, False, 10000.0, 1e-6), (2, 4, True, 500.0, 1e-5), (1, 6, False, 10000.0, 1e-5),
])  # fmt: skip
def test_equal_to_transformers(kv_heads, d_kv, tied, base, eps, monkeypatch):
    torch, transformers = in_float64(monkeypatch, "llama")
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=10, head_dim=d_kv,
        num_key_value_heads=kv_heads, max_position_embeddings=9, rms_norm_eps=eps, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )  # fmt: skip
    reference = build(torch, transformers.LlamaForCausalLM, config)
    model = Llama(LlamaConfig(11, 9, 16, 4, 2, 10, kv_heads, d_kv, base, eps, tie_output=tied))
    fit = of_huggingface("llama", model)
    copy_weights(model, reference, fit)
    ids = np.random.default_rng(1).integers(0, 11, (3, 8))
    real = np.ones((3, 8), bool)
    real[1, 5:], real[2, 2:] = False, False
    y = reference(torch.from_numpy(ids), attention_mask=torch.from_numpy(real.astype(int))).logits
    compare(torch, model, model(ids, real[:, None, None]), reference, y, fit, keep=real)


def test_equal_to_mistral_with_a_window(monkeypatch):
    torch, transformers = in_float64(monkeypatch, "mistral")
    config = transformers.MistralConfig(
        vocab_size=11, hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=10,
        num_key_value_heads=2, max_position_embeddings=9, sliding_window=3,
    )  # fmt: skip
    reference = build(torch, transformers.MistralForCausalLM, config)
    model = Llama(LlamaConfig(11, 9, 16, 4, 2, 10, 2, sliding_window=3))
    fit = of_huggingface("llama", model)
    copy_weights(model, reference, fit)
    ids = np.random.default_rng(1).integers(0, 11, (3, 8))
    compare(torch, model, model(ids), reference, reference(torch.from_numpy(ids)).logits, fit)


def test_window():
    model = make(num_layers=1, sliding_window=2)
    before = model(IDS)
    ids = IDS.copy()
    ids[:, 1] = (ids[:, 1] + 1) % 7
    np.testing.assert_array_equal((model(ids) != before).any(axis=(0, 2)), [False, True, True, False, False])
    np.testing.assert_array_equal(make(sliding_window=5)(IDS), make()(IDS))


@pytest.mark.parametrize("options", [
    {}, {"num_kv_heads": 2, "tie_output": True}, {"num_kv_heads": 1, "d_kv": 6, "dropout": 0.3},
])  # fmt: skip
def test_gradients(options):
    model = make(d_ff=3, num_layers=1, **options)
    for i, part in enumerate(m for m in model.modules() if hasattr(m, "key")):
        part.key = i
    check_gradients(model, IDS[:, :4], limit=4)


def test_the_future_does_not_leak_and_a_prefix_is_enough():
    model = make(num_kv_heads=2)
    before = model(IDS)
    assert before.shape == (2, 5, 7)
    for token in (1, 4):
        ids = IDS.copy()
        ids[:, token] = (ids[:, token] + 1) % 7
        same = (model(ids) == before).all(axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(5) < token)
    np.testing.assert_allclose(model(IDS[:, :3]), before[:, :3], rtol=1e-10)
    assert not np.allclose(model(IDS[:, [2, 1, 0, 3, 4]])[:, -1], before[:, -1], atol=1e-5)


def test_mask_hides_padding():
    model = make()
    keep = np.ones((2, 1, 1, 5), bool)
    keep[0, ..., :2] = False  # on the left: scores depend on distances alone, so the rest is as if they were not there
    y = model(IDS, keep)
    np.testing.assert_allclose(y[0, 2:], model(IDS[:1, 2:])[0], rtol=1e-9)
    np.testing.assert_array_equal(y[1], model(IDS)[1])


def test_parts():
    model = make(num_kv_heads=2, d_kv=6, rope_base=500.0)
    attention, network = model.layers.layers[1].self_attention, model.layers.layers[1].feedforward
    rotary = attention.sublayer.rotary
    assert type(rotary) is RotaryPositionalEncoding
    assert (rotary.d_head, rotary.base, rotary.interleaved) == (6, 500.0, False)
    assert type(network.sublayer) is GatedFeedForward
    assert type(model.layers.norm) is type(attention.norm) is type(network.norm) is RMSNorm
    assert attention.sublayer.k_proj.W.data.shape == (8, 12)
    assert not any(name.endswith((".b", ".beta")) for name, _ in model.named_parameters())
    x = model.embedding.E.data[IDS]
    np.testing.assert_allclose(model(IDS), model.layers(x) @ model.output.W.data, rtol=1e-12)
    tied = make(tie_output=True)
    assert type(tied.output) is TiedLinear
    assert tied.output.E is tied.embedding.E
    assert type(model.output) is Linear
    assert model.layers.norm.eps == 1e-6


def test_number_of_parameters():
    layer = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 6 + 2 * 8
    assert make(num_kv_heads=2).num_parameters() == 2 * layer + 8 + 2 * 7 * 8
    assert make(num_kv_heads=2, tie_output=True).num_parameters() == 2 * layer + 8 + 7 * 8
    c = LlamaConfig()  # Llama 7B: 6,738,415,616
    layer = 4 * c.d_model**2 + 3 * c.d_model * c.d_ff + 2 * c.d_model
    assert 2 * c.vocab_size * c.d_model + c.num_layers * layer + c.d_model == 6_738_415_616


def test_initial_weights():
    model = Llama(LlamaConfig(300, 9, 64, 4, 1, 128), rng=0)
    for name, p in model.named_parameters():
        assert p.data.dtype == np.float32
        if p.data.ndim == 1:
            assert (p.data == 1).all()
        else:
            assert p.data.std() == pytest.approx(0.02, rel=0.05), name
    same = Llama(LlamaConfig(300, 9, 64, 4, 1, 128), rng=0)
    assert all((a == b).all() for a, b in zip(model.state_dict().values(), same.state_dict().values()))


def test_it_learns_a_sequence():
    model = Llama(LlamaConfig(7, **(SIZES | {"d_model": 16, "d_ff": 32, "num_kv_heads": 2})), rng=0)
    loss, optimizer = CrossEntropyLoss(), Adam(model.parameters(), lr=0.01)
    values = []
    for _ in range(60):
        model.zero_grad()
        values.append(float(loss(model(IDS[:, :-1]), IDS[:, 1:])))
        model.backward(loss.backward())
        optimizer.step()
    assert values[0] == pytest.approx(np.log(7), abs=0.1)
    assert values[-1] < 0.4  # of the two tokens after 4 only one can be told apart by what came before
    assert model.pending == 0


def test_config_and_wrong_inputs():
    config = LlamaConfig(num_heads=8, num_kv_heads=2, d_model=64)
    assert (config.num_kv_heads, config.d_kv) == (2, 8)
    assert (LlamaConfig().num_kv_heads, LlamaConfig().d_kv) == (32, 128)
    assert LlamaConfig(**json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ConfigError, match="LlamaConfig: num_heads=32 is not divisible by num_kv_heads=5"):
        LlamaConfig(num_kv_heads=5)
    with pytest.raises(ConfigError, match="LlamaConfig: d_model=10 is not divisible by num_heads=4"):
        LlamaConfig(d_model=10, num_heads=4)
    with pytest.raises(ConfigError, match="LlamaConfig: sliding_window is 0, expected at least 1"):
        LlamaConfig(sliding_window=0)
    with pytest.raises(ConfigError, match="LlamaConfig: a head has 3 features, expected an even number, for RoPE"):
        LlamaConfig(d_model=12, num_heads=4)
    model = make()
    with pytest.raises(ShapeError, match=r"Llama: ids have shape \(5,\), expected \(batch, tokens\)"):
        model(IDS[0])
    with pytest.raises(ShapeError, match="Llama: ids have 7 tokens, expected at most max_len=6"):
        model(np.ones((1, 7), int))
    with pytest.raises(IndexRangeError, match="id 7 out of range"):
        model(IDS + 1)
