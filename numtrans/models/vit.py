"""The Vision Transformer.

Shapes: ``B`` batch, ``C`` channels, ``P`` pixels a side of a patch, ``N`` patches, ``D`` = d_model, ``K`` classes.
"""

import numpy as np

from numtrans.backend import get_xp
from numtrans.blocks import Encoder
from numtrans.errors import ShapeError
from numtrans.layers.dropout import Dropout
from numtrans.layers.linear import Linear
from numtrans.layers.positional import LearnedPositionalEncoding
from numtrans.models.configs import ViTConfig
from numtrans.module import Module, Parameter


class ViT(Module):
    r"""Classify an image, read as a sequence of patches.

    .. math::

        x = [c;\; p_1 W + b;\; \ldots;\; p_N W + b] + P, \qquad h = \mathrm{Encoder}(x), \qquad
        \text{logits} = h_0 W_K + b_K

    :math:`p_n` is the n-th patch as a vector of :math:`C P^2` numbers, so the patch embedding is one linear layer.
    (Most libraries write it as a convolution with stride P; its weight (D, C, P, P), reshaped to (D, C P P), is
    :math:`W^\top`.) :math:`c` is a learned vector, the class token: what it has gathered from the patches after the
    last layer is classified. Positions are learned. The layers are those of BERT, but pre-norm with a closing norm.

    Backward: all sequences share :math:`c`, so its gradient is the sum over the batch, and the patches put their
    gradients back where they were cut out.

    Parameters
    ----------
    config : ViTConfig
    rng : numpy.random.Generator or int, optional
        Draws the weights, or seeds the generator that does, as published: linear layers Xavier uniform, the patch
        embedding with the inverse root of its inputs, positions with standard deviation 0.02; the class token and the
        head start at 0.

    References
    ----------
    Dosovitskiy et al. (2021), An image is worth 16x16 words, arXiv:2010.11929.
    """

    def __init__(self, config: ViTConfig, *, rng=None):
        super().__init__()
        rng = np.random.default_rng(rng)
        self.config = c = config
        pixels, count = c.channels * c.patch_size**2, (c.image_size // c.patch_size) ** 2
        self.patch_embedding = Linear(pixels, c.d_model, rng=rng)
        self.patch_embedding.W.data[...] = pixels**-0.5 * rng.standard_normal((pixels, c.d_model))
        self.class_token = Parameter(np.zeros((1, 1, c.d_model), np.float32))
        self.position = LearnedPositionalEncoding(c.d_model, count + 1, rng=rng)
        self.dropout = Dropout(c.dropout, rng=rng)
        self.encoder = Encoder(
            c.num_layers, c.d_model, c.num_heads, c.d_ff, dropout=c.dropout, norm_placement="pre", norm="layer",
            norm_eps=c.norm_eps, feedforward=c.feedforward, rng=rng,
        )  # fmt: skip
        self.head = Linear(c.d_model, c.num_classes, rng=rng)
        self.head.W.data[...] = 0

    def forward(self, images):
        """Logits (B, K) of `images` (B, C, H, W)."""
        self.check_images(images)
        # 1. cut out and embed the patches
        x = self.patch_embedding(patches(images, self.config.patch_size))   # (B, N, D)
        # 2. the class token goes first
        xp = get_xp(x)
        first = xp.broadcast_to(self.class_token.data, (len(x), 1, x.shape[2]))
        x = xp.concatenate([first, x], axis=1)                              # (B, N + 1, D)
        # 3. positions, layers
        h = self.encoder(self.dropout(self.position(x)))                    # (B, N + 1, D)
        # 4. classify the class token
        self.save(images.shape, h.shape)
        return self.head(h[:, 0])                                           # (B, K)

    def backward(self, dlogits):
        """Given dlogits (B, K), return dimages (B, C, H, W) and add the gradients of all parameters."""
        images_shape, shape = self.saved()
        # 4. the patches after the last layer play no part
        dh = get_xp(dlogits).zeros(shape, dlogits.dtype)                    # (B, N + 1, D)
        dh[:, 0] = self.head.backward(dlogits)
        # 3.
        dx = self.position.backward(self.dropout.backward(self.encoder.backward(dh)))
        # 2. one class token for the whole batch
        self.class_token.add_grad(dx[:, :1].sum(axis=0, keepdims=True))     # (1, 1, D)
        # 1.
        dpatches = self.patch_embedding.backward(dx[:, 1:])                 # (B, N, C * P * P)
        return unpatches(dpatches, self.config.patch_size, images_shape)

    def check_images(self, images):
        """Raise unless `images` are (B, C, H, W) with the channels and the size of the config."""
        self.check_floating("images", images, self.class_token.data)
        c = self.config
        expected = c.channels, c.image_size, c.image_size
        if images.ndim != 4 or images.shape[1:] != expected:
            raise ShapeError(
                f"ViT: images have shape {tuple(images.shape)}, expected (batch, {', '.join(map(str, expected))})"
            )


def patches(images, P):
    """Cut `images` (B, C, H, W) into patches of P x P pixels, row by row: (B, N, C * P * P).

    Each patch lies channel by channel and row by row, as the weight of a convolution does.
    """
    B, C, H, W = check_patches(images, P)
    x = images.reshape(B, C, H // P, P, W // P, P)                          # (B, C, rows, P, columns, P)
    return x.transpose(0, 2, 4, 1, 3, 5).reshape(B, -1, C * P * P)          # (B, N, C * P * P)


def unpatches(x, P, shape):
    """Put patches (B, N, C * P * P) back into images of `shape` (B, C, H, W): the inverse of `patches`."""
    B, C, H, W = shape
    x = x.reshape(B, H // P, W // P, C, P, P)                               # (B, rows, columns, C, P, P)
    return x.transpose(0, 3, 1, 4, 2, 5).reshape(shape)                     # (B, C, H, W)


def check_patches(images, P):
    """The shape of `images`; raise unless it is (B, C, H, W) with sides that P divides."""
    if images.ndim != 4 or images.shape[2] % P or images.shape[3] % P:
        raise ShapeError(
            f"patches: images have shape {tuple(images.shape)}, expected (batch, channels, height, width) with a "
            f"height and a width divisible by the patch size {P}"
        )
    return images.shape
