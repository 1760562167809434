"""Golden cases of the layers without attention, in PyTorch."""

import math

import torch
import torch.nn.functional as F
from golden_file import spec
from recording import case
from torch.func import functional_call


@case("linear", "Linear", d_in=5, d_out=3)
@case("linear_no_bias", "Linear", d_in=5, d_out=3, bias=False)
def linear(r, d_in, d_out, bias=True):
    return apply_linear(r, "", r.input("x", 2, 3, d_in), d_in, d_out, bias)


def apply_linear(r, prefix, x, d_in, d_out, bias=True):
    """`torch.nn.Linear` with a drawn weight, which numtrans keeps as (in, out)."""
    W = r.param(f"{prefix}W", d_in, d_out)
    return F.linear(x, W.T, r.param(f"{prefix}b", d_out) if bias else None)


@case("embedding", "Embedding", vocab_size=7, d_model=5)
@case("embedding_scaled", "Embedding", vocab_size=7, d_model=5, scale=True)
def embedding(r, vocab_size, d_model, scale=False):
    ids = r.constant("ids", r.rng.integers(0, 4, (3, 5)))  # 15 tokens of 4 kinds: repeated, and rows without any
    y = F.embedding(ids, r.param("E", vocab_size, d_model))
    return y * math.sqrt(d_model) if scale else y


ACTIVATIONS = {"ReLU": F.relu, "SiLU": F.silu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh}


def points(r):
    """Numbers with both tails, and 0, where a ReLU has its kink."""
    x = 3 * r.rng.standard_normal((3, 5, 2))
    x[0, 0, 0], x[1, 0], x[2, 0] = 0.0, (30.0, -30.0), (7.5, -7.5)
    return r.input("x", array=x)


for name, function in ACTIVATIONS.items():
    case(name.lower(), name)(lambda r, function=function: function(points(r)))


@case("gelu", "GELU", approximate="none")
@case("gelu_tanh", "GELU", approximate="tanh")
def gelu(r, approximate):
    return F.gelu(points(r), approximate=approximate)


@case("softmax", "Softmax")
@case("softmax_axis", "Softmax", axis=1)
def softmax(r, axis=-1):
    return torch.softmax(r.input("s", 2, 5, 3), axis)


@case("log_softmax", "LogSoftmax")
@case("log_softmax_axis", "LogSoftmax", axis=1)
def log_softmax(r, axis=-1):
    return torch.log_softmax(r.input("s", 2, 5, 3), axis)


@case("layer_norm", "LayerNorm", d_model=7)
@case("layer_norm_no_bias", "LayerNorm", d_model=7, bias=False)
@case("layer_norm_eps", "LayerNorm", d_model=7, eps=0.1)
def layer_norm(r, d_model, eps=1e-5, bias=True):
    x = r.input("x", array=2 + r.rng.standard_normal((2, 3, d_model)))
    gamma = r.param("gamma", d_model)
    return F.layer_norm(x, (d_model,), gamma, r.param("beta", d_model) if bias else None, eps)


@case("rms_norm", "RMSNorm", d_model=7)
@case("rms_norm_eps", "RMSNorm", d_model=7, eps=0.1)
def rms_norm(r, d_model, eps=1e-6):
    x = r.input("x", array=1 + r.rng.standard_normal((2, 3, d_model)))
    return functional_call(torch.nn.RMSNorm(d_model, eps=eps), {"weight": r.param("gamma", d_model)}, x)


@case("batch_norm", "BatchNorm", d_model=5)
@case("batch_norm_momentum", "BatchNorm", d_model=5, momentum=0.3, eps=0.1)
@case("batch_norm_masked", "BatchNorm", d_model=5)
@case("batch_norm_eval", "BatchNorm", training=False, d_model=5)
def batch_norm(r, d_model, eps=1e-5, momentum=0.1):
    module = torch.nn.BatchNorm1d(d_model, eps=eps, momentum=momentum).train(r.name != "batch_norm_eval")
    x = r.input("x", array=1 + r.rng.standard_normal((2, 4, d_model)))
    state = {
        "weight": r.param("gamma", d_model),
        "bias": r.param("beta", d_model),
        "running_mean": r.buffer("running_mean", r.rng.standard_normal(d_model)),
        "running_var": r.buffer("running_var", 0.5 + r.rng.random(d_model)),
    }
    counts = torch.ones(2, 4, dtype=torch.bool)
    if r.name == "batch_norm_masked":
        counts = r.keyword("mask", r.mask(2, 4))
    y = torch.zeros_like(x)
    y[counts] = functional_call(module, state, x[counts])
    r.after("running_mean", state["running_mean"])
    r.after("running_var", state["running_var"])
    return y


FUNCTIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


@case("feedforward_relu", "FeedForward", d_model=5, d_ff=9, activation="relu")
@case("feedforward_gelu", "FeedForward", d_model=5, d_ff=9, activation="gelu")
@case("feedforward_gelu_tanh", "FeedForward", d_model=5, d_ff=9, activation="gelu_tanh", bias=False)
def feedforward(r, d_model, d_ff, activation, bias=True):
    h = FUNCTIONS[activation](apply_linear(r, "linear1.", r.input("x", 2, 3, d_model), d_model, d_ff, bias))
    return apply_linear(r, "linear2.", h, d_ff, d_model, bias)


@case("gated_bilinear", "GatedFeedForward", d_model=5, d_ff=9, gate="identity")
@case("gated_sigmoid", "GatedFeedForward", d_model=5, d_ff=9, gate="sigmoid")
@case("gated_silu_bias", "GatedFeedForward", d_model=5, d_ff=9, gate="silu", bias=True)
def gated(r, d_model, d_ff, gate, bias=False):
    return apply_gated(r, "", r.input("x", 2, 3, d_model), d_model, d_ff, gate, bias)


def apply_gated(r, prefix, x, d_model, d_ff, gate, bias=False):
    """(a(x W_gate) * x W_up) W_down."""
    g = FUNCTIONS[gate](apply_linear(r, f"{prefix}gate_proj.", x, d_model, d_ff, bias))
    u = apply_linear(r, f"{prefix}up_proj.", x, d_model, d_ff, bias)
    return apply_linear(r, f"{prefix}down_proj.", g * u, d_ff, d_model, bias)


for name, gate in {"SwiGLU": "silu", "GEGLU": "gelu", "ReGLU": "relu"}.items():
    case(name.lower(), name, d_model=5, d_ff=9)(lambda r, gate=gate, **sizes: gated(r, gate=gate, **sizes))


RESIDUAL = dict(sublayer=spec("Linear", d_in=5, d_out=5), norm=spec("LayerNorm", d_model=5))


@case("residual_pre", "Residual", placement="pre", **RESIDUAL)
@case("residual_post", "Residual", placement="post", **RESIDUAL)
def residual(r, sublayer, norm, placement):
    x, gamma, beta = r.input("x", 2, 3, 5), r.param("norm.gamma", 5), r.param("norm.beta", 5)
    if placement == "pre":
        return x + apply_linear(r, "sublayer.", F.layer_norm(x, (5,), gamma, beta), 5, 5)
    return F.layer_norm(x + apply_linear(r, "sublayer.", x, 5, 5), (5,), gamma, beta)


@case("sinusoidal", "SinusoidalPositionalEncoding", d_model=6)
@case("sinusoidal_odd", "SinusoidalPositionalEncoding", d_model=5, max_len=2)
def sinusoidal(r, d_model, max_len=5000):
    return r.input("x", 2, 4, d_model) + sinusoids(4, d_model)


def sinusoids(length, d_model):
    """Section 3.5 of Vaswani et al. (2017), number by number."""
    table = torch.zeros(length, d_model, dtype=torch.float64)
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** ((column - column % 2) / d_model)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


@case("learned_position", "LearnedPositionalEncoding", d_model=5, max_len=6)
@case("learned_position_offset", "LearnedPositionalEncoding", d_model=5, max_len=6)
def learned_position(r, d_model, max_len):
    offset = 2 if r.name.endswith("offset") else 0
    x = r.input("x", 3, 4, d_model)
    places = torch.arange(4) + offset
    if offset:
        r.scalars["offset"] = offset
    return x + F.embedding(places, r.param("W", max_len, d_model))
