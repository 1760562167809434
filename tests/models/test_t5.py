"""T5, in its two versions."""

import json

import numpy as np
import pytest
from helpers import check_gradients, generic, normal
from huggingface import build, compare, copy_weights, in_float64
from parity.names import of_huggingface

from numtrans.errors import ConfigError, ShapeError
from numtrans.layers import GatedFeedForward, Linear, T5RelativeBias, TiedLinear, causal_mask, padding_mask
from numtrans.losses import CrossEntropyLoss
from numtrans.models import T5, T5Config
from numtrans.optim import Adam

SRC = np.array([[3, 4, 5, 6, 1], [6, 5, 0, 0, 0]])
TGT = np.array([[0, 4, 4], [0, 3, 2]])
SIZES = dict(d_model=4, d_kv=3, num_heads=2, d_ff=5, num_encoder_layers=2, num_decoder_layers=2, num_buckets=4,
             max_distance=5, dropout=0.0)  # fmt: skip
VERSIONS = {"1.0": {}, "1.1": {"feedforward": "geglu_tanh", "tie_output": False}}
versions = pytest.mark.parametrize("version", VERSIONS)


def make(**options):
    return generic(T5(T5Config(7, **(SIZES | options)), rng=0))


@pytest.mark.parametrize(("version", "d_kv", "length"), [("1.0", 5, 12), ("1.1", 4, 9)])
def test_equal_to_transformers(version, d_kv, length, monkeypatch):
    torch, transformers = in_float64(monkeypatch, "t5")
    config = transformers.T5Config(
        vocab_size=11, d_model=8, d_kv=d_kv, num_heads=2, d_ff=9, num_layers=2, num_decoder_layers=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=10, decoder_start_token_id=0,
        feed_forward_proj={"1.0": "relu", "1.1": "gated-gelu"}[version], tie_word_embeddings=version == "1.0",
    )  # fmt: skip

    def kind(config):
        model = transformers.T5ForConditionalGeneration(config)
        if version == "1.1":  # the published weights have a matrix of their own
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        return model

    reference = build(torch, kind, config)
    model = T5(T5Config(11, 8, d_kv, 2, 9, 2, 2, 8, 10, **VERSIONS[version]))
    fit = of_huggingface("t5", model)
    copy_weights(model, reference, fit)
    rng = np.random.default_rng(2)
    src, tgt = rng.integers(1, 11, (3, length)), rng.integers(1, 11, (3, 7))
    src[0, 4:], src[2, 1:], tgt[:, 0] = 0, 0, 0
    real = torch.from_numpy((src != 0).astype(int))
    y = reference(torch.from_numpy(src), attention_mask=real, decoder_input_ids=torch.from_numpy(tgt)).logits
    compare(torch, model, model(src, tgt), reference, y, fit)


# a large eps, because dropout leaves some tokens near 0, where the norm bends too much for a step of 1e-5
@pytest.mark.parametrize("options", [{}, VERSIONS["1.1"], {"dropout": 0.3, "feedforward": "gelu", "norm_eps": 0.1}])
def test_gradients(options):
    model = make(d_ff=3, num_decoder_layers=1, **options)
    for i, part in enumerate(m for m in model.modules() if hasattr(m, "key")):
        part.key = i
    check_gradients(model, SRC, TGT, limit=4)


@versions
def test_equations(version):
    model = make(**VERSIONS[version])
    mask = padding_mask(ids=SRC, pad_id=0)
    E = model.embedding.E.data  # looked up without a factor sqrt(D)
    memory = model.encoder(E[SRC], mask)
    h = model.decoder(E[TGT], memory, causal_mask(3), mask)
    expected = h / 2 @ E.T if version == "1.0" else h @ model.output.W.data  # sqrt(D) = 2
    np.testing.assert_allclose(model(SRC, TGT), expected, rtol=1e-12)
    found, found_mask = model.encode(SRC)
    np.testing.assert_array_equal(found, memory)
    np.testing.assert_array_equal(found_mask, mask)
    np.testing.assert_array_equal(model.decode(TGT, memory, mask), model(SRC, TGT))


@versions
def test_parts(version):
    model = make(**VERSIONS[version])
    assert type(model.output) is (TiedLinear if version == "1.0" else Linear)
    if version == "1.0":
        assert model.output.E is model.embedding.E
    else:
        assert type(model.decoder.layers[0].feedforward.sublayer) is GatedFeedForward
    for stack, both in ((model.encoder, True), (model.decoder, False)):
        tables = {id(layer.self_attention.sublayer.attention.position) for layer in stack.layers}
        position = stack.layers[1].self_attention.sublayer.attention.position
        assert len(tables) == 1  # one table for all layers
        assert type(position) is T5RelativeBias
        assert position.bidirectional is both
        assert all(layer.self_attention.sublayer.attention.scale == 1.0 for layer in stack.layers)
    for layer in model.decoder.layers:
        assert layer.cross_attention.sublayer.attention.position is None
        assert layer.cross_attention.sublayer.attention.scale == 1.0
    assert not any(name.endswith((".b", ".beta")) for name, _ in model.named_parameters())


@versions
def test_padding_of_the_source_cannot_change_anything(version):
    model = make(**VERSIONS[version])
    y = model(SRC, TGT)
    assert y.shape == (2, 3, 7)
    np.testing.assert_allclose(model(SRC[1:, :2], TGT[1:])[0], y[1], rtol=1e-10)
    for mask in (SRC != 0, (SRC != 0)[:, None, None], (SRC != 0).astype(int)):
        np.testing.assert_array_equal(model(SRC, TGT, src_mask=mask), y)
    assert not np.allclose(model(SRC, TGT, src_mask=np.ones_like(SRC))[1], y[1])


