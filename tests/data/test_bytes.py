"""Bytes as symbols: what an id is, the way there and back, and what is not UTF-8."""
import pytest

from numtrans.data import ByteVocabulary
from numtrans.errors import DataError


def test_an_id_is_four_more_than_its_byte():
    vocab = ByteVocabulary()
    assert len(vocab) == 260
    assert vocab.encode("\0A~") == [4, 4 + 65, 4 + 126]
    assert vocab.encode("\u00e9\u20ac") == [4 + 0xC3, 4 + 0xA9, 4 + 0xE2, 4 + 0x82, 4 + 0xAC]        # RFC 3629


def test_every_character_comes_back():
    vocab = ByteVocabulary()
    text = "".join(chr(c) for c in [*range(0xD800), *range(0xE000, 0x110000, 17)])
    assert vocab.decode(vocab.encode(text)) == text


def test_special_ids_and_broken_characters():
    vocab = ByteVocabulary()
    euro = vocab.encode("\u20ac")
    assert vocab.decode([1, *euro, 0, *euro, 2, *euro]) == "\u20ac\u20ac"
    assert vocab.decode([*euro[:2], 4 + ord("x")]) == "\ufffdx"         # a character that was cut short
    assert vocab.decode([4 + 0xFF, 3, 4 + ord("x")]) == "\ufffd\ufffdx"
    assert vocab.decode([*euro[:2], 3]) == "\ufffd\ufffd"


@pytest.mark.parametrize(("call", "message"), [
    (lambda v: v.encode(b"x"), "ByteVocabulary.encode: expected a string, got bytes"),
    (lambda v: v.encode("ab\ud800"), r"ByteVocabulary.encode: .*character 2 is the lone surrogate U\+D800"),
    (lambda v: v.decode([260]), "ids must be from 0 to 259, got 260"),
    (lambda v: v.decode([-1]), "ids must be from 0 to 259, got -1"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(DataError, match=message):
        call(ByteVocabulary())
