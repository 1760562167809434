"""BERT and its heads."""

import json

import numpy as np
import pytest
from helpers import check_gradients, generic, normal
from huggingface import build, compare, copy_weights, in_float64
from parity.names import of_huggingface

from numtrans.errors import ConfigError, IndexRangeError, ShapeError
from numtrans.layers import TiedLinear
from numtrans.losses import CrossEntropyLoss
from numtrans.models import BERT, BERTConfig
from numtrans.models.bert import truncated_normal
from numtrans.optim import Adam

IDS = np.array([[3, 4, 4, 0, 0], [6, 5, 2, 2, 1]])
TYPES = np.array([[0, 1, 1, 1, 1], [0, 0, 0, 1, 0]])
SIZES = dict(max_len=6, d_model=4, num_heads=2, num_layers=2, d_ff=6, dropout=0.0)


def make(**options):
    return generic(BERT(BERTConfig(7, **(SIZES | options)), rng=0))


@pytest.mark.parametrize(("head", "options"), [
    ("pooled", {}), ("none", {"hidden_act": "gelu_new"}), ("mlm", {}), ("mlm", {"hidden_act": "relu"}),
])  # fmt: skip
def test_equal_to_transformers(head, options, monkeypatch):
    torch, transformers = in_float64(monkeypatch, "bert")
    config = transformers.BertConfig(
        vocab_size=7, max_position_embeddings=6, hidden_size=8, num_attention_heads=2, num_hidden_layers=2,
        intermediate_size=10, **options,
    )  # fmt: skip
    kind = transformers.BertForMaskedLM if head == "mlm" else transformers.BertModel
    if head == "none":
        kind = lambda config: transformers.BertModel(config, add_pooling_layer=False)  # noqa: E731
    reference = build(torch, kind, config)
    activation = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}[config.hidden_act]
    model = BERT(BERTConfig(7, 6, 8, 2, 2, 10, head=head, feedforward=activation))
    fit = of_huggingface("bert", model)
    copy_weights(model, reference, fit)
    real = torch.from_numpy((IDS != 0).astype(int))
    y = reference(torch.from_numpy(IDS), attention_mask=real, token_type_ids=torch.from_numpy(TYPES))
    y = y[{"pooled": "pooler_output", "none": "last_hidden_state", "mlm": "logits"}[head]]
    compare(torch, model, model(IDS, TYPES), reference, y, fit, keep=None if head == "pooled" else IDS != 0)


@pytest.mark.parametrize(("head", "options"), [
    ("pooled", {}), ("mlm", {"token_types": 3}), ("none", {"dropout": 0.3}),
])  # fmt: skip
def test_gradients(head, options):
    model = make(head=head, d_ff=3, num_layers=1, **options)
    for i, part in enumerate(m for m in model.modules() if hasattr(m, "key")):
        part.key = i
    check_gradients(model, IDS[:, :4], TYPES[:, :4], limit=4)


def test_equations():
    model = make(head="none")
    e = model.embedding
    x = e.token.E.data[IDS] + e.token_type.E.data[TYPES] + e.position.W.data[:5]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * e.norm.gamma.data
    h = model.encoder(x + e.norm.beta.data, (IDS != 0)[:, None, None])
    np.testing.assert_allclose(model(IDS, TYPES), h, rtol=1e-11)
    np.testing.assert_array_equal(model(IDS), model(IDS, np.zeros_like(IDS)))
    assert model.encoder.norm is None
    pooled = make(head="pooled")
    hidden = pooled.encoder(pooled.embedding(IDS, TYPES), (IDS != 0)[:, None, None])
    dense = pooled.head.dense
    np.testing.assert_allclose(pooled(IDS, TYPES), np.tanh(hidden[:, 0] @ dense.W.data + dense.b.data), rtol=1e-12)


@pytest.mark.parametrize("head", ["pooled", "mlm", "none"])
def test_padding_cannot_change_real_tokens(head):
    model = make(head=head)
    y = model(IDS, TYPES)
    assert y.shape == {"pooled": (2, 4), "mlm": (2, 5, 7), "none": (2, 5, 4)}[head]
    short = model(IDS[:1, :3], TYPES[:1, :3])
    real = slice(None) if head == "pooled" else slice(3)
    np.testing.assert_allclose(y[0, real], short[0, real], rtol=1e-11)
    for mask in (IDS != 0, (IDS != 0).astype(int), (IDS != 0)[:, None, None, :]):
        np.testing.assert_array_equal(model(IDS, TYPES, mask=mask), y)
    other = IDS.copy()
    other[0, 3:] = 5  # behind the mask it does not matter what stands there
    np.testing.assert_array_equal(model(other, TYPES, mask=IDS != 0)[0, real], y[0, real])
    assert not np.allclose(model(IDS, TYPES, mask=np.ones_like(IDS))[0, 0], y[0, 0])
    unmasked = make(head=head, pad_id=None)
    np.testing.assert_array_equal(unmasked(IDS, TYPES), model(IDS, TYPES, mask=np.ones_like(IDS)))


