"""Faults that were made in real code, each as a right value that a layer must give and a faulty one that it must not.

Covered: ATT-01 02 04 05 06 08 10 11 12 13, MHA-01 02 05, DEC-01 02 03, POS-04, NRM-01 02 03 04 05 07 09,
RES-01 02 04, FFN-01 02 05, LIN-01 02, DRP-01 02 05, EMB-01 02, TIE-01 02, STA-01, NUM-01, ZRO-01.
Part of a later issue, as nothing generates text yet: GEN-*, BEAM-*, and the cache of POS-07.

The numbers in layers.json have 12 digits, so they are met to 1e-10. The same comparison must reject the faulty value.
"""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import check_gradients, generic, normal

import numtrans.layers.dropout
import numtrans.layers.embedding
from numtrans.blocks import Decoder, DecoderLayer, Encoder
from numtrans.data.batching import Seq2SeqBatches, shift_targets
from numtrans.errors import ShapeError
from numtrans.layers import (
    GELU,
    BatchNorm,
    Dropout,
    Embedding,
    Identity,
    LayerNorm,
    LearnedPositionalEncoding,
    Linear,
    MultiHeadAttention,
    ReLU,
    Residual,
    RMSNorm,
    ScaledDotProductAttention,
    Softmax,
    SwiGLU,
    TiedLinear,
    padding_mask,
)
from numtrans.layers.multi_head_attention import merge_heads, split_heads
from numtrans.losses import CrossEntropyLoss
from numtrans.models import Transformer, TransformerConfig
from numtrans.models.embeddings import TokenEmbedding
from numtrans.module import Module
from numtrans.optim import SGD, Adam

FAULTS = json.loads(Path(__file__).with_name("layers.json").read_text())


def fault(identity):
    """(input, right, faulty) of an entry; lists become arrays."""
    data = FAULTS[identity]["data"]
    return tuple(arrays(data[part]) for part in ("input", "right", "faulty"))


def arrays(value):
    if isinstance(value, dict):
        return {key: arrays(item) for key, item in value.items()}
    return np.array(value, dtype=bool if "true" in str(value).lower() else float) if isinstance(value, list) else value


def close(a, b):
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-10, atol=1e-10))


def check(ours, right, *faulty):
    """`ours` is `right`, and no faulty value would have passed."""
    assert close(ours, right), f"got\n{ours}\nexpected\n{right}"
    for wrong in faulty:
        assert not close(wrong, right)


def weights_of(scores, mask=None, causal=False):
    """Attention weights for given scores: keys and values are unit vectors, so that the output is the weights."""
    unit = np.eye(scores.shape[-1])[None, None]
    attention = ScaledDotProductAttention(causal=causal, scale=1.0)
    out = attention(np.array(scores)[None, None], unit, unit, mask=mask)
    assert close(out, attention.attention_weights)
    return out[0, 0]


# ---- attention


@pytest.mark.filterwarnings("error")
def test_att_01_large_logits():
    given, right, faulty = fault("ATT-01")
    softmax = Softmax()
    for shift in (0, -10000, -5000):
        check(softmax(given["logits"] + shift), right["p"], faulty["p"])
        check(softmax.backward(given["dy"]), right["dlogits"], faulty["p"])
    single = softmax(given["logits"].astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, right["p"], rtol=1e-6)
    check(weights_of(given["logits"]), right["p"], faulty["p"])


def test_att_02_softmax_jacobian():
    given, right, faulty = fault("ATT-02")
    softmax = Softmax()
    check(softmax(given["scores"]), right["p"])
    dS = softmax.backward(given["dP"])
    check(dS, right["dS"], faulty["dS"])
    check(dS.sum(), 0.0, faulty["row_sum"])
    p = softmax(given["scores"])
    check(softmax.backward(np.ones((1, 3))), right["dS_for_constant_dP"], p * (1 - p))
    unit = np.eye(3)[None, None]  # the same inside attention
    attention = ScaledDotProductAttention(scale=1.0)
    attention(given["scores"][None, None], unit, unit)
    check(attention.backward(given["dP"][None, None])[0][0, 0], right["dS"], faulty["dS"])


