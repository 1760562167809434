"""Text: reading files of every bad kind, the split, rows drawn at random and rows side by side."""
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from numtrans.data import IGNORE, BytePairEncoder, TextTask, load_text
from numtrans.errors import DataError


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("".join(chr(97 + i % 26) + " "[:i % 5 == 0] for i in range(1000)), encoding="utf-8")
    return path


def test_the_text_of_python_itself():
    text = load_text()
    assert text == load_text()
    assert 300_000 < len(text) < 1_000_000
    assert len(set(text)) < 110
    assert not set(text) & set("\u2018\u2019\u201c\u201d\u2013\u2014\r\0")
    assert "Floating-point literals" in text or "Floating point literals" in text
    task = TextTask()
    assert len(task.train) + len(task.valid) == len(text)


def test_reading_a_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffGröße\r\nzwei\rdrei\n".encode())
    assert load_text(path) == load_text(str(path)) == "Größe\nzwei\ndrei\n"


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is empty$"),
    (b"\xef\xbb\xbf", "is empty$"),
    (b" \n\n", r"is empty \(only spaces and line ends\)"),
    (b"text\0more", r"is a binary file \(zero at byte 4\)"),
    ("schön".encode("latin-1"), "is not UTF-8 text: byte 3 is 0xf6"),
    (b"\x89PNG\r\n\x1a\n", "is not UTF-8 text: byte 0 is 0x89"),
])
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    for read in (load_text, TextTask):
        with pytest.raises(DataError, match=re.escape(str(path)) + " " + message):
            read(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match=re.escape(f"there is no file {tmp_path / 'none.txt'}")):
        load_text(tmp_path / "none.txt")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path} is a folder")):
        load_text(tmp_path)


def test_a_file_that_may_not_be_read(story, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=re.escape(f"{story} cannot be read: Permission denied")):
        load_text(story)


def test_a_python_without_its_help_texts(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)         # import then raises ImportError
    with pytest.raises(DataError, match=r"no pydoc_data\.topics; give the path of a text file"):
        load_text()


def test_the_split_is_contiguous(story):
    text = story.read_text(encoding="utf-8")
    task = TextTask(story, block=16)
    assert len(task.train) == int(len(text) * 0.9)
    assert task.vocab.decode(task.train) + task.vocab.decode(task.valid) == text
    assert task.vocab.symbols == sorted(set(text))
    assert task.train.dtype == np.int64


