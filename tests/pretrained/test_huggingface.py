"""Folders that transformers writes: the same outputs in float64, and what is refused."""

import json

import numpy as np
import pytest
from huggingface import build, in_float64

from numtrans.errors import CheckpointError, ConfigError, DtypeError
from numtrans.models import BERT, GPT, T5, BERTConfig, GPTConfig, Llama, LlamaConfig, T5Config, ViT, ViTConfig
from numtrans.pretrained import from_pretrained, save_pretrained

IDS = np.array([[3, 4, 4, 1], [6, 5, 2, 2]])
BERT_SIZES = dict(vocab_size=7, max_position_embeddings=6, hidden_size=8, num_attention_heads=2, num_hidden_layers=2,
                  intermediate_size=10)  # fmt: skip
GPT2_SIZES = dict(vocab_size=7, n_positions=6, n_embd=8, n_head=2, n_layer=2)
T5_SIZES = dict(vocab_size=7, d_model=8, d_kv=3, num_heads=2, d_ff=10, num_layers=2, num_decoder_layers=1)
LLAMA_SIZES = dict(vocab_size=7, max_position_embeddings=9, hidden_size=8, num_attention_heads=4, num_hidden_layers=2,
                   intermediate_size=10)  # fmt: skip
VIT_SIZES = dict(image_size=8, patch_size=4, hidden_size=8, num_attention_heads=2, num_hidden_layers=2,
                 intermediate_size=10, num_labels=3)  # fmt: skip
CASES = {
    "BertModel": ("Bert", "BertModel", BERT_SIZES),
    "BertForMaskedLM": ("Bert", "BertForMaskedLM", dict(BERT_SIZES, hidden_act="relu", layer_norm_eps=1e-6)),
    "BertForPreTraining": ("Bert", "BertForPreTraining", BERT_SIZES),
    "GPT2LMHeadModel": ("GPT2", "GPT2LMHeadModel", dict(GPT2_SIZES, n_inner=5)),
    "GPT2 untied": ("GPT2", "GPT2LMHeadModel", dict(GPT2_SIZES, tie_word_embeddings=False)),
    "T5 1.0": ("T5", "T5ForConditionalGeneration", T5_SIZES),
    "T5 1.1": ("T5", "T5ForConditionalGeneration", dict(T5_SIZES, feed_forward_proj="gated-gelu",
                                                        tie_word_embeddings=False)),
    "Llama": ("Llama", "LlamaForCausalLM", LLAMA_SIZES),
    "Llama grouped, tied": ("Llama", "LlamaForCausalLM", dict(
        LLAMA_SIZES, num_key_value_heads=2, tie_word_embeddings=True, rope_theta=500.0, rms_norm_eps=1e-5)),
    "Llama head_dim": ("Llama", "LlamaForCausalLM", dict(LLAMA_SIZES, num_key_value_heads=1, head_dim=6)),
    "ViT": ("ViT", "ViTForImageClassification", VIT_SIZES),
}  # fmt: skip


def reference(name, monkeypatch):
    """A model of transformers in float64, made generic."""
    family, kind, options = CASES[name]
    torch, transformers = in_float64(monkeypatch, family.lower())
    return torch, build(torch, getattr(transformers, kind), getattr(transformers, f"{family}Config")(**options))


def outputs(torch, theirs, ours):
    """Outputs of both."""
    images = np.random.default_rng(0).standard_normal((2, 3, 8, 8))
    ids, images_of = torch.from_numpy(IDS), torch.from_numpy(images)
    with torch.no_grad():
        if isinstance(ours, ViT):
            return ours(images), theirs(images_of).logits.numpy()
        if isinstance(ours, T5):
            return ours(IDS, IDS[:, :3]), theirs(input_ids=ids, decoder_input_ids=ids[:, :3]).logits.numpy()
        found = theirs(ids)
    if not isinstance(ours, BERT):
        return ours(IDS), found.logits.numpy()
    part = {"pooled": "pooler_output", "none": "last_hidden_state", "mlm": "logits"}[ours.config.head]
    part = part if hasattr(found, part) else "prediction_logits"
    return ours(IDS), getattr(found, part).numpy()


def assert_same(torch, theirs, ours):
    found, expected = outputs(torch, theirs, ours)
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= 1e-10 * np.linalg.norm(expected)