def test_att_04_normalized_over_keys():
    given, right, faulty = fault("ATT-04")
    weights = weights_of(given["scores"])
    check(weights, right["weights"], faulty["weights"])
    check(weights.sum(-1), np.ones(3), faulty["weights"].sum(-1))
    check(weights_of(given["scores"][:2]), right["weights"][:2])


def test_att_05_scaled_by_the_width_of_a_head():
    given, right, faulty = fault("ATT-05")
    wrong = faulty["out_scaled_by_d_model"]
    check(ScaledDotProductAttention()(given["q"], given["k"], given["v"]), right["out"], wrong)
    layer = MultiHeadAttention(4, 2).astype(np.float64)
    for part in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        part.W.data = np.eye(4)
    out = layer(*(merge_heads(given[name]) for name in "qkv"))
    check(out, merge_heads(right["out"]), merge_heads(wrong))


def test_att_06_scale_in_backward():
    given, right, faulty = fault("ATT-06")
    attention = ScaledDotProductAttention()
    check(attention(given["q"], given["k"], given["v"]), right["out"])
    for name, ours in zip(("dQ", "dK", "dV"), attention.backward(given["dO"])):
        ratio = faulty[f"ratio_{name}"]
        check(ours, right[name], *([ratio * ours] if ratio != 1 else []))


def test_att_08_masked_weights_are_zero():
    given, right, faulty = fault("ATT-08")
    for which in "ab":
        weights = weights_of(given["scores"], given[f"keep_{which}"])
        check(weights, right[f"weights_{which}"])
        assert (weights[~given[f"keep_{which}"]] == 0).all()
        check(weights.sum(), 1.0, faulty["a_weight_sum"])
    check(right["weights_a"], right["weights_a"], faulty["a_multiplied_scores"], faulty["a_multiplied_weights"])
    check(weights_of(given["scores"] * given["keep_a"]), faulty["a_multiplied_scores"])  # what a product would do


def test_att_10_true_means_may_attend():
    given, right, faulty = fault("ATT-10")
    q, k, v = (given[name][None] for name in "qkv")
    mask = padding_mask([given["valid_length"]], 3)
    check(ScaledDotProductAttention()(q, k, v, mask=mask)[0], right["weights"], faulty["weights"])
    k, v = k.copy(), v.copy()
    k[..., 2, :] = v[..., 2, :] = 1e3
    check(ScaledDotProductAttention()(q, k, v, mask=mask)[0], right["weights"])
    reversed_mask = ScaledDotProductAttention()(q, given["k"][None], given["v"][None], mask=~mask)
    check(reversed_mask[0], faulty["weights"])


def test_att_11_no_key_left():
    given, right, faulty = fault("ATT-11")
    attention = ScaledDotProductAttention()
    x = given["x"]
    check(attention(x, x, x, mask=given["keep"]), right["out"])
    weights = attention.attention_weights
    check(weights, [[[[1.0, 0.0], [0.0, 0.0]]]], faulty["weights_minus_inf"], faulty["weights_minus_1e9"])
    for name, ours in zip(("dQ", "dK", "dV"), attention.backward(np.ones_like(x))):
        check(ours, right[name], ours * np.nan)
    # the shared projections: as if the row without keys were not there
    layer = generic(MultiHeadAttention(4, 2))
    x, dy = normal(1, 3, 4), normal(1, 3, 4, seed=1)
    keep = np.array([[True, True, False], [True, False, True], [False, False, False]])
    layer(x, mask=keep)
    layer.backward(dy)
    found = {name: p.grad for name, p in layer.named_parameters()}
    layer.zero_grad()
    layer(x[:, :2], x, x, mask=keep[:2])
    layer.backward(dy[:, :2])
    for name, p in layer.named_parameters():
        skipped = dy[:, 2].sum(0) if name == "out_proj.b" else 0  # that row's output is the bias
        check(found[name], p.grad + skipped, found[name] * np.nan)