def test_too_short_a_text(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("x" * 100)
    with pytest.raises(DataError, match=r"validation part of .*short\.txt has 10 characters, but block=10 needs at "
                                        "least 11"):
        TextTask(path, block=10)
    task = TextTask(path, block=9)
    assert task.batch(np.random.default_rng(0), 4, "valid")[0].shape == (4, 9)
    with pytest.raises(DataError, match=r"training part of .*short\.txt has 25 characters, but block=64 needs at "
                                        "least 65"):
        TextTask(path, validation=0.75)


def test_rows_at_random_are_pieces_of_their_split_shifted_by_one(story):
    task = TextTask(story, block=8)
    for split, ids in (("train", task.train), ("valid", task.valid)):
        pieces = {tuple(ids[i:i + 9]) for i in range(len(ids) - 8)}
        inputs, targets = task.batch(np.random.default_rng(1), 500, split)
        assert inputs.shape == targets.shape == (500, 8)
        assert inputs.dtype == np.int64
        for x, y in zip(inputs, targets, strict=True):
            assert (*x, y[-1]) in pieces
            assert (x[1:] == y[:-1]).all()


def test_rows_can_start_anywhere(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("".join(chr(0x4e00 + i) for i in range(100)), encoding="utf-8")
    task = TextTask(path, block=4, validation=0.2)
    inputs, targets = task.batch(np.random.default_rng(0), 2000, "valid")
    assert set(inputs[:, 0]) == set(task.valid[:16])
    assert set(targets[:, -1]) == set(task.valid[4:])


def test_the_generator_decides(story):
    task = TextTask(story, block=8)
    a, b, c = (task.batch(np.random.default_rng(s), 5)[0] for s in (1, 1, 2))
    assert (a == b).all()
    assert (a != c).any()


@pytest.mark.parametrize("block", [1, 7, 10, 11, 60, 99])
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_evaluation_scores_every_character_once(tmp_path, block, batch_size):
    path = tmp_path / "t.txt"
    path.write_text("".join(chr(0x4e00 + i) for i in range(200)), encoding="utf-8")     # no character twice
    task = TextTask(path, block=block, validation=0.5)
    scored = []
    for inputs, targets in task.eval_batches(batch_size):
        assert inputs.shape == targets.shape
        assert inputs.shape[1] == block
        assert len(inputs) <= batch_size
        counts = targets != IGNORE
        assert (targets[counts] == inputs[counts] + 1).all()
        scored += targets[counts].tolist()
    assert scored == task.valid[1:].tolist()
    assert sum(len(inputs) for inputs, _ in task.eval_batches(3, "train")) == -(-99 // block)


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
def test_tokenizers(tmp_path, tokenizer):
    path = tmp_path / "t.txt"
    text = "Der s\u00fc\u00dfe Br\u00e4u, der Br\u00e4u, der s\u00fc\u00dfe. " * 30 + "\u4e00 zzz. " * 100
    path.write_text(text, encoding="utf-8")
    task = TextTask(path, block=9, validation=0.35, tokenizer=tokenizer, vocab_size=270)
    cut = int(len(text) * 0.65)
    assert task.vocab.decode(task.train) == text[:cut]
    assert task.vocab.decode(task.valid) == text[cut:]
    assert max(task.train.max(), task.valid.max()) < len(task.vocab)
    if tokenizer == "bpe":
        assert len(task.vocab) == 270
        assert task.vocab == BytePairEncoder.train([text[:cut]], 270)       # nothing of the validation part
    scored = [y[y != IGNORE] for _, y in task.eval_batches(7)]
    assert (np.concatenate(scored) == task.valid[1:]).all()


def test_tokens_are_called_tokens_in_errors(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("\u4e00" * 100, encoding="utf-8")
    with pytest.raises(DataError, match=r"validation part of .*short\.txt has 30 tokens, but block=30"):
        TextTask(path, block=30, tokenizer="byte")


@pytest.mark.parametrize("length", [1, 6, 9])
def test_whole_rows_are_the_split_without_its_tail(story, length):
    task = TextTask(story, block=8)
    rows = list(task.whole_rows(4, length))
    assert {row.shape for row in rows[:-1]} == {(4, length)}
    together = np.concatenate(rows).ravel()
    assert (together == task.valid[:len(together)]).all()
    assert 0 <= len(task.valid) - len(together) < length
    drawn = task.rows(np.random.default_rng(0), 50, length, "train")
    pieces = {tuple(task.train[i:i + length]) for i in range(len(task.train))}
    assert drawn.shape == (50, length)
    assert {tuple(row) for row in drawn} <= pieces


@pytest.mark.parametrize(("call", "message"), [
    (lambda p: TextTask(p, tokenizer="word"), "tokenizer must be one of char, byte, bpe, got 'word'"),
    (lambda p: TextTask(p, block=8).rows(np.random.default_rng(0), 2, 10), "from 1 to block \\+ 1 = 9, got 10"),
    (lambda p: TextTask(p, block=8).whole_rows(2, 0), "from 1 to block \\+ 1 = 9, got 0"),
    (lambda p: TextTask(p, block=0), "block must be a whole number of at least 1, got 0"),
    (lambda p: TextTask(p, block=1.5), "block must be a whole number of at least 1, got 1.5"),
    (lambda p: TextTask(p, validation=0), "validation must be between 0 and 1, got 0"),
    (lambda p: TextTask(p, validation=1.0), "validation must be between 0 and 1, got 1.0"),
    (lambda p: TextTask(p).batch(np.random.default_rng(0), 4, "test"), "'train' or 'valid', got 'test'"),
    (lambda p: TextTask(p).eval_batches(4, "test"), "'train' or 'valid', got 'test'"),
    (lambda p: TextTask(p).batch(np.random.default_rng(0), 0), "batch_size must be at least 1, got 0"),
    (lambda p: TextTask(p).eval_batches(0), "batch_size must be at least 1, got 0"),
])
def test_mistakes_are_named(story, call, message):
    with pytest.raises(DataError, match="TextTask: .*" + message):
        call(story)
