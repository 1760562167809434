"""Pre-training objectives: what a model is to predict in a text that nobody has labeled.

- Next token (``"clm"``): each token from those before it. For `GPT`.
- Masked language modeling (``"mlm"``): some tokens are hidden and predicted from both sides. For `BERT`.
- Span corruption (``"span"``): stretches are cut out, and the decoder writes them. For `T5`.

Each draws from a NumPy ``Generator``; ``np.random.default_rng((seed, step))`` makes a batch a function of the seed and
the step alone. Shapes: ``B`` rows, ``T`` tokens.
"""
import numpy as np

from numtrans.data.batching import IGNORE
from numtrans.data.vocabulary import BOS, EOS, NUM_SPECIAL, PAD, UNK, check_integer
from numtrans.errors import DataError

SPECIAL = (PAD, BOS, EOS, UNK)


def mask_tokens(ids, rng, *, mask_id, vocab_size, special_ids=SPECIAL, share=0.15):
    """Hide some tokens, as BERT does.

    In each row ``max(1, round(share * n))`` of its `n` ordinary tokens are chosen at random, so at least one; in a row
    without ordinary tokens, none. A chosen token becomes the mask in 8 of 10 cases and a random ordinary token in 1
    of 10, and stays in 1 of 10: the model cannot know which tokens it will be asked about.

    Parameters
    ----------
    ids : ndarray (B, T) of int
    rng : numpy.random.Generator
    mask_id : int
        The id that stands for a hidden token.
    vocab_size : int
        Random tokens are drawn from the ids below it.
    special_ids : sequence of int
        Ids, such as that of the padding, that are neither chosen nor drawn. The mask is one of them in any case.
    share : float, default 0.15

    Returns
    -------
    inputs : ndarray (B, T), int64
    labels : ndarray (B, T), int64
        The token where one was chosen, elsewhere -100, which the loss leaves out.

    Raises
    ------
    DataError
        If ``ids`` does not have two axes, ``share`` is not between 0 and 1, or no id is ordinary.

    References
    ----------
    Devlin et al. (2019), BERT: Pre-training of deep bidirectional Transformers, arXiv:1810.04805.
    """
    try:
        ids = np.asarray(ids)
    except ValueError as error:
        raise DataError("mask_tokens: the rows of ids have unequal lengths; fill them up, see pad_batch") from error
    if ids.ndim != 2 or (ids.size and ids.dtype.kind not in "iu"):
        raise DataError(f"mask_tokens: expected integer ids of shape (B, T), got {ids.dtype} of shape {ids.shape}")
    ids = ids.astype(np.int64)
    if not 0 < share < 1:
        raise DataError(f"mask_tokens: share must be between 0 and 1, got {share}")
    special = [*special_ids, mask_id]
    ordinary = np.setdiff1d(np.arange(vocab_size), special)
    if ordinary.size == 0:
        raise DataError(f"mask_tokens: all {vocab_size} ids are special; there is none to draw")
    # 1. choose: of the ordinary tokens of a row, those with the smallest random keys
    may = ~np.isin(ids, special)                                        # (B, T)
    count = may.sum(axis=1)
    count = np.where(count > 0, np.maximum(1, np.rint(share * count)), 0)
    keys = np.where(may, rng.random(ids.shape), 2.0)
    chosen = keys.argsort(axis=1).argsort(axis=1) < count[:, None]      # (B, T)
    # 2. hide: 80 % mask, 10 % random, 10 % as it was
    what = rng.random(ids.shape)
    inputs = np.where(chosen & (what < 0.8), mask_id, ids)
    inputs = np.where(chosen & (what >= 0.9), rng.choice(ordinary, ids.shape), inputs)
    return inputs, np.where(chosen, ids, IGNORE)


def span_counts(length, share=0.15, mean_span=3.0):
    """How many tokens of a row are cut out, and in how many spans, as T5 does.

    Returns
    -------
    num_noise, num_spans : int
        ``round(share * length)``, but at least 1 and less than `length`; and ``round(num_noise / mean_span)``, but at
        least 1 and not more than there are tokens to keep spans apart. A row of one token loses none: ``0, 0``.
    """
    check_integer("span_counts", "length", length, 1)
    if not 0 < share < 1 or not mean_span >= 1:
        raise DataError(f"span_counts: expected 0 < share < 1 and mean_span >= 1, got share={share}, "
                        f"mean_span={mean_span}")
    if length == 1:
        return 0, 0
    num_noise = min(max(round(share * length), 1), length - 1)
    return num_noise, min(max(round(num_noise / mean_span), 1), length - num_noise)


def noise_spans(length, rng, share=0.15, mean_span=3.0):
    """Which tokens of a row are cut out: a boolean array (length,), True = cut out.

    Kept and cut-out spans take turns, a kept one first; how the tokens are split up among the spans of either kind is
    drawn evenly from all ways in which none is empty. So two cut-out spans never touch.
    """
    num_noise, num_spans = span_counts(length, share, mean_span)
    if num_spans == 0:
        return np.zeros(length, bool)
    kept, cut = (_segments(count, num_spans, rng) for count in (length - num_noise, num_noise))
    lengths = np.stack([kept, cut], axis=1).ravel()                     # kept, cut, kept, cut, ...
    return np.repeat(np.arange(2 * num_spans) % 2 == 1, lengths)