def test_att_12_causal_diagonal():
    given, right, faulty = fault("ATT-12")
    T = given["T"]
    check(weights_of(np.zeros((T, T)), causal=True), right["weights"], faulty["weights_k_plus_1"])
    shifted = np.tril(np.ones((T, T), bool), -1)  # the other shift: a first row without keys
    check(right["weights"], right["weights"], weights_of(np.zeros((T, T)), shifted))


def test_att_13_last_query_meets_last_key():
    given, right, faulty = fault("ATT-13")
    Tq, Tk = given["T_q"], given["T_k"]
    check(weights_of(np.zeros((Tq, Tk)), causal=True), right["weights"], faulty["weights"])
    check(weights_of(np.zeros((1, 4)), causal=True), right["weights_1x4"], faulty["weights_1x4"])


def test_mha_01_split():
    given, right, faulty = fault("MHA-01")
    check(split_heads(given["x"], given["heads"]), right["heads"], faulty["heads"])


def test_mha_02_merge():
    given, right, faulty = fault("MHA-02")
    check(merge_heads(given["head_out"]), right["merged"], faulty["merged"])


def test_mha_05_gradients_of_all_uses_add():
    given, right, faulty = fault("MHA-05")
    layer = MultiHeadAttention(2, 1, bias=False).astype(np.float64)
    for part, W in (("q", given["Wq"]), ("k", given["Wk"]), ("v", given["Wv"]), ("out", np.eye(2))):
        getattr(layer, f"{part}_proj").W.data = W
    x, dO = given["x"][None], given["dO"][None]
    check(layer(x)[0], right["out"])
    check(layer.backward(dO)[0], right["dx"], *faulty.values())
    layer(x, x, x)
    for ours, name in zip(layer.backward(dO), "qkv"):  # three inputs: the parts by themselves
        check(ours[0], faulty[f"dx_only_{name}"], right["dx"])


# ---- encoder and decoder


class Cross(Module):
    """A decoder layer that is nothing but attention to the memory."""

    def __init__(self):
        super().__init__()
        self.attention = ScaledDotProductAttention()

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None):
        return self.attention(tgt[:, None], memory[:, None])[:, 0]

    def backward(self, dy):
        return tuple(g[:, 0] for g in self.attention.backward(dy[:, None]))


def test_dec_01_memory_is_read_by_every_layer():
    given, right, faulty = fault("DEC-01")
    decoder = Decoder(2, 2, 1, 2)
    decoder.layers = [Cross(), Cross()]
    check(decoder(given["q"][None], given["M"][None])[0], right["out"])
    check(decoder.backward(given["dy"][None])[1][0], right["dM"], *faulty.values())


def test_dec_02_padding_of_the_source_in_cross_attention():
    given, right, faulty = fault("DEC-02")
    attention, q, memory = ScaledDotProductAttention(), given["q"][None], given["memory"][None]
    mask = padding_mask([given["source_length"]], 3)
    assert mask.shape == (1, 1, 1, 3)
    check(attention(q, memory, mask=mask)[0], right["out"], faulty["out"])
    dmemory = attention.backward(np.ones_like(q))[1][0]
    check(dmemory, right["dMemory"])
    check(dmemory[0, 2], np.zeros(2), faulty["dMemory_pad_row"])
    # a decoder layer hands the mask of the memory to its cross-attention, also when Tt == Ts
    layer = generic(DecoderLayer(4, 2, 8))
    tgt, memory = normal(1, 3, 4), normal(1, 3, 4, seed=1)
    y = layer(tgt, memory, memory_mask=mask)
    assert (layer.backward(normal(*y.shape, seed=2))[1][0, 2] == 0).all()
    assert not close(layer(tgt, memory), y)
    memory[0, 2] = 1e3
    assert (layer(tgt, memory, memory_mask=mask) == y).all()


