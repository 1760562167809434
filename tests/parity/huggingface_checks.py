"""One comparison with each model of `transformers`, from one configuration: logits and the gradient of every parameter.

The library computes something at padded places too. There the cotangent is 0, and outputs are not compared.
"""

import torch
import transformers
from huggingface import build, compare, copy_weights
from parity.names import of_huggingface
from parity.torch_checks import keys, leaf, real_tokens, rng_of

from numtrans.models import BERT, GPT, T5, BERTConfig, GPTConfig, Llama, LlamaConfig, T5Config, ViT, ViTConfig

MODELS = ("bert", "gpt2", "t5", "llama", "vit")  # what `in_float64` has to prepare


def attention_mask(real):
    """That of `transformers`: (B, T) of 0 and 1."""
    return None if real is None else torch.tensor(real.astype(int))


def bert(c):
    """(ours, theirs, names) with the same weights; no padding token, whose row of the table would get no gradient."""
    D = c["heads"] * c["d"]
    theirs = build(torch, transformers.BertForMaskedLM, transformers.BertConfig(
        vocab_size=c["vocab"], max_position_embeddings=12, hidden_size=D, num_attention_heads=c["heads"],
        num_hidden_layers=c["layers"], intermediate_size=c["d_ff"], hidden_act=c["activation"], layer_norm_eps=c["eps"],
        pad_token_id=None,
    ), c["seed"])  # fmt: skip
    activation = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}[c["activation"]]
    ours = BERT(BERTConfig(
        c["vocab"], 12, D, c["heads"], c["layers"], c["d_ff"], head="mlm", feedforward=activation, norm_eps=c["eps"],
        pad_id=None,
    ))  # fmt: skip
    table = of_huggingface("bert", ours)
    return copy_weights(ours, theirs, table), theirs, table


def check_bert(c):
    """`BertForMaskedLM`, with token types."""
    ours, theirs, table = bert(c)
    rng, shape = rng_of(c), (c["B"], c["T"])
    ids, types = rng.integers(0, c["vocab"], shape), rng.integers(0, 2, shape)
    real = real_tokens(rng, c["mask"], *shape)
    y = theirs(torch.tensor(ids), attention_mask=attention_mask(real), token_type_ids=torch.tensor(types)).logits
    compare(torch, ours, ours(ids, types, mask=real), theirs, y, table, keep=real)


def gpt2(c):
    """(ours, theirs, names) with the same weights."""
    D = c["heads"] * c["d"]
    theirs = build(torch, transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=c["vocab"], n_positions=12, n_embd=D, n_head=c["heads"], n_layer=c["layers"], n_inner=c["d_ff"],
        bos_token_id=0, eos_token_id=0,
    ), c["seed"])  # fmt: skip
    ours = GPT(GPTConfig(c["vocab"], 12, D, c["heads"], c["layers"], c["d_ff"], dropout=0.0))
    table = of_huggingface("gpt2", ours)
    return copy_weights(ours, theirs, table), theirs, table


def check_gpt2(c):
    """`GPT2LMHeadModel`."""
    ours, theirs, table = gpt2(c)
    rng = rng_of(c)
    ids = rng.integers(0, c["vocab"], (c["B"], c["T"]))
    real = real_tokens(rng, c["mask"], c["B"], c["T"])
    y = theirs(torch.tensor(ids), attention_mask=attention_mask(real)).logits
    compare(torch, ours, ours(ids, keys(real)), theirs, y, table, keep=real)


T5_VERSIONS = {"1.0": {}, "1.1": {"feedforward": "geglu_tanh", "tie_output": False}}


