"""Sampling and greedy decoding with whole models: caches, rows that end, padding on the left, seeds, stop strings."""

import numpy as np
import pytest
from generation.toys import Scripted
from helpers import generic

from numtrans.errors import ConfigError, DtypeError, NonFiniteError, ShapeError
from numtrans.generation import Continuation, beam_search, generate, stream, translate
from numtrans.layers import ScaledDotProductAttention
from numtrans.losses import CrossEntropyLoss
from numtrans.models import (
    BERT,
    GPT,
    T5,
    BERTConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    T5Config,
    Transformer,
    TransformerConfig,
)
from numtrans.models.configs import POSITIONS
from numtrans.module import grad_enabled, no_grad

V = 11
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]]
SIZES = dict(d_model=8, num_heads=4, d_ff=6, dropout=0.2)
SRC = np.array([[3, 4, 5, 6], [6, 2, 0, 0], [7, 7, 7, 0]])


def gpt(position="learned", **options):
    config = GPTConfig(V, **(SIZES | dict(max_len=20, num_layers=2, num_kv_heads=2, position=position) | options))
    return generic(GPT(config, rng=0))


def llama(**options):
    config = LlamaConfig(V, **(SIZES | dict(max_len=20, num_layers=2, num_kv_heads=2) | options))
    return generic(Llama(config, rng=0))


def transformer(position="sinusoidal"):
    config = TransformerConfig(V, V, **SIZES, num_encoder_layers=1, num_decoder_layers=2, position=position, max_len=20)
    return generic(Transformer(config, rng=0))


def t5():
    return generic(T5(T5Config(V, **SIZES, d_kv=3, num_encoder_layers=1, num_decoder_layers=2, num_buckets=6), rng=0))


DECODERS = {**{p: lambda p=p: gpt(p) for p in POSITIONS}, "llama": llama, "window": lambda: llama(sliding_window=3)}
PAIRS = {**{p: lambda p=p: transformer(p) for p in POSITIONS}, "T5": t5}
decoders = pytest.mark.parametrize("make", DECODERS.values(), ids=DECODERS)
pairs = pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)


def whole(model, ids, src=None):
    """Logits of the last token, by one pass without a cache."""
    training = model.training
    with no_grad():
        logits = model.eval()(ids) if src is None else model.eval()(src, ids)
    model.train(training)
    return logits[:, -1]


def follow(model, prompt, tokens, src=None):
    """Raise unless each of `tokens` is the likeliest after `prompt` and those before it."""
    ids = list(prompt)
    for token in tokens:
        assert whole(model, np.array([ids]), src)[0].argmax() == token
        ids.append(int(token))


# ---- decoder-only


@decoders
def test_greedy_takes_the_likeliest_each_time(make):
    model = make()
    ids = generate(model, np.array([PROMPTS[0]]), 8, temperature=0)
    follow(model, PROMPTS[0], ids[0, 7:])
    assert model.training
    assert model.pending == 0


@decoders
def test_gen_08_padding_on_the_left_gives_each_row_what_it_gets_alone(make):
    """Logits at every step, with and without a cache, and greedy tokens."""
    model = make()
    real = np.array([[7 - len(p) <= t for t in range(7)] for p in PROMPTS])
    ids = np.array([[0] * (7 - len(p)) + p for p in PROMPTS])
    written = generate(model, PROMPTS, 6, temperature=0)
    np.testing.assert_array_equal(generate(model, ids, 6, temperature=0, mask=real), written)
    np.testing.assert_array_equal(written[:, :7], ids)
    for cache in (True, False):
        text = Continuation(model, ids, real, cache=cache)
        for n in range(6):
            logits = text.logits()
            for b, prompt in enumerate(PROMPTS):
                alone = whole(model, np.array([[*prompt, *written[b, 7 : 7 + n]]]))[0]
                np.testing.assert_allclose(logits[b], alone, rtol=0, atol=1e-10 * max(1, abs(alone).max()))
            text.extend(written[:, 7 + n])
    for b, prompt in enumerate(PROMPTS):
        np.testing.assert_array_equal(generate(model, [prompt], 6, temperature=0)[0, len(prompt) :], written[b, 7:])


