"""Sentence pairs from files: two texts whose lines belong together, or one file with a tab in each line."""
import numpy as np

from numtrans.data.tasks import Seq2SeqTask
from numtrans.data.text import load_text
from numtrans.data.tokenizer import make_vocabulary
from numtrans.errors import DataError


def load_pairs(source, target=None):
    """Read sentence pairs.

    Spaces at the ends of a sentence are dropped. A line that is empty on both sides (in a tab-separated file: an
    empty line) is skipped; a sentence without a partner is an error.

    Parameters
    ----------
    source : str or Path
        A UTF-8 file with one source sentence in each line; or, without ``target``, a file with
        ``source<tab>target`` in each line.
    target : str, Path or None, default None
        A UTF-8 file with the translation of each line of ``source``.

    Returns
    -------
    list of (str, str)

    Raises
    ------
    DataError
        As :func:`load_text`; or if the two files have different numbers of lines, a line does not have exactly one
        tab, or one side of a pair is empty. The message names file and line.
    """
    if target is None:
        pairs = []
        for number, line in enumerate(_lines(source), start=1):
            if line.strip():
                parts = line.split("\t")
                if len(parts) != 2:
                    raise DataError(f"load_pairs: line {number} of {source} has {len(parts) - 1} tabs; expected "
                                    "exactly one, between source and target")
                pairs.append((number, parts[0].strip(), parts[1].strip()))
    else:
        left, right = _lines(source), _lines(target)
        if len(left) != len(right):
            raise DataError(f"load_pairs: {source} has {len(left)} lines and {target} has {len(right)}; expected as "
                            "many, since line by line they belong together")
        numbered = enumerate(zip(left, right, strict=True), start=1)
        pairs = [(n, s.strip(), t.strip()) for n, (s, t) in numbered if s.strip() or t.strip()]
    for number, s, t in pairs:
        if not (s and t):
            name = source if target is None or not s else target
            raise DataError(f"load_pairs: line {number} of {name} has no {'target' if s else 'source'} sentence")
    return [(s, t) for _, s, t in pairs]


def _lines(path):
    # Not splitlines(): it also cuts at form feeds and other marks that are part of a sentence.
    text = load_text(path)
    return text.removesuffix("\n").split("\n")


class PairTask(Seq2SeqTask):
    """Sentence pairs from files, split at random, with vocabularies built from the training part.

    All pairs with the same source sentence go to the same split, so that no test sentence has been seen in training.

    Parameters
    ----------
    source, target : str or Path
        See :func:`load_pairs`.
    level : {"word", "char", "subword"}, default "word"
        What a symbol is; ``"subword"`` is byte-pair encoding (:class:`BytePairEncoder`).
    vocab_size : int, default 8000
        At most so many ids on each side, special ids included; for ``"char"``, which has few anyway, without effect.
    validation, test : float, defaults 0.1 and 0.1
        Shares of the different source sentences. A share above 0 gets at least one.
    seed : int, default 0

    Raises
    ------
    DataError
        As :func:`load_pairs`; or if ``level`` is unknown, the shares leave nothing for training, or there are fewer
        different source sentences than splits.
    """

    def __init__(self, source, target=None, level="word", vocab_size=8000, validation=0.1, test=0.1, seed=0):
        if level not in ("word", "char", "subword"):
            raise DataError(f"PairTask: level must be 'word', 'char' or 'subword', got {level!r}")
        if validation < 0 or test < 0 or validation + test >= 1:
            raise DataError("PairTask: validation and test must not be negative and leave a share for training, "
                            f"got validation={validation} and test={test}")
        by_source = {}
        for s, t in load_pairs(source, target):
            by_source.setdefault(s, []).append((s, t))
        groups = list(by_source.values())
        n_valid, n_test = (max(1, int(share * len(groups))) if share > 0 else 0 for share in (validation, test))
        if len(groups) <= n_valid + n_test:
            raise DataError(f"PairTask: {source} has {len(groups)} different source sentences, but training, "
                            f"validation and test need {n_valid + n_test + 1} at least")
        order = np.random.default_rng(seed).permutation(len(groups)).tolist()

        def pairs(picked):
            return [pair for i in picked for pair in groups[i]]

        valid, test_pairs, train = (pairs(order[:n_valid]), pairs(order[n_valid:n_valid + n_test]),
                                    pairs(order[n_valid + n_test:]))
        self.level = level
        super().__init__(train, valid, test_pairs,
                         make_vocabulary(level, [s for s, _ in train], vocab_size),
                         make_vocabulary(level, [t for _, t in train], vocab_size))