def edit(folder, **fields):
    """Set fields of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: v for name, v in config.items() if v is not None}))


def arrays_of(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def rewrite(folder, arrays):
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, folder / "model.safetensors")


@pytest.fixture
def gpt2(tmp_path):
    """A small folder of GPT-2, written by ours."""
    save_pretrained(GPT(GPTConfig(7, max_len=6, d_model=8, num_heads=2, num_layers=2), rng=0), tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_transformers(name, tmp_path, monkeypatch):
    torch, theirs = reference(name, monkeypatch)
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path, dtype=np.float64)
    assert not ours.training
    assert {p.data.dtype for p in ours.parameters()} == {np.dtype(np.float64)}
    assert_same(torch, theirs, ours)


@pytest.mark.parametrize("name", CASES)
def test_transformers_reads_what_we_write(name, tmp_path, monkeypatch):
    torch, theirs = reference(name, monkeypatch)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_pretrained(tmp_path / "theirs", dtype=np.float64)
    save_pretrained(ours, tmp_path / "ours")
    kind = type(theirs)
    if kind.__name__ == "BertForPreTraining":  # what we keep of it is the masked-LM head
        import transformers

        kind = transformers.BertForMaskedLM
    again = kind.from_pretrained(tmp_path / "ours", dtype=torch.float64, attn_implementation="eager").eval()
    assert_same(torch, again, ours)
    twice = from_pretrained(tmp_path / "ours", dtype=np.float64)
    assert twice.config == ours.config
    for key, array in twice.state_dict().items():
        np.testing.assert_array_equal(array, ours.state_dict()[key])


@pytest.mark.parametrize(("name", "prefix"), [
    ("BertModel", "bert."), ("GPT2LMHeadModel", "transformer."), ("Llama grouped, tied", "model."), ("ViT", "vit."),
])  # fmt: skip
def test_with_and_without_prefix(name, prefix, tmp_path, monkeypatch):
    torch, theirs = reference(name, monkeypatch)
    theirs.save_pretrained(tmp_path)
    names = arrays_of(tmp_path)
    bare = {key.removeprefix(prefix): a for key, a in names.items()}
    heads = ("lm_head.", "classifier.")
    full = {key if key.startswith(heads) else prefix + key: a for key, a in bare.items()}
    for arrays in (bare, full):
        rewrite(tmp_path, arrays)
        assert_same(torch, theirs, from_pretrained(tmp_path, dtype=np.float64))


@pytest.mark.parametrize("head", ["pooled", "none", "mlm"])
def test_heads_of_bert(head, tmp_path, monkeypatch):
    torch, theirs = reference("BertForPreTraining", monkeypatch)
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path, dtype=np.float64, head=head)
    assert ours.config.head == head
    assert_same(torch, theirs if head == "mlm" else theirs.bert, ours)


def test_head_that_is_not_ours(tmp_path, monkeypatch):
    torch, theirs = reference("BertModel", monkeypatch)
    theirs.save_pretrained(tmp_path)
    edit(tmp_path, architectures=["BertForSequenceClassification"])
    arrays = arrays_of(tmp_path)
    rewrite(tmp_path, {f"bert.{key}": a for key, a in arrays.items()} | {"classifier.weight": np.zeros((2, 8))})
    with pytest.raises(CheckpointError, match="BertForSequenceClassification has a head"):
        from_pretrained(tmp_path)
    assert_same(torch, theirs, from_pretrained(tmp_path, dtype=np.float64, head="pooled"))
    with pytest.raises(ConfigError, match="head is 'lm'"):
        from_pretrained(tmp_path, head="lm")


def test_old_names_of_bert(tmp_path, monkeypatch):
    """bert-base-uncased spells the norms gamma and beta and keeps copies and constants."""
    torch, theirs = reference("BertForMaskedLM", monkeypatch)
    theirs.save_pretrained(tmp_path)
    arrays = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): a
        for key, a in arrays_of(tmp_path).items()
    }
    arrays["cls.predictions.decoder.weight"] = arrays["bert.embeddings.word_embeddings.weight"]
    arrays["cls.predictions.decoder.bias"] = arrays.pop("cls.predictions.bias")
    arrays["cls.seq_relationship.weight"] = np.zeros((2, 8))
    arrays["bert.pooler.dense.weight"] = np.zeros((8, 8))
    arrays["bert.embeddings.position_ids"] = np.arange(6)[None]
    rewrite(tmp_path, arrays)
    assert_same(torch, theirs, from_pretrained(tmp_path, dtype=np.float64))


def test_constants_of_gpt2_are_passed_over(gpt2):
    before = from_pretrained(gpt2)(IDS)
    arrays = arrays_of(gpt2)
    arrays["transformer.h.0.attn.bias"] = np.ones((1, 1, 6, 6), np.uint8)
    arrays["transformer.h.1.attn.masked_bias"] = np.float32(-1e4)
    arrays["lm_head.weight"] = arrays["transformer.wte.weight"]
    rewrite(gpt2, arrays)
    np.testing.assert_array_equal(from_pretrained(gpt2)(IDS), before)
    rewrite(gpt2, arrays | {"lm_head.weight": arrays["lm_head.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"lm_head.weight and wte.weight differ, .* tied"):
        from_pretrained(gpt2)


def test_untied_t5_with_one_table(tmp_path, monkeypatch):
    """Version 5 of transformers writes T5 1.1 with tied tables without the head, and does not scale its input."""
    torch, theirs = reference("T5 1.1", monkeypatch)
    theirs.save_pretrained(tmp_path)
    arrays = arrays_of(tmp_path)
    assert ("lm_head.weight" in arrays) != json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    own = np.random.default_rng(1).standard_normal((7, 8))
    rewrite(tmp_path, arrays | {"lm_head.weight": own})
    edit(tmp_path, tie_word_embeddings=False)
    ours = from_pretrained(tmp_path, dtype=np.float64)
    np.testing.assert_array_equal(ours.output.W.data, own.T)
    with torch.no_grad():
        theirs.lm_head.weight = torch.nn.Parameter(torch.from_numpy(own))
    assert_same(torch, theirs, ours)


def test_llama_scaled_in_either_spelling(tmp_path, monkeypatch):
    torch, theirs = reference("Llama grouped, tied", monkeypatch)
    theirs.save_pretrained(tmp_path)
    rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    edit(tmp_path, rope_parameters=dict(rope, rope_type="linear", factor=2.0))
    with pytest.raises(CheckpointError, match=r"rope_scaling=.*linear"):
        from_pretrained(tmp_path)
    edit(tmp_path, rope_parameters=None, rope_theta=500.0, rope_scaling={"type": "dynamic", "factor": 2.0})
    with pytest.raises(CheckpointError, match=r"rope_scaling=.*dynamic"):
        from_pretrained(tmp_path)
    edit(tmp_path, rope_scaling=None)
    assert_same(torch, theirs, from_pretrained(tmp_path, dtype=np.float64))


@pytest.mark.parametrize(("model", "fields"), [
    (BERT(BERTConfig(7, max_len=6, d_model=8, num_heads=2, num_layers=1, d_ff=6), rng=0), [
        ("is_decoder", True), ("position_embedding_type", "relative_key"), ("hidden_act", "mish"),
        ("add_cross_attention", True), ("pruned_heads", {"0": [1]}),
    ]),
    (GPT(GPTConfig(7, max_len=6, d_model=8, num_heads=2, num_layers=1), rng=0), [
        ("scale_attn_by_inverse_layer_idx", True), ("layer_norm_epsilon", 1e-6), ("scale_attn_weights", False),
        ("quantization_config", {"bits": 4}),
    ]),
    (Llama(LlamaConfig(7, d_model=8, num_heads=2, num_layers=1, d_ff=6), rng=0), [
        ("attention_bias", True), ("mlp_bias", True), ("sliding_window", 4), ("hidden_act", "gelu"),
    ]),
    (T5(T5Config(7, d_model=8, d_kv=4, num_heads=2, d_ff=6, num_encoder_layers=1, num_decoder_layers=1), rng=0), [
        ("feed_forward_proj", "gated-swish2"), ("is_encoder_decoder", False),
    ]),
    (ViT(ViTConfig(8, 4, d_model=8, num_heads=2, num_layers=1, d_ff=6), rng=0), [("qkv_bias", False)]),
])  # fmt: skip
def test_fields_that_are_refused_by_name(model, fields, tmp_path):
    save_pretrained(model, tmp_path)
    from_pretrained(tmp_path)
    for name, value in fields:
        save_pretrained(model, tmp_path)
        edit(tmp_path, **{name: value})
        with pytest.raises(CheckpointError, match=name):
            from_pretrained(tmp_path)


def test_unknown_fields(gpt2):
    edit(gpt2, novelty=3, other=4)
    with pytest.raises(CheckpointError, match=r"novelty=3.*other=4.*ignore="):
        from_pretrained(gpt2)
    from_pretrained(gpt2, ignore=["novelty", "other"])


def test_unknown_architecture(gpt2):
    edit(gpt2, model_type="mamba")
    with pytest.raises(CheckpointError, match="mamba is not supported; known are bert, gpt2, t5, llama, vit"):
        from_pretrained(gpt2)
    (gpt2 / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "n_embd": ')
    with pytest.raises(CheckpointError, match="cannot be read"):
        from_pretrained(gpt2)
    (gpt2 / "config.json").unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        from_pretrained(gpt2)


def test_missing_unexpected_and_wrong_shapes(gpt2):
    arrays = arrays_of(gpt2)
    del arrays["transformer.h.1.ln_2.bias"]
    arrays["transformer.h.0.mlp.c_fc.weight"] = arrays["transformer.h.0.mlp.c_fc.weight"].T
    arrays["transformer.h.7.ln_1.bias"] = np.zeros(8)
    rewrite(gpt2, arrays)
    with pytest.raises(CheckpointError) as caught:
        from_pretrained(gpt2)
    for part in ("missing: h.1.ln_2.bias", "unexpected: h.7.ln_1.bias", "c_fc.weight is (32, 8), expected (8, 32)"):
        assert part in str(caught.value)


def test_a_dtype_that_is_not_ours(gpt2):
    with pytest.raises(DtypeError, match="float16"):
        from_pretrained(gpt2, dtype=np.float16)
    with pytest.raises(ConfigError, match="head"):
        from_pretrained(gpt2, head="mlm")


def test_what_other_libraries_have_not(tmp_path):
    model = GPT(GPTConfig(7, d_model=8, num_heads=2, num_layers=1, position="rope", feedforward="swiglu"))
    with pytest.raises(ConfigError, match=r"position='rope', feedforward='swiglu'"):
        save_pretrained(model, tmp_path)
    from numtrans.layers import Linear

    with pytest.raises(ConfigError, match="Linear is not one of BERT, GPT"):
        save_pretrained(Linear(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("fields", "message"), [
    ({"model_type": [1]}, r"model_type is \[1\], expected a string"), ({"architectures": 5}, "architectures is 5"),
    ({"architectures": [1]}, r"architectures is \[1\], expected a list of strings"),
    ({"activation_function": ["gelu"]}, r"activation_function=\['gelu'\], expected one of gelu"),
    ({"activation_function": {"a": 1}}, "activation_function=.*, expected one of gelu"),
])  # fmt: skip
def test_values_of_another_kind(fields, message, gpt2):
    edit(gpt2, **fields)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(gpt2)


def test_rope_and_labels_of_another_kind(tmp_path):
    for model, fields in (
        (Llama(LlamaConfig(7, 6, 8, 2, 1, 8)), {"rope_parameters": {"rope_type": ["a"]}}),
        (ViT(ViTConfig(4, 2, 3, 3, 8, 2, 1, 8)), {"id2label": 2.5}),
    ):
        save_pretrained(model, tmp_path)
        edit(tmp_path, **fields)
        with pytest.raises(CheckpointError, match=r"rope_scaling|num_classes is 2.5"):
            from_pretrained(tmp_path)


def test_arguments_of_another_kind(gpt2):
    for path in (None, 5, [], b"x"):
        with pytest.raises(ConfigError, match=r"path is .*, expected a path or the name"):
            from_pretrained(path)
    for dtype in ("banana", 5):
        with pytest.raises(DtypeError, match=f"dtype is {dtype}, expected float32 or float64"):
            from_pretrained(gpt2, dtype)
    for ignore in (None, 5, "n_ctx"):
        with pytest.raises(ConfigError, match="expected names of fields in a list"):
            from_pretrained(gpt2, ignore=ignore)
    with pytest.raises(ConfigError, match="folder is None, expected a path"):
        save_pretrained(from_pretrained(gpt2), None)


def test_json_that_is_too_deep_and_weights_that_are_no_real_numbers(gpt2):
    arrays = arrays_of(gpt2)
    rewrite(gpt2, {**arrays, "transformer.ln_f.bias": np.ones(8, np.int32)})
    with pytest.raises(CheckpointError, match=r"ln_f.bias has dtype int32, expected floating-point numbers"):
        from_pretrained(gpt2)
    (gpt2 / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read"):
        from_pretrained(gpt2)


@pytest.mark.parametrize("field", ["n_layer", "n_positions", "vocab_size"])
def test_a_config_far_larger_than_the_weights(field, gpt2):
    path = gpt2 / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {field: 10**10}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"parameters, but the weights hold"):
        from_pretrained(gpt2)