def test_gen_08_positions():
    """Mask [0, 0, 1, 1, 1] and one step: positions 0, 1, 2 for the real tokens and 3 for the new one."""
    seen = []

    class Spy(GPT):
        def hidden(self, ids, mask=None, *, cache=None, positions=None):
            seen.append(positions.tolist())
            return super().hidden(ids, mask, cache=cache, positions=positions)

    generate(Spy(gpt().config, rng=0), [[1, 2, 3], [1, 2, 3, 4, 5]], 2)
    assert seen == [[[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]], [[3], [5]]]


@decoders
def test_gen_06_the_cache_ends_with_its_text(make):
    model = make().eval()
    a, b = np.array([[1, 2, 3]]), np.array([[4, 5, 6], [7, 8, 9]])
    first = generate(model, a, 6, temperature=0)
    generate(model, b, 6, temperature=0)
    np.testing.assert_array_equal(generate(model, a, 6, temperature=0), first)
    np.testing.assert_array_equal(generate(model, a, 6, temperature=0, cache=False), first)
    other = Continuation(model, b, room=2)
    text = Continuation(model, a)
    for n in range(5):  # two texts at once
        np.testing.assert_allclose(text.logits(), whole(model, text.ids), rtol=0, atol=1e-10)
        np.testing.assert_allclose(other.logits(), whole(model, other.ids), rtol=0, atol=1e-10)
        text.extend(first[:, 3 + n])
        other.extend(np.array([n, 3]))


@pytest.mark.parametrize("make", [gpt, lambda: gpt("sinusoidal"), llama])
def test_from_max_len_on_the_latest_tokens_are_seen(make):
    model, limit = make(), 20
    ids = generate(model, np.array([PROMPTS[0]]), 18, temperature=0)
    for t in range(7, 25):
        assert whole(model, ids[:, max(0, t - limit) : t])[0].argmax() == ids[0, t]


@pytest.mark.parametrize("position", ["rope", "shaw", "t5", "alibi"])
def test_relative_positions_have_no_limit(position):
    model = gpt(position)
    ids = generate(model, np.array([PROMPTS[0]]), 20, temperature=0)
    follow(model, PROMPTS[0], ids[0, 7:])


def test_a_shorter_context():
    model = gpt()
    ids = generate(model, PROMPTS, 9, temperature=0, context=4)
    for b, prompt in enumerate(PROMPTS):
        row = ids[b, 7 - len(prompt) :]
        for t in range(len(prompt), len(row)):
            assert whole(model, row[None, max(0, t - 4) : t])[0].argmax() == row[t]
    with pytest.raises(ConfigError, match="GPT: context is 21, expected 1 to 20"):
        generate(model, PROMPTS, 1, context=21)


@decoders
def test_a_seed_gives_the_same_text_with_and_without_a_cache(make):
    model = make()
    options = dict(temperature=1.5, top_k=6, min_p=0.01, repetition_penalty=1.2)
    ids = generate(model, PROMPTS, 10, rng=3, **options)
    np.testing.assert_array_equal(generate(model, PROMPTS, 10, rng=3, **options), ids)
    np.testing.assert_array_equal(generate(model, PROMPTS, 10, rng=3, cache=False, **options), ids)
    assert (generate(model, PROMPTS, 10, rng=4, **options) != ids).any()


def test_a_row_draws_the_same_whatever_the_others_are():
    model = gpt()
    ids = generate(model, PROMPTS, 10, rng=3, eos_id=4)
    np.testing.assert_array_equal(generate(model, PROMPTS[:2], 10, rng=3, eos_id=4)[:, :17], ids[:2])
    other = generate(model, [[1], PROMPTS[1], [2, 3]], 10, rng=3, eos_id=4)
    n = min(other.shape[1] - 2, ids.shape[1] - 7)
    np.testing.assert_array_equal(other[1, 2 : 2 + n], ids[1, 7 : 7 + n])
    generator = np.random.default_rng(3)
    first, second = (generate(model, PROMPTS, 10, rng=generator) for _ in range(2))
    assert (first != second).any()


