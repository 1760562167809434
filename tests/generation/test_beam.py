"""Beam search: recorded faults, exhaustive search, greedy decoding, Hugging Face."""

import itertools

import numpy as np
import pytest
from generation.test_writing import DECODERS, PAIRS, PROMPTS, SRC, gpt, transformer, whole
from generation.toys import TwoTokens
from helpers import generic
from huggingface import build, copy_weights, in_float64
from parity.names import of_huggingface

from numtrans.errors import ConfigError
from numtrans.generation import Continuation, beam_search, generate, translate
from numtrans.generation import beam as beam_file
from numtrans.models import GPT, T5, GPTConfig, T5Config, Transformer, TransformerConfig

decoders = pytest.mark.parametrize("make", DECODERS.values(), ids=DECODERS)
pairs = pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
START = np.array([[3, 3]])


def log_softmax(z):
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def score(model, prompt, written, alpha=1.0, src=None):
    """The score of a hypothesis, token by token from passes over the whole of it."""
    total = sum(
        log_softmax(whole(model, np.array([[*prompt, *written[:n]]]), src)[0])[token]
        for n, token in enumerate(written)
    )
    return total / len(written) ** alpha


def without_filling(row, eos):
    """The tokens of `row` up to the first `eos`."""
    return row[: list(row).index(eos) + 1] if eos in row else row


# ---- recorded faults, on the model of two tokens


@pytest.fixture
def watched(monkeypatch):
    """What is live after each step, and what is finished at that time."""
    seen = []

    class Watched(Continuation):
        def extend(self, tokens):
            super().extend(tokens)
            seen.append(self.ids[:, 2:].tolist())

    monkeypatch.setattr(beam_file, "Continuation", Watched)
    return seen


def toy_score(written):
    a, b, total = 3, 3, 0.0
    for token in written:
        z = np.array([2 * np.sin(1.3 * a + 2.1 * b + 2.6 * t + 1.2 * b * t) for t in range(3)])
        total += log_softmax(z)[token]
        a, b = b, token
    return total


@pytest.mark.parametrize("cache", [True, False])
def test_beam_01_search_starts_from_one_beam(watched, cache):
    options = dict(num_beams=2, num_return=2, length_penalty=0.0, eos_id=0, cache=cache)
    beam_search(TwoTokens(), START, 3, **options)
    assert watched[1] == [[1, 2], [2, 1]]
    np.testing.assert_allclose([toy_score(w) for w in watched[1]], [-1.27992366321, -2.25781046246], atol=1e-10)
    # [0] is the third best after one step: with two beams it is not finished, by the rule of Hugging Face
    ids, scores = beam_search(TwoTokens(), START, 2, **options)
    assert ids[0, :, 2:].tolist() == [[1, 2], [2, 0]]
    np.testing.assert_allclose(scores, [[-1.27992366321, -1.33535376951]], atol=1e-10)
    ids, scores = beam_search(TwoTokens(), START, 2, **options | {"num_beams": 3, "num_return": 3})
    assert ids[0, :, 2:].tolist() == [[0, 0], [1, 2], [2, 0]]
    np.testing.assert_allclose(scores, [[-1.23055002309, -1.27992366321, -1.33535376951]], atol=1e-10)


def test_beam_02_the_prompt_is_not_counted_in_the_length():
    a, b = beam_file.normalized(-1.2, 2, 1.0), beam_file.normalized(-2.0, 4, 1.0)
    assert (a, b) == (pytest.approx(-0.6), pytest.approx(-0.5))
    # the same continuation after a prompt of 2 and of 8 tokens, of which the model sees the last two
    short = beam_search(TwoTokens(), START, 5, num_beams=3, num_return=3, eos_id=0)
    long = beam_search(TwoTokens(), np.full((1, 8), 3), 5, num_beams=3, num_return=3, eos_id=0)
    np.testing.assert_array_equal(short[0][:, :, 2:], long[0][:, :, 8:])
    np.testing.assert_allclose(short[1], long[1], rtol=1e-12)
    for row, found in zip(short[0][0], short[1][0]):
        written = without_filling(row[2:], 0)
        assert found == pytest.approx(toy_score(written) / len(written), rel=1e-12)


