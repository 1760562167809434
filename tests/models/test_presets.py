"""Presets have the published numbers of parameters, and counting agrees with models that are made."""

import numpy as np
import pytest

from numtrans.errors import ConfigError
from numtrans.layers.activations import ACTIVATIONS
from numtrans.layers.feedforward import GATES
from numtrans.models import (
    BERT,
    GPT,
    T5,
    BERTConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    T5Config,
    Transformer,
    TransformerConfig,
    ViT,
    ViTConfig,
    count_parameters,
    parameter_parts,
    preset,
)  # fmt: skip
from numtrans.models.configs import HEADS, POSITIONS
from numtrans.models.counts import evaluate
from numtrans.models.presets import PRESETS

# of the released weights, as Hugging Face's model cards and the papers' code count them
PUBLISHED = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "smollm2-135m": 134_515_008,
    "minilm-l6": 22_713_216,
    "vit-base": 86_567_656,
    "vit-tiny": 5_717_416,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    assert count_parameters(name) == count_parameters(preset(name)) == PUBLISHED[name]


def test_the_first_transformer():
    """By hand, for 37000 shared tokens; table 3 of the paper gives 65 and 213 million."""
    for name, D, F, paper in (("transformer-base", 512, 2048, 65e6), ("transformer-big", 1024, 4096, 213e6)):
        attention, feedforward, norm = 4 * (D * D + D), D * F + F + F * D + D, 2 * D
        encoder = 6 * (attention + feedforward + 2 * norm)
        decoder = 6 * (2 * attention + feedforward + 3 * norm)
        assert count_parameters(name) == 37000 * D + encoder + decoder
        assert abs(count_parameters(name) / paper - 1) < 0.03
    assert set(PRESETS) == {*PUBLISHED, "transformer-base", "transformer-big"}


@pytest.mark.parametrize(("wrong", "near"), [("gpt-2", "gpt2"), ("BERT_base", "bert-base"), ("llama7b", "llama-7b")])
def test_an_unknown_name_lists_the_presets(wrong, near):
    with pytest.raises(ConfigError, match=f"there is no '{wrong}'; did you mean '{near}'.*transformer-base.*vit-tiny"):
        preset(wrong)


def test_a_name_like_none():
    with pytest.raises(ConfigError, match=r"there is no 'xyz'\. Known are transformer-base"):
        count_parameters("xyz")
    with pytest.raises(ConfigError, match="a dict, expected a configuration"):
        count_parameters({})


def small(model, rng):
    """A random configuration of `model`."""

    def number(low, high):
        return int(rng.integers(low, high + 1))

    def one_of(choices):
        return choices[number(0, len(choices) - 1)]

    G, per_group, d = number(1, 2), number(1, 3), 2 * number(1, 3)
    H = G * per_group
    sizes = dict(d_model=H * d, num_heads=H, d_ff=number(1, 9), dropout=0.0)
    layers = dict(num_layers=number(1, 3))
    both = dict(num_encoder_layers=number(1, 3), num_decoder_layers=number(1, 3))
    style = dict(norm_placement=one_of(["pre", "post"]), norm=one_of(["layer", "rms"]), position=one_of(POSITIONS),
                 feedforward=one_of([*ACTIVATIONS, *GATES]), tie_output=one_of([True, False]))  # fmt: skip
    V, P, activation = number(2, 9), number(2, 9), one_of(list(ACTIVATIONS))
    if model is Transformer:
        tie = one_of([True, False])
        return TransformerConfig(V, V if tie else number(2, 9), max_len=P, tie_embeddings=tie, **sizes, **both, **style)
    if model is GPT:
        return GPTConfig(V, P, num_kv_heads=G, bias=one_of([True, False]), **sizes, **layers, **style)
    if model is BERT:
        return BERTConfig(V, P, token_types=number(1, 3), head=one_of(HEADS), feedforward=activation, **sizes, **layers)
    if model is T5:
        return T5Config(V, d_kv=number(1, 5), num_buckets=8, tie_output=style["tie_output"],
                        feedforward=style["feedforward"], **sizes, **both)  # fmt: skip
    if model is Llama:
        return LlamaConfig(V, P, num_kv_heads=G, d_kv=one_of([None, 2, 8]), tie_output=style["tie_output"], **sizes,
                           **layers)  # fmt: skip
    p = number(1, 3)
    return ViTConfig(p * number(1, 3), p, number(1, 3), number(2, 5), feedforward=style["feedforward"], **sizes,
                     **layers)  # fmt: skip


@pytest.mark.parametrize("model", [Transformer, GPT, BERT, T5, Llama, ViT], ids=lambda model: model.__name__)
def test_counts_equal_those_of_models_that_are_made(model):
    rng = np.random.default_rng(0)
    for _ in range(40):
        config = small(model, rng)
        assert count_parameters(config) == model(config, rng=0).num_parameters(), config


def test_parts_and_their_formulas():
    parts = {part.name: (part.formula, part.value) for part in parameter_parts("gpt2")}
    assert parts["token table"] == ("V D", 50257 * 768)
    assert parts["attention"] == ("L (4 D^2 + 4 D)", 12 * (4 * 768**2 + 4 * 768))
    assert parts["feed-forward"] == ("L (2 D F + F + D)", 12 * (2 * 768 * 3072 + 3072 + 768))
    assert parts["norms"] == ("(2 L + 1) 2 D", 25 * 2 * 768)
    assert parts["output, tied to the table"] == ("0", 0)
    grouped = {part.name: (part.formula, part.value) for part in parameter_parts("smollm2-135m")}
    assert grouped["attention"] == ("L (2 D H d + 2 D G d)", 30 * (2 * 576 * 576 + 2 * 576 * 192))
    assert grouped["feed-forward"] == ("L (3 D F)", 30 * 3 * 576 * 1536)


def test_formulas_are_read_as_mathematics():
    sizes = {"D": 3, "L_e": 2, "d": 5}
    for formula, value in {"0": 0, "2 D^2 + d": 23, "L_e (4 D^2 + 4 D)": 96, "(L_e + 1) 2 D": 18, "D d L_e^3": 120,
                           "2 ((D + 1) d + L_e)": 44}.items():  # fmt: skip
        assert evaluate(formula, sizes) == value
