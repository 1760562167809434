"""Presets count as many parameters as transformers' models of the same name, made without memory on the meta device."""

import pytest

from numtrans.models import count_parameters, preset

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def theirs(name):
    """The model of `transformers` with the sizes of our preset, and none of its defaults for them."""
    c = preset(name)
    if name.startswith(("bert", "minilm")):
        config = transformers.BertConfig(
            vocab_size=c.vocab_size, hidden_size=c.d_model, num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads, intermediate_size=c.d_ff, max_position_embeddings=c.max_len,
            type_vocab_size=c.token_types,
        )  # fmt: skip
        return transformers.BertModel(config)
    if name.startswith("gpt2"):
        config = transformers.GPT2Config(
            vocab_size=c.vocab_size, n_positions=c.max_len, n_embd=c.d_model, n_layer=c.num_layers, n_head=c.num_heads
        )
        return transformers.GPT2LMHeadModel(config)
    if name.startswith("t5"):
        config = transformers.T5Config(
            vocab_size=c.vocab_size, d_model=c.d_model, d_kv=c.d_kv, d_ff=c.d_ff, num_layers=c.num_encoder_layers,
            num_decoder_layers=c.num_decoder_layers, num_heads=c.num_heads,
            relative_attention_num_buckets=c.num_buckets,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(config)
    if name.startswith("vit"):
        config = transformers.ViTConfig(
            image_size=c.image_size, patch_size=c.patch_size, num_channels=c.channels, hidden_size=c.d_model,
            num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads, intermediate_size=c.d_ff,
            num_labels=c.num_classes,
        )  # fmt: skip
        return transformers.ViTForImageClassification(config)
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.d_model, intermediate_size=c.d_ff, num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, max_position_embeddings=c.max_len,
        tie_word_embeddings=c.tie_output,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize(
    "name",
    ["bert-base", "bert-large", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "t5-small", "t5-base", "t5-large",
     "llama-7b", "llama-13b", "smollm2-135m", "minilm-l6", "vit-base", "vit-tiny"],
)  # fmt: skip
def test_as_many_as_transformers(name):
    with torch.device("meta"):
        model = theirs(name)
    assert count_parameters(name) == model.num_parameters()
