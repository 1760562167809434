"""The suite can fail: each mistake, planted in numtrans, is seen by a comparison that passes without it."""

# ruff: noqa: E402 (imports that need PyTorch follow the line that skips without it)
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from huggingface import in_float64
from parity import huggingface_checks, torch_checks

from numtrans.layers import (
    GELU,
    LayerNorm,
    RMSNorm,
    RotaryPositionalEncoding,
    embedding,
    multi_head_attention,
    relative_bias,
)  # fmt: skip
from numtrans.reductions import dot_last, mean_last, sum_rows

COMMON = dict(B=2, T=5, heads=2, seed=1, d=3, d_ff=5, mask="padding", vocab=7, layers=2, eps=1e-5)
ENCODER = COMMON | dict(causal=False, norm="post", activation="gelu")
T5 = COMMON | dict(version="1.0", Tk=9, d_model=6, buckets=8, decoder_layers=2, target_mask="none")
LLAMA = COMMON | dict(groups=2, pairs=2, tied=False, base=100.0)


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    in_float64(monkeypatch, *huggingface_checks.MODELS)


def without_the_mean(self, dy):
    """LayerNorm's backward without the path through mu."""
    xhat, sigma = self.saved()
    self.beta.add_grad(sum_rows(dy))
    self.gamma.add_grad(sum_rows(dy * xhat))
    dx = dy * self.gamma.data
    return (dx - xhat * (dot_last(dx, xhat) / self.d_model)) / sigma


def unbiased(self, x):
    """LayerNorm with the variance divided by D - 1."""
    xhat = x - mean_last(x)
    sigma = np.sqrt(dot_last(xhat, xhat) / (self.d_model - 1) + self.eps)
    self.save(xhat / sigma, sigma)
    return self.gamma.data * (xhat / sigma) + self.beta.data


def next_bucket(distance, *sizes, bucket=relative_bias.relative_bucket):
    """T5's bucket of the distance to the token beside."""
    return bucket(distance + 1, *sizes)


def turned_again(self, dy):
    """RoPE's backward with the angle of forward."""
    cos, sin, _ = self.saved()
    return self._rotate(dy, cos, sin)


def neighbors(self, d_head, *sizes, init=RotaryPositionalEncoding.__init__, **options):
    """RoPE of features (2i, 2i + 1), as in Meta's files."""
    init(self, d_head, *sizes, interleaved=True, **options)


def exact(self, approximate="none", init=GELU.__init__):
    """The exact GELU, whatever form is asked for."""
    init(self, "none")


def with_eps(kind, eps):
    """A start of `kind` with this `eps`, whatever is asked for."""
    def start(self, d_model, init=kind.__init__, **options):
        init(self, d_model, **(options | {"eps": eps}))

    return start


def mixed(x, num_heads):
    """(B, T, H * d) as (B, H, T, d) without the swap of axes: a head gets pieces of several tokens."""
    return x.reshape(len(x), num_heads, x.shape[1], -1)


def last_wins(dy, ids, n):
    """Rows of `dy` put in their place of the table; of a token that occurs twice one gradient is lost."""
    table = np.zeros((n, dy.shape[1]))
    table[ids] = dy
    return table


MISTAKES = {
    "LayerNorm, backward without the mean": ("encoder", LayerNorm, "backward", without_the_mean),
    "LayerNorm, unbiased variance": ("bert", LayerNorm, "forward", unbiased),
    "LayerNorm, eps 2e-5 for 1e-5": ("gpt2", LayerNorm, "__init__", with_eps(LayerNorm, 2e-5)),
    "RMSNorm, eps 1e-6 for 1e-5": ("llama", RMSNorm, "__init__", with_eps(RMSNorm, 1e-6)),
    "T5, bucket of the next distance": ("t5", relative_bias, "relative_bucket", next_bucket),
    "RoPE, backward not turned back": ("llama", RotaryPositionalEncoding, "backward", turned_again),
    "RoPE, neighbors in place of halves": ("llama", RotaryPositionalEncoding, "__init__", neighbors),
    "GELU, exact in place of tanh": ("gpt2", GELU, "__init__", exact),
    "attention, heads and tokens mixed": ("encoder", multi_head_attention, "split_heads", mixed),
    "embedding, gradient of a repeated token lost": ("gpt2", embedding, "sum_by_id", last_wins),
}
CHECKS = {
    "encoder": (torch_checks.check_encoder_layer, ENCODER),
    "bert": (huggingface_checks.check_bert, COMMON | {"activation": "gelu"}),
    "gpt2": (huggingface_checks.check_gpt2, COMMON),
    "llama": (huggingface_checks.check_llama, LLAMA),
    "t5": (huggingface_checks.check_t5, T5),
}


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_mistake(check):
    function, configuration = CHECKS[check]
    function(configuration)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_seen(mistake, monkeypatch):
    check, *place = MISTAKES[mistake]
    function, configuration = CHECKS[check]
    monkeypatch.setattr(*place)
    with pytest.raises(AssertionError, match=r"output: |: .* of "):
        function(configuration)
