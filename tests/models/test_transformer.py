"""The encoder-decoder Transformer."""

import dataclasses
import json

import numpy as np
import pytest
from helpers import check_gradients, generic, normal

from numtrans.layers import Dropout, Linear, TiedLinear, causal_mask, padding_mask
from numtrans.losses import CrossEntropyLoss
from numtrans.models import Transformer, TransformerConfig
from numtrans.models.configs import POSITIONS
from numtrans.models.embeddings import TokenEmbedding
from numtrans.optim import Adam

SRC = np.array([[3, 4, 5, 6], [6, 5, 0, 0]])
TGT = np.array([[1, 4, 4], [1, 3, 2]])
positions = pytest.mark.parametrize("position", POSITIONS)
SIZES = dict(d_model=4, num_heads=2, d_ff=6, num_encoder_layers=2, num_decoder_layers=2, max_len=9, dropout=0.0)


def make(src_vocab=7, tgt_vocab=7, seed=0, **options):
    return generic(Transformer(TransformerConfig(src_vocab, tgt_vocab, **(SIZES | options)), rng=seed))


@positions
def test_shape_and_padding_of_the_source(position):
    model = make(8, 6, position=position)
    y = model(SRC, TGT)
    assert y.shape == (2, 3, 6)
    np.testing.assert_allclose(model(SRC[1:, :2], TGT[1:]), y[1:], rtol=1e-10, atol=1e-11)  # without its padding
    more = np.concatenate([SRC, np.zeros((2, 3), int)], axis=1)
    np.testing.assert_allclose(model(more, TGT), y, rtol=1e-10, atol=1e-11)
    assert not np.allclose(make(8, 6, position=position, pad_id=None)(SRC, TGT)[1], y[1])
    for mask in (SRC != 0, padding_mask(ids=SRC, pad_id=0), (SRC != 0).astype(int)):
        np.testing.assert_array_equal(model(SRC, TGT, src_mask=mask), y)


@positions
def test_target_is_causal(position):
    model = make(position=position)
    before = model(SRC, TGT)
    for token in (1, 2):
        tgt = TGT.copy()
        tgt[:, token] = 5
        same = (model(SRC, tgt) == before).all(axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(3) < token)
    src = SRC.copy()
    src[:, 0] = 2
    assert (model(src, TGT) != before).any(axis=2).all()  # every target token sees the source


@positions
def test_order_of_the_source_plays_a_part(position):
    model = make(position=position, pad_id=None)
    assert not np.allclose(model(SRC[:, [2, 0, 3, 1]], TGT), model(SRC, TGT), atol=1e-4)


@pytest.mark.parametrize(("position", "options"), [
    ("sinusoidal", {"tie_embeddings": True}), ("learned", {"tie_output": False}), ("rope", {"norm_placement": "pre"}),
    ("shaw", {}), ("t5", {"norm": "rms", "norm_placement": "pre"}),
    ("alibi", {"tie_embeddings": True, "feedforward": "swiglu", "dropout": 0.3}),
])  # fmt: skip
def test_gradients(position, options):
    sizes = dict(d_ff=2, num_encoder_layers=1, num_decoder_layers=1, max_len=4)
    model = make(7, 7, position=position, **(sizes | options))
    for i, part in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        part.key = i
    check_gradients(model, SRC, TGT, limit=4)


def test_equations():
    model = make(tie_output=False)
    c = model.config
    mask = padding_mask(ids=SRC, pad_id=0)
    memory = model.encoder(model.src_embedding(SRC), mask)
    h = model.decoder(model.tgt_embedding(TGT), memory, causal_mask(3), mask)
    expected = h @ model.output.W.data + model.output.b.data
    np.testing.assert_allclose(model(SRC, TGT), expected, rtol=1e-12)
    vectors = model.src_embedding.embedding.E.data[SRC] * c.d_model**0.5 + model.src_embedding.position.table(4)
    np.testing.assert_allclose(model.src_embedding(SRC), vectors, rtol=1e-13)
    found, mask_found = model.encode(SRC)
    np.testing.assert_array_equal(found, memory)
    np.testing.assert_array_equal(mask_found, mask)
    np.testing.assert_array_equal(model.decode(TGT, memory, mask), model(SRC, TGT))


def test_target_mask_hides_besides_the_future():
    model = make()
    before = model(SRC, TGT)
    np.testing.assert_array_equal(model(SRC, TGT, tgt_mask=np.ones((3, 3), bool)), before)  # still causal
    keep = np.array([[True, True, True], [True, False, True]])[:, None, None]
    y = model(SRC, TGT, tgt_mask=keep)
    np.testing.assert_array_equal(y[0], before[0])
    tgt = TGT.copy()
    tgt[1, 1] = 6  # hidden from the token behind it
    np.testing.assert_array_equal(model(SRC, tgt, tgt_mask=keep)[1, 2], y[1, 2])
    assert not np.allclose(before[1, 2], y[1, 2])


