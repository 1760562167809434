r"""What a model costs to run and to train, in closed form: operations, saved values, keys and values of a cache.

Letters as in `numtrans.models.counts`; ``T`` tokens a sequence, of the source and of the target alike. A model of
images reads ``T = N + 1`` tokens.

Operations are counted as in the literature: those of the matrix products, two (a multiplication and an addition) for
each pair of numbers that meet. A matrix product :math:`y = x W` is followed by two of its size in backward,
:math:`dx = dy\, W^\top` and :math:`dW = x^\top dy`, so a training step takes three times a forward.
"""

from numtrans.errors import ConfigError
from numtrans.layers.attention import ScaledDotProductAttention
from numtrans.layers.feedforward import GATES
from numtrans.models.configs import BERTConfig, GPTConfig, LlamaConfig, T5Config, TransformerConfig, ViTConfig, plain
from numtrans.models.counts import SHAW_ROWS, architecture, as_config, attention_matrices, feedforward_matrices

# what an activation saves for its backward: arrays of floats, arrays of booleans, and whether its output is among them
_SAVED = {
    "relu": (0, 1, False), "gelu": (1, 0, False), "gelu_tanh": (1, 0, False), "silu": (1, 0, False),
    "sigmoid": (1, 0, True), "tanh": (1, 0, True), "identity": (0, 0, False),
}  # fmt: skip


def flop_parts(config, tokens):
    """Operations of the matrix products in a forward of one sequence, or one image.

    The scores and averages of attention grow with the square of ``T``. All pairs of tokens are counted, as is usual. A
    causal mask leaves about half, and a sliding window less; of what they hide numtrans computes what lies in the same
    block of 64 queries, or in the same tile.

    Parameters
    ----------
    config : a configuration of `numtrans.models`, or the name of a preset
    tokens : int
        ``T``.

    Returns
    -------
    list of numtrans.models.counts.Part
    """
    a, c = architecture(config), as_config(config)
    formulas = [("patch embedding", "2 N C p^2 D")] if isinstance(c, ViTConfig) else []
    for stack in a.stacks:
        L, name = stack.layers, stack.name
        for kind in ("attention", "cross-attention") if stack.cross else ("attention",):
            formulas.append((f"{name}{kind}, projections", f"2 T {L} ({attention_matrices(a)})"))
            formulas.append((f"{name}{kind}, scores and averages", f"4 T^2 {L} {_all_heads(a)}"))
        if a.position == "shaw":
            formulas.append((f"{name}attention, distances", f"{4 * SHAW_ROWS} T {L} {_all_heads(a)}"))
        formulas.append((f"{name}feed-forward", f"2 T {L} ({feedforward_matrices(a)})"))
    if isinstance(c, ViTConfig):
        formulas.append(("head", "2 D K"))
    elif not isinstance(c, BERTConfig):
        formulas.append(("output", "2 T V_t D" if "V_t" in a.sizes else "2 T V D"))
    elif c.head != "none":
        formulas.append(("pooler", "2 D^2") if c.head == "pooled" else ("masked-LM head", "2 T D^2 + 2 T V D"))
    return [a.part(name, formula, T=tokens) for name, formula in formulas]


def activation_parts(config, tokens, batch=1, *, recompute=False):
    """Floating-point numbers that a training forward of one sequence saves for its backward, with those of the loss.

    An array that two parts save, such as the input of the three projections of attention, counts once. Attention saves
    its weights, under a causal mask those of each block of queries up to its last one, and in tiles one number a query
    (see `numtrans.layers.ScaledDotProductAttention`). With recomputation (`numtrans.layers.checkpoint_layers`) the
    layers save their inputs alone, and one layer at a time what it saves without.

    Parameters
    ----------
    config, tokens
        As for `flop_parts`.
    batch : int, default 1
        Sequences: with many, attention works in tiles.
    recompute : bool, default False
        Whether each layer is wrapped in a `Checkpoint`.

    Returns
    -------
    list of numtrans.models.counts.Part
    """
    a, c = architecture(config), as_config(config)
    formulas = {TransformerConfig: [], ViTConfig: [("patches", "N C p^2")], BERTConfig: [("embedding norm", "T D + T")]}
    formulas = formulas.get(type(c), [])
    for stack in a.stacks:
        if recompute:
            formulas.append((f"{stack.name}inputs of layers", f"{stack.layers} T D"))
        else:
            formulas += _all_layers(stack, _layer_activations(a, stack, tokens, batch))
        if stack.cross:
            formulas.append(("memory", "T D"))
        if a.pre_norm:
            formulas.append((f"{stack.name}closing norm", "T D + T"))
    if recompute:
        formulas += _one_layer(_layer_activations(a, a.stacks[-1], tokens, batch, input_is_there=not a.pre_norm))
    if isinstance(c, ViTConfig):
        formulas += [("head", "T D"), ("loss", "K + 1")]
    elif isinstance(c, BERTConfig):
        floats, _, _ = _SAVED[c.feedforward]
        formulas += {"pooled": [("pooler", "T D + D")], "none": []}.get(
            c.head, [("masked-LM head", f"T D ({3 + floats}) + T"), ("loss", "T V + T")]
        )
    else:
        V = "V_t" if "V_t" in a.sizes else "V"
        formulas += [("output", "T D"), ("loss", f"T {V} + T")]
    return [a.part(name, formula, T=tokens) for name, formula in formulas]


