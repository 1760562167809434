"""The encoder-decoder Transformer.

Shapes: ``B`` batch, ``Ts`` source tokens, ``Tt`` target tokens, ``D`` = d_model, ``V`` target vocabulary.
"""

import numpy as np

from numtrans.blocks import RELATIVE_POSITIONS, Decoder, Encoder
from numtrans.layers.embedding import Embedding
from numtrans.layers.linear import Linear, TiedLinear
from numtrans.models.configs import TransformerConfig
from numtrans.models.embeddings import TokenEmbedding
from numtrans.models.inputs import by_token, check_ids, check_pair, key_mask, target_mask
from numtrans.module import Module


class Transformer(Module):
    r"""Encoder-decoder: read a source sequence, predict each next token of a target.

    .. math::

        m = \mathrm{Encoder}(E_s[\text{src}] + p), \qquad h = \mathrm{Decoder}(E_t[\text{tgt}] + p,\; m), \qquad
        \text{logits} = h W + b

    with embeddings scaled by :math:`\sqrt{D}`. Backward runs the same lines upwards; the memory's gradient is the sum
    over the decoder's layers and goes on through the encoder.

    Parameters
    ----------
    config : TransformerConfig
    rng : numpy.random.Generator or int, optional
        Draws the weights, or seeds the generator that does.

    References
    ----------
    Vaswani et al. (2017), Attention is all you need, arXiv:1706.03762.
    """

    def __init__(self, config: TransformerConfig, *, rng=None):
        super().__init__()
        rng = np.random.default_rng(rng)
        self.config = c = config
        stack = dict(
            dropout=c.dropout, norm_placement=c.norm_placement, norm=c.norm, feedforward=c.feedforward,
            position=c.position if c.position in RELATIVE_POSITIONS else None, rng=rng,
        )  # fmt: skip
        embed = dict(position=c.position, max_len=c.max_len, dropout=c.dropout, rng=rng)
        source = Embedding(c.src_vocab_size, c.d_model, scale=True, rng=rng)
        target = source if c.tie_embeddings else Embedding(c.tgt_vocab_size, c.d_model, scale=True, rng=rng)
        self.src_embedding = TokenEmbedding(source, **embed)
        self.tgt_embedding = TokenEmbedding(target, **embed)
        self.encoder = Encoder(c.num_encoder_layers, c.d_model, c.num_heads, c.d_ff, **stack)
        self.decoder = Decoder(c.num_decoder_layers, c.d_model, c.num_heads, c.d_ff, **stack)
        self.output = TiedLinear(target.E) if c.tie_output else Linear(c.d_model, c.tgt_vocab_size, rng=rng)

    def encode(self, src, src_mask=None):
        """The memory (B, Ts, D) of token ids `src` (B, Ts), and the mask that hides its padding."""
        src = check_ids("Transformer", "src", src)
        src_mask = key_mask("Transformer", src, src_mask, self.config.pad_id)
        return self.encoder(self.src_embedding(src), src_mask), src_mask

    def decode(self, tgt, memory, src_mask=None, tgt_mask=None, *, cache=None, positions=None):
        """Logits (B, Tt, V) for the token after each of `tgt` (B, Tt). Always causal; `tgt_mask` hides more.

        `memory` and `src_mask` are those that `encode` returned; a mask (B, Ts), one entry a source token, will do.
        With a `cache` from `make_cache`, `tgt` follows the tokens that it holds and `tgt_mask` covers them too; within
        `no_grad` only. `positions` (Tt,) or (B, Tt) are those of the tokens, by default their places; only positions
        that are added to the embeddings read them.
        """
        tgt = check_ids("Transformer", "tgt", tgt)
        src_mask = by_token("Transformer", src_mask, np.shape(memory)[:2])
        start = 0 if cache is None else cache.length
        mask = target_mask("Transformer", tgt, tgt_mask, self.config.num_heads, start)
        x = self.tgt_embedding(tgt, start if positions is None else positions)  # (B, Tt, D)
        h = self.decoder(x, memory, mask, src_mask, cache)                  # (B, Tt, D)
        return self.output(h)                                               # (B, Tt, V)

    def make_cache(self, capacity=64):
        """An empty cache for `decode`, with room for `capacity` target tokens; it grows when more come."""
        return self.decoder.make_cache(capacity)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        """Logits (B, Tt, V).

        Parameters
        ----------
        src, tgt : integer arrays (B, Ts), (B, Tt)
            Token ids. `tgt` is the target shifted right: it starts with the begin token.
        src_mask : boolean array (B, Ts) or one that broadcasts to (B, H, 1, Ts), optional
            True = real token, for the encoder and the decoder. By default the source tokens that are not ``pad_id``.
        tgt_mask : boolean array that broadcasts to (B, H, Tt, Tt), optional
            Hides target tokens besides the later ones, which are always hidden.
        """
        src, tgt = check_pair("Transformer", src, tgt)
        memory, src_mask = self.encode(src, src_mask)
        return self.decode(tgt, memory, src_mask, tgt_mask)

    def backward(self, dlogits):
        """Add the gradients of all parameters. Token ids have none, so nothing is returned."""
        dh = self.output.backward(dlogits)                                  # (B, Tt, D)
        dtgt, dmemory = self.decoder.backward(dh)                           # (B, Tt, D), (B, Ts, D)
        self.tgt_embedding.backward(dtgt)
        self.src_embedding.backward(self.encoder.backward(dmemory))
