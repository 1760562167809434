"""Faults that were made in real code, each as a right value that the layer must give and a faulty one that it must not.

The numbers of positional.json have 12 digits, so they are met to 1e-11.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from numtrans.layers.positional import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from numtrans.layers.relative import ShawRelativePosition
from numtrans.layers.relative_bias import ALiBi, slopes
from numtrans.layers.rotary import RotaryPositionalEncoding

FAULTS = json.loads(Path(__file__).with_name("positional.json").read_text())


def fault(identity):
    entry = FAULTS[identity]
    return entry["input"], entry["right"], entry["faulty"]


def close(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=1e-11)


def test_pos_01_odd_width():
    given, right, _ = fault("POS-01")  # the faulty code raises
    layer = SinusoidalPositionalEncoding(given["d_model"])
    assert close(layer(np.zeros((1, 3, 5)))[0], right["pe"])
    assert close(layer.table(3), right["pe"])


def test_pos_02_exponent():
    given, right, faulty = fault("POS-02")
    pe = SinusoidalPositionalEncoding(given["d_model"]).table(3)
    assert close(pe, right["pe"])
    assert not close(faulty["pe"], right["pe"])


def test_pos_03_longer_than_the_table():
    given, _, _ = fault("POS-03")
    layer = LearnedPositionalEncoding(2, given["max_len"]).astype(np.float64)
    assert layer(np.zeros((1, 4, 2))).shape == (1, 4, 2)
    with pytest.raises(ValueError, match=r"5 tokens.*max_len=4"):
        layer(np.zeros((1, 5, 2)))
    with pytest.raises(ValueError, match=r"3 tokens from position 2 needs 5.*max_len=4"):  # generation, with an offset
        layer(np.zeros((1, 3, 2)), offset=2)
    with pytest.raises(ValueError, match=r"3 tokens.*max_len=1"):  # one row would broadcast to any length
        LearnedPositionalEncoding(2, 1).astype(np.float64)(np.zeros((1, 3, 2)))
    grown = SinusoidalPositionalEncoding(2, max_len=1)(np.zeros((1, 3, 2)))[0]  # a formula has no last position
    assert close(grown, SinusoidalPositionalEncoding(2).table(3))


@pytest.mark.parametrize("interleaved", [True, False])
def test_pos_05_pairing(interleaved):
    given, right, faulty = fault("POS-05")
    rope = RotaryPositionalEncoding(4, interleaved=interleaved)

    def turn(x, position):
        return rope(np.array(x).reshape(1, 1, 1, 4), positions=position).reshape(4)

    y = turn(given["x"], given["pos"])
    assert close(y, right["interleaved" if interleaved else "half_split"])
    scores = [turn(given["q"], m) @ turn(given["k"], n) for m, n in [(3, 1), (7, 5)]]
    assert close(scores, right["score_interleaved" if interleaved else "score_half"])
    # the mixed pairing keeps neither the norm nor the score
    assert not close(y, faulty["mixed"])
    assert not close(scores, faulty["scores"])
    assert np.linalg.norm(y) == pytest.approx(np.linalg.norm(given["x"]), rel=1e-14)
    assert abs(np.linalg.norm(faulty["mixed"]) - np.linalg.norm(given["x"])) > 0.1


@pytest.mark.parametrize(("interleaved", "name"), [(True, "interleaved"), (False, "half_split")])
def test_pos_06_backward_turns_back(interleaved, name):
    given, right, faulty = fault("POS-06")
    rope = RotaryPositionalEncoding(4, interleaved=interleaved)
    dy = np.array(given["dy"]).reshape(1, 1, 2, 4)
    rope(np.zeros((1, 1, 2, 4)), positions=np.array(given["pos"]))
    dx = rope.backward(dy)
    assert close(dx[0, 0], right[name])
    assert not close(dx[0, 0], faulty[f"faulty_{name}"])
    assert close(rope(dx, positions=np.array(given["pos"])), dy)


def attend(q, k, v, offset):
    """Causal attention for one head, written out: the queries stand at offset, offset + 1, ... of the keys."""
    S = q @ k.T / np.sqrt(q.shape[-1])
    S[np.arange(len(k))[None] > np.arange(len(q))[:, None] + offset] = -np.inf
    P = np.exp(S - S.max(-1, keepdims=True))
    return P / P.sum(-1, keepdims=True) @ v


def test_pos_07_cached_steps():
    given, right, faulty = fault("POS-07")
    q, k, v = (np.array(given[name]) for name in "qkv")
    rope = RotaryPositionalEncoding(2)

    def turn(x, positions=None):
        return rope(x[None, None], positions=positions)[0, 0]

    assert close(attend(turn(q), turn(k), v, 0), right["out"])

    def steps(position):
        cache, out = np.zeros((0, 2)), []
        for t in range(4):
            cache = np.concatenate([cache, turn(k[t : t + 1], position(t))])
            out.append(attend(turn(q[t : t + 1], position(t)), cache, v[: t + 1], t)[0])
        return out

    assert close(steps(lambda t: t), right["out"])
    assert close(steps(lambda t: np.array([t])), right["out"])
    assert close(steps(lambda t: 0), faulty["out"])  # what a lost offset gives
    assert not close(faulty["out"], right["out"])


@pytest.mark.parametrize("make", [SinusoidalPositionalEncoding, LearnedPositionalEncoding])
def test_pos_07_added_positions_have_an_offset_too(make):
    layer = make(4, 6).astype(np.float64)
    x = np.random.default_rng(0).normal(size=(2, 6, 4))
    steps = [layer(x[:, t : t + 1], offset=t) for t in range(6)]
    np.testing.assert_array_equal(np.concatenate(steps, axis=1), layer(x))


def test_pos_11_alibi_slopes():
    given, right, faulty = fault("POS-11")
    for n in given["n_heads"]:
        assert close(slopes(n), right[f"n{n}"])
    assert not close(slopes(12), faulty["n12_plain_formula"])
    assert not close(slopes(8), faulty["n8_exponent_from_zero"])
    bias = ALiBi(8)(3, 3)[0]  # slope 0.5
    assert close(np.tril(bias), right["bias_slope_0.5_T3_lower"])


def test_pos_13_key_minus_query():
    given, right, faulty = fault("POS-13")
    shaw = ShawRelativePosition(2, given["clip"]).astype(np.float64)
    shaw.aK.data = np.array(given["table"])
    q, dS = np.array(given["q"])[None, None], np.array(given["dS"])[None, None]
    index = shaw.index(np, 3, 3)
    S = shaw.scores(q, 3)
    dq = shaw.scores_backward(dS)
    assert close(index, right["index"])
    assert close(S[0, 0], right["S_rel"])
    assert close(shaw.aK.grad, right["dtable"])
    assert close(dq[0, 0], right["dq"])
    for found, name in [(index, "index"), (S[0, 0], "S_rel"), (shaw.aK.grad, "dtable")]:
        assert not close(found, faulty[name])


def test_pos_15_summed_over_the_batch():
    given, right, faulty = fault("POS-15")
    dy = np.array(given["dy"])
    layer = LearnedPositionalEncoding(2, given["max_len"]).astype(np.float64)
    layer(np.zeros_like(dy))
    assert layer.backward(dy) is dy
    assert close(layer.W.grad, right["dP"])
    assert not close(layer.W.grad[:3], faulty["dP_mean"])