def mask_parts(config, tokens, batch=1, *, recompute=False):
    """Booleans, of a byte each, that a training forward saves: where dropout keeps a number, and where ReLU does.

    Parameters and result as for `activation_parts`.
    """
    a, c = architecture(config), as_config(config)
    formulas = []
    if a.dropout and not isinstance(c, LlamaConfig):
        formulas.append(("embedding", {TransformerConfig: "2 T D", T5Config: "4 T D"}.get(type(c), "T D")))
    for stack in () if recompute else a.stacks:
        formulas += _all_layers(stack, _layer_masks(a, stack, tokens, batch))
    if recompute:
        formulas += _one_layer(_layer_masks(a, a.stacks[-1], tokens, batch))
    if isinstance(c, BERTConfig) and c.head == "mlm" and _SAVED[c.feedforward][1]:
        formulas.append(("masked-LM head", "T D"))
    return [a.part(name, formula, T=tokens) for name, formula in formulas]


def cache_parts(config, tokens):
    """Numbers that a key-value cache holds after ``T`` tokens of one sequence; nothing for models that do not generate.

    A decoder keeps the keys and values of its own ``T`` tokens, and of the ``T`` tokens of the memory. With fewer
    key-value heads (grouped queries) there is less to keep. With a sliding window numtrans keeps all tokens, too.

    Parameters and result as for `flop_parts`.
    """
    a = architecture(config)
    heads = "D" if a.square else "H d" if a.sizes["G"] == a.sizes["H"] else "G d"
    formulas = []
    for stack in a.stacks:
        if stack.causal:
            formulas.append(("text", f"2 T {stack.layers} {heads}"))
        if stack.cross:
            formulas.append(("memory", f"2 T {stack.layers} {heads}"))
    return [a.part(name, formula, T=tokens) for name, formula in formulas]


def check_tokens(config, tokens=None):
    """`tokens`, or the default: the longest sequence of the model, and 512 if it has no limit.

    Raises
    ------
    ConfigError
        If the model does not take that many.
    """
    c = as_config(config)
    tokens = plain("summary: tokens", tokens, int | None)
    if isinstance(c, ViTConfig):
        count = (c.image_size // c.patch_size) ** 2 + 1
        if tokens not in (None, count):
            raise ConfigError(f"summary: tokens={tokens}, but an image of ViTConfig makes {count}")
        return count
    limited = isinstance(c, (BERTConfig, LlamaConfig)) or (
        isinstance(c, (GPTConfig, TransformerConfig)) and c.position == "learned"
    )
    tokens = (c.max_len if limited else 512) if tokens is None else tokens
    if tokens < 1 or (limited and tokens > c.max_len):
        limit = f" and at most max_len={c.max_len}" if limited else ""
        raise ConfigError(f"summary: tokens={tokens}, expected at least 1{limit}")
    return tokens


def _all_heads(a):
    """Formula of the features of all heads together."""
    return "D" if a.sizes["H"] * a.sizes["d"] == a.sizes["D"] else "H d"


def _layer_activations(a, stack, tokens, batch, input_is_there=False):
    """Names and formulas of the floats that one layer of `stack` saves; the input of a post-norm one may be there."""
    heads = "2 T H d + " + ("2 T H d" if a.sizes["G"] == a.sizes["H"] else "2 T G d")
    formulas = []
    for kind in ("attention", "cross-attention") if stack.cross else ("attention",):
        inputs = "" if input_is_there and kind == "attention" else "T D + "
        tiles, pairs = _pairs(a, stack, kind, tokens, batch)
        twice = "2 " if a.dropout and not tiles else ""  # the weights before dropout and after it
        formulas.append((kind, f"{inputs}{heads} + {twice}{'H T' if tiles else pairs}"))
    if a.position == "shaw":
        formulas.append(("distances", f"{SHAW_ROWS} T H"))
    floats, _ = _hidden(a)
    formulas.append(("feed-forward", f"T D + {floats} T F"))
    return [*formulas, ("norms", f"{3 if stack.cross else 2} (T D + T)")]


def _layer_masks(a, stack, tokens, batch):
    """Names and formulas of the booleans that one layer of `stack` saves."""
    _, hidden = _hidden(a)
    if not a.dropout:
        return [("feed-forward", f"{hidden} T F")] if hidden else []
    formulas = []
    for kind in ("attention", "cross-attention") if stack.cross else ("attention",):
        tiles, pairs = _pairs(a, stack, kind, tokens, batch)  # a tile draws its mask again
        formulas.append((kind, "T D" if tiles else f"{pairs} + T D"))
    return [*formulas, ("feed-forward", f"{hidden} T F + T D")]


def _pairs(a, stack, kind, tokens, batch):
    """Whether attention works in tiles, and the formula of the weights that it saves if not, asked of the layer."""
    own = kind == "attention"
    relative = True if own and a.position in ("shaw", "t5", "alibi") else None
    layer, causal = ScaledDotProductAttention(a.dropout, position=relative), own and stack.causal
    pairs = sum((rows.stop - rows.start) * seen for rows, seen in layer.row_blocks(tokens, tokens, causal))
    tiles = layer.tile_size(batch, a.sizes["H"], tokens, tokens)
    return tiles, "H T^2" if pairs == tokens**2 else f"{pairs} H"


def _all_layers(stack, formulas):
    return [(f"{stack.name}{name}", f"{stack.layers} ({formula})") for name, formula in formulas]


def _one_layer(formulas):
    """Of the last stack: its backward comes first, and with cross-attention its layers save most."""
    return [(f"{name} of one layer", formula) for name, formula in formulas]


def _hidden(a):
    """How many arrays of (T, F) floats and booleans one feed-forward network saves."""
    floats, booleans, has_output = _SAVED[GATES.get(a.feedforward, a.feedforward)]
    if a.feedforward in GATES:
        floats += 2 + (not has_output)  # the gate, the units, and their product after dropout
    elif a.dropout or not has_output:
        floats += 1  # what the second matrix multiplies
    return floats, booleans + bool(a.dropout)
