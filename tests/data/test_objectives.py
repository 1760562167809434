"""Pre-training objectives by their properties: frequencies, what is never touched, and the text put together again."""
import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from numtrans.data import IGNORE, corrupt_spans, mask_tokens, noise_spans
from numtrans.data.objectives import OBJECTIVES, span_counts
from numtrans.errors import DataError

MASK, V = 50, 51
UNLIKELY = 1e-6                         # the seeds are fixed, so a right program always passes


def rows(B=400, T=40, seed=0):
    return np.random.default_rng(seed).integers(4, 50, (B, T))


def masked(ids, seed=1, **options):
    return mask_tokens(ids, np.random.default_rng(seed), **{"mask_id": MASK, "vocab_size": V, **options})


# ---- masked language modeling


def test_fifteen_percent_are_chosen_in_every_row_and_every_place_as_often():
    ids = rows(2000)
    _, labels = masked(ids)
    chosen = labels != IGNORE
    assert (chosen.sum(axis=1) == 6).all()                                  # 15 % of 40
    assert (labels[chosen] == ids[chosen]).all()
    places = chosen.sum(axis=0)
    assert all(binomtest(int(n), 2000, 0.15).pvalue > UNLIKELY for n in places)
    pairs = int((chosen[:, 0] & chosen[:, 1]).sum())                        # drawn without putting back
    assert binomtest(pairs, 2000, 6 / 40 * 5 / 39).pvalue > UNLIKELY


def test_eighty_ten_ten():
    ids = rows(2000)
    inputs, labels = masked(ids)
    chosen = labels != IGNORE
    n = int(chosen.sum())
    assert (inputs[~chosen] == ids[~chosen]).all()
    hidden, kept = inputs[chosen] == MASK, inputs[chosen] == ids[chosen]
    assert binomtest(int(hidden.sum()), n, 0.8).pvalue > UNLIKELY
    # A random token is the old one in one of 46 cases.
    assert binomtest(int(kept.sum()), n, 0.1 + 0.1 / 46).pvalue > UNLIKELY
    drawn = inputs[chosen][~hidden & ~kept]
    assert chisquare(np.bincount(drawn, minlength=V)[4:50]).pvalue > UNLIKELY
    assert set(drawn) == set(range(4, 50))                                  # neither special ids nor the mask
    # Which of the three it is does not depend on the place.
    assert all(binomtest(int(h), int(c), 0.8).pvalue > UNLIKELY
               for h, c in zip((inputs == MASK).sum(axis=0), chosen.sum(axis=0), strict=True))


def test_special_ids_are_neither_chosen_nor_drawn():
    ids = rows(300, 30)
    ids[:, 0], ids[:, 20], ids[:, 21:] = 1, 2, 0                            # bos, 19 tokens, eos, padding
    ids[:, 5] = 3
    ids[:, 7] = 10
    ids[:, 8] = MASK
    inputs, labels = masked(ids, special_ids=(0, 1, 2, 3, 10))
    special = np.isin(ids, (0, 1, 2, 3, 10, MASK))
    assert (inputs[special] == ids[special]).all()
    assert (labels[special] == IGNORE).all()
    assert not np.isin(inputs[~special], (0, 1, 2, 3, 10)).any()
    counts = (~special).sum(axis=1)
    assert ((labels != IGNORE).sum(axis=1) == np.maximum(1, np.round(0.15 * counts))).all()


@pytest.mark.parametrize("T", range(1, 12))
def test_a_short_row_has_one_chosen_token(T):
    _, labels = masked(rows(200, T))
    assert ((labels != IGNORE).sum(axis=1) == max(1, round(0.15 * T))).all()


def test_a_row_without_ordinary_tokens_stays_as_it_is():
    ids = np.array([[1, 2, 0, 0], [1, 7, 2, 0]])
    inputs, labels = masked(ids)
    assert (inputs[0] == ids[0]).all()
    assert (labels == [[IGNORE] * 4, [IGNORE, 7, IGNORE, IGNORE]]).all()


