"""Symbols and their numbers: characters, words or subwords on one side, the ids a model reads on the other.

Every vocabulary of the library keeps the same four special ids, so that a model, a batch and a decoder never have
to ask: ``PAD = 0`` fills up short rows, ``BOS = 1`` starts a target, ``EOS = 2`` ends it, ``UNK = 3`` stands for a
symbol that was not there when the vocabulary was built.
"""
import json
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
        for text in _each_string("Vocabulary.from_characters", texts):
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
        for text in _each_string("Vocabulary.from_words", texts):
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
        _check_string("Vocabulary.encode", text)
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
                 for i in _until_eos("Vocabulary.decode", ids, len(self))]
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
                            f"got {_keys(data)}") from error


class SubwordVocabulary:
    """Byte-pair encoding: frequent words are one id, rare ones are several, and nothing is unknown.

    It starts from the 256 bytes and merges, over and over, the two neighbours that occur together most often in the
    texts, until it has ``vocab_size`` ids. Since every text is made of bytes, decoding gives back exactly the text
    that was encoded. The work is done by the ``tokenizers`` package: ``pip install "numtrans[pretrained]"``.

    Made by :meth:`from_texts`; ``encode``, ``decode``, ``to_dict``, ``from_dict`` and ``len`` are those of
    :class:`Vocabulary`.

    References
    ----------
    Sennrich, Haddow and Birch (2016), Neural Machine Translation of Rare Words with Subword Units, arXiv:1508.07909.
    """

    pad, bos, eos, unk = PAD, BOS, EOS, UNK
    level = "subword"

    def __init__(self, tokenizer):
        # The names of the special ids must stay ordinary text when they occur in a user's sentence.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    @classmethod
    def from_texts(cls, texts, vocab_size=8000):
        """Learn the merges from some texts.

        Parameters
        ----------
        texts : iterable of str
        vocab_size : int, default 8000
            At most so many ids, the four special ones and the 256 bytes included. Short texts give fewer.

        Returns
        -------
        SubwordVocabulary

        Raises
        ------
        DataError
            If ``vocab_size`` is below 260.
        ImportError
            If the ``tokenizers`` package is not installed.
        """
        tokenizers = _import_tokenizers()
        if vocab_size < NUM_SPECIAL + 256:
            raise DataError(f"SubwordVocabulary.from_texts: vocab_size must be at least {NUM_SPECIAL + 256} "
                            f"(the special ids and all bytes), got {vocab_size}")
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=["<pad>", "<bos>", "<eos>", "<unk>"], show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(_each_string("SubwordVocabulary.from_texts", texts), trainer)
        return cls(tokenizer)

    def __len__(self):
        return self._tokenizer.get_vocab_size()

    def __eq__(self, other):
        return isinstance(other, SubwordVocabulary) and self.to_dict() == other.to_dict()

    def __repr__(self):
        return f"SubwordVocabulary({len(self)} ids)"

    def encode(self, text):
        """Turn a text into ids. Neither ``bos`` nor ``eos`` is added."""
        _check_string("SubwordVocabulary.encode", text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        """Turn ids back into a text. Stops at ``eos``; skips ``pad`` and ``bos``; ``unk`` becomes U+FFFD."""
        parts, run = [], []
        for i in _until_eos("SubwordVocabulary.decode", ids, len(self)):
            if i == UNK:
                parts += [self._tokenizer.decode(run), UNKNOWN_TEXT]
                run = []
            else:
                run.append(i)
        return "".join(parts) + self._tokenizer.decode(run)

    def to_dict(self):
        """What JSON needs to make this vocabulary again, for ``config.json``."""
        return {"level": self.level, "tokenizer": json.loads(self._tokenizer.to_str())}

    @classmethod
    def from_dict(cls, data):
        """The vocabulary that :meth:`to_dict` described."""
        tokenizers = _import_tokenizers()
        if not isinstance(data, dict) or "tokenizer" not in data:
            raise DataError(f"SubwordVocabulary.from_dict: expected a dict with 'tokenizer', got {_keys(data)}")
        return cls(tokenizers.Tokenizer.from_str(json.dumps(data["tokenizer"])))


def vocabulary_from_dict(data):
    """The vocabulary of either class that its ``to_dict`` described.

    Parameters
    ----------
    data : dict
        With the key ``"level"``: ``"character"``, ``"word"`` or ``"subword"``.

    Returns
    -------
    Vocabulary or SubwordVocabulary
    """
    is_subword = isinstance(data, dict) and data.get("level") == "subword"
    return (SubwordVocabulary if is_subword else Vocabulary).from_dict(data)


def _import_tokenizers():
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise ImportError('SubwordVocabulary needs the tokenizers package: pip install "numtrans[pretrained]"'
                          ) from error
    return tokenizers


def _until_eos(who, ids, size):
    """The ids before the first eos, without pad and bos, as Python integers."""
    for i in ids:
        i = int(i)
        if not 0 <= i < size:
            raise DataError(f"{who}: ids must be from 0 to {size - 1}, got {i}")
        if i == EOS:
            return
        if i not in (PAD, BOS):
            yield i


def _each_string(who, texts):
    """The texts one by one; a single string is a mistake here: its characters would pass for texts."""
    if isinstance(texts, str):
        raise DataError(f"{who}: expected a list of strings, got one string; put it in a list")
    for text in texts:
        _check_string(who, text)
        yield text


def _check_string(who, text):
    if not isinstance(text, str):
        raise DataError(f"{who}: expected a string, got {type(text).__name__}")


def _keys(data):
    return f"the keys {sorted(data)}" if isinstance(data, dict) else type(data).__name__
