"""How many parameters a configuration has, by part and in closed form, without making one of them.

A formula is a string such as ``"L (4 D^2 + 4 D)"``, which is both printed and evaluated, so that what a reader sees is
what was counted. The letters are those of `SYMBOLS`.
"""

import re
from dataclasses import dataclass

from numtrans.errors import ConfigError
from numtrans.layers.feedforward import GATES
from numtrans.models.configs import BERTConfig, GPTConfig, LlamaConfig, T5Config, TransformerConfig, ViTConfig
from numtrans.models.presets import preset

SYMBOLS = {
    "D": "width", "H": "heads", "G": "key-value heads", "d": "features of a head", "F": "width of the feed-forward",
    "L": "layers", "L_e": "encoder layers", "L_d": "decoder layers", "V": "vocabulary", "V_s": "source vocabulary",
    "V_t": "target vocabulary", "P": "rows of a position table", "S": "token types", "R": "buckets of distances",
    "K": "classes", "N": "patches", "p": "pixels a side of a patch", "C": "channels", "T": "tokens",
}  # fmt: skip
SHAW_ROWS = 33  # distances -16 ... 16, see `numtrans.blocks.attention_position`


@dataclass(frozen=True)
class Part:
    """One line of a table: a name, a formula, and its value."""

    name: str
    formula: str
    value: int


@dataclass(frozen=True)
class Stack:
    """A stack of layers: its name in front of its parts, the letter of its depth, and what its attention is."""

    name: str
    layers: str
    cross: bool = False
    causal: bool = False


@dataclass(frozen=True)
class Architecture:
    """What the counts need to know of a configuration, the same for every model."""

    sizes: dict
    stacks: tuple
    feedforward: str
    norm: str
    pre_norm: bool
    bias: bool = True
    position: str | None = None
    dropout: float = 0.0

    def part(self, name, formula, **more):
        """`Part` with the value of `formula` for these sizes and `more`."""
        return Part(name, formula, evaluate(formula, self.sizes | more))

    @property
    def square(self):
        """Whether each of the four matrices of attention is (D, D)."""
        return self.sizes["H"] * self.sizes["d"] == self.sizes["D"] and self.sizes["G"] == self.sizes["H"]


def count_parameters(config):
    """Number of learned values of the model that `config` describes; tied ones count once.

    Equal to ``Model(config).num_parameters()``, without making the weights.

    Parameters
    ----------
    config : a configuration of `numtrans.models`, or the name of a preset

    Returns
    -------
    int
    """
    return sum(part.value for part in parameter_parts(config))


def parameter_parts(config):
    """The parameters by part: a list of `Part`. `config` as in `count_parameters`, which sums their values."""
    a, c = architecture(config), as_config(config)
    formulas = [*_embedding(c)]
    for stack in a.stacks:
        formulas += _stack(stack, a)
    return [a.part(name, formula) for name, formula in [*formulas, *_output(c)]]