@pytest.mark.parametrize("cache", [True, False])
def test_beam_05_the_cache_follows_the_beams(watched, cache):
    options = dict(num_beams=2, num_return=2, length_penalty=0.0, eos_id=0, cache=cache, early_stopping="never")
    # nothing finished may end the search before the third step: without an end, live beams are those of the record
    beam_search(TwoTokens(), START, 4, **options | {"eos_id": None, "suppress": [0]})
    without_end = [log[:] for log in watched]
    assert len(without_end) == 3
    watched.clear()
    beam_file.search(
        beam_file.Continuation(TwoTokens(), START, cache=cache), 4, 2, [0], [],
        [beam_file.Finished(99, 0.0, "never", 4)],
    )  # fmt: skip
    assert watched[2] == [[1, 2, 2], [2, 1, 1]]
    np.testing.assert_allclose([toy_score(w) for w in watched[2]], [-1.52309625994, -2.39498682266], atol=1e-10)


# ---- properties


@pytest.mark.parametrize("kind", ["GPT", "Transformer"])
def test_enough_beams_are_exhaustive_search(kind):
    """All 4 + 4 * 4 + ... continuations, scored one by one; end token 2."""
    sizes, src = dict(d_model=8, num_heads=2, d_ff=6, position="rope"), None
    if kind == "GPT":
        model = generic(GPT(GPTConfig(4, max_len=9, num_layers=1, **sizes), rng=0))
    else:
        sizes |= dict(num_encoder_layers=1, num_decoder_layers=1)
        model, src = generic(Transformer(TransformerConfig(9, 4, **sizes), rng=0)), SRC[:1]
    every = [
        w for n in range(1, 5) for w in itertools.product(range(4), repeat=n)
        if 2 not in w[:-1] and (w[-1] == 2 or n == 4)
    ]  # fmt: skip
    assert len(every) == 1 + 3 + 9 + 27 * 4
    totals = {w: score(model, [3, 1], w, 0.0, src) for w in every}
    for alpha in (0.0, 0.6, 1.0, 2.0, -0.5):
        expected = sorted(((total / len(w) ** alpha, w) for w, total in totals.items()), reverse=True)
        ids, scores = beam_search(
            model, [[3, 1]], 4, num_beams=4**4, num_return=len(every), length_penalty=alpha, eos_id=2, src=src,
            early_stopping="never",
        )  # fmt: skip
        np.testing.assert_allclose(scores[0], [s for s, _ in expected], rtol=1e-10)
        for row, (_, written) in zip(ids[0], expected):
            assert tuple(without_filling(row[2:], 2).tolist()) == written


@decoders
def test_one_beam_is_greedy(make):
    model = make()
    expected = generate(model, PROMPTS, 8, temperature=0, eos_id=4, pad_id=0)
    ids, scores = beam_search(model, PROMPTS, 8, num_beams=1, eos_id=4, pad_id=0)
    np.testing.assert_array_equal(ids[:, 0], expected)
    for prompt, row, found in zip(PROMPTS, ids[:, 0], scores[:, 0]):
        assert found == pytest.approx(score(model, prompt, without_filling(row[7:], 4)), rel=1e-10)