def test_every_token_sees_every_other_and_its_type_and_place():
    model = make(head="none")
    ids = IDS[1:]
    before = model(ids)
    changed = ids.copy()
    changed[0, 4] = 3
    assert (np.abs(model(changed) - before).max(-1) > 1e-6).all()
    assert not np.allclose(model(ids, np.ones_like(ids)), before)
    assert not np.allclose(model(ids[:, [1, 0, 2, 3, 4]])[:, [1, 0, 2, 3, 4]], before)


def test_gradient_of_the_pooled_vector_comes_from_the_first_token():
    model = make(head="pooled")
    h = normal(2, 5, 4)
    model.head(h)
    dh = model.head.backward(normal(2, 4, seed=1))
    assert (dh[:, 1:] == 0).all()
    assert (dh[:, 0] != 0).all()


def test_ties_and_published_number_of_parameters():
    model = make(head="mlm")
    assert type(model.head.output) is TiedLinear
    assert model.head.output.E is model.embedding.token.E
    layer = 4 * (16 + 4) + (4 * 6 + 6) + (6 * 4 + 4) + 2 * 8
    body = 7 * 4 + 6 * 4 + 2 * 4 + 8 + 2 * layer
    assert model.num_parameters() == body + (16 + 4) + 8 + 7
    assert make(head="none").num_parameters() == body
    assert make(head="pooled").num_parameters() == body + 16 + 4
    c = BERTConfig()  # bert-base-uncased: 109,482,240
    layer = 4 * (c.d_model**2 + c.d_model) + 2 * c.d_model * c.d_ff + c.d_model + c.d_ff + 4 * c.d_model
    tables = (c.vocab_size + c.max_len + c.token_types) * c.d_model + 2 * c.d_model
    assert tables + c.num_layers * layer + c.d_model**2 + c.d_model == 109_482_240


def test_initial_weights():
    model = BERT(BERTConfig(300, 64, 64, 4, 2, 128, token_types=60, head="mlm"), rng=0)
    for name, p in model.named_parameters():
        assert p.data.dtype == np.float32
        if p.data.ndim == 1:
            assert (p.data == (1 if name.endswith("gamma") else 0)).all(), name
        else:
            assert np.abs(p.data).max() <= 0.04, name
            # a normal distribution cut off at two deviations has 0.8796 of the deviation
            assert p.data.std() == pytest.approx(0.02 * 0.8796, rel=0.05), name
    x = truncated_normal(np.random.default_rng(0), (100_000,), 2.0)
    assert abs(x).max() <= 4
    assert abs(x).max() > 3.99
    assert x.std() == pytest.approx(2 * 0.8796, rel=0.01)


def test_it_learns_to_fill_in():
    """The hidden token is the one that stands at the other end: it takes both directions."""
    rng = np.random.default_rng(0)
    ids = rng.integers(2, 7, (32, 4))
    ids[:, 3] = ids[:, 0]
    place = rng.integers(0, 2, 32) * 3
    targets = np.full_like(ids, -100)
    rows = np.arange(32)
    targets[rows, place] = ids[rows, place]
    ids[rows, place] = 1
    model = BERT(BERTConfig(7, 4, 16, 2, 1, 32, dropout=0.0, head="mlm"), rng=0)
    loss, optimizer = CrossEntropyLoss(), Adam(model.parameters(), lr=0.01)
    values = []
    for _ in range(80):
        model.zero_grad()
        values.append(float(loss(model(ids), targets)))
        model.backward(loss.backward())
        optimizer.step()
    assert values[0] == pytest.approx(np.log(7), abs=0.1)
    assert values[-1] < 0.1
    assert model.pending == 0


def test_config():
    config = BERTConfig()
    assert BERTConfig(**json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ConfigError, match="BERTConfig: head is 'cls', expected one of pooled, mlm, none"):
        BERTConfig(head="cls")
    with pytest.raises(ConfigError, match="BERTConfig: feedforward is 'swiglu', expected one of relu"):
        BERTConfig(feedforward="swiglu")
    with pytest.raises(ConfigError, match="BERTConfig: d_model=10 is not divisible by num_heads=3"):
        BERTConfig(d_model=10, num_heads=3)
    with pytest.raises(ConfigError, match="BERTConfig: token_types is 0, expected at least 1"):
        BERTConfig(token_types=0)


def test_wrong_inputs():
    model = make()
    with pytest.raises(ShapeError, match=r"BERT: ids have shape \(3,\), expected \(batch, tokens\)"):
        model(np.array([1, 2, 3]))
    with pytest.raises(ShapeError, match="BERT: ids have 7 tokens, expected at most max_len=6"):
        model(np.ones((1, 7), int))
    with pytest.raises(IndexRangeError, match="token_type_ids: Embedding: id 2 out of range"):
        model(IDS, TYPES + 1)
    with pytest.raises(ShapeError, match=r"BERTEmbedding: token_type_ids have shape \(1, 5\), expected \(2, 5\)"):
        model(IDS, TYPES[:1])
    with pytest.raises(ShapeError, match=r"BERT: mask has shape \(2, 4\), expected \(2, 5\), one entry a token"):
        model(IDS, mask=np.ones((2, 4), bool))
    with pytest.raises(IndexRangeError, match="Embedding: id 7 out of range"):
        model(IDS + 1)
