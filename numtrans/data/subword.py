"""Subwords: byte-pair encoding through the ``tokenizers`` package, with the interface of a vocabulary."""
import json

from numtrans.data.vocabulary import (
    BOS,
    EOS,
    NUM_SPECIAL,
    PAD,
    UNK,
    UNKNOWN_TEXT,
    Vocabulary,
    check_string,
    describe_keys,
    each_string,
    until_eos,
)
from numtrans.errors import DataError


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
        tokenizer.train_from_iterator(each_string("SubwordVocabulary.from_texts", texts), trainer)
        return cls(tokenizer)

    def __len__(self):
        return self._tokenizer.get_vocab_size()

    def __eq__(self, other):
        return isinstance(other, SubwordVocabulary) and self.to_dict() == other.to_dict()

    def __repr__(self):
        return f"SubwordVocabulary({len(self)} ids)"

    def encode(self, text):
        """Turn a text into ids. Neither ``bos`` nor ``eos`` is added."""
        check_string("SubwordVocabulary.encode", text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        """Turn ids back into a text. Stops at ``eos``; skips ``pad`` and ``bos``; ``unk`` becomes U+FFFD."""
        parts, run = [], []
        for i in until_eos("SubwordVocabulary.decode", ids, len(self)):
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
            raise DataError(f"SubwordVocabulary.from_dict: expected a dict with 'tokenizer', got {describe_keys(data)}")
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