def _segments(total, parts, rng):
    """`total` as a sum of `parts` whole numbers of at least 1, each way equally likely."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff([0, *cuts, total])


def corrupt_spans(ids, noise, *, top_sentinel, eos_id=EOS):
    """Cut spans out of a row, as T5 does.

    ``Thank you for inviting me to your party`` becomes the source ``Thank you <X> me to your <Y> eos`` and the target
    ``<X> for inviting <Y> party <Z> eos``: each span gives way to a sentinel, and the target tells what each sentinel
    stands for. Sentinels count down from `top_sentinel`. The last one of the target marks its end, as in the paper
    (figure 2); the code of T5, whose rows always end with a span, leaves it out.

    Parameters
    ----------
    ids : sequence of int (T,)
        Ordinary tokens, without padding.
    noise : boolean array (T,)
        As :func:`noise_spans` draws it.
    top_sentinel : int
    eos_id : int, default 2

    Returns
    -------
    source, target : list of int

    Raises
    ------
    DataError
        If `ids` and `noise` differ in length, or a token of the row is one of the sentinels used.

    References
    ----------
    Raffel et al. (2020), Exploring the limits of transfer learning with a unified text-to-text Transformer,
    arXiv:1910.10683, section 3.1.4.
    """
    if len(ids) != len(noise):
        raise DataError(f"corrupt_spans: ids have {len(ids)} tokens, but noise has {len(noise)} entries")
    source, target, sentinel, inside = [], [], top_sentinel, False
    for token, cut in zip(map(int, ids), noise, strict=True):
        if cut and not inside:
            source.append(sentinel)
            target.append(sentinel)
            sentinel -= 1
        (target if cut else source).append(token)
        inside = cut
    taken = sorted({int(i) for i in ids} & set(range(sentinel, top_sentinel + 1)))
    if taken:
        raise DataError(f"corrupt_spans: the row holds {taken}, which are sentinels ({sentinel} to {top_sentinel})")
    return [*source, eos_id], [*target, sentinel, eos_id]


class NextToken:
    """Rows as they are: at each place, predict the next token.

    Parameters
    ----------
    vocab_size : int
        Size of the tokenizer.
    block : int
        Tokens that the model sees.

    Attributes
    ----------
    vocab_size : int
        Ids that the model needs: those of the tokenizer, and after them the mask or the sentinels.
    length : int
        Tokens of a row that one example is made of.
    """

    name = "clm"

    def __init__(self, vocab_size, block):
        _check_sizes(self, vocab_size, block)
        self.vocab_size, self.length = vocab_size, block + 1

    def __call__(self, rows, rng):
        """The inputs of the model, a tuple, and the targets, for rows (B, length)."""
        return (rows[:, :-1],), rows[:, 1:]


class MaskedLanguageModel:
    """Whole rows with hidden tokens, see :func:`numtrans.data.mask_tokens`.

    The mask is the id after those of the tokenizer.

    Parameters and attributes are those of :class:`NextToken`.
    """

    name = "mlm"

    def __init__(self, vocab_size, block):
        _check_sizes(self, vocab_size, block)
        self.vocab_size, self.length, self.mask_id = vocab_size + 1, block, vocab_size

    def __call__(self, rows, rng):
        """The inputs of the model, a tuple, and the targets, for rows (B, length)."""
        inputs, labels = mask_tokens(rows, rng, mask_id=self.mask_id, vocab_size=self.vocab_size)
        return (inputs,), labels


class SpanCorruption:
    """Rows with spans cut out, see :func:`numtrans.data.corrupt_spans`. The sentinels are the last ids.

    All rows of one length lose as many tokens in as many spans, so sources and targets need no padding. The decoder
    starts with the padding token, as T5's does.

    Parameters and attributes are those of :class:`NextToken`.
    """

    name = "span"

    def __init__(self, vocab_size, block):
        _check_sizes(self, vocab_size, block)
        self.vocab_size, self.length = vocab_size + span_counts(block)[1] + 1, block

    def __call__(self, rows, rng):
        """The inputs of the model, a tuple, and the targets, for rows (B, length)."""
        pairs = [corrupt_spans(row, noise_spans(len(row), rng), top_sentinel=self.vocab_size - 1) for row in rows]
        source, target = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
        start = np.full_like(target[:, :1], PAD)
        return (source, np.concatenate([start, target[:, :-1]], axis=1)), target


def _check_sizes(objective, vocab_size, block):
    """Refuse a vocabulary without ordinary ids, and rows without tokens."""
    check_integer(type(objective).__name__, "vocab_size", vocab_size, NUM_SPECIAL + 1)
    check_integer(type(objective).__name__, "block", block, 1)


OBJECTIVES = {kind.name: kind for kind in (NextToken, MaskedLanguageModel, SpanCorruption)}
