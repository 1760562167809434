"""Symbols and their numbers: characters or words on one side, the ids a model reads on the other.

Every vocabulary of the library keeps the same four special ids, so that a model, a batch and a decoder never have
to ask: ``PAD = 0`` fills up short rows, ``BOS = 1`` starts a target, ``EOS = 2`` ends it, ``UNK = 3`` stands for a
symbol that was not there when the vocabulary was built.
"""
import operator
import re
from collections import Counter

from numtrans.errors import DataError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
NUM_SPECIAL = 4
UNKNOWN_TEXT = "\N{REPLACEMENT CHARACTER}"      # what an unknown symbol looks like when it is decoded

# A word keeps its inner apostrophes (straight or curly) and hyphens ("don't", "well-known"); every other mark is a word
# of its own.
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")
_SPACE_BEFORE_MARK = re.compile(r" (?=[.,;:!?)\]])")


class Vocabulary:
    """A list of symbols, numbered from 4 on, after the special ids.

    Usually made by :meth:`from_characters` or :meth:`from_words`.

    Parameters
    ----------
    symbols : iterable of str
        The symbols in the order of their ids: the first one gets id 4.
    level : {"character", "word"}, default "character"
        How a text is cut into symbols. ``"character"``: one symbol a character. ``"word"``: words and punctuation
        marks, spaces dropped; decoding puts one space between words and none before a closing mark.

    Attributes
    ----------
    pad, bos, eos, unk : int
        The special ids 0, 1, 2, 3.
    symbols : list of str
        The symbols, without the special ids.

    Raises
    ------
    DataError
        If a symbol is given twice, is empty or is not a string, or the level is unknown.
    """

    pad, bos, eos, unk = PAD, BOS, EOS, UNK

    def __init__(self, symbols, level="character"):
        if level not in ("character", "word"):
            raise DataError(f"Vocabulary: level must be 'character' or 'word', got {level!r}")
        self.level = level
        self.symbols = list(symbols)
        self._ids = {}
        for i, symbol in enumerate(self.symbols, start=NUM_SPECIAL):
            if not isinstance(symbol, str) or not symbol:
                raise DataError(f"Vocabulary: a symbol must be a string that is not empty, got {symbol!r}")
            if symbol in self._ids:
                raise DataError(f"Vocabulary: the symbol {symbol!r} is given twice")
            self._ids[symbol] = i

    @classmethod
    def from_characters(cls, texts):
        """The vocabulary of all characters that occur in some texts, sorted by code point.

        Parameters
        ----------
        texts : iterable of str

        Returns
        -------
        Vocabulary
        """
        characters = set()
        for text in each_string("Vocabulary.from_characters", texts):
            characters.update(text)
        return cls(sorted(characters), "character")

    @classmethod
    def from_words(cls, texts, max_size=None, min_count=1):
        """The vocabulary of the words that occur in some texts, the most frequent first.

        Parameters
        ----------
        texts : iterable of str
        max_size : int or None, default None
            Keep only so many ids, the four special ones included. None keeps all words.
        min_count : int, default 1
            Leave out words that occur less often than this.

        Returns
        -------
        Vocabulary

        Raises
        ------
        DataError
            If ``max_size`` leaves no room for a word.
        """
        if max_size is not None and max_size <= NUM_SPECIAL:
            raise DataError(f"Vocabulary.from_words: max_size must be more than the {NUM_SPECIAL} special ids, "
                            f"got {max_size}")
        counts = Counter()
        for text in each_string("Vocabulary.from_words", texts):
            counts.update(_WORD.findall(text))
        # Ties are broken by the alphabet: the order must not depend on how the texts were read.
        words = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
        return cls(words if max_size is None else words[:max_size - NUM_SPECIAL], "word")

    def __len__(self):
        return NUM_SPECIAL + len(self.symbols)

    def __contains__(self, symbol):
        return symbol in self._ids

    def __eq__(self, other):
        return isinstance(other, Vocabulary) and (self.level, self.symbols) == (other.level, other.symbols)

    def __repr__(self):
        return f"Vocabulary({len(self)} ids, level={self.level!r})"

    def encode(self, text):
        """Turn a text into ids. Neither ``bos`` nor ``eos`` is added; an unknown symbol becomes ``unk``.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of int
        """
        check_string("Vocabulary.encode", text)
        ids = self._ids
        return [ids.get(symbol, UNK) for symbol in (text if self.level == "character" else _WORD.findall(text))]

    def decode(self, ids):
        """Turn ids back into a text. Stops at ``eos``; skips ``pad`` and ``bos``; ``unk`` becomes U+FFFD.

        Parameters
        ----------
        ids : iterable of int

        Returns
        -------
        str

        Raises
        ------
        DataError
            If an id is negative or not below ``len(self)``.
        """
        parts = [UNKNOWN_TEXT if i == UNK else self.symbols[i - NUM_SPECIAL]
                 for i in until_eos("Vocabulary.decode", ids, len(self))]
        return "".join(parts) if self.level == "character" else _SPACE_BEFORE_MARK.sub("", " ".join(parts))

    def to_dict(self):
        """What JSON needs to make this vocabulary again, for ``config.json``."""
        return {"level": self.level, "symbols": list(self.symbols)}

    @classmethod
    def from_dict(cls, data):
        """The vocabulary that :meth:`to_dict` described."""
        try:
            return cls(data["symbols"], data["level"])
        except (KeyError, TypeError) as error:
            raise DataError("Vocabulary.from_dict: expected a dict with 'level' and 'symbols', "
                            f"got {describe_keys(data)}") from error


def until_eos(who, ids, size):
    """The ids before the first eos, without pad and bos, as Python integers."""
    if not hasattr(ids, "__iter__"):
        raise DataError(f"{who}: expected a row of ids, got {type(ids).__name__}")
    for i in ids:
        try:
            i = operator.index(i)                               # 4.7 is no id, though int(4.7) is one
        except TypeError:
            raise DataError(f"{who}: ids must be integers, got {i!r}") from None
        if not 0 <= i < size:
            raise DataError(f"{who}: ids must be from 0 to {size - 1}, got {i}")
        if i == EOS:
            return
        if i not in (PAD, BOS):
            yield i


def each_string(who, texts):
    """The texts one by one; a single string is a mistake here: its characters would pass for texts."""
    if isinstance(texts, str):
        raise DataError(f"{who}: expected a list of strings, got one string; put it in a list")
    if not hasattr(texts, "__iter__"):
        raise DataError(f"{who}: expected a list of strings, got {type(texts).__name__}")
    for text in texts:
        check_string(who, text)
        yield text


def check_string(who, text):
    """Refuse what is not a string, naming who was given it."""
    if not isinstance(text, str):
        raise DataError(f"{who}: expected a string, got {type(text).__name__}")


def check_integer(who, name, value, least):
    """Refuse a value that is no whole number, or below `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise DataError(f"{who}: {name} must be a whole number of at least {least}, got {value!r}")


def describe_keys(data):
    """What an error says about a dict, or something else, that should describe a vocabulary."""
    return f"the keys {sorted(data)}" if isinstance(data, dict) else type(data).__name__
