"""Every model with a cache gives the logits that it gives without one."""

import numpy as np
import pytest
from helpers import generic

from numtrans.errors import BackwardError, ShapeError
from numtrans.layers import causal_mask
from numtrans.models import GPT, T5, GPTConfig, Llama, LlamaConfig, T5Config, Transformer, TransformerConfig
from numtrans.models.configs import POSITIONS
from numtrans.module import no_grad

V = 11
RNG = np.random.default_rng(0)
IDS, SRC = RNG.integers(1, V, (3, 9)), RNG.integers(1, V, (3, 5))
SRC[1, 3:] = 0  # padding of the source
CHUNKS = [[1] * 9, [4, 1, 1, 3], [2, 7]]
SIZES = dict(d_model=8, num_heads=4, d_ff=6)
dtypes = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
all_chunks = pytest.mark.parametrize("chunks", CHUNKS, ids=str)


def gpt(position="learned", dtype=np.float64, **options):
    config = GPTConfig(V, **(SIZES | dict(max_len=12, num_layers=2, dropout=0.1, position=position) | options))
    return generic(GPT(config, rng=0), dtype=dtype).eval()


def llama(dtype=np.float64, **options):
    config = LlamaConfig(V, **(SIZES | dict(max_len=12, num_layers=2, num_kv_heads=2, dropout=0.1) | options))
    return generic(Llama(config, rng=0), dtype=dtype).eval()


def transformer(position="sinusoidal", dtype=np.float64, **options):
    sizes = SIZES | dict(num_encoder_layers=1, num_decoder_layers=2, max_len=12, position=position)
    return generic(Transformer(TransformerConfig(V, V, **(sizes | options)), rng=0), dtype=dtype).eval()


def t5(dtype=np.float64, **options):
    sizes = SIZES | dict(d_kv=3, num_encoder_layers=1, num_decoder_layers=2, num_buckets=6, max_distance=7)
    return generic(T5(T5Config(V, **(sizes | options)), rng=0), dtype=dtype).eval()


def steps(call, chunks):
    """call(start, end) for consecutive pieces of the tokens, put together."""
    ends = np.cumsum(chunks)
    with no_grad():
        return np.concatenate([call(end - size, end) for size, end in zip(chunks, ends)], axis=1)


def assert_same(found, expected, tolerance):
    assert found.dtype == expected.dtype
    assert abs(found - expected).max() <= tolerance * max(1, abs(expected).max())


def check_decoder_only(model, chunks, tolerance):
    with no_grad():
        expected = model(IDS)
    cache = model.make_cache(4)
    assert_same(steps(lambda i, j: model(IDS[:, i:j], cache=cache), chunks), expected, tolerance)
    assert cache.length == 9


def check_encoder_decoder(model, chunks, tolerance):
    with no_grad():
        expected = model(SRC, IDS)
        memory, mask = model.encode(SRC)
    cache = model.make_cache(4)
    assert_same(steps(lambda i, j: model.decode(IDS[:, i:j], memory, mask, cache=cache), chunks), expected, tolerance)


@dtypes
@all_chunks
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("position", POSITIONS)
def test_gpt(position, num_kv_heads, chunks, dtype, tolerance):
    check_decoder_only(gpt(position, dtype, num_kv_heads=num_kv_heads), chunks, tolerance)


@dtypes
@all_chunks
def test_llama(chunks, dtype, tolerance):
    check_decoder_only(llama(dtype), chunks, tolerance)


@dtypes
@all_chunks
@pytest.mark.parametrize("position", POSITIONS)
def test_transformer(position, chunks, dtype, tolerance):
    check_encoder_decoder(transformer(position, dtype), chunks, tolerance)


@dtypes
@all_chunks
def test_t5(chunks, dtype, tolerance):
    check_encoder_decoder(t5(dtype), chunks, tolerance)


def left_padded(rows):
    """Rows of IDS cut to the lengths `rows`, padded on the left with 0: ids, real, positions."""
    ids, real = np.zeros_like(IDS), np.zeros(IDS.shape, bool)
    for b, n in enumerate(rows):
        ids[b, 9 - n :], real[b, 9 - n :] = IDS[b, :n], True
    return ids, real, np.maximum(real.cumsum(axis=1) - 1, 0)


@all_chunks
@pytest.mark.parametrize("make", [*(lambda p=p: gpt(p, num_kv_heads=2) for p in POSITIONS), llama],
                         ids=[*POSITIONS, "llama"])  # fmt: skip
