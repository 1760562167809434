"""Vocabularies: the way there and back, the special ids, JSON, and what they refuse."""
import json

import numpy as np
import pytest

from numtrans.data import (
    BOS,
    EOS,
    PAD,
    UNK,
    BytePairEncoder,
    ByteVocabulary,
    Vocabulary,
    make_vocabulary,
    vocabulary_from_dict,
)
from numtrans.errors import DataError

TEXTS = ["The cat's tail, the well-known one.", "Größe: 3,5 m?", "the dog (a big dog) sleeps!"]


def test_the_special_ids_are_fixed():
    vocab = Vocabulary.from_characters(["ba"])
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert (vocab.pad, vocab.bos, vocab.eos, vocab.unk) == (0, 1, 2, 3)
    for kind in (ByteVocabulary, BytePairEncoder):
        assert (kind.pad, kind.bos, kind.eos, kind.unk) == (0, 1, 2, 3)
    assert vocab.encode("ab") == [4, 5]
    assert len(vocab) == 6


def test_characters_come_back_exactly():
    vocab = Vocabulary.from_characters(TEXTS)
    for text in [*TEXTS, "", "  "]:
        assert vocab.decode(vocab.encode(text)) == text
    ids = list(range(4, len(vocab)))
    assert vocab.encode(vocab.decode(ids)) == ids
    assert vocab.symbols == sorted(set("".join(TEXTS)))


def test_words_come_back_with_usual_spaces():
    vocab = Vocabulary.from_words(TEXTS)
    assert vocab.decode(vocab.encode("the  dog ,the\ncat's tail.")) == "the dog, the cat's tail."
    assert "well-known" in vocab
    assert "cat's" in vocab
    assert "sleeps" in vocab
    assert "sleeps!" not in vocab
    ids = list(range(4, len(vocab)))
    assert vocab.encode(vocab.decode(ids)) == ids


def test_decoding_stops_at_eos_and_skips_pad_and_bos():
    vocab = Vocabulary.from_characters(["abc"])
    assert vocab.decode([1, 0, 4, 3, 5, 0, 6, 2, 4, 4]) == "a\ufffdbc"
    assert vocab.decode([]) == ""


def test_unknown_symbols():
    assert Vocabulary.from_characters(["ab"]).encode("axb") == [4, 3, 5]
    words = Vocabulary.from_words(["a b"])
    assert words.encode("a zebra b") == [4, 3, 5]
    assert words.encode(words.decode([4, 3, 5])) == [4, 3, 5]


def test_words_are_ordered_by_frequency_then_alphabet():
    texts = ["b b b c a c", "d a"]
    assert Vocabulary.from_words(texts).symbols == ["b", "a", "c", "d"]
    assert Vocabulary.from_words(texts[::-1]).symbols == ["b", "a", "c", "d"]
    assert Vocabulary.from_words(texts, max_size=6).symbols == ["b", "a"]
    assert Vocabulary.from_words(texts, min_count=3).symbols == ["b"]


@pytest.mark.parametrize("vocab", [Vocabulary.from_characters(TEXTS), Vocabulary.from_words(TEXTS)],
                         ids=["characters", "words"])
def test_json(vocab):
    again = vocabulary_from_dict(json.loads(json.dumps(vocab.to_dict())))
    assert type(again) is Vocabulary
    assert again == vocab
    assert [again.encode(text) for text in TEXTS] == [vocab.encode(text) for text in TEXTS]
    assert again != Vocabulary.from_characters(["x"])


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Vocabulary(["a", "b", "a"]), "the symbol 'a' is given twice"),
    (lambda: Vocabulary(["a", ""]), "not empty, got ''"),
    (lambda: Vocabulary(["a", 7]), "a string that is not empty, got 7"),
    (lambda: Vocabulary(["a"], level="syllable"), "'character' or 'word', got 'syllable'"),
    (lambda: Vocabulary.from_words(["a"], max_size=4), "more than the 4 special ids, got 4"),
    (lambda: Vocabulary.from_characters("abc"), "from_characters: expected a list of strings, got one string"),
    (lambda: Vocabulary.from_words(["a", None]), "from_words: expected a string, got NoneType"),
    (lambda: Vocabulary(["a"]).encode(["a"]), "Vocabulary.encode: expected a string, got list"),
    (lambda: Vocabulary(["a"]).decode([4, 5]), "ids must be from 0 to 4, got 5"),
    (lambda: Vocabulary(["a"]).decode([-1]), "ids must be from 0 to 4, got -1"),
    (lambda: vocabulary_from_dict({"level": "word"}), r"'level' and 'symbols', got the keys \['level'\]"),
    (lambda: vocabulary_from_dict(["a"]), "expected a dict .* got list"),
    (lambda: vocabulary_from_dict({"level": "syllable"}), "character, word, byte, subword; got level='syllable'"),
    (lambda: vocabulary_from_dict({"level": ["word"]}), r"got level=\['word'\]"),
    (lambda: make_vocabulary("syllable", ["a"]), "kind must be .* got 'syllable'"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize(("kind", "cls"), [
    ("char", Vocabulary), ("word", Vocabulary), ("byte", ByteVocabulary), ("bpe", BytePairEncoder),
    ("subword", BytePairEncoder),
])
def test_every_kind_of_tokenizer_keeps_the_protocol(kind, cls):
    texts = ["The cat's tail, the well-known one.", "Gr\u00f6\u00dfe: 3 m?"]     # words come back with the usual spaces
    vocab = make_vocabulary(kind, texts, vocab_size=280)
    assert type(vocab) is cls
    for text in texts:
        ids = vocab.encode(text)
        assert all(type(i) is int and 4 <= i < len(vocab) for i in ids)
        assert vocab.decode(ids) == text
        assert vocab.decode([1, *ids, 0, 2, *ids]) == text
    assert (vocab.encode(""), vocab.decode([])) == ([], "")
    data = vocab.to_dict()
    assert vocabulary_from_dict(json.loads(json.dumps(data))) == vocab
    assert vocabulary_from_dict(data).to_dict() == data
    assert repr(vocab).startswith(f"{cls.__name__}({len(vocab)} ids")


@pytest.mark.parametrize("vocab", [Vocabulary.from_characters(["ab"]), ByteVocabulary(), BytePairEncoder()])
@pytest.mark.parametrize("ids", [None, 5, [4.0], [4.7], ["4"], [None], [[4, 5]], np.array([4.7]), np.array([[4, 5]])])
def test_ids_that_are_no_row_of_whole_numbers(vocab, ids):
    with pytest.raises(DataError, match=rf"{type(vocab).__name__}.decode: (ids must be integers|expected a row of)"):
        vocab.decode(ids)
    assert vocab.decode(np.array([4, 5], np.uint8)) == vocab.decode([4, 5]) == vocab.decode(iter([4, 5]))