def test_repetition_penalty_reads_prompt_and_text_but_no_padding():
    """Token by token, row by row; and the padding, 0, is not penalized."""
    model, changed = gpt(), 0
    ids = generate(model, [[3, 1, 4], [5]], 8, temperature=0, repetition_penalty=1.7)
    for row, length in ((ids[0], 3), (ids[1, 2:], 1)):
        for t in range(length, len(row)):
            logits = whole(model, row[None, :t])[0]
            plain = logits.argmax()
            for token in set(row[:t].tolist()):
                logits[token] *= 1 / 1.7 if logits[token] > 0 else 1.7
            assert logits.argmax() == row[t]
            changed += plain != row[t]
    assert changed > 2
    model = Scripted([[0, 0, 0]], 3)  # 50 for token 0, which is padding in the prompt: not penalized, so it comes
    assert generate(model, np.array([[0, 0, 5]]), 1, temperature=0, repetition_penalty=1e9,
                    mask=np.array([[False, False, True]]))[0, 3] == 0  # fmt: skip


# ---- rows that end


@pytest.mark.parametrize("eos", [2, [8, 2], np.int64(2)])
def test_gen_05_end_of_sequence_in_a_batch(eos):
    model = Scripted([[7, 2, 8, 9], [5, 6, 4, 2]], prompt_length=1)
    ids = generate(model, np.array([[1], [1]]), 6, temperature=0, eos_id=eos, pad_id=0)
    np.testing.assert_array_equal(ids[:, 1:], [[7, 2, 0, 0], [5, 6, 4, 2]])
    assert model.calls == 4
    without = generate(model, np.array([[1], [1]]), 6, temperature=0, eos_id=2)
    np.testing.assert_array_equal(without[:, 1:], [[7, 2, 2, 2], [5, 6, 4, 2]])


def test_stop_strings():
    """Letters a, b, c, ...; the row is over with the token that completes the string, in what is new."""
    model = Scripted([[1, 2, 3, 1], [4, 4, 1, 2]], prompt_length=2)
    prompt = np.array([[1, 2], [1, 2]])  # "bc" is there already

    def decode(ids):
        return "".join("abcdefghij"[i] for i in ids)

    def write(stop):
        return generate(model, prompt, 4, temperature=0, stop=stop, decode=decode, pad_id=0)[:, 2:].tolist()

    assert write("bc") == [[1, 2, 0, 0], [4, 4, 1, 2]]
    assert write(["zz", "ee"]) == [[1, 2, 3, 1], [4, 4, 0, 0]]
    assert write(("b", "e")) == [[1], [4]]
    with pytest.raises(ConfigError, match="stop strings need decode"):
        generate(model, prompt, 4, stop="b")
    with pytest.raises(ConfigError, match=r"stop is \[''\], expected strings of at least one character"):
        generate(model, prompt, 4, stop="", decode=decode)


def test_stream_yields_what_generate_returns_and_leaves_the_model_alone():
    model = gpt()
    steps = stream(model, PROMPTS, 5, rng=1)
    found = []
    for token in steps:
        assert model.training
        assert grad_enabled()
        found.append(token)
        model(np.array([[1, 2]]))  # used otherwise in between
        model.clear()
    np.testing.assert_array_equal(np.stack(found, 1), generate(model, PROMPTS, 5, rng=1)[:, 7:])
    with pytest.raises(ConfigError, match="max_new_tokens is -1"):
        stream(model, PROMPTS, -1)  # at once, not at the first step
    assert list(stream(model, PROMPTS, 0)) == []


def use_generate(model):
    generate(model, PROMPTS, 3, rng=0)


def use_stream(model):
    for _ in stream(model, PROMPTS, 3, rng=0):
        pass


def use_beam_search(model):
    beam_search(model, PROMPTS, 3, num_beams=2)