@decoders
def test_rows_caches_and_scores(make):
    """Each row of a batch gets what it gets alone, with and without a cache; scores are those of whole passes."""
    model, options = make(), dict(num_beams=3, num_return=3, eos_id=4, length_penalty=0.7)
    ids, scores = beam_search(model, PROMPTS, 8, **options)
    plain, plain_scores = beam_search(model, PROMPTS, 8, cache=False, **options)
    np.testing.assert_array_equal(plain, ids)
    np.testing.assert_allclose(scores, plain_scores, rtol=1e-10)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert model.training
    for b, prompt in enumerate(PROMPTS):
        alone, alone_scores = beam_search(model, [prompt], 8, **options)
        np.testing.assert_allclose(alone_scores[0], scores[b], rtol=1e-10)
        for i in range(3):
            written = without_filling(ids[b, i, 7:], 4)
            np.testing.assert_array_equal(without_filling(alone[0, i, len(prompt) :], 4), written)
            assert scores[b, i] == pytest.approx(score(model, prompt, written, 0.7), rel=1e-10)
            assert (ids[b, i, 7 + len(written) :] == 4).all()
        assert len({tuple(row) for row in ids[b].tolist()}) == 3


@pairs
def test_encoder_decoders(make):
    model, options = make(), dict(num_beams=3, num_return=3, eos_id=2)
    start = np.full((3, 1), 1)
    ids, scores = beam_search(model, start, 6, src=SRC, **options)
    plain, plain_scores = beam_search(model, start, 6, src=SRC, cache=False, **options)
    np.testing.assert_array_equal(plain, ids)
    np.testing.assert_allclose(scores, plain_scores, rtol=1e-10)
    for b in range(3):
        for row, found in zip(ids[b], scores[b]):
            written = without_filling(row[1:], 2)
            assert found == pytest.approx(score(model, [1], written, src=SRC[b : b + 1]), rel=1e-10)
    best = translate(model, SRC, 6, num_beams=3)
    np.testing.assert_array_equal(best, ids[:, 0, 1 : 1 + best.shape[1]])
    greedy = translate(model, SRC, 6)
    for b in range(3):
        found = score(model, [1], without_filling(best[b], 2), src=SRC[b : b + 1])
        assert found == pytest.approx(scores[b, 0], rel=1e-10)
        assert greedy.shape[0] == 3


def test_beams_beyond_max_len_see_the_latest_tokens():
    model = gpt(max_len=9)
    ids, scores = beam_search(model, [PROMPTS[0]], 6, num_beams=3)
    plain, plain_scores = beam_search(model, [PROMPTS[0]], 6, num_beams=3, cache=False)
    np.testing.assert_array_equal(ids, plain)
    total, row = 0, ids[0, 0]
    for t in range(7, 13):
        total += log_softmax(whole(model, row[None, max(0, t - 9) : t])[0])[row[t]]
    assert scores[0, 0] == pytest.approx(total / 6, rel=1e-10) == plain_scores[0, 0]


# ---- Hugging Face

SETTINGS = [
    dict(num_beams=3, num_return=3), dict(num_beams=4, num_return=2, length_penalty=0.0),
    dict(num_beams=4, num_return=4, length_penalty=2.0, early_stopping="never"),
    dict(num_beams=3, num_return=3, early_stopping=True), dict(num_beams=5, num_return=5, length_penalty=-1.0),
]  # fmt: skip


