"""The decoder-only Transformer. Shapes: ``B`` batch, ``T`` tokens, ``D`` = d_model, ``V`` vocabulary."""

import numpy as np

from numtrans.blocks import RELATIVE_POSITIONS, Encoder
from numtrans.layers.embedding import Embedding
from numtrans.layers.linear import Linear, TiedLinear
from numtrans.models.configs import GPTConfig
from numtrans.models.embeddings import TokenEmbedding
from numtrans.models.inputs import check_ids
from numtrans.module import Module


class GPT(Module):
    r"""Predict each next token from those before it.

    .. math::

        \text{logits} = \mathrm{Layers}_{causal}(E[\text{ids}] + p)\, E^\top

    A decoder without cross-attention is a stack of encoder layers under a causal mask.

    Parameters
    ----------
    config : GPTConfig
    rng : numpy.random.Generator or int, optional
        Draws the weights, or seeds the generator that does. Matrices start with standard deviation 0.02, and those
        that write into the residual stream with :math:`0.02 / \sqrt{2 L}` for ``L`` layers.

    References
    ----------
    Radford et al. (2019), Language models are unsupervised multitask learners.
    """

    def __init__(self, config: GPTConfig, *, rng=None):
        super().__init__()
        rng = np.random.default_rng(rng)
        self.config = c = config
        table = Embedding(c.vocab_size, c.d_model, std=0.02, rng=rng)
        self.embedding = TokenEmbedding(table, c.position, max_len=c.max_len, dropout=c.dropout, rng=rng)
        self.layers = Encoder(
            c.num_layers, c.d_model, c.num_heads, c.d_ff, num_kv_heads=c.num_kv_heads, dropout=c.dropout,
            norm_placement=c.norm_placement, norm=c.norm, feedforward=c.feedforward, bias=c.bias, causal=True,
            position=c.position if c.position in RELATIVE_POSITIONS else None, rng=rng,
        )  # fmt: skip
        self.output = TiedLinear(table.E) if c.tie_output else Linear(c.d_model, c.vocab_size, bias=False, rng=rng)
        self.draw_weights(rng)

    def draw_weights(self, rng):
        """Redraw the matrices of the linear layers as GPT-2 does."""
        for name, parameter in self.named_parameters():
            if name.endswith(("proj.W", "linear1.W", "linear2.W")):
                into_stream = name.endswith(("out_proj.W", "linear2.W", "down_proj.W"))
                std = 0.02 / (2 * self.config.num_layers) ** 0.5 if into_stream else 0.02
                parameter.data[...] = std * rng.standard_normal(parameter.data.shape)

    def forward(self, ids, mask=None, *, cache=None, positions=None):
        """Logits (B, T, V) for the token after each of `ids` (B, T).

        Parameters
        ----------
        ids : integer array (B, T)
        mask : boolean array that broadcasts to (B, H, T, T), optional
            True = sees.
        cache : StackCache, optional
            From `make_cache`: `ids` follow the tokens that it holds, and `mask` broadcasts to (B, H, T, cache.length +
            T). Within `no_grad` only.
        positions : integer array (T,) or (B, T), optional
            Positions of the tokens, for positions that are added to the embeddings; by default their places. The
            other kinds see distances of places, which padding on the left leaves as they are.
        """
        return self.output(self.hidden(ids, mask, cache=cache, positions=positions))

    def hidden(self, ids, mask=None, *, cache=None, positions=None):
        """The vectors (B, T, D) that `forward` multiplies by the output matrix. Arguments as there."""
        ids = check_ids("GPT", "ids", ids)
        start = 0 if cache is None else cache.length
        x = self.embedding(ids, start if positions is None else positions)  # (B, T, D)
        return self.layers(x, mask, cache)                                  # (B, T, D)

    def make_cache(self, capacity=64):
        """An empty cache for `forward`, with room for `capacity` tokens; it grows when more come."""
        return self.layers.make_cache(capacity)

    def backward(self, dlogits):
        """Add the gradients of all parameters. Token ids have none, so nothing is returned."""
        self.embedding.backward(self.layers.backward(self.output.backward(dlogits)))