def test_target_is_causal_and_sees_the_source():
    model = make()
    before = model(SRC, TGT)
    for token in (1, 2):
        tgt = TGT.copy()
        tgt[:, token] = 5
        same = (model(SRC, tgt) == before).all(axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(3) < token)
    src = SRC.copy()
    src[:, 0] = 2
    assert (model(src, TGT) != before).any(axis=2).all()
    assert not np.allclose(model(SRC[:, [1, 0, 2, 3, 4]], TGT), before)  # order plays a part
    keep = np.array([[True, True, True], [True, False, True]])[:, None, None]
    hidden = model(SRC, TGT, tgt_mask=keep)
    np.testing.assert_array_equal(hidden[0], before[0])
    assert not np.allclose(hidden[1, 2], before[1, 2])


def test_dropout_of_embeddings_and_behind_the_closing_norms():
    model = make(dropout=0.5, num_encoder_layers=1, num_decoder_layers=1)
    assert (model(SRC, TGT) != model(SRC, TGT)).any()
    dropped = (model.output_dropout, model.memory_dropout, model.src_dropout, model.tgt_dropout)
    assert all(part.p == 0.5 and part.counter == 2 for part in dropped)
    assert (model.eval()(SRC, TGT) == model(SRC, TGT)).all()


def test_uses_of_the_one_table_add_up():
    tied, untied = make(), make(tie_output=False)
    state = tied.state_dict()
    untied.load_state_dict(state | {"output.W": tied.embedding.E.data.T / 2})
    dlogits = normal(2, 3, 7)
    for model in (tied, untied):
        model(SRC, TGT)
        assert model.backward(dlogits) is None
    expected = untied.embedding.E.grad + untied.output.W.grad.T / 2
    np.testing.assert_allclose(tied.embedding.E.grad, expected, rtol=1e-10, atol=1e-12)


def test_initial_weights_are_as_published():
    model = T5(T5Config(300, 64, 16, 8, 160, 1, 1, tie_output=False, feedforward="geglu_tanh"), rng=0)
    expected = {"embedding": 1, "output": 64**-0.5, "q_proj": (64 * 16) ** -0.5, "k_proj": 64**-0.5,
                "v_proj": 64**-0.5, "out_proj": 128**-0.5, "gate_proj": 64**-0.5, "up_proj": 64**-0.5,
                "down_proj": 160**-0.5, "position": 64**-0.5}  # fmt: skip
    for name, p in model.named_parameters():
        assert p.data.dtype == np.float32
        if p.data.ndim == 1:
            assert (p.data == 1).all()
        else:
            assert p.data.std() == pytest.approx(expected[name.split(".")[-2]], rel=0.15 if p.data.size < 300 else 0.05)


def test_published_number_of_parameters():
    c = T5Config()  # t5-small: 60,506,624
    attention, network = 4 * c.d_model * c.num_heads * c.d_kv, 2 * c.d_model * c.d_ff
    encoder = 6 * (attention + network + 2 * c.d_model) + c.d_model + c.num_buckets * c.num_heads
    decoder = 6 * (2 * attention + network + 3 * c.d_model) + c.d_model + c.num_buckets * c.num_heads
    assert c.vocab_size * c.d_model + encoder + decoder == 60_506_624
    attention, network = 4 * 4 * 2 * 3, 2 * 4 * 5
    expected = 7 * 4 + 2 * (attention + network + 8) + 2 * (2 * attention + network + 12) + 2 * 4 + 2 * 4 * 2
    assert make().num_parameters() == expected
    assert make(tie_output=False).num_parameters() == expected + 28


@versions
def test_it_learns_to_copy_a_batch(version):
    sizes = SIZES | {"d_model": 16, "d_kv": 8, "d_ff": 32}
    model = T5(T5Config(7, **(sizes | VERSIONS[version])), rng=0)
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


def test_config_and_wrong_inputs():
    config = T5Config(7, **SIZES)
    assert T5Config(**json.loads(json.dumps(config.to_dict()))) == config
    assert T5Config(d_model=10, num_heads=4, d_kv=3)  # heads of any width
    with pytest.raises(ConfigError, match="T5Config: d_kv is 0, expected at least 1"):
        T5Config(d_kv=0)
    with pytest.raises(ConfigError, match="T5RelativeBias: num_buckets"):
        make(num_buckets=3)
    with pytest.raises(ConfigError, match="T5Config: feedforward is 'gated', expected one of relu"):
        make(feedforward="gated")
    model = make()
    with pytest.raises(ShapeError, match=r"T5: src has shape \(5,\), expected \(batch, tokens\)"):
        model(SRC[0], TGT)
    with pytest.raises(ShapeError, match=r"T5: tgt has shape \(3,\), expected \(batch, tokens\)"):
        model.decode(TGT[0], *model.encode(SRC))
    with pytest.raises(ShapeError, match="T5: tgt has 1 rows, expected 2 as src"):
        model(SRC, TGT[:1])
    with pytest.raises(ShapeError, match=r"T5: mask has shape \(2, 3\), expected \(2, 5\), one entry a token"):
        model(SRC, TGT, src_mask=np.ones((2, 3), bool))
    with pytest.raises(ShapeError, match=r"T5: tgt_mask has shape \(2, 1, 1, 4\)"):
        model(SRC, TGT, tgt_mask=np.ones((2, 1, 1, 4), bool))