def test_dec_03_target_shift():
    given, right, faulty = fault("DEC-03")
    ids = given["ids"].astype(int)
    read, labels = shift_targets(ids[None], given["pad"])
    check(read[0], right["decoder_input"], faulty["decoder_input"])
    check(np.where(labels[0] == -100, given["pad"], labels[0]), right["labels"], faulty["labels"])
    assert (labels != -100).sum() == right["scored_tokens"]
    batch = next(Seq2SeqBatches([([7], [5, 6]), ([7], [5, 6, 8])], 2, shuffle=False).epoch(0))
    np.testing.assert_array_equal(batch.tgt_in, [[1, 5, 6, 0], [1, 5, 6, 8]])
    np.testing.assert_array_equal(batch.tgt_out, [[5, 6, 2, -100], [5, 6, 8, 2]])


def test_pos_04_scale_of_the_embedding():
    given, right, faulty = fault("POS-04")
    table = Embedding(2, 4, scale=True).astype(np.float64)
    table.E.data = np.stack([np.zeros(4), given["E"]])
    layer = TokenEmbedding(table, "sinusoidal", max_len=5)
    check(layer(np.array([[0, 1]]))[0, given["pos"]], right["out"], *faulty.values())
    layer.backward(np.ones((1, 2, 4)))
    check(table.E.grad[1], right["dE_for_unit_dy"], np.ones(4))
    check(TiedLinear(table.E)(np.ones((1, 4))), [[0.0, 10.0]], [[0.0, 20.0]])  # none on the side of the output


# ---- norms and residuals


def ours_of(layer, x, dy=None, **parameters):
    """(y, dx) of a float64 layer with the given parameters."""
    layer.astype(np.float64)
    for name, value in parameters.items():
        getattr(layer, name).data = np.array(value)
    y = layer(np.array(x))
    return y, None if dy is None else layer.backward(np.array(dy))


def test_nrm_01_population_variance():
    given, right, faulty = fault("NRM-01")
    check(ours_of(LayerNorm(4, eps=given["eps"]), given["x"])[0], right["y"], faulty["y"])
    assert math.isclose((faulty["y"] / right["y"])[0, 0], faulty["ratio"], rel_tol=1e-5)  # but for eps


def test_nrm_02_eps_inside_the_root():
    given, right, faulty = fault("NRM-02")
    check(ours_of(LayerNorm(2), given["x"])[0], right["y"], faulty["y"])
    y, dx = ours_of(LayerNorm(3), given["constant"][None], given["dy_constant"][None])
    check(y, right["y_constant"])
    check(dx, right["dx_constant"], right["dx_constant"] / math.sqrt(1e-5))  # 1 / eps for 1 / sqrt(eps)


def test_nrm_03_one_token_at_a_time():
    given, right, faulty = fault("NRM-03")
    check(ours_of(LayerNorm(3), given["x"])[0], right["y"], *faulty.values())
    _, dx = ours_of(LayerNorm(3), given["x"], [[[0.0, 0.0, 0.0], [1.0, 2.0, -1.0]]])
    assert (dx[0, 0] == 0).all()
    assert (dx[0, 1] != 0).all()


def test_nrm_04_both_paths_of_backward():
    given, right, faulty = fault("NRM-04")
    layer = LayerNorm(4)
    y, dx = ours_of(layer, given["x"], given["dy"], gamma=given["gamma"])
    check(dx, right["dx"], faulty["no_terms"], faulty["no_xhat_term"], faulty["no_mean_term"])
    check(layer.gamma.grad, right["dgamma"])
    check(layer.beta.grad, right["dbeta"])
    sums = [dx.sum(), (dx * y / given["gamma"]).sum()]
    check(sums, right["sums"], faulty["no_terms_sums"], faulty["no_xhat_sums"], faulty["no_mean_sums"])


