"""Configurations of the models: frozen dataclasses of plain values, so that they can be written as JSON."""

from dataclasses import asdict, dataclass

from numtrans.blocks import RELATIVE_POSITIONS
from numtrans.errors import ConfigError

POSITIONS = ("sinusoidal", "learned", *RELATIVE_POSITIONS)


@dataclass(frozen=True)
class TransformerConfig:
    """Encoder-decoder of Vaswani et al. (2017); the defaults are the paper's base model.

    Parameters
    ----------
    src_vocab_size, tgt_vocab_size : int
        Sizes of the two vocabularies.
    d_model, num_heads, d_ff : int
        Width, attention heads, width of the feed-forward networks.
    num_encoder_layers, num_decoder_layers : int
        Depths.
    dropout : float
        Used on embeddings, attention weights, hidden units and sublayer outputs.
    max_len : int
        Rows of a learned position table; no limit for the other kinds.
    norm_placement : {"post", "pre"}
    norm : {"layer", "rms"}
    feedforward : str
        An activation or a gated unit.
    position : {"sinusoidal", "learned", "rope", "shaw", "t5", "alibi"}
        The first two are added to the embeddings; the others act inside self-attention.
    tie_embeddings : bool
        Source and target share one table (needs equal vocabularies).
    tie_output : bool
        The output projection is the target's table.
    pad_id : int or None
        Source tokens with this id are hidden from attention.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dropout: float = 0.1
    max_len: int = 5000
    norm_placement: str = "post"
    norm: str = "layer"
    feedforward: str = "relu"
    position: str = "sinusoidal"
    tie_embeddings: bool = False
    tie_output: bool = True
    pad_id: int | None = 0

    def __post_init__(self):
        check_config(self)
        if self.tie_embeddings and self.src_vocab_size != self.tgt_vocab_size:
            raise ConfigError(
                f"TransformerConfig: tie_embeddings needs one vocabulary, got sizes {self.src_vocab_size} and "
                f"{self.tgt_vocab_size}"
            )

    to_dict = asdict


@dataclass(frozen=True)
class GPTConfig:
    """Decoder-only model; the defaults are GPT-2's smallest (Radford et al. 2019).

    Parameters
    ----------
    vocab_size : int
        Size of the vocabulary.
    max_len : int
        Longest sequence (rows of a learned position table).
    d_model, num_heads, num_layers : int
        Width, heads, depth.
    d_ff : int, optional
        Width of the feed-forward networks, ``4 * d_model`` by default.
    num_kv_heads : int, optional
        Key-value heads, `num_heads` by default.
    dropout : float
        Used on embeddings, attention weights, hidden units and sublayer outputs.
    norm_placement, norm, feedforward, position : str
        As in `TransformerConfig`.
    bias : bool
        Whether linear layers have biases.
    tie_output : bool
        The output projection is the embedding's table.
    """

    vocab_size: int
    max_len: int = 1024
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int | None = None
    num_kv_heads: int | None = None
    dropout: float = 0.1
    norm_placement: str = "pre"
    norm: str = "layer"
    feedforward: str = "gelu_tanh"
    position: str = "learned"
    bias: bool = True
    tie_output: bool = True

    def __post_init__(self):
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        check_config(self)

    to_dict = asdict


def check_config(config):
    """Raise `ConfigError` for sizes below 1 and unknown positions; the layers check the rest."""
    name = type(config).__name__
    for field, value in vars(config).items():
        if isinstance(value, int) and not isinstance(value, bool) and field != "pad_id" and value < 1:
            raise ConfigError(f"{name}: {field} is {value}, expected at least 1")
    if config.d_model % config.num_heads:
        raise ConfigError(f"{name}: d_model={config.d_model} is not divisible by num_heads={config.num_heads}")
    if config.position not in POSITIONS:
        raise ConfigError(f"{name}: position is {config.position!r}, expected one of {', '.join(POSITIONS)}")