def test_the_seed_and_the_step_decide():
    ids = rows(20)
    before = ids.copy()
    one, again, other = (mask_tokens(ids, np.random.default_rng((3, step)), mask_id=MASK, vocab_size=V)
                         for step in (1, 1, 2))
    assert (one[0] == again[0]).all()
    assert (one[1] == again[1]).all()
    assert (one[1] != other[1]).any()
    assert (ids == before).all()


# ---- span corruption


def spans(mask):
    """Lengths of the runs of True, and of False."""
    edges = np.flatnonzero(np.diff([0, *mask.astype(int), 0]))
    gaps = np.flatnonzero(np.diff([0, *(~mask).astype(int), 0]))
    return edges[1::2] - edges[::2], gaps[1::2] - gaps[::2]


@pytest.mark.parametrize(("length", "share", "mean_span", "noise", "number"), [
    (512, 0.15, 3, 77, 26),             # T5's own setting: 76.8 tokens, 25.7 spans
    (568, 0.15, 3, 85, 28),             # the length that T5 cuts so that the source has 512 tokens
    (64, 0.15, 3, 10, 3), (8, 0.15, 3, 1, 1), (2, 0.15, 3, 1, 1), (1, 0.15, 3, 0, 0), (5, 0.5, 3, 2, 1),
    (10, 0.9, 1, 9, 1),                 # nine spans of one token cannot be kept apart by a single token
    (10, 0.5, 1, 5, 5),
])
def test_how_many_tokens_and_spans(length, share, mean_span, noise, number):
    assert span_counts(length, share, mean_span) == (noise, number)
    rng = np.random.default_rng(length)
    for _ in range(50):
        mask = noise_spans(length, rng, share, mean_span)
        assert (mask.shape, mask.dtype, mask.sum()) == ((length,), bool, noise)
        assert len(spans(mask)[0]) == number                    # spans that touched would be one run
        assert not mask[0]


def test_t5s_lengths():
    # The numbers in T5's random_spans_helper: 568 tokens give a source of 512 and a target of 114 (eos included, the
    # last sentinel not).
    mask = noise_spans(568, np.random.default_rng(0))
    source, target = corrupt_spans(np.arange(1000, 1568), mask, top_sentinel=32099)
    assert (len(source), len(target)) == (512, 115)


def test_every_way_to_cut_is_equally_likely():
    # 12 tokens, half of them in 3 spans: the tokens of either kind split up in C(5, 2) = 10 ways.
    rng = np.random.default_rng(0)
    seen = {}
    for _ in range(10_000):
        mask = noise_spans(12, rng, 0.5, 2)
        seen[mask.tobytes()] = seen.get(mask.tobytes(), 0) + 1
    assert len(seen) == 100
    assert chisquare(list(seen.values())).pvalue > UNLIKELY


def test_by_hand():
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party"]
    ids = [10 + i for i in range(len(words))]
    source, target = corrupt_spans(ids, [0, 0, 1, 1, 0, 0, 0, 1], top_sentinel=99)
    assert source == [10, 11, 99, 14, 15, 16, 98, 2]
    assert target == [99, 12, 13, 98, 17, 97, 2]
    assert corrupt_spans([10, 11], [True, False], top_sentinel=99, eos_id=1) == ([99, 11, 1], [99, 10, 98, 1])
    assert corrupt_spans([10], [False], top_sentinel=99) == ([10, 2], [99, 2])


def splice(source, target, top):
    """The row that `source` and `target` were made of."""
    assert source[-1] == target[-1] == 2
    pieces, sentinel = {}, None
    for token in target[:-1]:
        if token > 1000:
            sentinel = token
            pieces[sentinel] = []
        else:
            pieces[sentinel].append(token)
    assert list(pieces) == list(range(top, top - len(pieces), -1))          # counting down, from the top
    assert pieces.pop(sentinel) == []                                       # the last one ends the target
    assert [token for token in source if token > 1000] == list(pieces)
    return [t for token in source[:-1] for t in pieces.get(token, [token])]