class NoVariancePath(LayerNorm):
    """A LayerNorm whose backward has lost the path through sigma."""

    def backward(self, dy):
        _, sigma = self.saved()
        dx = dy * self.gamma.data
        self.gamma.add_grad(np.zeros(4))
        return (dx - dx.mean(-1, keepdims=True)) / sigma


def test_nrm_05_a_cotangent_of_ones_sees_nothing():
    given, right, faulty = fault("NRM-05")
    x, ones, dy = given["x"], given["dy_vacuous"], given["dy"]
    check(ours_of(LayerNorm(4), x, ones)[1], right["dx_ones"])
    check(ours_of(NoVariancePath(4, bias=False), x, ones)[1], faulty["dx_ones"])  # passes as well
    check(ours_of(LayerNorm(4), x, dy)[1], right["dx"], faulty["dx"])
    check(ours_of(NoVariancePath(4, bias=False), x, dy)[1], faulty["dx"])
    check_gradients(generic(LayerNorm(4)), x)
    for limit in (64, 1):  # the check of these tests catches it, by coordinates and along directions
        with pytest.raises(AssertionError, match="input 0"):
            check_gradients(generic(NoVariancePath(4, bias=False)), x, limit=limit)


def test_nrm_07_gain_in_rms_norm():
    given, right, faulty = fault("NRM-07")
    layer = RMSNorm(3, eps=given["eps"])
    y, dx = ours_of(layer, given["x"], given["dy"], gamma=given["gain"])
    check(y, right["y"])
    check(dx, right["dx"], *faulty.values())
    check(layer.gamma.grad, right["dgain"])


def test_nrm_09_running_statistics():
    given, right, faulty = fault("NRM-09")
    layer = BatchNorm(1, momentum=given["momentum"])
    check(ours_of(layer, given["x"])[0], right["y"])
    check(layer.running_mean, right["running_mean"])
    wrong = [[faulty["running_var_biased"]], [faulty["running_var_momentum_swapped"]]]
    check(layer.running_var, right["running_var"], *wrong)
    with pytest.raises(ShapeError, match=r"1 token.*at least 2"):
        layer(np.ones((1, 1)))


class Zero(Module):
    """f(x) = 0."""

    def forward(self, x):
        return 0 * x

    def backward(self, dy):
        return 0 * dy


def test_res_01_the_skip_path_is_the_raw_input():
    given, right, faulty = fault("RES-01")
    y, dx = ours_of(Residual(Zero(), LayerNorm(4), "pre"), given["x"], given["dy"])
    check(y, right["y"], faulty["y"])
    check(dx, right["dx"], ours_of(LayerNorm(4), given["x"], given["dy"])[1])


@pytest.mark.parametrize("make", [Encoder, Decoder])
def test_res_02_closing_norm_of_a_pre_norm_stack(make):
    given, right, faulty = fault("RES-02")
    x = given["x"][None]
    stack = make(2, 4, 2, 8, norm_placement="pre").astype(np.float64)
    for name, p in stack.named_parameters():
        if name.endswith(("out_proj.W", "linear2.W")):  # zero sublayers
            p.data[...] = 0
    y = stack(x) if make is Encoder else stack(x, x)
    check(y[0], right["y"], faulty["y"])
    stack.backward(np.array([[[1.0, 2.0, 0.0, 0.0]]]))
    assert np.abs(stack.norm.gamma.grad).max() > 0.1
    post = make(2, 4, 2, 8, norm_placement="post")
    assert post.norm is None


def test_res_04_nothing_is_changed_in_place():
    given, right, faulty = fault("RES-04")
    skip = Residual(ReLU(), Identity(), "pre")
    x = given["x"].copy()
    check(skip(x), right["x_plus_relu"], faulty["x_plus_relu"])
    assert x.tobytes() == given["x"].tobytes()
    x = given["x"].copy()  # the fault itself
    relu = x
    relu[relu < 0] = 0
    check(x + relu, faulty["x_plus_relu"])


