"""Weights of PyTorch's own modules, in and out.

Left our attribute, right PyTorch's name; the forms are those of `numtrans.pretrained.names`.
"""

from collections.abc import Mapping

from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from numtrans.errors import ConfigError, StateDictError
from numtrans.layers.embedding import Embedding
from numtrans.layers.feedforward import FeedForward
from numtrans.layers.linear import Linear
from numtrans.layers.multi_head_attention import MultiHeadAttention
from numtrans.layers.normalization import BatchNorm, LayerNorm, RMSNorm
from numtrans.models.transformer import Transformer
from numtrans.pretrained.names import SAME, TRANSPOSED, Row, check_complete, fill, write


def load_torch_state_dict(module, arrays, prefix=""):
    """Copy the weights of a module of PyTorch into ours.

    ===============================================  ===================================================
    ours                                             PyTorch's
    ===============================================  ===================================================
    `Linear`, `Embedding`                            ``nn.Linear``, ``nn.Embedding``
    `LayerNorm`, `RMSNorm`, `BatchNorm`              ``nn.LayerNorm``, ``nn.RMSNorm``, ``nn.BatchNorm1d``
    `MultiHeadAttention`                             ``nn.MultiheadAttention``
    `EncoderLayer`, `DecoderLayer`                   ``nn.TransformerEncoderLayer``, ``...DecoderLayer``
    `Encoder`, `Decoder`                             ``nn.TransformerEncoder``, ``nn.TransformerDecoder``
    `Transformer` (its encoder and its decoder)      ``nn.Transformer``, which has no embeddings
    ===============================================  ===================================================

    Parameters
    ----------
    module : Module
        One of the left column, with the sizes and options of PyTorch's: options are not in a state dict.
    arrays : mapping
        PyTorch's ``state_dict()``: torch tensors or NumPy arrays by name. It is not changed.
    prefix : str, default ""
        Only names that begin with it count, without it: ``"encoder."`` for the encoder of an ``nn.Transformer``.

    Returns
    -------
    Module
        `module`.

    Raises
    ------
    StateDictError
        If names are missing or unexpected, or shapes differ; all of them are listed and nothing is changed.
    ConfigError
        If PyTorch has no such module.

    Notes
    -----
    ``nn.Transformer`` ends both stacks with a norm also when its layers are post-norm, ours only when they are
    pre-norm. Give ours one first: ``model.encoder.norm = LayerNorm(d_model)``, and so for the decoder.
    """
    if not isinstance(prefix, str):
        raise StateDictError(f"load_torch_state_dict: prefix is {prefix!r}, expected a string")
    if not isinstance(arrays, Mapping) or not all(isinstance(name, str) for name in arrays):
        raise StateDictError(f"load_torch_state_dict: got {type(arrays).__name__}, expected a mapping: name -> array")
    plain = [name for name, array in arrays.items() if not hasattr(array, "shape")]
    if plain:
        raise StateDictError(f"load_torch_state_dict: {', '.join(plain)} is no array, expected PyTorch's or NumPy's")
    arrays = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
    arrays = {name: array for name, array in arrays.items() if not name.endswith("num_batches_tracked")}
    rows = torch_rows(module, separate="q_proj_weight" in arrays)
    try:
        fill(module, rows, arrays)
    except StateDictError as error:
        if "unexpected: norm.weight" in str(error) or "unexpected: encoder.norm.weight" in str(error):
            raise StateDictError(
                f"{error}\nPyTorch's stack has a closing norm and ours has none: set `norm` of the stack to "
                "LayerNorm(d_model) first"
            ) from None
        raise
    return module


def to_torch_state_dict(module, prefix=""):
    """The weights of `module` under PyTorch's names: the reverse of `load_torch_state_dict`.

    Returns
    -------
    dict
        Name -> NumPy array (a copy), each name after `prefix`. For PyTorch:
        ``{name: torch.from_numpy(a) for name, a in to_torch_state_dict(module).items()}``.
    """
    arrays = write(torch_rows(module), module.state_dict())
    return {prefix + name: array for name, array in arrays.items()}