@pytest.mark.parametrize(("options", "tables", "output"), [
    ({"tie_embeddings": True}, 1, TiedLinear),
    ({}, 2, TiedLinear),
    ({"tie_output": False}, 2, Linear),
    ({"tie_embeddings": True, "tie_output": False}, 1, Linear),
])  # fmt: skip
def test_ties(options, tables, output):
    model = make(**options)
    names = [name for name, _ in model.named_parameters()]
    assert sum(name.endswith(".E") for name in names) == tables
    assert type(model.output) is output
    assert (model.output.E is model.tgt_embedding.embedding.E) if output is TiedLinear else model.output.b is not None
    attention, norms, network = 4 * (16 + 4), 8, (4 * 6 + 6) + (6 * 4 + 4)
    layers = 2 * (attention + network + 2 * norms) + 2 * (2 * attention + network + 3 * norms)
    assert model.num_parameters() == layers + tables * 7 * 4 + (4 * 7 + 7 if output is Linear else 0)
    # all uses of a table add to its one gradient
    dlogits = normal(2, 3, 7, seed=2)
    model(SRC, TGT)
    model.backward(dlogits)
    table = model.tgt_embedding.embedding.E
    whole = table.grad.copy()
    untied = make(tie_output=False, **{k: v for k, v in options.items() if k == "tie_embeddings"})
    state = model.state_dict()
    if output is TiedLinear:
        state |= {"output.W": table.data.T, "output.b": np.zeros(7)}
    untied.load_state_dict(state)
    untied(SRC, TGT)
    untied.backward(dlogits)
    expected = untied.tgt_embedding.embedding.E.grad
    if output is TiedLinear:
        expected = expected + untied.output.W.grad.T
    np.testing.assert_allclose(whole, expected, rtol=1e-10, atol=1e-11)


def test_ids_have_no_gradient_but_padding_has_a_table_row():
    model = make(tie_output=False)
    y = model(SRC, TGT)
    assert model.backward(np.ones_like(y)) is None
    E = model.src_embedding.embedding.E.grad
    assert (E[0] == 0).all()  # nothing flows to padding
    assert (E[[1, 2]] == 0).all()  # nor to tokens that do not occur
    assert (np.abs(E[3:]).sum(1) > 0).all()


@positions
def test_config_round_trip(position):
    config = TransformerConfig(7, 7, position=position, **SIZES)
    again = TransformerConfig(**json.loads(json.dumps(config.to_dict())))
    assert again == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 8
    a, b = Transformer(config, rng=3), Transformer(again, rng=3)
    assert all((x == y).all() for x, y in zip(a.state_dict().values(), b.state_dict().values()))
    assert {x.dtype for x in a.state_dict().values()} == {np.dtype(np.float32)}


def test_paper_base_size():
    config = TransformerConfig(37000, 37000, tie_embeddings=True)
    assert (config.d_model, config.num_heads, config.d_ff) == (512, 8, 2048)
    assert (config.num_encoder_layers, config.num_decoder_layers, config.dropout) == (6, 6, 0.1)
    assert config.norm_placement == "post"


@pytest.mark.parametrize("position", ["sinusoidal", "learned", None])
def test_token_embedding(position):
    model = make(position=position or "rope")
    layer = model.src_embedding
    assert isinstance(layer, TokenEmbedding)
    assert (layer.position is None) == (position is None)
    ids = np.array([[3, 3, 3, 3]])
    x = layer(ids)
    assert np.allclose(x[0, 0], x[0, 1]) == (position is None)
    np.testing.assert_array_equal(layer(ids[:, :1], 2)[0, 0], x[0, 2])


def test_it_learns_to_copy_a_batch():
    sizes = SIZES | {"d_model": 16, "d_ff": 32, "norm_placement": "pre"}
    model = Transformer(TransformerConfig(7, 7, **sizes), rng=0)
    loss, optimizer = CrossEntropyLoss(), Adam(model.parameters(), lr=0.01)
    labels = np.array([[4, 4, 2], [3, 2, -100]])
    values = []
    for _ in range(40):
        model.zero_grad()
        values.append(float(loss(model(SRC, TGT), labels)))
        model.backward(loss.backward())
        optimizer.step()
    assert values[-1] < 0.05 < 1 < values[0]
    assert model.pending == 0
