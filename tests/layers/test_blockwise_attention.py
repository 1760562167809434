"""Attention in tiles equals the plain form: output, gradients and dropout's mask."""

import itertools
import tracemalloc

import numpy as np
import pytest
from helpers import check_gradients, normal

from numtrans import no_grad
from numtrans.blocks import Decoder, Encoder
from numtrans.errors import ConfigError
from numtrans.inspect import attention_entropy
from numtrans.layers import ALiBi, Dropout, MultiHeadAttention, ScaledDotProductAttention, attention, causal_mask
from numtrans.layers.blockwise_attention import Tiles
from numtrans.layers.dropout_mask import keep_mask, keep_part

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def small_tiles_are_cut(monkeypatch):
    monkeypatch.setattr(Tiles, "smallest", 1)


def inputs(Tq, Tk, H=2, G=2, B=2, d=3, dv=4, dtype=np.float64, factor=3.0):
    """Query, key, value and a gradient of the output; large scores, so that the reference moves."""
    shapes = (B, H, Tq, d), (B, G, Tk, d), (B, G, Tk, dv), (B, H, Tq, dv)
    q, k, v, dO = (normal(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes))
    return q * dtype(factor), k, v, dO


def masks(kind, B, H, Tq, Tk):
    rng = np.random.default_rng(7)
    if kind == "padding":
        mask = rng.random((B, 1, 1, Tk)) < 0.6
        mask[0] = False  # a sequence without keys
        return mask
    if kind == "full":
        mask = rng.random((B, H, Tq, Tk)) < 0.5
        mask[:, :, Tq // 2] = False  # queries without keys
        return mask
    return {None: None, "rows": rng.random((Tq, 1)) < 0.7, "late": np.arange(Tk) >= Tk // 2}[kind]


def both_forms(options, block_size, dropout=0.0):
    return [
        ScaledDotProductAttention(dropout, **options, block_size=size, rng=np.random.default_rng(1))
        for size in (0, block_size)
    ]


def assert_equal_forms(plain, tiled, q, k, v, dO, mask=None, rtol=1e-12, atol=1e-13):
    np.testing.assert_allclose(tiled(q, k, v, mask), plain(q, k, v, mask), rtol=rtol, atol=atol)
    for ours, expected in zip(tiled.backward(dO), plain.backward(dO), strict=True):
        scale = max(1.0, np.abs(expected).max()) if expected.size else 1.0
        np.testing.assert_allclose(ours, expected, rtol=rtol, atol=atol * scale)
    assert tiled.attention_weights is None
    assert plain.pending == tiled.pending == 0


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 3)])
@pytest.mark.parametrize("kind", [None, "padding", "full", "rows", "late"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_equals_the_plain_form(causal, window, kind, dropout):
    sizes = itertools.product([(7, 5), (7, 13)], [(2, 2), (4, 2)], (4, 5))
    for (Tq, Tk), (H, G), block_size in [*sizes, ((1, 5), (2, 1), 2), ((3, 3), (3, 1), 1), ((4, 4), (1, 1), 16)]:
        q, k, v, dO = inputs(Tq, Tk, H, G)
        plain, tiled = both_forms({"causal": causal, "window": window}, block_size, dropout)
        mask = masks(kind, 2, H, Tq, Tk)
        assert_equal_forms(plain, tiled, q, k, v, dO, mask)
        assert plain.dropout.counter == tiled.dropout.counter == (dropout > 0)


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_float32(factor):
    """Backward's weights are exp(S - L): their relative error is the rounding of S and L."""
    q, k, v, dO = inputs(70, 90, dtype=np.float32, factor=factor)
    rounding = np.finfo(np.float32).eps * np.abs(q @ k.swapaxes(-1, -2)).max()

    def run(block_size, dtype):
        layer = ScaledDotProductAttention(causal=True, block_size=block_size)
        O = layer(*(x.astype(dtype) for x in (q, k, v)))
        return O, *layer.backward(dO.astype(dtype))

    for ours, exact in zip(run(32, np.float32), run(0, np.float64), strict=True):
        assert ours.dtype == np.float32
        assert np.abs(ours - exact).max() < 2 * rounding * np.abs(exact).max()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 2}])
