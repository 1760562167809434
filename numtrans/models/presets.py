"""Published models by name: sizes, and how many parameters they must have."""

import difflib

from numtrans.errors import ConfigError
from numtrans.models.configs import BERTConfig, GPTConfig, LlamaConfig, T5Config, TransformerConfig, ViTConfig

# Vaswani et al. (2017), table 3, gives 65 and 213 million parameters, for a vocabulary of about 37000 that source and
# target share. With exactly 37000 it is 63,082,496 and 214,245,376: one table, biases in attention, none of the output.
_TRANSFORMER = dict(src_vocab_size=37000, tgt_vocab_size=37000, tie_embeddings=True)
_GPT2 = dict(vocab_size=50257, max_len=1024)

PRESETS = {
    # Vaswani et al. (2017), arXiv:1706.03762
    "transformer-base": TransformerConfig(**_TRANSFORMER),
    "transformer-big": TransformerConfig(**_TRANSFORMER, d_model=1024, num_heads=16, d_ff=4096, dropout=0.3),
    # Devlin et al. (2019), arXiv:1810.04805, uncased
    "bert-base": BERTConfig(),
    "bert-large": BERTConfig(d_model=1024, num_heads=16, num_layers=24, d_ff=4096),
    # Radford et al. (2019)
    "gpt2": GPTConfig(**_GPT2),
    "gpt2-medium": GPTConfig(**_GPT2, d_model=1024, num_heads=16, num_layers=24),
    "gpt2-large": GPTConfig(**_GPT2, d_model=1280, num_heads=20, num_layers=36),
    "gpt2-xl": GPTConfig(**_GPT2, d_model=1600, num_heads=25, num_layers=48),
    # Raffel et al. (2020), arXiv:1910.10683, version 1.0
    "t5-small": T5Config(),
    "t5-base": T5Config(d_model=768, num_heads=12, d_ff=3072, num_encoder_layers=12, num_decoder_layers=12),
    "t5-large": T5Config(d_model=1024, num_heads=16, d_ff=4096, num_encoder_layers=24, num_decoder_layers=24),
    # Touvron et al. (2023), arXiv:2302.13971
    "llama-7b": LlamaConfig(),
    "llama-13b": LlamaConfig(d_model=5120, num_heads=40, num_layers=40, d_ff=13824),
    # Ben Allal et al. (2025), arXiv:2502.02737
    "smollm2-135m": LlamaConfig(
        vocab_size=49152, max_len=8192, d_model=576, num_heads=9, num_layers=30, d_ff=1536, num_kv_heads=3,
        rope_base=100000.0, norm_eps=1e-5, tie_output=True,
    ),
    # Wang et al. (2020), arXiv:2002.10957; the sentence encoder all-MiniLM-L6-v2, with its pooler
    "minilm-l6": BERTConfig(d_model=384, num_heads=12, num_layers=6, d_ff=1536),
    # Dosovitskiy et al. (2021), arXiv:2010.11929; Touvron et al. (2021), arXiv:2012.12877 (tiny)
    "vit-base": ViTConfig(),
    "vit-tiny": ViTConfig(d_model=192, num_heads=3, d_ff=768, norm_eps=1e-6),
}  # fmt: skip


def preset(name):
    """The configuration of a published model.

    ``dataclasses.replace(preset("gpt2"), dropout=0.0)`` changes one.

    Parameters
    ----------
    name : str
        A key of ``PRESETS``, such as ``"bert-base"``.

    Returns
    -------
    TransformerConfig, BERTConfig, GPTConfig, T5Config, LlamaConfig or ViTConfig

    Raises
    ------
    ConfigError
        If there is no such preset; the message lists all, the nearest first.
    """
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(str(name).lower().replace("_", "-"), PRESETS, 1, 0.5)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    raise ConfigError(f"preset: there is no {name!r}{meant} Known are {', '.join(PRESETS)}")
