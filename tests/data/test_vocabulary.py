"""Vocabularies: the way there and back, the special ids, JSON, and what they refuse."""
import json
import os
import subprocess
import sys

import pytest

from numtrans.data import BOS, EOS, PAD, UNK, SubwordVocabulary, Vocabulary, vocabulary_from_dict
from numtrans.errors import DataError

TEXTS = ["The cat's tail, the well-known one.", "Größe: 3,5 m?", "the dog (a big dog) sleeps!"]


def test_the_special_ids_are_fixed():
    vocab = Vocabulary.from_characters(["ba"])
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert (vocab.pad, vocab.bos, vocab.eos, vocab.unk) == (0, 1, 2, 3)
    assert (SubwordVocabulary.pad, SubwordVocabulary.bos, SubwordVocabulary.eos, SubwordVocabulary.unk) == (0, 1, 2, 3)
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
])
def test_mistakes_are_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


class TestSubwords:
    texts = ["the cat sat on the mat", "die Katze saß auf der Matte", "a hat, that hat!"] * 5

    @pytest.fixture(scope="class")
    @classmethod
    def vocab(cls):
        pytest.importorskip("tokenizers")
        return SubwordVocabulary.from_texts(cls.texts, vocab_size=280)

    def test_every_text_comes_back_exactly(self, vocab):
        for text in [*self.texts, " two  spaces ", "unseen: 漢字 🙂 \n\t", "", "<eos> <pad>"]:
            ids = vocab.encode(text)
            assert min(ids, default=4) >= 4
            assert vocab.decode(ids) == text

    def test_size_and_merges(self, vocab):
        assert len(vocab) == 280
        assert len(vocab.encode("the")) < 3                             # three bytes without a merge

    def test_special_ids(self, vocab):
        a, b = vocab.encode("the"), vocab.encode(" mat")
        assert vocab.decode([1, *a, 0, *b, 2, *a]) == "the mat"
        assert vocab.decode([*a, 3, *b]) == "the\ufffd mat"

    def test_json(self, vocab):
        again = vocabulary_from_dict(json.loads(json.dumps(vocab.to_dict())))
        assert type(again) is SubwordVocabulary
        assert again == vocab
        assert again.encode("<eos> cat") == vocab.encode("<eos> cat")

    def test_training_gives_the_same_merges_in_another_process(self, vocab):
        code = ("import json; from numtrans.data import SubwordVocabulary as S; "
                f"print(json.dumps(S.from_texts({self.texts!r}, vocab_size=280).to_dict()))")
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "5"})
        assert json.loads(out.stdout) == vocab.to_dict()

    def test_mistakes_are_named(self, vocab):
        with pytest.raises(DataError, match=r"at least 260 .* got 259"):
            SubwordVocabulary.from_texts(["a"], vocab_size=259)
        with pytest.raises(DataError, match="from_texts: expected a list of strings, got one string"):
            SubwordVocabulary.from_texts("a")
        with pytest.raises(DataError, match=r"SubwordVocabulary\.decode: ids must be from 0 to 279, got 280"):
            vocab.decode([280])
        with pytest.raises(DataError, match=r"SubwordVocabulary\.encode: expected a string, got int"):
            vocab.encode(3)
        with pytest.raises(DataError, match="expected a dict with 'tokenizer'"):
            vocabulary_from_dict({"level": "subword"})


def test_without_the_tokenizers_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)                # import then raises ImportError
    with pytest.raises(ImportError, match=r'pip install "numtrans\[pretrained\]"'):
        SubwordVocabulary.from_texts(["a"])