def test_gradients(options, dropout):
    layer = ScaledDotProductAttention(dropout, **options, block_size=2, rng=np.random.default_rng(0))
    mask = np.random.default_rng(3).random((2, 1, 3, 5)) < 0.7
    mask[0, 0, 0] = False  # a query with no key
    q, k, v, _ = inputs(3, 5, G=1, d=2, dv=2, factor=1.0)
    check_gradients(layer, q, k, v, mask=mask)


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_scores_far_from_zero(offset):
    """The reference is found from the first key that a query meets, however far its score is from 0."""
    q, k, v, dO = inputs(5, 12, d=2)
    q[..., 1], k[..., 1] = 1.0, offset
    mask = np.ones((5, 12), bool)
    mask[1, :7] = False
    plain, tiled = both_forms({}, 3)
    assert_equal_forms(plain, tiled, q, k, v, dO, mask, rtol=1e-10, atol=1e-10)


def test_rising_scores():
    """Each tile of keys has scores far above those of the one before."""
    q, k, v, dO = inputs(6, 20, d=1, factor=0.0)
    q += 1.0
    k[...] = 30.0 * np.arange(20)[:, None]
    for order in (slice(None), slice(None, None, -1)):
        plain, tiled = both_forms({}, 2)
        assert_equal_forms(plain, tiled, q, k[:, :, order], v, dO, atol=1e-15 * k.max())