@pytest.mark.parametrize("write", [use_generate, use_stream, use_beam_search])
@pytest.mark.parametrize("make", [gpt, llama])
def test_writing_between_a_forward_and_its_backward(make, write):
    """The gradient is that of the forward, with its dropout; and no weights of attention are left from writing."""
    ids, gradients = np.array([[1, 2, 3]]), []
    for between in (None, write):
        model, loss = make(), CrossEntropyLoss()
        loss(model(ids), ids)
        if between is not None:
            between(model)
            assert all(part.blocks is None for part in model.modules() if isinstance(part, ScaledDotProductAttention))
        model.backward(loss.backward())
        assert model.pending == 0
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all((a == b).all() for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}])
def test_translating_between_a_forward_and_its_backward(options):
    gradients = []
    for between in (False, True):
        model, loss = t5(), CrossEntropyLoss()
        loss(model(SRC, SRC), SRC)
        if between:
            translate(model, SRC, 3, **options)
        model.backward(loss.backward())
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all((a == b).all() for a, b in zip(*gradients, strict=True))


def test_suppressed_ids_are_never_written():
    ids = generate(gpt(), np.array([[1], [2]]), 19, suppress=set(range(V)) - {1, 2}, rng=0)
    assert set(ids[:, 1:].flat) == {1, 2}


# ---- encoder-decoders


@pairs
def test_translate_is_the_argmax_of_the_whole_pass(make):
    model = make()
    written = translate(model, SRC, 7, bos_id=1, eos_id=2)
    assert model.training
    np.testing.assert_array_equal(translate(model, SRC, 7, bos_id=1, eos_id=2, cache=False), written)
    for row, src in zip(written, SRC):
        end = np.argmax(row == 2) + 1 if (row == 2).any() else len(row)
        follow(model, [1], row[:end], src[None])
        assert (row[end:] == 2).all()


@pairs
def test_encoder_decoder_with_beginnings_of_different_length(make):
    model = make()
    written = generate(model, PROMPTS, 5, temperature=0, src=SRC)
    for b, prompt in enumerate(PROMPTS):
        follow(model, prompt, written[b, 7:], SRC[b : b + 1])


def test_sampling_of_a_translation():
    model = transformer()
    ids = generate(model, np.full((3, 1), 1), 6, src=SRC, rng=2, top_p=0.9)
    np.testing.assert_array_equal(generate(model, np.full((3, 1), 1), 6, src=SRC, rng=2, top_p=0.9, cache=False), ids)
    assert ids.shape == (3, 7)


# ---- what is refused


@pytest.mark.parametrize(("options", "message"), [
    ({"temperature": -1}, "temperature is -1"), ({"temperature": float("nan")}, "temperature is nan"),
    ({"top_k": 0}, "top_k is 0"), ({"top_p": 0.0}, "top_p is 0.0"), ({"top_p": 1.5}, "top_p is 1.5"),
    ({"min_p": 2}, "min_p is 2"), ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ({"eos_id": V}, f"eos_id holds {V}, expected ids from 0 to {V - 1}"), ({"suppress": [-1]}, "suppress holds -1"),
    ({"temperature": "1"}, "temperature is '1', expected a number"), ({"temperature": None}, "temperature is None"),
    ({"top_p": [0.5]}, r"top_p is \[0.5\]"), ({"min_p": "a"}, "min_p is 'a'"), ({"top_k": True}, "top_k is True"),
    ({"eos_id": 2.0}, "eos_id holds 2.0"), ({"suppress": 1.5}, "suppress holds 1.5"),
    ({"pad_id": V}, f"pad_id holds {V}"),
    ({"pad_id": -100}, "pad_id holds -100"), ({"rng": -1}, "rng is -1"), ({"rng": "a"}, "rng is 'a'"),
    ({"stop": 5}, r"stop is \[5\], expected strings"), ({"stop": "a", "decode": 5}, "stop strings need decode"),
    ({"stop": "a", "decode": bytes}, "decode returned bytes, expected a string"),
    ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5, expected an integer"),
    ({"max_new_tokens": -1}, "max_new_tokens is -1"),
])  # fmt: skip
def test_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=f"generate: {message}"):
        generate(gpt(), np.array([[1]]), **{"max_new_tokens": 1} | options)