def compare_with_huggingface(torch, reference, inputs, found, options, start, eos):
    """Ids and scores of `reference.generate`, whose log probabilities are in float32, against ours.

    With 0 as padding it fills what has ended with the end token, as ours does without `pad_id`.
    """
    ids, scores = found
    options = {**options, "num_return_sequences": options["num_return"]}
    del options["num_return"]
    theirs = reference.generate(
        **inputs, **options, max_new_tokens=9, do_sample=False, eos_token_id=eos, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    expected = theirs.sequences[:, start:].numpy()
    ids = ids.reshape(-1, ids.shape[-1])[:, start:]
    np.testing.assert_array_equal(ids[:, : expected.shape[1]], expected)
    assert (ids[:, expected.shape[1] :] == eos).all()
    np.testing.assert_allclose(scores.reshape(-1), theirs.sequences_scores.numpy(), rtol=2e-5)
    return (expected == eos).any(axis=1)


def test_equal_to_gpt2_of_hugging_face(monkeypatch):
    torch, transformers = in_float64(monkeypatch, "gpt2")
    config = transformers.GPT2Config(vocab_size=11, n_positions=30, n_embd=12, n_head=3, n_layer=2, n_inner=10)
    reference = build(torch, transformers.GPT2LMHeadModel, config, seed=3)
    model = GPT(GPTConfig(11, 30, 12, 3, 2, 10))
    copy_weights(model, reference, of_huggingface("gpt2", model))
    real = np.array([[7 - len(p) <= t for t in range(7)] for p in PROMPTS])
    ids = np.array([[0] * (7 - len(p)) + p for p in PROMPTS])
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(real.astype(int))}
    greedy = reference.generate(**inputs, max_new_tokens=9, do_sample=False, eos_token_id=4, pad_token_id=0).numpy()
    np.testing.assert_array_equal(generate(model, PROMPTS, 9, temperature=0, eos_id=4, pad_id=0), greedy)
    ended = []
    for options in SETTINGS:
        for eos in (4, 7):
            found = beam_search(model, PROMPTS, 9, eos_id=eos, **options)
            ended.append(compare_with_huggingface(torch, reference, inputs, found, options, 7, eos))
    assert 0.1 < np.concatenate(ended).mean() < 0.9  # both kinds of ends were met


def test_equal_to_t5_of_hugging_face(monkeypatch):
    torch, transformers = in_float64(monkeypatch, "t5")
    sizes = dict(vocab_size=11, d_model=12, d_kv=3, d_ff=10, num_heads=3, dropout_rate=0.0)
    config = transformers.T5Config(
        **sizes, num_layers=2, num_decoder_layers=2, relative_attention_num_buckets=8,
        relative_attention_max_distance=9, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    reference = build(torch, transformers.T5ForConditionalGeneration, config, seed=1)
    model = T5(T5Config(
        11, 12, 3, 3, 10, num_encoder_layers=2, num_decoder_layers=2, num_buckets=8, max_distance=9,
    ))  # fmt: skip
    copy_weights(model, reference, of_huggingface("t5", model))
    inputs = {"input_ids": torch.tensor(SRC), "attention_mask": torch.tensor((SRC != 0).astype(int))}
    for options in SETTINGS:
        for eos in (2, 5):
            found = beam_search(model, [[0]] * 3, 9, eos_id=eos, src=SRC, **options)
            compare_with_huggingface(torch, reference, inputs, found, options, 1, eos)


# ---- what is refused


@pytest.mark.parametrize(("options", "message"), [
    ({"num_beams": 0}, "num_beams is 0"), ({"num_beams": 2.5}, "num_beams is 2.5"),
    ({"num_return": "a"}, "num_return is 'a'"),
    ({"length_penalty": "a"}, "length_penalty is 'a'"), ({"length_penalty": 1100}, "length_penalty is 1100"),
    ({"length_penalty": -1100.0}, "length_penalty is -1100.0"), ({"early_stopping": 1}, "early_stopping is 1"),
    ({"early_stopping": None}, "early_stopping is None"), ({"pad_id": 11}, "pad_id holds 11"),
    ({"num_return": 5}, "num_beams=4, num_return=5"),
    ({"length_penalty": float("inf")}, "length_penalty is inf"), ({"early_stopping": "always"}, "is 'always'"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0"), ({"eos_id": 11}, "eos_id holds 11"),
    ({"suppress": range(10), "num_return": 2, "max_new_tokens": 1}, "there are only 1 hypotheses"),
])  # fmt: skip
def test_values_without_meaning(options, message):
    with pytest.raises(ConfigError, match=f"beam_search: .*{message}"):
        beam_search(gpt(), [[1]], **{"max_new_tokens": 2} | options)


def test_an_encoder_decoder_needs_a_source():
    with pytest.raises(ConfigError, match="Transformer: expected src"):
        beam_search(transformer(), [[1]], 2)