# ---- feed-forward


def test_ffn_01_two_forms_of_gelu():
    given, right, _ = fault("FFN-01")
    x, forms = given["x"], {}
    for name, layer in (("erf", GELU()), ("tanh", GELU("tanh"))):
        other = {"erf": "tanh", "tanh": "erf"}[name]
        forms[name] = layer(x)
        check(forms[name], right[name], right[other])
        check(layer.backward(np.ones(7)), right[f"{name}_grad"], right[f"{other}_grad"])
    grid = np.linspace(-5, 5, 2001)
    difference = np.abs(GELU()(grid) - GELU("tanh")(grid)).max()
    assert difference == pytest.approx(right["max_difference"], rel=1e-3)


def test_ffn_02_derivative_of_gelu():
    given, right, faulty = fault("FFN-02")
    gelu = GELU()
    gelu(given["x"])
    check(gelu.backward(np.ones(5)), right["derivative"], faulty["derivative"])


def test_ffn_05_gate_and_value():
    given, right, faulty = fault("FFN-05")
    layer = SwiGLU(4, 2).astype(np.float64)
    layer.gate_proj.W.data, layer.up_proj.W.data = np.eye(4)[:, :2], np.eye(4)[:, 2:]
    layer.down_proj.W.data = np.eye(4)[:2]
    y = layer(np.concatenate([given["g"], given["u"]])[None])
    check(y[0, :2], right["y"], faulty["swapped"])
    dx = layer.backward(np.array([[1.0, 1.0, 0.0, 0.0]]))
    check(dx[0, :2], right["dg"], faulty["dg_sigmoid_only"], right["du"])
    check(dx[0, 2:], right["du"], right["dg"])


# ---- linear layers, dropout, embeddings


def test_lin_01_bias_gradient():
    given, right, faulty = fault("LIN-01")
    layer = Linear(2, 2)
    y, dx = ours_of(layer, given["x"], given["dy"], W=given["W"], b=given["b"])
    check(y, given["x"] @ given["W"] + given["b"])
    check(dx, right["dx"])
    check(layer.W.grad, right["dW"])
    check(layer.b.grad, right["db"], faulty["db"])
    layer.b.grad = None
    with pytest.raises(ShapeError, match=r"gradient has shape \(3, 2\), expected \(2,\)"):
        layer.b.add_grad(faulty["db"])  # cannot even be kept
    layer.b.add_grad(right["db"])
    SGD(layer.parameters(), lr=0.1).step()
    assert layer.b.data.shape == (2,)


def test_lin_02_broadcast_operands():
    given, right, faulty = fault("LIN-02")
    dy, a, b = given["dy"], given["a"], given["b"]
    position = LearnedPositionalEncoding(4, 1).astype(np.float64)  # (3, 1, 4) + (1, 4)
    position(np.zeros((3, 1, 4)))
    position.backward(dy[:, None])
    check(position.W.grad, right["add_row"].reshape(1, 4), dy)
    assert list(dy.shape) == faulty["add_row_shape"].tolist()
    outer = Linear(1, 4, bias=False)  # (3, 1) * (1, 4)
    y, da = ours_of(outer, a, dy, W=b)
    check(y, a * b)
    check(da, right["mul_da"], dy * b)
    check(outer.W.grad, right["mul_db"], dy * a)


def test_drp_01_one_mask_for_forward_and_backward(monkeypatch):
    given, right, faulty = fault("DRP-01")
    layer = Dropout(given["p"])
    with monkeypatch.context() as patch:
        patch.setattr(numtrans.layers.dropout, "keep_mask", lambda *_: given["keep"].astype(bool))
        check(layer(given["x"]), right["y"])
        check(layer.backward(given["dy"]), right["dx"], faulty["dx_no_scale"], faulty["dx_no_mask"])
    x = np.ones(1000)  # with the real generator
    y = layer(x)
    assert (layer.backward(x) == y).all()
    assert 0 < (y == 0).sum() < 1000
    assert not (layer(x) == y).all()  # what a redrawn mask would give


