"""Greedy translation and sampling, on models whose logits are known."""

import numpy as np
import pytest

from numtrans.errors import ConfigError, ShapeError
from numtrans.generation import draw, generate, translate
from numtrans.models import GPT, GPTConfig, Transformer, TransformerConfig

LOGITS = np.log(np.array([[0.1, 0.4, 0.3, 0.2]]))


def shares(**options):
    options = {"temperature": 1.0, "top_k": None, "top_p": None, **options}
    tokens = draw(np.repeat(LOGITS, 40_000, axis=0), rng=np.random.default_rng(0), **options)
    return np.bincount(tokens, minlength=4) / 40_000


@pytest.mark.parametrize(("options", "expected"), [
    ({}, [0.1, 0.4, 0.3, 0.2]),
    ({"temperature": 0.5}, np.array([1, 16, 9, 4]) / 30),
    ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
    ({"top_k": 99}, [0.1, 0.4, 0.3, 0.2]),
    ({"top_p": 0.5}, [0, 4 / 7, 3 / 7, 0]),  # the token that crosses the threshold stays
    ({"top_p": 1e-9}, [0, 1, 0, 0]),
    ({"top_p": 1.0}, [0.1, 0.4, 0.3, 0.2]),
    ({"temperature": 0}, [0, 1, 0, 0]),
])  # fmt: skip
def test_draw(options, expected):
    assert np.abs(shares(**options) - expected).max() < 0.012  # five standard deviations


@pytest.fixture
def gpt():
    return GPT(GPTConfig(7, max_len=4, d_model=8, num_heads=2, num_layers=1), rng=0)


def test_generate(gpt):
    ids = generate(gpt, np.array([[1, 2]]), 6, rng=3)  # longer than max_len: the window slides
    assert ids.shape == (1, 8)
    assert (generate(gpt, np.array([[1, 2]]), 6, rng=3) == ids).all()
    assert gpt.training
    assert gpt.pending == 0


def test_greedy_takes_the_likeliest_each_time(gpt):
    ids = generate(gpt, np.array([[1]]), 3, temperature=0)
    gpt.eval()
    for t in range(1, 4):
        assert ids[0, t] == gpt(ids[:, :t])[0, -1].argmax()
    gpt.clear()


def test_rows_that_ended_repeat_the_end(gpt):
    start = np.array([[1], [2], [3], [4]])
    ids = generate(gpt, start, 30, eos_id=0, rng=1)
    for row in ids:
        if (row == 0).any():
            assert (row[np.argmax(row == 0) :] == 0).all()
    assert (ids == 0).any()


def test_suppressed_ids_are_never_written(gpt):
    ids = generate(gpt, np.array([[1], [2]]), 40, suppress=(0, 3, 4, 5, 6), rng=0)
    assert set(ids[:, 1:].flat) == {1, 2}


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_options_out_of_range(gpt, options):
    with pytest.raises(ConfigError, match="generate: "):
        generate(gpt, np.array([[1]]), 1, **options)


def test_an_empty_prompt(gpt):
    with pytest.raises(ShapeError, match="at least one token"):
        generate(gpt, np.zeros((1, 0), int), 1)


def test_translate_is_the_argmax_of_the_teacher_forced_logits():
    config = TransformerConfig(
        9, 8, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1, dropout=0.3
    )
    model = Transformer(config, rng=0)
    src = np.array([[3, 4, 5], [6, 0, 0]])
    written = translate(model, src, 5)
    assert model.training
    model.eval()
    logits = model(src, np.concatenate([[[1], [1]], written[:, :-1]], axis=1))
    model.clear()
    for row, expected in zip(written, logits.argmax(axis=-1)):
        end = np.argmax(row == 2) if (row == 2).any() else len(row)
        assert (row[: end + 1] == expected[: end + 1]).all()
        assert (row[end:] == 2).all()
