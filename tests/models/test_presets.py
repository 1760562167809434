"""Presets have the published numbers of parameters, and counting agrees with models that are made."""

import numpy as np
import pytest
from small_configs import MODELS, small

from numtrans.errors import ConfigError
from numtrans.models import count_parameters, parameter_parts, preset
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


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
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
