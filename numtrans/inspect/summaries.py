"""What a model is and costs, in one table, without making a single weight."""

from dataclasses import dataclass

from numtrans.errors import ConfigError
from numtrans.inspect.costs import activation_parts, cache_parts, check_tokens, flop_parts, mask_parts
from numtrans.models.configs import plain
from numtrans.models.counts import SYMBOLS, architecture, as_config, parameter_parts

BYTES = {"float32": 4, "float16": 2, "int8": 1}  # bfloat16 as float16
TRAINING_DTYPE = "float32"


@dataclass(frozen=True)
class Summary:
    """Parts of a model with their formulas and numbers; ``str()`` is a table. Made by `summary`.

    Attributes
    ----------
    name : str
        The preset, or the class of the configuration.
    config
        The configuration.
    tokens, batch : int
        Tokens of a sequence, and sequences.
    parts : list of numtrans.models.counts.Part
        Parameters.
    flops : list of numtrans.models.counts.Part
        Operations of a forward of one sequence.
    activations, masks : list of numtrans.models.counts.Part
        Numbers and booleans that a training forward of one sequence saves.
    cache : list of numtrans.models.counts.Part
        Numbers in the cache after a sequence.
    """

    name: str
    config: object
    tokens: int
    batch: int
    parts: list
    flops: list
    activations: list
    masks: list
    cache: list

    @property
    def parameters(self):
        """Number of parameters."""
        return _total(self.parts)

    @property
    def forward_flops(self):
        """Operations of a forward, a token: of the source and of the target together, where there are two."""
        return _total(self.flops) / self.tokens

    @property
    def training_flops(self):
        """Operations of a training step, a token: forward, and twice as many backward."""
        return 3 * self.forward_flops

    @property
    def attention_flops(self):
        """The part of `forward_flops` that grows with the length of the sequence."""
        return _total(part for part in self.flops if "scores" in part.name) / self.tokens

    @property
    def activation_bytes(self):
        """Bytes that a training forward of the batch saves for its backward, in float32."""
        return self.batch * (BYTES[TRAINING_DTYPE] * _total(self.activations) + _total(self.masks))

    @property
    def recompute_bytes(self):
        """As `activation_bytes`, the most at a time when each layer is recomputed (`checkpoint_layers`)."""
        floats = activation_parts(self.config, self.tokens, self.batch, recompute=True)
        masks = mask_parts(self.config, self.tokens, self.batch, recompute=True)
        return self.batch * (BYTES[TRAINING_DTYPE] * _total(floats) + _total(masks))

    def weight_bytes(self, dtype="float32"):
        """Bytes of the parameters in "float32", "float16" (also bfloat16) or "int8"."""
        return _size(dtype) * self.parameters

    def cache_bytes(self, dtype="float32"):
        """Bytes of the key-value cache after ``tokens`` tokens of each sequence of the batch."""
        return _size(dtype) * self.batch * _total(self.cache)

    def cache_bytes_per_token(self, dtype="float32"):
        """Bytes that one token of one sequence adds to the cache (one of the target and one of the memory)."""
        return _size(dtype) * _total(self.cache) // self.tokens

    def __str__(self):
        a = architecture(self.config)
        letters = [f"{letter} = {value:,} {SYMBOLS[letter]}" for letter, value in a.sizes.items()]
        letters.append(f"T = {self.tokens:,} tokens")
        lines = [f"{self.name}: {self.parameters:,} parameters", *_wrapped(letters), ""]
        lines += _table("parameters", self.parts, self.parameters, "total")
        lines += ["", *_table("FLOPs of a forward, a token", self.flops, self.forward_flops, "forward", self.tokens)]
        lines.append(_row("training step", "3 x forward", f"{self.training_flops:,.0f}"))
        lines.append(_row("of a forward, grows with T", "", f"{self.attention_flops / self.forward_flops:.1%}"))
        lines += ["", f"{'memory':72s}" + "".join(f"{dtype:>12s}" for dtype in BYTES)]
        lines.append(_row("weights", "", _by_dtype(self.parameters)))
        for part in self.cache:
            name = f"key-value cache, a token of the {part.name}"
            lines.append(_row(name, _per_token(part.formula), _by_dtype(part.value // self.tokens)))
        if self.cache:
            name = f"key-value cache, {self.batch:,} x {self.tokens:,}"
            lines.append(_row(name, "", _by_dtype(self.batch * _total(self.cache))))
        training = f"{readable(4 * self.weight_bytes(TRAINING_DTYPE)):>11s}"
        lines.append(_row("training: gradients and Adam's moments too", "4 x weights", training))
        activations = f"{readable(self.activation_bytes):>11s}"
        lines.append(_row(f"training: saved for backward, {self.batch:,} x {self.tokens:,}", "", activations))
        lines.append(_row("the same with each layer recomputed", "", f"{readable(self.recompute_bytes):>11s}"))
        return "\n".join(lines)


def summary(config, tokens=None, batch=1):
    r"""Layers, parameters, operations and memory of a model, without making its weights.

    .. math::

        \text{FLOPs of a forward, a token} \approx 2 N + 4 L T D

    for ``N`` weights in matrices, the output's among them. Kaplan et al. (2020) write :math:`2 N + 2 L T D`: they leave
    out the output, and of attention count the half that a causal mask leaves. A training step takes three times as
    many.

    Parameters
    ----------
    config : a configuration of `numtrans.models`, or the name of a preset
    tokens : int, optional
        Tokens of a sequence, of the source and of the target alike: by default the longest that the model takes, and
        512 if it has no limit.
    batch : int, default 1
        Sequences of a training step, and of a cache.

    Returns
    -------
    Summary

    Raises
    ------
    ConfigError
        If the preset is unknown, or the model does not take so many tokens.

    References
    ----------
    Kaplan et al. (2020), Scaling laws for neural language models, arXiv:2001.08361, table 1; Shazeer (2019),
    arXiv:1911.02150 (memory of the cache); Korthikanti et al. (2022), Reducing activation recomputation in large
    Transformer models, arXiv:2205.05198.
    """
    batch = plain("summary: batch", batch, int)
    if batch < 1:
        raise ConfigError(f"summary: batch={batch}, expected at least 1")
    name = config if isinstance(config, str) else type(config).__name__
    config = as_config(config)
    tokens = check_tokens(config, tokens)
    saved = activation_parts(config, tokens, batch), mask_parts(config, tokens, batch)
    costs = flop_parts(config, tokens), *saved, cache_parts(config, tokens)
    return Summary(name, config, tokens, batch, parameter_parts(config), *costs)


def readable(count):
    """A number of bytes with a unit of three decimal steps: 1500 is ``1.50 kB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count} B" if unit == "B" else f"{count:.3g} {unit}" if count >= 100 else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def _total(parts):
    return sum(part.value for part in parts)


def _size(dtype):
    if dtype not in BYTES:
        raise ConfigError(f"Summary: dtype is {dtype!r}, expected one of {', '.join(BYTES)}")
    return BYTES[dtype]


def _by_dtype(numbers):
    """Bytes of so many numbers, a column for each dtype."""
    return "".join(f"{readable(size * numbers):>12s}" for size in BYTES.values())[1:]


def _row(name, formula, number):
    return f"  {name:44s} {formula:24s} {number:>17s}".rstrip()


def _table(title, parts, total, total_name, divisor=1):
    """Lines of a title, the parts, and their sum; values are divided by `divisor` as their formulas, by T."""
    lines = [f"{title}"]
    for part in parts:
        formula = part.formula if divisor == 1 else _per_token(part.formula)
        lines.append(_row(part.name, formula, f"{part.value / divisor:,.0f}"))
    return [*lines, _row(total_name, "", f"{total:,.0f}")]


def _per_token(formula):
    """A formula divided by T."""
    if " + " in formula and "(" not in formula:
        return " + ".join(map(_per_token, formula.split(" + ")))
    if "T^2" in formula:
        return formula.replace("T^2", "T")
    return formula.replace("T ", "", 1) if "T " in formula else f"{formula} / T"


def _wrapped(words, width=100):
    """`words` joined by commas, in lines of at most `width` letters."""
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{word}, "
    return [f"  {line.removesuffix(', ')}" for line in lines]
