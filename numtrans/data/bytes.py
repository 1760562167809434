"""Bytes as symbols: 256 of them spell every text of every language, and nothing is unknown."""
from numtrans.data.vocabulary import BOS, EOS, NUM_SPECIAL, PAD, UNK, UNKNOWN_TEXT, check_string, until_eos
from numtrans.errors import DataError


class ByteVocabulary:
    """The bytes of UTF-8 as ids: byte ``b`` is id ``4 + b``, after the four special ids.

    There is nothing to learn and nothing to store. A character of English is one id, one of most other alphabets is
    two, and one of Chinese is three, so that texts become longer than with characters (Xue et al. 2022, ByT5,
    arXiv:2105.13626).

    ``encode``, ``decode``, ``to_dict``, ``from_dict`` and ``len`` are those of :class:`Vocabulary`.

    Examples
    --------
    >>> vocab = ByteVocabulary()
    >>> vocab.encode("A\N{EURO SIGN}")
    [69, 230, 134, 176]
    >>> vocab.decode([69, 230, 134, 176])
    'A\N{EURO SIGN}'
    """

    pad, bos, eos, unk = PAD, BOS, EOS, UNK
    level = "byte"

    def __len__(self):
        return NUM_SPECIAL + 256

    def __eq__(self, other):
        return isinstance(other, ByteVocabulary)

    def __repr__(self):
        return f"ByteVocabulary({len(self)} ids)"

    def encode(self, text):
        """Turn a text into ids. Neither ``bos`` nor ``eos`` is added."""
        return [NUM_SPECIAL + byte for byte in utf8("ByteVocabulary.encode", text)]

    def decode(self, ids):
        """Turn ids back into a text. Stops at ``eos``; skips ``pad`` and ``bos``; ``unk`` becomes U+FFFD.

        Bytes that are not UTF-8, such as half of a character, become U+FFFD, too.
        """
        known = until_eos("ByteVocabulary.decode", ids, len(self))
        return text_of(None if i == UNK else bytes([i - NUM_SPECIAL]) for i in known)

    def to_dict(self):
        """What JSON needs to make this vocabulary again, for ``config.json``."""
        return {"level": self.level}

    @classmethod
    def from_dict(cls, data):
        """The vocabulary that :meth:`to_dict` described."""
        return cls()


def utf8(who, text):
    """The bytes of a text; half of a surrogate pair, which is no character, is refused."""
    check_string(who, text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{who}: the text is not Unicode: character {error.start} is the lone surrogate "
                        f"U+{ord(text[error.start]):04X}") from error


def text_of(pieces):
    """The text of some pieces of bytes; None, an unknown symbol, and what is not UTF-8 become U+FFFD."""
    unknown = UNKNOWN_TEXT.encode("utf-8")
    return b"".join(unknown if piece is None else piece for piece in pieces).decode("utf-8", errors="replace")
