"""The decoder-only GPT."""

import json

import numpy as np
import pytest
from helpers import check_gradients, generic, normal
from huggingface import build, compare, copy_weights, in_float64
from parity.names import of_huggingface

from numtrans.layers import Dropout, LayerNorm, Linear, TiedLinear
from numtrans.losses import CrossEntropyLoss
from numtrans.models import GPT, GPTConfig
from numtrans.models.configs import POSITIONS
from numtrans.optim import Adam

IDS = np.array([[3, 4, 4, 1, 0], [6, 5, 2, 2, 2]])
positions = pytest.mark.parametrize("position", POSITIONS)
SIZES = dict(max_len=6, d_model=4, num_heads=2, num_layers=2, d_ff=6, dropout=0.0)


def make(seed=0, **options):
    return generic(GPT(GPTConfig(7, **(SIZES | options)), rng=seed))


@positions
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_future_does_not_leak(position, placement):
    model = make(position=position, norm_placement=placement)
    before = model(IDS)
    assert before.shape == (2, 5, 7)
    for token in (1, 4):
        ids = IDS.copy()
        ids[:, token] = (ids[:, token] + 1) % 7
        same = (model(ids) == before).all(axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(5) < token)


@positions
def test_a_shorter_prefix_gives_the_same_logits(position):
    model = make(position=position)
    np.testing.assert_allclose(model(IDS[:, :3]), model(IDS)[:, :3], rtol=1e-10, atol=1e-11)


@positions
def test_order_plays_a_part(position):
    model = make(position=position)
    assert not np.allclose(model(IDS[:, [2, 1, 0, 3, 4]])[:, -1], model(IDS)[:, -1], atol=1e-5)


@pytest.mark.parametrize(("position", "options"), [
    ("learned", {}), ("sinusoidal", {"tie_output": False}), ("rope", {"norm": "rms", "feedforward": "swiglu"}),
    ("shaw", {"norm_placement": "post"}), ("t5", {"bias": False}), ("alibi", {"num_kv_heads": 1, "dropout": 0.3}),
])  # fmt: skip
def test_gradients(position, options):
    model = make(position=position, **({"d_ff": 3, "num_layers": 1} | options))
    for i, part in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        part.key = i
    check_gradients(model, IDS[:, :3], limit=4)


def test_gradients_of_two_layers_with_a_mask():
    mask = np.array([[True] * 3, [True, True, False]])[:, None, None]
    check_gradients(make(d_ff=2), IDS[:, :3], mask=mask, limit=4)


def test_mask_hides_padding():
    model = make()
    keep = np.ones((2, 1, 1, 5), bool)
    keep[0, ..., 4] = False
    before, y = model(IDS), model(IDS, keep)
    np.testing.assert_array_equal(y[:, :4], before[:, :4])
    np.testing.assert_array_equal(y[1], before[1])
    assert not np.allclose(y[0, 4], before[0, 4])


def test_equations():
    model = make()
    x = model.embedding.embedding.E.data[IDS] + model.embedding.position.W.data[:5]  # no factor sqrt(D)
    expected = model.layers(x) @ model.embedding.embedding.E.data.T
    np.testing.assert_allclose(model(IDS), expected, rtol=1e-11)
    assert type(model.layers.norm) is LayerNorm
    assert make(norm_placement="post").layers.norm is None


def test_ties_and_number_of_parameters():
    tied, untied = make(), make(tie_output=False)
    assert type(tied.output) is TiedLinear
    assert tied.output.E is tied.embedding.embedding.E
    assert type(untied.output) is Linear
    layer = 4 * (16 + 4) + (4 * 6 + 6) + (6 * 4 + 4) + 2 * 8
    assert tied.num_parameters() == 7 * 4 + 6 * 4 + 2 * layer + 8
    assert untied.num_parameters() == tied.num_parameters() + 4 * 7
    names = [name for name, _ in tied.named_parameters()]
    assert sum(name.endswith("E") for name in names) == 1
    untied.load_state_dict(tied.state_dict() | {"output.W": tied.output.E.data.T})
    dlogits = normal(2, 5, 7)
    for model in (tied, untied):
        model(IDS)
        model.backward(dlogits)
    expected = untied.embedding.embedding.E.grad + untied.output.W.grad.T
    np.testing.assert_allclose(tied.output.E.grad, expected, rtol=1e-10, atol=1e-11)


def test_initial_weights_are_gpt2s():
    model = GPT(GPTConfig(300, 64, 128, 4, 3, feedforward="gelu_tanh"), rng=0)
    for name, p in model.named_parameters():
        if name.endswith(("out_proj.W", "linear2.W")):
            expected = 0.02 / 6**0.5
        elif p.data.ndim == 2:
            expected = 0.02
        else:
            assert (p.data == (1 if name.endswith("gamma") else 0)).all()
            continue
        assert p.data.std() == pytest.approx(expected, rel=0.05), name
        assert p.data.dtype == np.float32
    loss = CrossEntropyLoss()(model.eval()(np.arange(60).reshape(2, 30)), np.arange(1, 61).reshape(2, 30))
    assert float(loss) == pytest.approx(np.log(300), abs=0.1)


def test_config():
    config = GPTConfig(7)
    assert (config.d_ff, config.d_model, config.num_layers, config.max_len) == (3072, 768, 12, 1024)
    assert GPTConfig(**json.loads(json.dumps(config.to_dict()))) == config
    assert make(seed=1).config.d_ff == 6


def test_same_seed_same_weights_and_masks():
    a, b = (GPT(GPTConfig(7, **(SIZES | {"dropout": 0.5})), rng=4) for _ in range(2))
    assert (a(IDS) == b(IDS)).all()
    assert (a(IDS) == b(IDS)).all()
    assert (a(IDS) != b.eval()(IDS)).any()


def test_it_learns_a_sequence():
    model = GPT(GPTConfig(7, **(SIZES | {"d_model": 16, "d_ff": 32})), rng=0)
    loss, optimizer = CrossEntropyLoss(), Adam(model.parameters(), lr=0.01)
    values = []
    for _ in range(60):
        model.zero_grad()
        values.append(float(loss(model(IDS[:, :-1]), IDS[:, 1:])))
        model.backward(loss.backward())
        optimizer.step()
    assert values[0] == pytest.approx(np.log(7), abs=0.2)
    assert values[-1] < 0.4  # of the two tokens after 4 only one can be told apart by what came before
    assert model.pending == 0


def test_equal_to_transformers(monkeypatch):
    """GPT-2: the logits and the gradient of every parameter."""
    torch, transformers = in_float64(monkeypatch, "gpt2")
    config = transformers.GPT2Config(vocab_size=11, n_positions=9, n_embd=12, n_head=3, n_layer=2, n_inner=10)
    reference = build(torch, transformers.GPT2LMHeadModel, config)
    model = GPT(GPTConfig(11, 9, 12, 3, 2, 10))
    fit = of_huggingface("gpt2", model)
    copy_weights(model, reference, fit)
    ids = np.random.default_rng(1).integers(0, 11, (3, 8))
    real = np.ones((3, 8), bool)
    real[1, 5:], real[2, 2:] = False, False
    y = reference(torch.from_numpy(ids), attention_mask=torch.from_numpy(real.astype(int))).logits
    compare(torch, model, model(ids, real[:, None, None]), reference, y, fit, keep=real)
