"""What all tokenizers have in common, and how one is made or read again."""
from typing import Protocol

from numtrans.data.bpe import BytePairEncoder
from numtrans.data.bytes import ByteVocabulary
from numtrans.data.vocabulary import Vocabulary, describe_keys
from numtrans.errors import DataError


class Tokenizer(Protocol):
    """From a text to the ids that a model reads, and back.

    :class:`Vocabulary` (characters or words), :class:`ByteVocabulary` and :class:`BytePairEncoder` are tokenizers, and
    so is :class:`numtrans.pretrained.PretrainedTokenizer`.
    """

    def encode(self, text: str) -> list[int]:
        """The ids of a text. No id that begins or ends a text is added."""

    def decode(self, ids) -> str:
        """The text of some ids."""

    def __len__(self) -> int:
        """Number of ids: one more than the largest."""

    def to_dict(self) -> dict:
        """What JSON needs to make this tokenizer again."""

    @classmethod
    def from_dict(cls, data: dict) -> "Tokenizer":
        """The tokenizer that :meth:`to_dict` described."""


_BY_LEVEL = {"character": Vocabulary, "word": Vocabulary, "byte": ByteVocabulary, "subword": BytePairEncoder}


def make_vocabulary(kind, texts, vocab_size=8000):
    """The tokenizer of a kind, built from some texts.

    Parameters
    ----------
    kind : {"char", "word", "byte", "bpe"}
        ``"subword"`` is another name of ``"bpe"``.
    texts : iterable of str
    vocab_size : int, default 8000
        At most so many ids, for words and byte pairs; without effect on characters and bytes.

    Returns
    -------
    Vocabulary, ByteVocabulary or BytePairEncoder
    """
    if kind == "char":
        return Vocabulary.from_characters(texts)
    if kind == "word":
        return Vocabulary.from_words(texts, max_size=vocab_size)
    if kind == "byte":
        return ByteVocabulary()
    if kind in ("bpe", "subword"):
        return BytePairEncoder.train(texts, vocab_size)
    raise DataError(f"make_vocabulary: kind must be 'char', 'word', 'byte' or 'bpe', got {kind!r}")


def vocabulary_from_dict(data):
    """The vocabulary of any class that its ``to_dict`` described.

    Parameters
    ----------
    data : dict
        With the key ``"level"``: ``"character"``, ``"word"``, ``"byte"`` or ``"subword"``.

    Returns
    -------
    Vocabulary, ByteVocabulary or BytePairEncoder

    Raises
    ------
    DataError
        If it is no such dict.
    """
    level = data.get("level") if isinstance(data, dict) else None
    if not isinstance(level, str) or level not in _BY_LEVEL:
        what = describe_keys(data) if level is None else f"level={level!r}"
        raise DataError(f"vocabulary_from_dict: expected a dict with 'level', one of {', '.join(_BY_LEVEL)}; "
                        f"got {what}")
    return _BY_LEVEL[level].from_dict(data)
