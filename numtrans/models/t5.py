"""T5. Shapes: ``B`` batch, ``Ts`` source tokens, ``Tt`` target tokens, ``D`` = d_model, ``V`` vocabulary."""

import numpy as np

from numtrans.blocks import Decoder, Encoder
from numtrans.layers.dropout import Dropout
from numtrans.layers.embedding import Embedding
from numtrans.layers.linear import Linear, TiedLinear
from numtrans.layers.relative_bias import T5RelativeBias
from numtrans.models.configs import T5Config
from numtrans.models.inputs import by_token, check_ids, check_pair, key_mask, target_mask
from numtrans.module import Module


class T5(Module):
    r"""Encoder-decoder that turns text into text, with relative positions in place of absolute ones.

    .. math::

        m = \mathrm{Encoder}(E[\text{src}]), \qquad h = \mathrm{Decoder}(E[\text{tgt}],\; m), \qquad
        \text{logits} = s\, h\, W

    What it changes from Vaswani et al. (2017): pre-norm with RMSNorm; no biases anywhere; a learned bias of the scores
    for each head and each bucket of distances, one table for all layers of the encoder and one for those of the
    decoder, none in cross-attention; scores that are not divided by :math:`\sqrt{d}` (the initial queries are smaller
    instead); dropout after the closing norms too. Version 1.0 has ReLU networks and the embedding's table as output,
    :math:`W = E^\top` with :math:`s = D^{-1/2}`. Version 1.1 has networks gated by the tanh form of GELU and a matrix
    of its own, with :math:`s = 1`.

    Parameters
    ----------
    config : T5Config
    rng : numpy.random.Generator or int, optional
        Draws the weights, or seeds the generator that does. The embedding starts with deviation 1, the matrix of a
        linear layer with the inverse root of its inputs, the queries with :math:`(D\, d_{kv})^{-1/2}`.

    References
    ----------
    Raffel et al. (2020), Exploring the limits of transfer learning with a unified text-to-text Transformer,
    arXiv:1910.10683; Shazeer (2020), GLU variants improve Transformer, arXiv:2002.05202 (version 1.1).
    """

    def __init__(self, config: T5Config, *, rng=None):
        super().__init__()
        rng = np.random.default_rng(rng)
        self.config = c = config
        stack = dict(
            d_kv=c.d_kv, scale=1.0, dropout=c.dropout, norm_placement="pre", norm="rms", norm_eps=c.norm_eps,
            feedforward=c.feedforward, bias=False, rng=rng,
        )  # fmt: skip

        def position(bidirectional):
            return T5RelativeBias(
                c.num_heads, c.num_buckets, max_distance=c.max_distance, bidirectional=bidirectional, rng=rng
            )

        sizes = c.d_model, c.num_heads, c.d_ff
        self.embedding = Embedding(c.vocab_size, c.d_model, std=1.0, rng=rng)
        self.src_dropout, self.tgt_dropout = Dropout(c.dropout, rng=rng), Dropout(c.dropout, rng=rng)
        self.encoder = Encoder(c.num_encoder_layers, *sizes, position=position(True), **stack)
        self.memory_dropout = Dropout(c.dropout, rng=rng)
        self.decoder = Decoder(c.num_decoder_layers, *sizes, position=position(False), **stack)
        self.output_dropout = Dropout(c.dropout, rng=rng)
        self.output = (
            TiedLinear(self.embedding.E) if c.tie_output else Linear(c.d_model, c.vocab_size, bias=False, rng=rng)
        )
        self.output_scale = c.d_model**-0.5 if c.tie_output else 1.0
        self.draw_weights(rng)

    def draw_weights(self, rng):
        """Redraw the matrices of the linear layers and the tables of the positions."""
        c = self.config
        for name, parameter in self.named_parameters():
            part = name.split(".")[-2]
            if part == "embedding" or parameter.data.ndim != 2:
                continue
            std = c.d_model**-0.5 if part == "position" else len(parameter.data) ** -0.5
            if part == "q_proj":
                std *= c.d_kv**-0.5
            parameter.data[...] = std * rng.standard_normal(parameter.data.shape)

    def encode(self, src, src_mask=None):
        """The memory (B, Ts, D) of token ids `src` (B, Ts), and the mask that hides its padding."""
        src = check_ids("T5", "src", src)
        src_mask = key_mask("T5", src, src_mask, self.config.pad_id)
        x = self.src_dropout(self.embedding(src))                           # (B, Ts, D)
        return self.memory_dropout(self.encoder(x, src_mask)), src_mask

    def decode(self, tgt, memory, src_mask=None, tgt_mask=None, *, cache=None):
        """Logits (B, Tt, V) for the token after each of `tgt` (B, Tt). Always causal; `tgt_mask` hides more.

        `memory` and `src_mask` are those that `encode` returned; a mask (B, Ts), one entry a source token, will do.
        With a `cache` from `make_cache`, `tgt` follows the tokens that it holds and `tgt_mask` covers them too; within
        `no_grad` only.
        """
        tgt = check_ids("T5", "tgt", tgt)
        src_mask = by_token("T5", src_mask, np.shape(memory)[:2])
        mask = target_mask("T5", tgt, tgt_mask, self.config.num_heads, 0 if cache is None else cache.length)
        x = self.tgt_dropout(self.embedding(tgt))                           # (B, Tt, D)
        h = self.output_dropout(self.decoder(x, memory, mask, src_mask, cache))  # (B, Tt, D)
        return self.output(h * self.output_scale)                           # (B, Tt, V)

    def make_cache(self, capacity=64):
        """An empty cache for `decode`, with room for `capacity` target tokens; it grows when more come."""
        return self.decoder.make_cache(capacity)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        """Logits (B, Tt, V).

        Parameters
        ----------
        src, tgt : integer arrays (B, Ts), (B, Tt)
            Token ids. `tgt` is the target shifted right: T5 starts it with the padding token.
        src_mask : boolean array (B, Ts) or one that broadcasts to (B, H, 1, Ts), optional
            True = real token, for the encoder and the decoder. By default the source tokens that are not ``pad_id``.
        tgt_mask : boolean array that broadcasts to (B, H, Tt, Tt), optional
            Hides target tokens besides the later ones, which are always hidden.
        """
        src, tgt = check_pair("T5", src, tgt)
        memory, src_mask = self.encode(src, src_mask)
        return self.decode(tgt, memory, src_mask, tgt_mask)

    def backward(self, dlogits):
        """Add the gradients of all parameters. Token ids have none, so nothing is returned."""
        dh = self.output.backward(dlogits) * self.output_scale              # (B, Tt, D)
        dtgt, dmemory = self.decoder.backward(self.output_dropout.backward(dh))
        self.embedding.backward(self.tgt_dropout.backward(dtgt))
        dsrc = self.encoder.backward(self.memory_dropout.backward(dmemory))  # (B, Ts, D)
        self.embedding.backward(self.src_dropout.backward(dsrc))