def test_padding_on_the_left_changes_no_row(make, chunks):
    model, lengths = make(), [9, 4, 2]
    ids, real, positions = left_padded(lengths)
    options = (lambda i, j: {"positions": positions[:, i:j]}) if isinstance(model, GPT) else lambda i, j: {}
    cache = model.make_cache()
    found = steps(
        lambda i, j: model(ids[:, i:j], real[:, None, None, :j], cache=cache, **options(i, j)), chunks
    )
    with no_grad():
        whole = model(ids, real[:, None, None], **options(0, 9))
        for b, n in enumerate(lengths):
            alone = model(IDS[b : b + 1, :n])[0]
            assert_same(found[b, 9 - n :], alone, 1e-10)
            assert_same(whole[b, 9 - n :], alone, 1e-10)


@all_chunks
@pytest.mark.parametrize("make", [*(lambda p=p: transformer(p) for p in POSITIONS), t5], ids=[*POSITIONS, "T5"])
def test_padding_on_the_left_of_the_target_changes_no_row(make, chunks):
    model, lengths = make(), [9, 4, 2]
    ids, real, positions = left_padded(lengths)
    options = (lambda i, j: {"positions": positions[:, i:j]}) if isinstance(model, Transformer) else lambda i, j: {}
    with no_grad():
        memory, mask = model.encode(SRC)
    cache = model.make_cache()
    found = steps(
        lambda i, j: model.decode(ids[:, i:j], memory, mask, real[:, None, None, :j], cache=cache, **options(i, j)),
        chunks,
    )
    with no_grad():
        for b, n in enumerate(lengths):
            assert_same(found[b, 9 - n :], model(SRC[b : b + 1], IDS[b : b + 1, :n])[0], 1e-10)


@pytest.mark.parametrize("make", [*(lambda p=p: gpt(p, num_kv_heads=2) for p in POSITIONS), llama],
                         ids=[*POSITIONS, "llama"])  # fmt: skip
def test_rows_that_are_selected_take_their_past_along(make):
    model, ids, rng = make(), IDS[:, :3], np.random.default_rng(1)
    cache = model.make_cache(4)
    with no_grad():
        model(ids, cache=cache)
        for size in (5, 5, 4, 1, 3):
            rows = rng.integers(0, len(ids), size)
            cache.select(rows)
            ids = np.concatenate([ids[rows], rng.integers(1, V, (size, 1))], axis=1)
            assert_same(model(ids[:, -1:], cache=cache)[:, 0], model(ids)[:, -1], 1e-10)


@pytest.mark.parametrize("make", [*(lambda p=p: transformer(p) for p in POSITIONS), t5], ids=[*POSITIONS, "T5"])
def test_rows_that_are_selected_take_past_and_memory_along(make):
    model, ids, src, rng = make(), IDS[:, :3], SRC, np.random.default_rng(1)
    cache = model.make_cache(4)
    with no_grad():
        memory, mask = model.encode(src)
        model.decode(ids, memory, mask, cache=cache)
        for size in (5, 5, 4, 1, 3):
            rows = rng.integers(0, len(ids), size)
            cache.select(rows)
            ids = np.concatenate([ids[rows], rng.integers(1, V, (size, 1))], axis=1)
            memory, mask, src = memory[rows], mask[rows], src[rows]
            found = model.decode(ids[:, -1:], memory, mask, cache=cache)[:, 0]
            assert_same(found, model(src, ids)[:, -1], 1e-10)


def test_the_cache_is_refused_with_gradients_and_after_max_len():
    model = gpt()
    with pytest.raises(BackwardError, match="no_grad"):
        model(IDS, cache=model.make_cache())
    model.clear()
    with no_grad():
        for model in (gpt(), llama()):
            cache = model.make_cache()
            model(IDS, cache=cache)
            with pytest.raises(ShapeError, match="max_len=12"):
                model(IDS[:, :4], cache=cache)
            assert cache.length == 9


def test_a_mask_hides_tokens_of_the_cache():
    """As the whole pass with the same mask: what was hidden from later tokens stays hidden."""
    model, mask = gpt(), np.broadcast_to(causal_mask(9), (3, 1, 9, 9)).copy()
    mask[0, :, 5:, 2:4] = False
    cache = model.make_cache()
    found = steps(lambda i, j: model(IDS[:, i:j], mask[:, :, i:j, :j], cache=cache), [3, 3, 1, 2])
    with no_grad():
        assert_same(found, model(IDS, mask), 1e-10)
        assert abs(found - model(IDS)).max() > 1e-3
