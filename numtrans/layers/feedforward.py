"""Position-wise feed-forward networks. Shapes: ``...`` batch and tokens, ``D`` = d_model, ``F`` = d_ff."""

from numtrans.checks import check_sizes
from numtrans.errors import ConfigError
from numtrans.layers.activations import make_activation
from numtrans.layers.dropout import Dropout
from numtrans.layers.linear import Linear
from numtrans.layers.side_by_side import map_together
from numtrans.module import Module


class FeedForward(Module):
    r"""Two linear layers with an activation between, for each token by itself.

    .. math::

        y = a(x W_1 + b_1)\, W_2 + b_2

    Parameters
    ----------
    d_model, d_ff : int
        Width of the tokens and of the hidden layer (commonly 4 times as wide).
    activation : str, default "relu"
        ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"``, ``"tanh"`` or ``"identity"``.
    dropout : float, default 0.0
        Share of the hidden units that is dropped in training.
    bias : bool, default True
        Whether to add :math:`b_1` and :math:`b_2`.
    rng : numpy.random.Generator, optional
        Draws the weights.

    References
    ----------
    Vaswani et al. (2017), arXiv:1706.03762, section 3.3.
    """

    def __init__(self, d_model, d_ff, activation="relu", *, dropout=0.0, bias=True, rng=None):
        super().__init__()
        check_sizes(self, d_model=d_model, d_ff=d_ff)
        self.linear1 = Linear(d_model, d_ff, bias, rng=rng)
        self.activation = make_activation(activation)
        self.dropout = Dropout(dropout, rng=rng)
        self.linear2 = Linear(d_ff, d_model, bias, rng=rng)

    def forward(self, x):
        """`x` (..., D) -> y (..., D)."""
        h = self.activation(self.linear1(x))                                # (..., F)
        return self.linear2(self.dropout(h))                                # (..., D)

    def backward(self, dy):
        """Given dy (..., D), return dx (..., D) and add the gradients of both layers."""
        dh = self.dropout.backward(self.linear2.backward(dy))               # (..., F)
        return self.linear1.backward(self.activation.backward(dh))          # (..., D)


class GatedFeedForward(Module):
    r"""Feed-forward network whose hidden units are scaled by a gate.

    .. math::

        y = (g \odot u)\, W_{down}, \qquad g = a(x W_{gate}), \qquad u = x W_{up}

    Backward, with :math:`dh = dy\, W_{down}^\top`: :math:`dg = dh \odot u` through the activation,
    :math:`du = dh \odot g`, and ``x`` collects from both branches. Three matrices in place of two: with
    :math:`F = \tfrac23 \cdot 4 D` the parameters are as many as in `FeedForward`.

    Parameters
    ----------
    d_model, d_ff : int
        Width of the tokens and of the hidden layer.
    gate : str, default "silu"
        Activation of the gate: ``"silu"`` (SwiGLU), ``"gelu"`` (GEGLU), ``"relu"`` (ReGLU), ``"sigmoid"`` (GLU),
        ``"identity"`` (bilinear), or another of `FeedForward`'s.
    bias : bool, default False
        Whether the three layers have biases.
    dropout : float, default 0.0
        Share of the hidden units that is dropped in training.
    rng : numpy.random.Generator, optional
        Draws the weights.

    References
    ----------
    Shazeer (2020), GLU variants improve Transformer, arXiv:2002.05202; Dauphin et al. (2017), arXiv:1612.08083.
    """

    def __init__(self, d_model, d_ff, gate="silu", bias=False, *, dropout=0.0, rng=None):
        super().__init__()
        check_sizes(self, d_model=d_model, d_ff=d_ff)
        self.gate_proj = Linear(d_model, d_ff, bias, rng=rng)
        self.up_proj = Linear(d_model, d_ff, bias, rng=rng)
        self.activation = make_activation(gate)
        self.dropout = Dropout(dropout, rng=rng)
        self.down_proj = Linear(d_ff, d_model, bias, rng=rng)

    def forward(self, x):
        """`x` (..., D) -> y (..., D)."""
        # 1. the gate and the units that it scales
        g, u = map_together(x, *self.siblings())                            # (..., F) each
        g = self.activation(g)
        self.save(g, u)
        # 2. scale and project
        return self.down_proj(self.dropout(g * u))                          # (..., D)

    def backward(self, dy):
        """Given dy (..., D), return dx (..., D) and add the gradients of the three layers."""
        g, u = self.saved()
        # 2. h = g * u
        dh = self.dropout.backward(self.down_proj.backward(dy))             # (..., F)
        # 1. both branches start at x
        dx_up = self.up_proj.backward(dh * g)                               # (..., D)
        dx_gate = self.gate_proj.backward(self.activation.backward(dh * u))
        return dx_gate + dx_up

    def siblings(self):
        """The linear layers that share one input, see `lay_out_weights`."""
        return self.gate_proj, self.up_proj


class SwiGLU(GatedFeedForward):
    r"""`GatedFeedForward` with a SiLU gate (Llama, PaLM):
    :math:`y = (\mathrm{SiLU}(x W_{gate}) \odot x W_{up})\, W_{down}`."""

    def __init__(self, d_model, d_ff, **kwargs):
        super().__init__(d_model, d_ff, "silu", **kwargs)


class GEGLU(GatedFeedForward):
    r"""`GatedFeedForward` with a GELU gate: :math:`y = (\mathrm{GELU}(x W_{gate}) \odot x W_{up})\, W_{down}`.

    T5 v1.1 uses the tanh form, ``gate="gelu_tanh"``.
    """

    def __init__(self, d_model, d_ff, **kwargs):
        super().__init__(d_model, d_ff, "gelu", **kwargs)


class ReGLU(GatedFeedForward):
    r"""`GatedFeedForward` with a ReLU gate: :math:`y = (\max(0, x W_{gate}) \odot x W_{up})\, W_{down}`."""

    def __init__(self, d_model, d_ff, **kwargs):
        super().__init__(d_model, d_ff, "relu", **kwargs)


GATES = {
    "swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu", "glu": "sigmoid",
    "bilinear": "identity",
}  # fmt: skip


def make_feedforward(name, d_model, d_ff, *, dropout=0.0, bias=True, rng=None):
    """A feed-forward network by name: an activation (``"relu"``, ``"gelu"`` ...) or a gated unit (``"swiglu"`` ...)."""
    if name in GATES:
        return GatedFeedForward(d_model, d_ff, GATES[name], bias, dropout=dropout, rng=rng)
    try:
        return FeedForward(d_model, d_ff, name, dropout=dropout, bias=bias, rng=rng)
    except ConfigError as error:
        raise ConfigError(f"{error}, or a gated unit: {', '.join(GATES)}") from None