@pytest.mark.parametrize("context", [2.5, "3", True])
def test_a_context_that_is_no_number(context):
    with pytest.raises(ConfigError, match=r"GPT: context is .*, expected an integer of at least 1"):
        generate(gpt(), [[1]], 1, context=context)


@pytest.mark.parametrize("ids", [[[1, 2], 3], [[1, 2], [[3]]], [[1, [2]], [3]]])
@pytest.mark.parametrize("write", [generate, beam_search])
def test_lists_that_are_no_prompts(write, ids):
    with pytest.raises(ShapeError, match="cannot be read as an array"):
        write(gpt(), ids, 1)


def test_masks_and_sources_that_are_no_arrays():
    with pytest.raises(ShapeError, match="generate: mask cannot be read as an array"):
        generate(gpt(), [[1, 2], [3, 4]], 1, mask=[[1], [1, 1]])
    with pytest.raises(DtypeError, match="generate: mask has dtype"):
        generate(gpt(), [[1, 2], [3, 4]], 1, mask=[["a", "b"], ["", ""]])
    with pytest.raises(ShapeError, match="translate: src cannot be read as an array"):
        translate(transformer(), [[1], [2, 3]], 2)
    with pytest.raises(ShapeError, match=r"translate: src has shape \(\)"):
        translate(transformer(), None, 2)
    with pytest.raises(ConfigError, match="translate: bos_id holds 'a'"):
        translate(transformer(), [[1]], 2, bos_id="a")
    with pytest.raises(ConfigError, match="NoneType cannot write"):
        generate(None, [[1]], 1)


def test_no_rows():
    """No prompts are continued to none."""
    assert generate(gpt(), np.zeros((0, 3), int), 2).shape[0] == 0
    ids, scores = beam_search(gpt(), np.zeros((0, 3), int), 2, num_return=3)
    assert ids.shape[:2] == (0, 3)
    assert scores.shape == (0, 3)


def test_prompts_that_cannot_be_read():
    model = gpt()
    for ids in (np.zeros((1, 0), int), np.array([1, 2]), [1, 2], []):
        with pytest.raises(ShapeError, match=r"expected \(rows, tokens\) with at least one token, or a list"):
            generate(model, ids, 1)
    with pytest.raises(DtypeError, match="ids have dtype float64"):
        generate(model, [[1.5], [2, 3]], 1)
    with pytest.raises(ShapeError, match="a row without one; expected padding on the left"):
        generate(model, [[1, 2], []], 1)
    for mask in ([[True, False]], [[False, False]], [[True, False, True]][:1]):
        with pytest.raises(ShapeError, match="expected padding on the left"):
            generate(model, np.ones((1, len(mask[0])), int), 1, mask=np.array(mask))
    with pytest.raises(ShapeError, match=r"mask has shape \(1, 3\), expected \(1, 2\)"):
        generate(model, np.array([[1, 2]]), 1, mask=np.ones((1, 3), bool))


@pytest.mark.parametrize("write", [generate, beam_search])
def test_weights_that_are_not_finite(write):
    model = gpt()
    model.parameters()[0].data[3] = np.nan
    with pytest.raises(NonFiniteError, match="GPT: the logits are not finite"):
        write(model, [[1, 3]], 2)
    with pytest.raises(ConfigError, match="so that none may come"):
        write(gpt(), [[1, 3]], 2, suppress=range(V))


def test_models_that_cannot_write():
    with pytest.raises(ConfigError, match="BERT cannot write"):
        generate(BERT(BERTConfig(V, 8, 8, 2, 1, 6)), [[1]], 1)
    with pytest.raises(ConfigError, match="Transformer: expected src"):
        generate(transformer(), [[1]], 1)
    with pytest.raises(ConfigError, match="GPT: expected no src"):
        generate(gpt(), [[1]], 1, src=SRC)
    with pytest.raises(ConfigError, match="src has 3 rows, expected 1"):
        generate(transformer(), [[1]], 1, src=SRC)
    with pytest.raises(ConfigError, match="expected none for an encoder-decoder"):
        generate(transformer(), [[1]], 1, src=SRC[:1], context=3)