def architecture(config):
    """The `Architecture` of a configuration.

    Raises
    ------
    ConfigError
        If it is no configuration of `numtrans.models`.
    """
    c = as_config(config)
    d = vars(c).get("d_kv") or c.d_model // c.num_heads
    G = vars(c).get("num_kv_heads") or c.num_heads
    sizes = {"D": c.d_model, "H": c.num_heads, "G": G, "d": d, "F": c.d_ff}
    pair = Stack("encoder ", "L_e"), Stack("decoder ", "L_d", cross=True, causal=True)
    if isinstance(c, TransformerConfig):
        sizes |= {"L_e": c.num_encoder_layers, "L_d": c.num_decoder_layers}
        sizes |= {"V": c.src_vocab_size} if c.tie_embeddings else {"V_s": c.src_vocab_size, "V_t": c.tgt_vocab_size}
        sizes |= _position_sizes(c)
        return Architecture(sizes, pair, c.feedforward, c.norm, c.norm_placement == "pre", True, c.position, c.dropout)
    if isinstance(c, T5Config):
        sizes |= {"L_e": c.num_encoder_layers, "L_d": c.num_decoder_layers, "V": c.vocab_size, "R": c.num_buckets}
        return Architecture(sizes, pair, c.feedforward, "rms", True, False, "t5", c.dropout)
    sizes["L"] = c.num_layers
    one = (Stack("", "L", causal=isinstance(c, (GPTConfig, LlamaConfig))),)
    if isinstance(c, GPTConfig):
        sizes |= {"V": c.vocab_size} | _position_sizes(c)
        return Architecture(sizes, one, c.feedforward, c.norm, c.norm_placement == "pre", c.bias, c.position, c.dropout)
    if isinstance(c, LlamaConfig):
        sizes |= {"V": c.vocab_size}
        return Architecture(sizes, one, "swiglu", "rms", True, False, "rope", c.dropout)
    if isinstance(c, BERTConfig):
        sizes |= {"V": c.vocab_size, "P": c.max_len, "S": c.token_types}
        return Architecture(sizes, one, c.feedforward, "layer", False, True, "learned", c.dropout)
    sizes |= {"N": (c.image_size // c.patch_size) ** 2, "p": c.patch_size, "C": c.channels, "K": c.num_classes}
    return Architecture(sizes, one, c.feedforward, "layer", True, True, "learned", c.dropout)


def as_config(config):
    """`config`, or the preset of that name; raise unless it is a configuration of `numtrans.models`."""
    config = preset(config) if isinstance(config, str) else config
    if not isinstance(config, (TransformerConfig, GPTConfig, BERTConfig, T5Config, LlamaConfig, ViTConfig)):
        raise ConfigError(
            f"count_parameters: a {type(config).__name__}, expected a configuration such as GPTConfig, or the name of "
            "a preset"
        )
    return config


def evaluate(formula, sizes):
    """The value of a formula of letters, whole numbers, ``+``, powers and parentheses; products have no sign."""
    tokens = re.findall(r"\d+|[A-Za-z](?:_[a-z])?|[()+^]|\S", formula)

    def total():
        value = product()
        while tokens and tokens[0] == "+":
            tokens.pop(0)
            value += product()
        return value

    def product():
        value = 1
        while tokens and tokens[0] not in "+)":
            value *= factor()
        return value

    def factor():
        token = tokens.pop(0)
        if token == "(":
            value = total()
            tokens.pop(0)
        else:
            value = int(token) if token.isdigit() else sizes[token]
        if tokens and tokens[0] == "^":
            value **= int(tokens[1])
            del tokens[:2]
        return value

    return total()


def attention_matrices(a):
    """Formula of the weights in the four matrices of one attention."""
    if a.square:
        return "4 D^2"
    return "4 D H d" if a.sizes["G"] == a.sizes["H"] else "2 D H d + 2 D G d"


def feedforward_matrices(a):
    """Formula of the weights in the matrices of one feed-forward network."""
    return "3 D F" if a.feedforward in GATES else "2 D F"


def _position_sizes(c):
    """Letters of learned positions; T5's table has its default of 32 rows."""
    return {"learned": {"P": c.max_len}, "t5": {"R": 32}}.get(c.position, {})


def _embedding(c):
    """(name, formula) of what turns the input into vectors."""
    if isinstance(c, TransformerConfig):
        yield ("token table", "V D") if c.tie_embeddings else ("token tables", "(V_s + V_t) D")
        if c.position == "learned":
            yield "position tables", "2 P D"
    elif isinstance(c, ViTConfig):
        yield "patch embedding", "C p^2 D + D"
        yield "class token", "D"
        yield "position table", "(N + 1) D"
    else:
        yield "token table", "V D"
        if isinstance(c, BERTConfig) or (isinstance(c, GPTConfig) and c.position == "learned"):
            yield "position table", "P D"
        if isinstance(c, BERTConfig):
            yield "token types", "S D"
            yield "embedding norm", "2 D"


def _stack(stack, a):
    """(name, formula) of the layers."""
    L, name = stack.layers, stack.name
    biases = ("4 D" if a.square else "H d + 2 G d + D") if a.bias else ""
    attention = _sum(attention_matrices(a), biases)
    yield f"{name}attention", f"{L} ({attention})"
    if stack.cross:
        yield f"{name}cross-attention", f"{L} ({attention})"
    biases = ("2 F + D" if a.feedforward in GATES else "F + D") if a.bias else ""
    yield f"{name}feed-forward", f"{L} ({_sum(feedforward_matrices(a), biases)})"
    gain = "2 D" if a.norm == "layer" else "D"
    norms = f"{3 if stack.cross else 2} {L}"
    yield f"{name}norms", f"({norms} + 1) {gain}" if a.pre_norm else f"{norms} {gain}"
    if a.position == "t5":
        yield f"{name}distances", "R H"
    elif a.position == "shaw":
        yield f"{name}distances", f"{L} {2 * SHAW_ROWS} d"


def _output(c):
    """(name, formula) of what comes after the layers."""
    if isinstance(c, BERTConfig):
        if c.head == "pooled":
            yield "pooler", "D^2 + D"
        elif c.head == "mlm":
            yield "masked-LM head", "D^2 + D + 2 D + V"
    elif isinstance(c, ViTConfig):
        yield "head", "D K + K"
    elif c.tie_output:
        yield "output, tied to the table", "0"
    elif isinstance(c, TransformerConfig):
        V = "V" if c.tie_embeddings else "V_t"
        yield "output", f"D {V} + {V}"
    else:
        yield "output", "D V"


def _sum(*terms):
    return " + ".join(term for term in terms if term)