def t5(c):
    """(ours, theirs, names) with the same weights."""
    version = c["version"]
    config = transformers.T5Config(
        vocab_size=c["vocab"], d_model=c["d_model"], d_kv=c["d"], num_heads=c["heads"], d_ff=c["d_ff"],
        num_layers=c["layers"], num_decoder_layers=c["decoder_layers"], relative_attention_num_buckets=c["buckets"],
        relative_attention_max_distance=6, decoder_start_token_id=0, tie_word_embeddings=version == "1.0",
        feed_forward_proj={"1.0": "relu", "1.1": "gated-gelu"}[version],
    )  # fmt: skip

    def kind(config):
        model = transformers.T5ForConditionalGeneration(config)
        if version == "1.1":  # the published weights have a matrix of their own
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        return model

    theirs = build(torch, kind, config, c["seed"])
    ours = T5(T5Config(
        c["vocab"], c["d_model"], c["d"], c["heads"], c["d_ff"], c["layers"], c["decoder_layers"], c["buckets"], 6,
        dropout=0.0, pad_id=None, **T5_VERSIONS[version],
    ))  # fmt: skip
    table = of_huggingface("t5", ours)
    return copy_weights(ours, theirs, table), theirs, table


def check_t5(c):
    """`T5ForConditionalGeneration`, version 1.0 (ReLU, tied) or 1.1 (gated, untied)."""
    ours, theirs, table = t5(c)
    rng, B = rng_of(c), c["B"]
    src, tgt = rng.integers(0, c["vocab"], (B, c["Tk"])), rng.integers(0, c["vocab"], (B, c["T"]))
    real, real_target = real_tokens(rng, c["mask"], B, c["Tk"]), real_tokens(rng, c["target_mask"], B, c["T"])
    y = theirs(
        torch.tensor(src), attention_mask=attention_mask(real), decoder_input_ids=torch.tensor(tgt),
        decoder_attention_mask=attention_mask(real_target),
    ).logits  # fmt: skip
    compare(torch, ours, ours(src, tgt, real, keys(real_target)), theirs, y, table, keep=real_target)


def llama(c):
    """(ours, theirs, names) with the same weights."""
    heads, groups, d = c["heads"] * c["groups"], c["groups"], 2 * c["pairs"]
    D = heads * c["d"]
    theirs = build(torch, transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=c["vocab"], hidden_size=D, num_attention_heads=heads, num_hidden_layers=c["layers"], head_dim=d,
        intermediate_size=c["d_ff"], num_key_value_heads=groups, max_position_embeddings=12, rms_norm_eps=c["eps"],
        tie_word_embeddings=c["tied"], rope_parameters={"rope_type": "default", "rope_theta": c["base"]},
    ), c["seed"])  # fmt: skip
    ours = Llama(LlamaConfig(
        c["vocab"], 12, D, heads, c["layers"], c["d_ff"], groups, d, c["base"], c["eps"], tie_output=c["tied"]
    ))
    table = of_huggingface("llama", ours)
    return copy_weights(ours, theirs, table), theirs, table


def check_llama(c):
    """`LlamaForCausalLM`; with `heads` above 1 that many heads share a key."""
    ours, theirs, table = llama(c)
    rng = rng_of(c)
    ids = rng.integers(0, c["vocab"], (c["B"], c["T"]))
    real = real_tokens(rng, c["mask"], c["B"], c["T"])
    y = theirs(torch.tensor(ids), attention_mask=attention_mask(real)).logits
    compare(torch, ours, ours(ids, keys(real)), theirs, y, table, keep=real)


def check_vit(c):
    """`ViTForImageClassification`, and the gradient of the images."""
    D, size = c["heads"] * c["d"], c["patch"] * c["side"]
    theirs = build(torch, transformers.ViTForImageClassification, transformers.ViTConfig(
        image_size=size, patch_size=c["patch"], num_channels=c["channels"], num_labels=c["classes"], hidden_size=D,
        num_attention_heads=c["heads"], num_hidden_layers=c["layers"], intermediate_size=c["d_ff"],
        layer_norm_eps=c["eps"],
    ), c["seed"])  # fmt: skip
    ours = ViT(ViTConfig(
        size, c["patch"], c["channels"], c["classes"], D, c["heads"], c["layers"], c["d_ff"], norm_eps=c["eps"]
    ))
    table = of_huggingface("vit", ours)
    copy_weights(ours, theirs, table)
    images, timages = leaf(rng_of(c), c["B"], c["channels"], size, size)
    compare(torch, ours, ours(images), theirs, theirs(timages).logits, table, inputs=(timages,))