@pytest.mark.parametrize("rise", [3.0, 11.5, 60.0])
def test_rising_scores_in_float16(rise):
    """The later keys have all the weight, however far their scores are above the earlier ones: e^12 overflows."""
    q, k = np.ones((1, 1, 4, 1), np.float16), np.repeat([0, rise], 4).astype(np.float16).reshape(1, 1, 8, 1)
    v, dO = np.arange(8, dtype=np.float16).reshape(1, 1, 8, 1), np.ones((1, 1, 4, 1), np.float16)
    tiled = ScaledDotProductAttention(scale=1.0, block_size=4)
    weights = np.exp(k[..., 0].astype(np.float64) - rise)
    weights /= weights.sum()
    np.testing.assert_allclose(tiled(q, k, v)[0, 0, :, 0], [weights[0, 0] @ np.arange(8)] * 4, rtol=2e-3)
    rounding = 1e-3 * max(5, rise)  # backward's weights are exp(S - L), as in test_float32
    np.testing.assert_allclose(tiled.backward(dO)[2][..., 0], 4 * weights, rtol=rounding, atol=1e-7)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_query_that_is_not_a_number_spoils_no_other(value):
    """The scores of a tile rise where one of its rows has no largest one."""
    q, k, v, _ = inputs(4, 8, d=1, dtype=np.float32)
    q[...], k[...] = 1, np.repeat([0, 300], 4)[:, None]
    q[:, :, 2] = value
    plain, tiled = both_forms({"scale": 1.0}, 4)
    with np.errstate(invalid="ignore"):  # the row of infinities
        found, expected = tiled(q, k, v), plain(q, k, v)
    assert np.isnan(expected[:, :, 2]).all()
    assert np.isfinite(expected[:, :, [0, 1, 3]]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_query_without_keys():
    q, k, v, dO = inputs(6, 4)
    layer = ScaledDotProductAttention(causal=True, block_size=2)  # the first two queries come before every key
    assert (layer(q, k, v)[:, :, :2] == 0).all()
    dq, dk, dv = layer.backward(dO)
    assert (dq[:, :, :2] == 0).all()
    dO[:, :, :2] += 1  # and have no part in any gradient
    layer(q, k, v)
    assert all((a == b).all() for a, b in zip(layer.backward(dO), (dq, dk, dv), strict=True))
    nothing = np.zeros((4,), bool)
    assert (layer(q, k, v, nothing) == 0).all()
    assert all((g == 0).all() for g in layer.backward(dO))


@pytest.mark.parametrize(("Tq", "Tk"), [(0, 3), (3, 0), (0, 0)])
def test_no_tokens(Tq, Tk):
    q, k, v, dO = inputs(Tq, Tk)
    assert_equal_forms(*both_forms({"causal": Tq <= Tk}, 2), q, k, v, dO)


def test_one_gradient_for_each_array_given():
    q, k, _, dO = inputs(7, 7, dv=3)
    plain, tiled = both_forms({"causal": True}, 4)
    for given in [(q,), (q, k)]:
        np.testing.assert_allclose(tiled(*given), plain(*given), rtol=1e-12)
        found, expected = tiled.backward(dO), plain.backward(dO)
        for ours, right in zip(*([found], [expected]) if len(given) == 1 else (found, expected), strict=True):
            np.testing.assert_allclose(ours, right, rtol=1e-11, atol=1e-12)


def test_sizes_as_they_are_chosen(monkeypatch):
    """Tiles of 512, cut down to 128 queries at the diagonal, over 700 tokens."""
    monkeypatch.undo()
    q, k, v, dO = inputs(700, 700, H=1, G=1, B=1)
    plain, tiled = both_forms({"causal": True}, attention.TILE)
    assert {n for tiles in Tiles((1, 1, 700, 700), 512, True, None, None, tiled.dropout).of_queries.values()
            for _, _, n, _ in tiles} == {128, 188}  # fmt: skip
    assert_equal_forms(plain, tiled, q, k, v, dO, rtol=1e-11)


def test_inputs_are_left_alone():
    arrays = inputs(9, 9)
    before = [x.copy() for x in arrays]
    layer = ScaledDotProductAttention(0.3, causal=True, block_size=4)
    layer(*arrays[:3])
    layer.backward(arrays[3])
    assert all((x == y).all() for x, y in zip(arrays, before, strict=True))


def test_two_forwards_and_backwards_in_reverse():
    a, b = inputs(5, 5), inputs(6, 9)
    layer = ScaledDotProductAttention(causal=True, block_size=4)
    layer(*a[:3])
    alone = layer.backward(a[3])
    layer(*a[:3])
    layer(*b[:3])
    layer.backward(b[3])
    assert all((x == y).all() for x, y in zip(layer.backward(a[3]), alone, strict=True))
    with no_grad():
        layer(*a[:3])
    assert layer.pending == 0


def peak_memory(function):
    """Bytes that `function` has in use at most."""
    function()
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_is_linear_in_the_tokens():
    """Twice the tokens, twice the memory: nothing of Tq x Tk, with a mask of keys or one that the caller has made."""
    peaks = []
    for T in (512, 1024):
        q, k, v, dO = inputs(T, T, B=1, d=4, dv=4, dtype=np.float32)
        layer = ScaledDotProductAttention(0.1, causal=True, block_size=64)
        mask = causal_mask(T)

        def run(layer=layer, arrays=(q, k, v), mask=mask, dO=dO):
            layer(*arrays, mask)
            layer.backward(dO)

        peaks.append(peak_memory(run))
    assert peaks[1] < 2.1 * peaks[0]
    assert peaks[1] < 1024 * 1024  # bytes: a quarter of one array of scores


def test_memory_of_tiles_larger_than_the_scores():
    """A tile takes no more memory than the scores that there are."""
    arrays = inputs(40, 30, H=1, G=1, B=1)
    peaks = []
    for layer in (ScaledDotProductAttention(block_size=size) for size in (40, 4096)):

        def run(layer=layer):
            layer(*arrays[:3])
            layer.backward(arrays[3])

        peaks.append(peak_memory(run))
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize(("causal", "window", "area"), [
    (False, None, 1600), (True, None, 45 * 16 + 10 * 12), (True, 1, 10 * 12), (True, 5, 10 * 12 + 9 * 16),
    (True, 6, 10 * 12 + 9 * 16 + 8 * 16),
])  # fmt: skip
def test_tiles_above_the_diagonal_and_before_the_window_are_skipped(causal, window, area, monkeypatch):
    """A tile that the diagonal crosses is cut in two, of 2 x 2 and 2 x 4; each visible score is in one tile."""
    monkeypatch.setattr(Tiles, "smallest", 2)
    tiles = Tiles((1, 1, 40, 40), 4, causal, window, None, Dropout(0.0))
    for lists in (tiles.of_queries, tiles.of_keys):
        covered = np.zeros((40, 40), int)
        for i, j, n, c in itertools.chain(*lists.values()):
            covered[i, j] += 1
            assert covered[i, j].shape == (n, c)
        assert covered.max() == 1
        assert covered.sum() == area
        assert covered[causal_mask(40, window=window) if causal else ...].all()


def test_chosen_by_itself(monkeypatch):
    """With many scores of many tokens: many of few tokens are those of a large batch, which tiles only make slower."""
    q, k, v, _ = inputs(6, 6)
    layers = [ScaledDotProductAttention(), ScaledDotProductAttention(block_size=0),
              ScaledDotProductAttention(position=ALiBi(2), causal=True)]  # fmt: skip

    def chosen(tile, scores):
        monkeypatch.setattr(attention, "TILE", tile)
        monkeypatch.setattr(attention, "MANY_SCORES", scores)
        return [layer(q, k, v) is not None and layer.attention_weights is None for layer in layers]

    assert chosen(5, 2 * 2 * 6 * 6) == [False, False, False]
    assert chosen(5, 2 * 2 * 6 * 6 - 1) == [True, False, False]
    assert chosen(6, 2 * 2 * 6 * 6 - 1) == [False, False, False]


def test_in_multi_head_attention():
    x, dy = normal(2, 9, 8), normal(2, 9, 8, seed=1)
    layers = [MultiHeadAttention(8, 4, 2, causal=True, block_size=size) for size in (0, 4)]
    plain, tiled = (layer.astype(np.float64) for layer in layers)
    tiled.load_state_dict(plain.state_dict())
    np.testing.assert_allclose(tiled(x), plain(x), rtol=1e-12, atol=1e-14)  # sums near 0 lose digits
    np.testing.assert_allclose(tiled.backward(dy), plain.backward(dy), rtol=1e-11, atol=1e-13)
    assert tiled.attention_weights is None
    assert plain.attention_weights.shape == (2, 4, 9, 9)


def test_in_stacks():
    """The same output with and without tiles, in every attention of an encoder and a decoder."""
    x, memory, outputs = normal(1, 6, 8), normal(1, 5, 8, seed=1), []
    for size in (0, 2):
        stacks = [stack(1, 8, 2, 8, block_size=size, rng=np.random.default_rng(0)) for stack in (Encoder, Decoder)]
        encoder, decoder = (stack.astype(np.float64) for stack in stacks)
        outputs.append((encoder(x), decoder(x, memory)))
        parts = [m for m in (*encoder.modules(), *decoder.modules()) if isinstance(m, ScaledDotProductAttention)]
        assert [part.attention_weights is None for part in parts] == [size > 0] * 3
    np.testing.assert_allclose(outputs[0][0], outputs[1][0], rtol=1e-12)
    np.testing.assert_allclose(outputs[0][1], outputs[1][1], rtol=1e-12)


def test_inspection_says_why_there_are_no_weights():
    layer = ScaledDotProductAttention(block_size=2)
    layer(*inputs(3, 3)[:3])
    with pytest.raises(ConfigError, match=r"weights are None: .*block_size=0"):
        attention_entropy(layer.attention_weights)


@pytest.mark.parametrize("options", [
    {"block_size": 4, "position": ALiBi(2)}, *({"block_size": size} for size in (-1, 2.5, 1e3, "3", True)),
])  # fmt: skip
def test_refused(options):
    with pytest.raises(ConfigError, match=rf"ScaledDotProductAttention: block_size is {options['block_size']!r} with"):
        ScaledDotProductAttention(causal=True, **options)


@pytest.mark.parametrize("start", [0, 2**32 - 50])
def test_part_of_a_dropout_mask(start):
    shape = (2, 3, 5, 7)
    whole = keep_mask(np, shape, 0.4, 11, 2, start)
    for bounds in [((0, 2), (1, 2), (2, 5), (3, 7)), ((1, 2), (0, 3), (0, 1), (6, 7))]:
        index = tuple(slice(*bound) for bound in bounds)
        np.testing.assert_array_equal(keep_part(np, shape, index, 0.4, 11, 2, start), whole[index])
    assert whole.any()
    assert not whole.all()


def test_dropout_of_a_part_of_a_batch():
    """The rows of a shard get the part of the batch's mask that is theirs, in tiles as well."""
    q, k, v, _ = inputs(7, 7, B=4)
    whole, part = (ScaledDotProductAttention(0.4, block_size=3, rng=np.random.default_rng(2)) for _ in range(2))
    expected = whole(q, k, v)
    part.dropout.rows = (2, 2)
    np.testing.assert_array_equal(part(q[2:], k[2:], v[2:]), expected[2:])
