"""Equal to the models of `transformers`: logits and every gradient, in float64, over random configurations."""
# ruff: noqa: E402 (imports that need PyTorch follow the line that skips without it)

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("hypothesis")

from huggingface import in_float64
from hypothesis import strategies as st
from parity import huggingface_checks
from parity.drawing import MASKS, compare_each, configurations

LAYERS = dict(vocab=st.integers(3, 11), d=st.integers(3, 5), d_ff=st.integers(2, 9), layers=st.integers(1, 2))


@pytest.fixture(scope="module", autouse=True)
def float64():
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_float64(monkeypatch, *huggingface_checks.MODELS)
        yield


def test_bert():
    compare_each(huggingface_checks.check_bert, 10, configurations(
        activation=st.sampled_from(["gelu", "gelu_new", "relu"]), eps=st.sampled_from([1e-12, 1e-5]), mask=MASKS,
        **LAYERS,
    ))  # fmt: skip


def test_gpt2():
    compare_each(huggingface_checks.check_gpt2, 10, configurations(mask=MASKS, **LAYERS))


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5(version):
    compare_each(huggingface_checks.check_t5, 8, configurations(
        version=st.just(version), Tk=st.integers(1, 9), d_model=st.integers(3, 11), buckets=st.sampled_from([4, 6, 8]),
        decoder_layers=st.integers(1, 2), mask=MASKS, target_mask=MASKS, **LAYERS,
    ))  # fmt: skip


@pytest.mark.parametrize("grouped", [False, True])
def test_llama(grouped):
    fields = LAYERS | dict(heads=st.integers(2, 3), groups=st.integers(1, 2)) if grouped else LAYERS
    fields = fields if grouped else fields | dict(heads=st.just(1), groups=st.integers(1, 4))
    compare_each(huggingface_checks.check_llama, 8, configurations(
        **fields, pairs=st.integers(1, 3), tied=st.booleans(), mask=MASKS,
        base=st.sampled_from([10000.0, 100.0]), eps=st.sampled_from([1e-6, 1e-5]),
    ))  # fmt: skip


def test_vit():
    compare_each(huggingface_checks.check_vit, 8, configurations(
        patch=st.integers(1, 3), side=st.integers(1, 3), channels=st.integers(1, 3), classes=st.integers(2, 5),
        eps=st.sampled_from([1e-12, 1e-5]), **LAYERS,
    ))  # fmt: skip
