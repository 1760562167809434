"""From logits to tokens: values by hand and of Hugging Face's processors."""

import numpy as np
import pytest

from numtrans.errors import ConfigError, NonFiniteError, ShapeError
from numtrans.generation import draw, penalize, probabilities
from numtrans.generation.sampling import seen_tokens

P = np.array([0.2, 0.4, 0.05, 0.35])


def kept(**options):
    """Probabilities after the cuts, of tokens with probabilities `P`."""
    return probabilities(np.log(P)[None], **options)[0]


def cut(*places):
    """`P` with nothing but `places`, rescaled."""
    p = np.zeros(4)
    p[list(places)] = P[list(places)]
    return p / p.sum()


@pytest.mark.parametrize(("options", "expected"), [
    ({}, P),
    ({"temperature": 0.5}, P**2 / (P**2).sum()),
    ({"temperature": 2.0}, P**0.5 / (P**0.5).sum()),
    ({"top_k": 2}, cut(1, 3)),
    ({"top_k": 3, "top_p": 0.79}, cut(0, 1, 3)),  # 8/19 + 7/19 = 0.7895 do not reach it
    ({"top_k": 3, "top_p": 0.78}, cut(1, 3)),  # they do; of all four, 0.75 would not
    ({"min_p": 0.5}, cut(0, 1, 3)),  # 0.2 = 0.5 * 0.4 stays
    ({"min_p": 0.51}, cut(1, 3)),
    ({"min_p": 1.0}, cut(1)),
    ({"min_p": 0.0}, P),
    ({"temperature": 0.5, "min_p": 0.3}, np.array([0, 0.16, 0, 0.1225]) / 0.2825),  # of the squares
])  # fmt: skip
def test_by_hand(options, expected):
    np.testing.assert_allclose(kept(**options), expected, rtol=1e-12, atol=1e-15)


def test_gen_01_the_token_that_crosses_top_p_stays():
    np.testing.assert_allclose(kept(top_p=0.7), [0, 0.533333333333, 0, 0.466666666667], atol=1e-11)
    np.testing.assert_allclose(kept(top_p=0.9), [0.210526315789, 0.421052631579, 0, 0.368421052632], atol=1e-11)


@pytest.mark.parametrize(("options", "expected"), [
    ({"top_p": 1e-9}, [1, 0, 0, 0]), ({"top_p": 1.0}, [0.5, 0.25, 0.125, 0.125]), ({"top_k": 1}, [1, 0, 0, 0]),
    ({"top_k": 4}, [0.5, 0.25, 0.125, 0.125]), ({"top_k": 100}, [0.5, 0.25, 0.125, 0.125]),
    ({"top_k": 3}, np.array([4, 2, 1, 0]) / 7),  # of equal ones the first
])  # fmt: skip
def test_gen_02_ends_of_top_p_and_top_k(options, expected):
    found = probabilities(np.log([[0.5, 0.25, 0.125, 0.125]]), **options)
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)


@pytest.mark.filterwarnings("error")
def test_gen_04_temperature():
    logits = np.array([[1, 2, 0.5], [1, 2, 2]])
    for temperature in (0, 1e-320, 1e-8):
        expected = [[0, 1, 0], [0, 1, 0] if temperature == 0 else [0, 0.5, 0.5]]
        np.testing.assert_array_equal(probabilities(logits, temperature), expected)
    np.testing.assert_allclose(probabilities(logits)[0], [0.231223897622, 0.628531719212, 0.140244383166], atol=1e-11)
    with pytest.raises(ConfigError, match=r"temperature is -0\.5, expected a number of at least 0"):
        probabilities(logits, -0.5)


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", float("nan")), ("temperature", float("inf")), ("top_k", 0), ("top_k", 1.5), ("top_p", 0.0),
    ("top_p", 1.5), ("min_p", -0.1), ("min_p", 1.1),
])  # fmt: skip
def test_values_without_meaning(name, value):
    with pytest.raises(ConfigError, match=f"probabilities: {name} is {value}, expected"):
        kept(**{name: value})


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3), (2, 0)])
def test_logits_of_another_shape(shape):
    with pytest.raises(ShapeError, match=r"expected \(B, V\) with at least one token"):
        probabilities(np.zeros(shape))


def test_a_row_that_no_token_can_be_drawn_from():
    with pytest.raises(ConfigError, match="every token of a row has the logit -inf"):
        probabilities([[0, 0], [-np.inf, -np.inf]])
    for wrong in (np.nan, np.inf):
        with pytest.raises(NonFiniteError, match="the logits are not finite"):
            probabilities([[0, 0], [0, wrong]])


def test_draw_is_the_inverse_of_the_cumulated_probabilities():
    p = np.array([[0, 0.25, 0, 0.5, 0.25, 0]])
    u = [0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53]
    np.testing.assert_array_equal(draw(np.repeat(p, 6, axis=0), u), [1, 1, 3, 3, 4, 4])


def test_shares_of_what_is_drawn():
    tokens = draw(np.repeat(P[None], 40_000, axis=0), np.random.default_rng(0).random(40_000))
    assert np.abs(np.bincount(tokens, minlength=4) / 40_000 - P).max() < 0.012  # five standard deviations


def test_penalty_by_hand():
    seen = np.array([[True, True, False, False, True]])
    found = penalize(np.array([[3.0, -3.0, 2.0, -2.0, 0.0]]), seen, 1.5)
    np.testing.assert_array_equal(found, [[2.0, -4.5, 2.0, -2.0, 0.0]])


def test_padding_is_not_seen():
    ids, real = np.array([[0, 0, 2], [1, 0, 2]]), np.array([[False, False, True], [True] * 3])
    np.testing.assert_array_equal(seen_tokens(ids, real, 4), [[0, 0, 1, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(seen_tokens(ids, None, 4), [[1, 0, 1, 0], [1, 1, 1, 0]])


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_processors_of_hugging_face(seed):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(seed)
    logits, ids = 3 * rng.standard_normal((4, 23)), rng.integers(0, 23, (4, 6))
    theirs = [
        process.RepetitionPenaltyLogitsProcessor(1.3), process.TemperatureLogitsWarper(0.8),
        process.TopKLogitsWarper(9), process.TopPLogitsWarper(0.8), process.MinPLogitsWarper(0.12),
    ]  # fmt: skip
    options = {"temperature": 0.8, "top_k": 9, "top_p": 0.8, "min_p": 0.12}
    for chosen in ([0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 2, 3, 4]):
        scores = torch.tensor(logits)
        for i in chosen:
            scores = theirs[i](torch.tensor(ids), scores)
        names = [["temperature"], ["top_k"], ["top_p"], ["min_p"]]
        ours = {name: options[name] for i in chosen[1:] for name in names[i - 1]}
        found = probabilities(penalize(logits, seen_tokens(ids, None, 23), 1.3), **ours)
        np.testing.assert_allclose(found, scores.softmax(-1), rtol=1e-10, atol=1e-12)
        assert (found == 0).any() == (len(chosen) > 2)