def small(dropout, **options):
    sizes = dict(d_model=8, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1)
    return TransformerConfig(11, 11, dropout=dropout, **(sizes | options))


def test_drp_02_modes_reach_every_part():
    p = fault("DRP-02")[0]["p"]
    src, tgt = np.array([[3, 4, 5, 6], [7, 8, 0, 0]]), np.array([[1, 4, 5], [1, 7, 8]])
    model, plain = Transformer(small(p), rng=1), Transformer(small(0.0), rng=2)
    plain.load_state_dict(model.state_dict())
    model.eval()
    first = model(src, tgt)
    assert (model(src, tgt) == first).all()
    assert (plain(src, tgt) == first).all()
    assert not any(module.training for module in model.modules())
    model.train()
    assert all(module.training for module in model.modules())
    assert not close(model(src, tgt), model(src, tgt))  # what a mode that is lost would give
    layer = MultiHeadAttention(8, 2, dropout=p)  # attention has nothing else that is random
    x = normal(1, 5, 8, dtype=np.float32)
    assert not close(layer(x), layer(x))
    layer.eval()
    assert close(layer(x), layer(x))


def test_drp_05_random_numbers_come_from_the_generator():
    seed = fault("DRP-05")[0]["seed"]
    src, tgt = np.array([[3, 4, 5, 6]]), np.array([[1, 4, 5]])
    before = np.random.get_state()  # noqa: NPY002
    models = [Transformer(small(0.5), rng=np.random.default_rng(seed)) for _ in range(2)]
    outputs = [[model(src, tgt) for _ in range(2)] for model in models]
    after = np.random.get_state()  # noqa: NPY002
    assert before[2] == after[2]
    assert (before[1] == after[1]).all()
    states = [model.state_dict() for model in models]
    assert all((states[0][name] == states[1][name]).all() for name in states[0])
    for call in range(2):
        assert (outputs[0][call] == outputs[1][call]).all()
    assert not close(outputs[0][0], outputs[0][1])
    other = Transformer(small(0.5), rng=np.random.default_rng(seed + 1))
    assert not close(other(src, tgt), outputs[0][0])


@pytest.mark.parametrize("limit", [1 << 22, 0], ids=["one-hot", "sort"])
def test_emb_01_repeated_tokens(limit, monkeypatch):
    given, right, faulty = fault("EMB-01")
    monkeypatch.setattr(numtrans.layers.embedding, "ONE_HOT_LIMIT", limit)
    layer = Embedding(given["V"], 2).astype(np.float64)
    layer(given["ids"].astype(int))
    layer.backward(given["dy"])
    check(layer.E.grad, right["dE"], faulty["dE"])


def test_emb_02_ids_out_of_range():
    given, _, faulty = fault("EMB-02")
    layer = Embedding(given["V"], 2).astype(np.float64)
    layer.E.data = np.arange(10.0).reshape(5, 2)
    check(layer.E.data[-1], faulty["row_read"])  # what NumPy alone would read
    for ids, wrong in ((given["ids"].astype(int), -1), (np.array([0, 5]), 5)):
        with pytest.raises(IndexError, match=f"id {wrong} out of range"):
            layer(ids)
    with pytest.raises(IndexError):
        CrossEntropyLoss()(np.zeros((2, 5)), np.array([0, -1]))
    loss = CrossEntropyLoss()
    loss(np.zeros((2, 128)), np.array([0, -100]))
    assert (loss.backward()[1] == 0).all()


