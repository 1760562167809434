"""Pairs from files: what is read, what is refused and by which line, and the split."""
import re

import pytest

from numtrans.data import PairTask, Vocabulary, load_pairs
from numtrans.errors import DataError


def write(folder, **texts):
    paths = []
    for name, text in texts.items():
        paths.append(folder / f"{name}.txt")
        paths[-1].write_bytes(text.encode())
    return paths


def test_two_files(tmp_path):
    a, b = write(tmp_path, a="one \r\n\r\n two\x0cb\u2028c\r\n", b="eins\n \nzwei")
    assert load_pairs(a, b) == [("one", "eins"), ("two\x0cb\u2028c", "zwei")]


def test_one_file_with_tabs(tmp_path):
    (path,) = write(tmp_path, ab="one\teins\n\n two \t zwei \n")
    assert load_pairs(path) == load_pairs(str(path)) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(("a", "b", "message"), [
    ("x\ny\nz\n", "1\n2\n", r"a\.txt has 3 lines and .*b\.txt has 2"),
    ("x\n\nz\n", "1\n2\n3\n", r"line 2 of .*a\.txt has no source sentence"),
    ("x\ny\nz\n", "1\n2\n \n3", r"3 lines and .*b\.txt has 4"),
    ("x\ny\nz\n", "1\n\n3\n", r"line 2 of .*b\.txt has no target sentence"),
])
def test_two_files_that_do_not_match(tmp_path, a, b, message):
    with pytest.raises(DataError, match="load_pairs: .*" + message):
        load_pairs(*write(tmp_path, a=a, b=b))


@pytest.mark.parametrize(("text", "message"), [
    ("x\t1\ny 2\n", r"line 2 of .*t\.txt has 0 tabs; expected exactly one"),
    ("x\t1\n\ny\t2\t3\n", r"line 3 of .*t\.txt has 2 tabs; expected exactly one"),
    ("x\t1\n\t2\n", r"line 2 of .*t\.txt has no source sentence"),
    ("x\t1\ny\t\n", r"line 2 of .*t\.txt has no target sentence"),
])
def test_bad_lines_with_tabs(tmp_path, text, message):
    with pytest.raises(DataError, match="load_pairs: " + message):
        load_pairs(*write(tmp_path, t=text))


def test_files_that_are_no_text(tmp_path):
    a, empty = write(tmp_path, a="x\n", empty="")
    with pytest.raises(DataError, match=re.escape(str(empty)) + " is empty"):
        load_pairs(a, empty)
    with pytest.raises(DataError, match=r"there is no file .*nowhere"):
        load_pairs(tmp_path / "nowhere", a)


@pytest.fixture
def corpus(tmp_path):
    # 200 pairs with 100 different sources, each of them twice, far apart, with two translations.
    lines = [f"the number {i % 100} ?\tdie {'Nummer' if i < 100 else 'Zahl'} {i % 100} ?" for i in range(200)]
    return write(tmp_path, corpus="\n".join(lines))[0]


@pytest.mark.parametrize("level", ["word", "char", "subword"])
def test_splits_share_no_source_and_have_every_pair(corpus, level):
    if level == "subword":
        pytest.importorskip("tokenizers")
    task = PairTask(corpus, level=level, validation=0.1, test=0.2)
    assert (len(task.train), len(task.valid), len(task.test)) == (140, 20, 40)
    assert sorted(task.train + task.valid + task.test) == sorted(load_pairs(corpus))
    train, valid, test = ({s for s, _ in split} for split in (task.train, task.valid, task.test))
    assert not train & valid
    assert not train & test
    assert not valid & test
    source, target = task.train[0]
    source_ids, target_ids = task.encode_pair(source, target)
    text = task.target_vocab.decode(target_ids)
    assert text == (target.replace(" ?", "?") if level == "word" else target)
    assert min(source_ids) > 3
    assert task.source_vocab.level == {"char": "character"}.get(level, level)


def test_vocabularies_come_from_the_training_part_and_are_cut(corpus):
    task = PairTask(corpus)
    words = Vocabulary.from_words([s for s, _ in task.train])
    assert task.source_vocab == words
    unseen = next(iter({s.split()[2] for s, _ in task.test}))
    assert unseen not in task.source_vocab
    small = PairTask(corpus, vocab_size=7)
    assert len(small.source_vocab) == 7
    assert set(small.source_vocab.symbols) == {"the", "number", "?"}


def test_the_seed_decides(corpus):
    a, b, c = (PairTask(corpus, seed=s) for s in (1, 1, 2))
    assert (a.train, a.valid, a.test) == (b.train, b.valid, b.test)
    assert a.test != c.test


def test_small_and_missing_shares(tmp_path):
    (path,) = write(tmp_path, t="a\t1\nb\t2\nc\t3\n")
    task = PairTask(path)
    assert (len(task.train), len(task.valid), len(task.test)) == (1, 1, 1)
    assert PairTask(path, validation=0, test=0).valid == []
    (path,) = write(tmp_path, t="a\t1\nb\t2\na\t3\n")
    with pytest.raises(DataError, match=r"t\.txt has 2 different source sentences, .* need 3 at least"):
        PairTask(path)


@pytest.mark.parametrize(("arguments", "message"), [
    (dict(level="letters"), "'word', 'char' or 'subword', got 'letters'"),
    (dict(validation=0.5, test=0.5), "got validation=0.5 and test=0.5"),
    (dict(validation=-0.1), "got validation=-0.1 and test=0.1"),
])
def test_mistakes_are_named(corpus, arguments, message):
    with pytest.raises(DataError, match="PairTask: .*" + message):
        PairTask(corpus, **arguments)
