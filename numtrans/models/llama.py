"""Llama. Shapes: ``B`` batch, ``T`` tokens, ``D`` = d_model, ``V`` vocabulary."""

import numpy as np

from numtrans.blocks import Encoder
from numtrans.layers.embedding import Embedding
from numtrans.layers.linear import Linear, TiedLinear
from numtrans.layers.rotary import RotaryPositionalEncoding
from numtrans.models.configs import LlamaConfig
from numtrans.models.inputs import check_ids
from numtrans.module import Module


class Llama(Module):
    r"""Predict each next token from those before it.

    .. math::

        h = \mathrm{RMSNorm}(\mathrm{Layers}_{causal}(E[\text{ids}])), \qquad \text{logits} = h\, W

    What it changes from GPT: pre-norm with RMSNorm; queries and keys turned by RoPE in place of a position table;
    SwiGLU networks; no biases anywhere; keys and values for fewer heads (grouped queries) in the later ones; a head
    of its own or, in the small ones, the embedding's table. With `sliding_window` it has the layers of Mistral 7B.

    RoPE pairs feature ``i`` with ``i + d/2`` of a head, as the weights on Hugging Face do. Meta's own files pair
    neighbors: their query and key columns are in another order.

    Parameters
    ----------
    config : LlamaConfig
    rng : numpy.random.Generator or int, optional
        Draws the weights, or seeds the generator that does: all matrices with standard deviation 0.02.

    References
    ----------
    Touvron et al. (2023), LLaMA: Open and efficient foundation language models, arXiv:2302.13971; Touvron et al.
    (2023), Llama 2, arXiv:2307.09288 (grouped queries); Jiang et al. (2023), Mistral 7B, arXiv:2310.06825 (window).
    """

    def __init__(self, config: LlamaConfig, *, rng=None):
        super().__init__()
        rng = np.random.default_rng(rng)
        self.config = c = config
        self.embedding = Embedding(c.vocab_size, c.d_model, std=0.02, rng=rng)
        self.layers = Encoder(
            c.num_layers, c.d_model, c.num_heads, c.d_ff, num_kv_heads=c.num_kv_heads, d_kv=c.d_kv, dropout=c.dropout,
            norm_placement="pre", norm="rms", norm_eps=c.norm_eps, feedforward="swiglu", bias=False, causal=True,
            window=c.sliding_window, position=RotaryPositionalEncoding(c.d_kv, c.max_len, base=c.rope_base), rng=rng,
        )  # fmt: skip
        self.output = (
            TiedLinear(self.embedding.E) if c.tie_output else Linear(c.d_model, c.vocab_size, bias=False, rng=rng)
        )
        for parameter in self.parameters():
            if parameter.data.ndim == 2:
                parameter.data[...] = 0.02 * rng.standard_normal(parameter.data.shape)

    def forward(self, ids, mask=None, *, cache=None):
        """Logits (B, T, V) for the token after each of `ids` (B, T). `mask` broadcasts to (B, H, T, T), True = sees.

        With a `cache` from `make_cache`, `ids` follow the tokens that it holds, and `mask` broadcasts to
        (B, H, T, cache.length + T); within `no_grad` only.
        """
        return self.output(self.hidden(ids, mask, cache=cache))             # (B, T, V)

    def hidden(self, ids, mask=None, *, cache=None):
        """The vectors (B, T, D) that `forward` multiplies by the output matrix. Arguments as there."""
        start = 0 if cache is None else cache.length
        ids = check_ids("Llama", "ids", ids, self.config.max_len, start)
        return self.layers(self.embedding(ids), mask, cache)                # (B, T, D)

    def make_cache(self, capacity=64):
        """An empty cache for `forward`, with room for `capacity` tokens; it grows when more come."""
        return self.layers.make_cache(capacity)

    def backward(self, dlogits):
        """Add the gradients of all parameters. Token ids have none, so nothing is returned."""
        self.embedding.backward(self.layers.backward(self.output.backward(dlogits)))