def test_tie_01_both_uses_add_to_one_gradient():
    given, right, faulty = fault("TIE-01")
    table = Embedding(3, 2).astype(np.float64)
    table.E.data = given["E"]
    output, loss = TiedLinear(table.E), CrossEntropyLoss()
    assert math.isclose(loss(output(table(given["ids"].astype(int))), given["targets"].astype(int)), right["loss"])
    table.backward(output.backward(loss.backward()))
    check(table.E.grad, right["dE"], *faulty.values())


@pytest.mark.parametrize("make", [SGD, Adam])
def test_tie_02_stepped_once(make):
    given, right, faulty = fault("TIE-02")
    table = Embedding(1, 1).astype(np.float64)
    table.E.data = np.full((1, 1), given["W"])
    model = Module()
    model.table, model.output = table, TiedLinear(table.E)
    assert model.parameters() == [table.E]
    assert model.num_parameters() == 1
    table.E.grad = np.full((1, 1), given["g"])
    make(model.parameters(), lr=given["lr"]).step()
    expected = right["W"] if make is SGD else 0.9 + 2e-9  # Adam's first step is lr * g / (|g| + eps)
    doubled = faulty["W"] if make is SGD else 0.8
    check(table.E.data, [[expected]], [[doubled]])


def test_sta_01_snapshots_are_copies():
    given, right, faulty = fault("STA-01")
    model = Linear(1, 2).astype(np.float64)
    model.b.data = given["w"].copy()
    optimizer = SGD(model.parameters(), lr=1.0)
    snapshot = model.state_dict()

    def step():
        for p in model.parameters():
            p.grad = np.full_like(p.data, given["step"])
        optimizer.step()

    step()
    check(snapshot["b"], right["snapshot"], faulty["snapshot"])
    check(model.b.data, faulty["snapshot"])  # the live array, by contrast
    twin = copy.deepcopy(model)
    for each in (model, twin):
        each.load_state_dict(snapshot)
        assert not any(np.shares_memory(p.data, snapshot[name]) for name, p in each.named_parameters())
    step()  # the optimizer was made before loading and still steps what the model uses
    check(model.b.data, faulty["snapshot"])
    check(twin.b.data, right["snapshot"])
    check(snapshot["b"], right["snapshot"])


# ---- dtype, accumulation


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_num_01_nothing_is_promoted(dtype, placement):
    _, right, faulty = fault("NUM-01")
    assert (np.ones(2, np.float32) / np.sqrt(64)).dtype == faulty  # the trap, under NumPy 2
    assert (np.ones(2, np.float32) / math.sqrt(64)).dtype == right
    model = Transformer(small(0.1, norm_placement=placement, feedforward="gelu"), rng=0).astype(dtype)
    loss, optimizer = CrossEntropyLoss(label_smoothing=0.1), Adam(model.parameters(), lr=0.01)
    logits = model(np.array([[3, 4, 5, 0]]), np.array([[1, 4]]))
    assert logits.dtype == dtype
    assert loss(logits, np.array([[4, 2]])).dtype == dtype
    dlogits = loss.backward()
    assert dlogits.dtype == dtype
    model.backward(dlogits)
    assert {p.grad.dtype for p in model.parameters()} == {np.dtype(dtype)}
    optimizer.step()
    assert {p.data.dtype for p in model.parameters()} == {np.dtype(dtype)}


def test_zro_01_gradients_add_until_cleared():
    given, right, faulty = fault("ZRO-01")
    layer = Linear(1, 1, bias=False).astype(np.float64)
    x = np.array([[given["g"]]])
    found = []
    for _ in range(2):
        layer(x)
        assert close(layer.backward(x), layer.W.data)
        found.append(layer.W.grad[0, 0])
    check(found[1], right["after_two"], *faulty["after_two"])
    layer.zero_grad()
    assert layer.W.grad is None
    layer(x)
    layer.backward(x)
    check(layer.W.grad[0, 0], right["after_zero_and_one"], 3.0)