@pytest.mark.parametrize("length", [*range(1, 30), 100, 511])
def test_source_and_target_put_together_are_the_text(length):
    rng = np.random.default_rng(length)
    for _ in range(20):
        ids = rng.integers(4, 1000, length)
        source, target = corrupt_spans(ids, noise_spans(length, rng), top_sentinel=1100)
        assert splice(source, target, 1100) == ids.tolist()
        noise, number = span_counts(length)
        assert (len(source), len(target)) == (length - noise + number + 1, noise + number + 2)


# ---- what a model is given


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_objectives(block):
    text = rows(5, block + 1, seed=block)
    made = {name: kind(50, block) for name, kind in OBJECTIVES.items()}
    assert list(made) == ["clm", "mlm", "span"]
    for name, objective in made.items():
        given = text[:, :objective.length]
        assert given.shape == (5, objective.length)
        one, again = (objective(given, np.random.default_rng((0, 1))) for _ in range(2))
        inputs, targets = one
        assert all((a == b).all() for a, b in zip((*inputs, targets), (*again[0], again[1]), strict=True))
        for x in (*inputs, targets):
            assert x.dtype == np.int64
            assert x.max() < objective.vocab_size
        assert inputs[-1].shape == targets.shape
        if name == "clm":
            assert (inputs[0][:, 1:] == targets[:, :-1]).all()
            assert (targets == given[:, 1:]).all()
        if name == "mlm":
            assert (np.where(targets == IGNORE, inputs[0], targets) == given).all()
        if name == "span":
            source, shifted = inputs
            assert (shifted[:, 0] == 0).all()
            assert (shifted[:, 1:] == targets[:, :-1]).all()
            top = objective.vocab_size - 1
            offset = np.where(targets >= 50, 2000, 0) + targets             # sentinels as splice wants them
            whole = [splice(np.where(s >= 50, s + 2000, s).tolist(), t.tolist(), top + 2000)
                     for s, t in zip(source, offset, strict=True)]
            assert whole == given.tolist()
            assert min(targets[targets >= 50]) == 50                        # sentinels begin after the text


@pytest.mark.parametrize(("call", "message"), [
    (lambda: masked(np.arange(5)), r"mask_tokens: expected integer ids of shape \(B, T\), got int64 of shape \(5,\)"),
    (lambda: masked([[5, 6], [7]]), "mask_tokens: the rows of ids have unequal lengths"),
    (lambda: masked(rows() + 0.5), r"mask_tokens: expected integer ids of shape \(B, T\), got float64"),
    (lambda: noise_spans(5.5, np.random.default_rng(0)), "length must be a whole number of at least 1, got 5.5"),
    (lambda: OBJECTIVES["clm"](9, 0), "NextToken: block must be a whole number of at least 1, got 0"),
    (lambda: OBJECTIVES["mlm"](9, "8"), "MaskedLanguageModel: block must be a whole number of at least 1, got '8'"),
    (lambda: OBJECTIVES["span"](4, 8), "SpanCorruption: vocab_size must be a whole number of at least 5, got 4"),
    (lambda: masked(rows(), share=0), "share must be between 0 and 1, got 0"),
    (lambda: masked(rows(), vocab_size=4), "all 4 ids are special"),
    (lambda: noise_spans(0, np.random.default_rng(0)), "length must be a whole number of at least 1, got 0"),
    (lambda: span_counts(5, 1.0), "share=1.0"),
    (lambda: span_counts(5, 0.5, 0.5), "mean_span=0.5"),
    (lambda: corrupt_spans([5, 6], [True], top_sentinel=9), "ids have 2 tokens, but noise has 1"),
    (lambda: corrupt_spans([5, 8], [True, False], top_sentinel=9), r"holds \[8\], which are sentinels \(8 to 9\)"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(DataError, match=message):
        call()