def torch_rows(module, separate=False):
    """The table of `module`; with `separate` its attention has ``q_proj_weight`` and so on."""
    for kind, table in TABLES.items():
        if isinstance(module, kind):
            rows = table(module, separate) if kind is MultiHeadAttention else table(module)
            if kind is not Transformer:  # its embeddings and its output have no counterpart
                check_complete(f"PyTorch's counterpart of {type(module).__name__}", rows, module)
            return rows
    raise ConfigError(
        f"load_torch_state_dict: PyTorch has no counterpart of {type(module).__name__}, expected one of "
        f"{', '.join(kind.__name__ for kind in TABLES)}"
    )


def weights(module, **forms):
    """Rows of the parameters and buffers of one layer: our name = (PyTorch's name, form); absent ones are left out."""
    return [Row(theirs, (ours,), form) for ours, (theirs, form) in forms.items() if getattr(module, ours) is not None]


def linear(module):
    """``nn.Linear`` keeps the transposed matrix."""
    return weights(module, W=("weight", TRANSPOSED), b=("bias", SAME))


def norm(module):
    """All norms: gain and shift; BatchNorm's running statistics have the same names."""
    rows = weights(module, gamma=("weight", SAME))
    if hasattr(module, "beta"):
        rows += weights(module, beta=("bias", SAME))
    return rows + [Row(name, (name,), SAME) for name in module._buffers]


def attention(module, separate=False):
    """``nn.MultiheadAttention`` packs the three maps into one, unless keys or values have another width."""
    if module.num_kv_heads != module.num_heads:
        raise ConfigError("load_torch_state_dict: nn.MultiheadAttention has no grouped queries (num_kv_heads)")
    names = ("q_proj", "k_proj", "v_proj")
    if separate:
        rows = [Row(f"{name}_weight", (f"{name}.W",), TRANSPOSED) for name in names]
    else:
        rows = [Row("in_proj_weight", tuple(f"{name}.W" for name in names), TRANSPOSED)]
    if module.q_proj.b is not None:
        rows.append(Row("in_proj_bias", tuple(f"{name}.b" for name in names), SAME))
    return rows + under("out_proj.", "out_proj.", linear(module.out_proj))


def layer(module):
    """``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer`` number their norms in the order of use."""
    if not isinstance(module.feedforward.sublayer, FeedForward):
        raise ConfigError("load_torch_state_dict: PyTorch's layers have no gated feed-forward network")
    parts = ["self_attention", "feedforward"]
    rows = under("self_attn.", "self_attention.sublayer.", attention(module.self_attention.sublayer))
    if hasattr(module, "cross_attention"):  # a DecoderLayer, also one in a Checkpoint
        parts.insert(1, "cross_attention")
        rows += under("multihead_attn.", "cross_attention.sublayer.", attention(module.cross_attention.sublayer))
    for name in ("linear1", "linear2"):
        rows += under(f"{name}.", f"feedforward.sublayer.{name}.", linear(getattr(module.feedforward.sublayer, name)))
    for i, part in enumerate(parts, 1):
        rows += under(f"norm{i}.", f"{part}.norm.", norm(getattr(module, part).norm))
    return rows


def stack(module):
    """``nn.TransformerEncoder`` and ``nn.TransformerDecoder``: layers and, if there is one, the closing norm."""
    rows = []
    for i, part in enumerate(module.layers):
        rows += under(f"layers.{i}.", f"layers.{i}.", layer(part))
    return rows + ([] if module.norm is None else under("norm.", "norm.", norm(module.norm)))


def encoder_decoder(module):
    """``nn.Transformer``: the two stacks."""
    return under("encoder.", "encoder.", stack(module.encoder)) + under("decoder.", "decoder.", stack(module.decoder))


def under(theirs, ours, rows):
    """`rows` of a part, with its place before both names."""
    return [Row(theirs + row.theirs, tuple(ours + name for name in row.ours), row.form) for row in rows]


TABLES = {
    Linear: linear,
    Embedding: lambda module: weights(module, E=("weight", SAME)),
    LayerNorm: norm, RMSNorm: norm, BatchNorm: norm,
    MultiHeadAttention: attention,
    EncoderLayer: layer, DecoderLayer: layer,
    Encoder: stack, Decoder: stack,
    Transformer: encoder_decoder,
}  # fmt: skip
