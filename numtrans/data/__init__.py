"""Data for training: tasks made from a seed, texts and sentence pairs from files, vocabularies and batches.

Sequence-to-sequence tasks (:class:`DateTask`, :class:`SequenceTask`, :class:`PairTask`) have ``train``, ``valid``
and ``test`` (lists of string pairs), ``source_vocab``, ``target_vocab``, ``encode_pair`` and ``encode_pairs``;
:class:`Seq2SeqBatches` makes batches of any of them. :class:`TextTask` makes its own.
:func:`load_digits` returns small images with labels.
"""
from numtrans.data.batching import IGNORE, Batch, Seq2SeqBatches, pad_batch, shift_targets
from numtrans.data.bpe import BytePairEncoder
from numtrans.data.bytes import ByteVocabulary
from numtrans.data.date_names import FORMATS, DateFormat
from numtrans.data.dates import DateTask, write_date, write_dates
from numtrans.data.digits import load_digits
from numtrans.data.objectives import OBJECTIVES, corrupt_spans, mask_tokens, noise_spans
from numtrans.data.pairs import PairTask, load_pairs
from numtrans.data.tasks import Seq2SeqTask, SequenceTask
from numtrans.data.text import TextTask, load_text
from numtrans.data.tokenizer import Tokenizer, make_vocabulary, vocabulary_from_dict
from numtrans.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

__all__ = [
    "BOS", "EOS", "FORMATS", "IGNORE", "OBJECTIVES", "PAD", "UNK", "Batch", "BytePairEncoder", "ByteVocabulary",
    "DateFormat", "DateTask", "PairTask", "Seq2SeqBatches", "Seq2SeqTask", "SequenceTask", "TextTask", "Tokenizer",
    "Vocabulary", "corrupt_spans", "load_digits", "load_pairs", "load_text", "make_vocabulary", "mask_tokens",
    "noise_spans", "pad_batch", "shift_targets", "vocabulary_from_dict", "write_date", "write_dates",
]
