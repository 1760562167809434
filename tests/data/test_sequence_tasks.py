"""Copy, reverse, sort: right answers, no string twice, a clear error where there are too few strings."""
import pytest

from numtrans.data import SequenceTask
from numtrans.errors import DataError


@pytest.mark.parametrize("kind", ["copy", "reverse", "sort"])
def test_answers(kind):
    task = SequenceTask(kind, vocab_size=62, n_train=500, n_valid=20, n_test=20)
    for source, target in task.train + task.valid + task.test:
        right = {"copy": source, "reverse": "".join(reversed(source)), "sort": "".join(sorted(source))}[kind]
        assert target == right


@pytest.mark.parametrize(("arguments", "space"), [
    (dict(vocab_size=10, min_len=1, max_len=10, n_train=3000, n_valid=200, n_test=300), None),
    (dict(vocab_size=3, min_len=2, max_len=5, n_train=200, n_valid=80, n_test=80), 360),        # every string there is
    (dict(vocab_size=2, min_len=1, max_len=12, n_train=1500, n_valid=200, n_test=340), 8190),
])
def test_no_string_twice_and_all_within_bounds(arguments, space):
    task = SequenceTask("reverse", seed=3, **arguments)
    sizes = [len(task.train), len(task.valid), len(task.test)]
    assert sizes == [arguments["n_train"], arguments["n_valid"], arguments["n_test"]]
    sources = [source for source, _ in task.train + task.valid + task.test]
    assert len(set(sources)) == len(sources) == sum(sizes)
    if space == sum(sizes):
        assert len(set(sources)) == space
    assert {len(s) for s in sources} == set(range(arguments["min_len"], arguments["max_len"] + 1))
    assert set("".join(sources)) == set("0123456789"[:arguments["vocab_size"]])


def test_every_split_has_short_and_long_strings():
    task = SequenceTask("copy", min_len=1, max_len=4, n_train=1200, n_valid=300, n_test=300)
    for split in (task.train, task.valid, task.test):
        assert {2, 3, 4} <= {len(source) for source, _ in split}


def test_the_seed_decides():
    def pairs(seed):
        task = SequenceTask("sort", seed=seed, n_train=100, n_valid=10, n_test=10)
        return task.train + task.valid + task.test
    assert pairs(1) == pairs(1) != pairs(2)


def test_the_vocabulary():
    task = SequenceTask("sort", vocab_size=12, n_train=50, n_valid=5, n_test=5)
    assert task.source_vocab.symbols == list("0123456789AB")
    assert task.target_vocab == task.source_vocab
    source, target = task.test[0]
    ids = task.encode_pair(source, target)
    assert task.source_vocab.decode(ids[0]) == source
    assert task.target_vocab.decode(ids[1]) == target
    assert ids[1] == sorted(ids[0])                                     # ids keep the order of the symbols


@pytest.mark.parametrize(("arguments", "message"), [
    (dict(kind="shuffle"), "kind must be one of copy, reverse, sort, got 'shuffle'"),
    (dict(kind="copy", vocab_size=1), "vocab_size must be from 2 to 62, got 1"),
    (dict(kind="copy", vocab_size=63), "vocab_size must be from 2 to 62, got 63"),
    (dict(kind="copy", min_len=0), "min_len=0, max_len=10"),
    (dict(kind="copy", min_len=5, max_len=4), "min_len=5, max_len=4"),
    (dict(kind="copy", n_test=-2), "must not be negative, got 10000, 500 and -2"),
    (dict(kind="copy", vocab_size=2, max_len=3, n_train=10, n_valid=4, n_test=1), "15 different strings .* only 14"),
])
def test_mistakes_are_named(arguments, message):
    with pytest.raises(DataError, match="SequenceTask: .*" + message):
        SequenceTask(**arguments)
