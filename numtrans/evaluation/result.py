r"""The numbers of an evaluation, and the scores of translations.

With the loss :math:`\ell` in nats a token and :math:`n` tokens that spell :math:`b` bytes of text,

.. math::

    \text{perplexity} = e^\ell, \qquad \text{bits per byte} = \frac{n \ell}{b \ln 2}

Perplexities can be compared between models with the same tokens only, bits per byte between all models of a text.
"""

import math
from dataclasses import dataclass, field

_INSTALL = 'BLEU and chrF need the package sacrebleu: pip install "numtrans[evaluate]"'


@dataclass
class Evaluation:
    """What a model made of one file: sums, from which the numbers follow.

    Attributes
    ----------
    name : str
        Of the file.
    nats : float
        Sum of the losses of all tokens that were predicted.
    tokens : int
        Their number. Each target of a pair has one more than it has symbols, its end.
    right : int
        How many of them were the likeliest token, given those before.
    unknown : int
        Symbols in the data, on either side of a pair, that the vocabulary lacks.
    size : int or None
        Bytes that the tokens spell; None where this has no meaning: for hidden tokens, pairs, unknown symbols.
    sources, references, written : list of str
        Of pairs: the sources, the translations in the file, and those of the model.
    exact : list of bool
        Of pairs: whether the model wrote the reference, see `numtrans.runs.is_exact`.
    """

    name: str
    nats: float
    tokens: int
    right: int
    unknown: int
    size: int | None = None
    sources: list = field(default_factory=list)
    references: list = field(default_factory=list)
    written: list = field(default_factory=list)
    exact: list = field(default_factory=list)

    @property
    def loss(self):
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def perplexity(self):
        """The exponential of the loss: a choice among so many equally likely tokens is as hard."""
        return math.inf if self.loss > 700 else math.exp(self.loss)

    @property
    def accuracy(self):
        """Share of the tokens that were the likeliest one, each given the right tokens before it."""
        return self.right / self.tokens

    @property
    def bits_per_byte(self):
        """Bits that a code made from the model needs for a byte of the text; None without a size."""
        return None if self.size is None else self.nats / math.log(2) / self.size

    @property
    def exact_match(self):
        """Share of the pairs that the model translated exactly as the file does; None for a text."""
        return sum(self.exact) / len(self.exact) if self.exact else None

    def numbers(self):
        """All numbers that have a meaning here, by name."""
        values = {
            "pairs": len(self.exact) or None, "tokens": self.tokens, "unknown": self.unknown, "loss": self.loss,
            "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte, "accuracy": self.accuracy,
            "exact_match": self.exact_match,
        }  # fmt: skip
        return {name: value for name, value in values.items() if value is not None}


def add_up(evaluations, name="total"):
    """One `Evaluation` of all data of some: each token and each pair counts the same, whichever file it is in."""
    sizes = [e.size for e in evaluations]
    sums = {part: sum(getattr(e, part) for e in evaluations) for part in ("nats", "tokens", "right", "unknown")}
    lists = {part: [item for e in evaluations for item in getattr(e, part)]
             for part in ("sources", "references", "written", "exact")}  # fmt: skip
    return Evaluation(name, **sums, size=None if None in sizes else sum(sizes), **lists)


def corpus_scores(written, references):
    """BLEU and chrF of translations, each over the whole corpus, as ``sacrebleu`` computes them.

    Parameters
    ----------
    written, references : list of str
        Plain texts; sacrebleu cuts them into words itself, so that scores are comparable between papers.

    Returns
    -------
    scores : dict
        ``"BLEU"`` and ``"chrF"``, from 0 to 100. BLEU counts stretches of four words; it is None if no reference has
        four words, since then even perfect translations would get 0.
    signatures : dict
        By the same names: the settings and the version of sacrebleu, to be given with a score.

    Raises
    ------
    ImportError
        If sacrebleu is not installed.

    References
    ----------
    Papineni et al. (2002), BLEU: a method for automatic evaluation of machine translation. Popovic (2015), chrF:
    character n-gram F-score for automatic MT evaluation. Post (2018), A call for clarity in reporting BLEU scores,
    arXiv:1804.08771.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(_INSTALL) from error
    scores, signatures = {}, {}
    for metric in (BLEU(), CHRF()):
        name = "BLEU" if isinstance(metric, BLEU) else "chrF"
        scores[name] = float(metric.corpus_score(written, [references]).score)
        signatures[name] = str(metric.get_signature())
    if BLEU().corpus_score(references, [references]).totals[-1] == 0:
        scores["BLEU"] = None
    return scores, signatures
