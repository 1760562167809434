"""Batches: padding, the shift of the targets, every example once, and going on in the middle of an epoch."""
import numpy as np
import pytest

from numtrans.data import IGNORE, Batch, DateTask, Seq2SeqBatches, pad_batch, shift_targets
from numtrans.errors import DataError


def make_pairs(n, seed=0):
    """Pairs of random lengths, each with a number of its own in front (from 10 on)."""
    rng = np.random.default_rng(seed)
    return [([10 + i, *rng.integers(4, 9, size=rng.integers(0, 30)).tolist()],
             [10 + i, *rng.integers(4, 9, size=rng.integers(0, 12)).tolist()]) for i in range(n)]


def same(a, b):
    return len(a) == len(b) and all((p == q).all() and p.shape == q.shape
                                    for x, y in zip(a, b, strict=True) for p, q in zip(x, y, strict=True))


def test_pad_batch():
    ids, lengths = pad_batch([[5, 6, 7], [], [8]])
    assert ids.tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]]
    assert lengths.tolist() == [3, 0, 1]
    assert ids.dtype == lengths.dtype == np.int64
    assert pad_batch([[1], [2, 3]], pad_id=9)[0].tolist() == [[1, 9], [2, 3]]
    with pytest.raises(DataError, match="pad_batch: expected at least one row, got none"):
        pad_batch([])


def test_dec_03_input_and_labels_are_shifted():
    """The fault: labels equal to the input, so that the model learns to repeat what it reads."""
    ids = np.array([[1, 5, 6, 2, 0]])
    decoder_input, labels = shift_targets(ids)
    assert decoder_input.tolist() == [[1, 5, 6, 2]]
    assert labels.tolist() == [[5, 6, 2, IGNORE]]
    assert (labels != IGNORE).sum() == 3
    assert ids.tolist() == [[1, 5, 6, 2, 0]]
    decoder_input[0, 0] = 7
    assert ids[0, 0] == 1                                               # a copy, not a view
    batch = Seq2SeqBatches([([4], [5, 6]), ([4], [5, 6, 7])], 2, shuffle=False).epoch(0)
    batch = next(batch)
    assert batch.tgt_in.tolist() == [[1, 5, 6, 0], [1, 5, 6, 7]]
    assert batch.tgt_out.tolist() == [[5, 6, 2, IGNORE], [5, 6, 7, 2]]
    assert batch.num_tokens == 7


@pytest.mark.parametrize("shape", [(4,), (2, 1), (2, 3, 4)])
def test_shift_targets_refuses_other_shapes(shape):
    with pytest.raises(DataError, match=r"shift_targets: expected ids of shape \(B, T \+ 1\)"):
        shift_targets(np.ones(shape, int))


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("n", "batch_size"), [(1, 4), (8, 4), (997, 3), (1000, 7)])
def test_every_example_exactly_once_and_unchanged(n, batch_size, bucket, shuffle):
    pairs = make_pairs(n)
    batches = Seq2SeqBatches(pairs, batch_size, seed=5, bucket=bucket, shuffle=shuffle)
    seen = []
    all_batches = list(batches.epoch(2))
    assert len(all_batches) == len(batches) == -(-n // batch_size)
    sizes = sorted(len(batch.src) for batch in all_batches)
    assert sizes[1:] == [batch_size] * (len(batches) - 1)
    assert sizes[0] == (n % batch_size or batch_size)
    for batch in all_batches:
        assert isinstance(batch, Batch)
        assert batch.tgt_in.shape == batch.tgt_out.shape
        for src, tgt_in, tgt_out in zip(*batch, strict=True):
            y = tgt_out[tgt_out != IGNORE].tolist()
            source, target = src[src != 0].tolist(), y[:-1]
            assert y[-1] == 2
            assert tgt_in[:len(y)].tolist() == [1, *target]
            assert not tgt_in[len(y):].any()
            assert (tgt_out[len(y):] == IGNORE).all()
            assert not src[len(source):].any()
            assert (source, target) == pairs[source[0] - 10]
            seen.append(source[0] - 10)
    assert sorted(seen) == list(range(n))
    assert sum(batch.num_tokens for batch in all_batches) == sum(len(t) + 1 for _, t in pairs)


def test_order_names_the_examples_of_each_batch():
    pairs = make_pairs(50)
    batches = Seq2SeqBatches(pairs, 8, seed=1)
    for indices, batch in zip(batches.order(3), batches.epoch(3), strict=True):
        assert (batch.src[:, 0] - 10).tolist() == indices


@pytest.mark.parametrize("bucket", [True, False])
def test_a_run_that_resumes_has_the_same_batches(bucket):
    whole = Seq2SeqBatches(make_pairs(500), 6, seed=9, bucket=bucket)
    for epoch in (0, 7):
        expected = list(whole.epoch(epoch))
        for start in (0, 1, 40, len(whole) - 1, len(whole)):
            fresh = Seq2SeqBatches(make_pairs(500), 6, seed=9, bucket=bucket)
            assert same(list(fresh.epoch(epoch, start=start)), expected[start:])
        assert same(list(whole.epoch(epoch)), expected)                 # and asking twice changes nothing
    assert same(list(whole), list(whole.epoch(0)))


@pytest.mark.parametrize("bucket", [True, False])
def test_epochs_and_seeds_differ(bucket):
    a, b = (Seq2SeqBatches(make_pairs(200), 8, seed=s, bucket=bucket) for s in (0, 1))
    assert a.order(0) != a.order(1)
    assert a.order(0) != b.order(0)
    assert sorted(map(sorted, a.order(0))) != sorted(map(sorted, a.order(1)))   # other neighbors, too
    plain = Seq2SeqBatches(make_pairs(200), 8, shuffle=False, bucket=False)
    assert plain.order(0) == plain.order(1)
    assert [i for batch in plain.order(0) for i in batch] == list(range(200))


def test_buckets_save_padding_and_still_mix():
    task = DateTask(n_train=4000, n_valid=0, n_test=0)
    pairs = task.encode_pairs(task.train)

    def padding(bucket):
        ids = [batch.src for batch in Seq2SeqBatches(pairs, 32, bucket=bucket)]
        return sum((i == 0).sum() for i in ids) / sum(i.size for i in ids)
    assert padding(True) < 0.05 < 0.3 < padding(False)
    means = [batch.src.shape[1] for batch in Seq2SeqBatches(pairs, 32)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5       # not from short to long


def test_the_source_mask():
    batch = next(Seq2SeqBatches([([4, 5], [4]), ([6], [4])], 2, shuffle=False, bucket=False).epoch(0))
    assert batch.src_mask.shape == (2, 1, 1, 2)
    assert batch.src_mask.dtype == bool
    assert batch.src_mask[:, 0, 0].tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Seq2SeqBatches([], 4), "expected at least one pair, got none"),
    (lambda: Seq2SeqBatches(make_pairs(3), 0), "batch_size must be at least 1, got 0"),
    (lambda: Seq2SeqBatches([([4], [4]), ([], [4])], 2), "the source of pair 1 is empty"),
    (lambda: Seq2SeqBatches([([4, 0], [4])], 2), "pair 0 contains the padding id 0"),
    (lambda: Seq2SeqBatches([([4], [4]), ([4], [0])], 2), "pair 1 contains the padding id 0"),
    (lambda: Seq2SeqBatches(make_pairs(3), 2).epoch(0, start=3), "start must be from 0 to 2, got 3"),
    (lambda: Seq2SeqBatches(make_pairs(3), 2).epoch(0, start=-1), "start must be from 0 to 2, got -1"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(DataError, match="Seq2SeqBatches: " + message):
        call()
