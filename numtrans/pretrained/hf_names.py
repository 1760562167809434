"""Hugging Face's names for the arrays of each kind of model; forms as in `numtrans.pretrained.names`.

Prefixes that only some files have (``bert.``, ``transformer.``, ``model.``, ``vit.``) are left out. GPT-2's matrices
lie as ours do, (in, out); those of the other models are ``nn.Linear``'s.
"""

import re
from dataclasses import dataclass

from numtrans.layers.feedforward import GATES
from numtrans.pretrained.names import FIRST, SAME, TRANSPOSED, Row, kernel


def linear(ours, theirs, bias=True, form=TRANSPOSED):
    """Rows of a linear layer."""
    rows = [Row(f"{theirs}.weight", (f"{ours}.W",), form)]
    return rows + ([Row(f"{theirs}.bias", (f"{ours}.b",), SAME)] if bias else [])


def packed(ours, theirs):
    """Rows of a Conv1D of GPT-2 that makes queries, keys and values at once."""
    names = ("q_proj", "k_proj", "v_proj")
    return [
        Row(f"{theirs}.weight", tuple(f"{ours}.{name}.W" for name in names), SAME),
        Row(f"{theirs}.bias", tuple(f"{ours}.{name}.b" for name in names), SAME),
    ]


def layer_norm(ours, theirs):
    """Rows of a LayerNorm."""
    return [Row(f"{theirs}.weight", (f"{ours}.gamma",), SAME), Row(f"{theirs}.bias", (f"{ours}.beta",), SAME)]


def one(ours, theirs, form=SAME):
    """The row of a single array: a table, the gain of an RMSNorm."""
    return [Row(theirs, (ours,), form)]


def bert(c):
    """BertModel and, with ``cls.``, BertForMaskedLM."""
    rows = one("embedding.token.E", "embeddings.word_embeddings.weight")
    rows += one("embedding.position.W", "embeddings.position_embeddings.weight")
    rows += one("embedding.token_type.E", "embeddings.token_type_embeddings.weight")
    rows += layer_norm("embedding.norm", "embeddings.LayerNorm")
    for i in range(c.num_layers):
        a, f, theirs = f"encoder.layers.{i}.self_attention", f"encoder.layers.{i}.feedforward", f"encoder.layer.{i}"
        for ours, name in dict(q="self.query", k="self.key", v="self.value", out="output.dense").items():
            rows += linear(f"{a}.sublayer.{ours}_proj", f"{theirs}.attention.{name}")
        rows += layer_norm(f"{a}.norm", f"{theirs}.attention.output.LayerNorm")
        rows += linear(f"{f}.sublayer.linear1", f"{theirs}.intermediate.dense")
        rows += linear(f"{f}.sublayer.linear2", f"{theirs}.output.dense")
        rows += layer_norm(f"{f}.norm", f"{theirs}.output.LayerNorm")
    if c.head == "pooled":
        rows += linear("head.dense", "pooler.dense")
    if c.head == "mlm":
        rows += linear("head.dense", "cls.predictions.transform.dense")
        rows += layer_norm("head.norm", "cls.predictions.transform.LayerNorm")
        rows += one("head.bias", "cls.predictions.bias")
    return rows


def gpt2(c):
    """GPT2LMHeadModel."""
    rows = one("embedding.embedding.E", "wte.weight") + one("embedding.position.W", "wpe.weight")
    for i in range(c.num_layers):
        a, f, theirs = f"layers.layers.{i}.self_attention", f"layers.layers.{i}.feedforward", f"h.{i}"
        rows += layer_norm(f"{a}.norm", f"{theirs}.ln_1") + packed(f"{a}.sublayer", f"{theirs}.attn.c_attn")
        rows += linear(f"{a}.sublayer.out_proj", f"{theirs}.attn.c_proj", form=SAME)
        rows += layer_norm(f"{f}.norm", f"{theirs}.ln_2")
        rows += linear(f"{f}.sublayer.linear1", f"{theirs}.mlp.c_fc", form=SAME)
        rows += linear(f"{f}.sublayer.linear2", f"{theirs}.mlp.c_proj", form=SAME)
    rows += layer_norm("layers.norm", "ln_f")
    return rows + ([] if c.tie_output else linear("output", "lm_head", bias=False))


def t5(c):
    """T5ForConditionalGeneration; the gate of version 1.1 is ``wi_0``."""
    rows = one("embedding.E", "shared.weight")
    network = {"linear1": "wi", "linear2": "wo"}
    if c.feedforward in GATES:
        network = {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"}
    for stack, depth in (("encoder", c.num_encoder_layers), ("decoder", c.num_decoder_layers)):
        parts = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention", "feedforward": ""}
        if stack == "encoder":
            del parts["cross_attention"]
        for i in range(depth):
            for j, (part, name) in enumerate(parts.items()):
                ours, theirs = f"{stack}.layers.{i}.{part}", f"{stack}.block.{i}.layer.{j}"
                for a, b in (dict(q="q", k="k", v="v", out="o") if name else {}).items():
                    rows += linear(f"{ours}.sublayer.{a}_proj", f"{theirs}.{name}.{b}", bias=False)
                for a, b in ({} if name else network).items():
                    rows += linear(f"{ours}.sublayer.{a}", f"{theirs}.DenseReluDense.{b}", bias=False)
                rows += one(f"{ours}.norm.gamma", f"{theirs}.layer_norm.weight")
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows += one(f"{stack}.layers.0.self_attention.sublayer.attention.position.W", bias)
        rows += one(f"{stack}.norm.gamma", f"{stack}.final_layer_norm.weight")
    return rows + ([] if c.tie_output else linear("output", "lm_head", bias=False))


def llama(c):
    """LlamaForCausalLM, whose RoPE turns halves, as ours."""
    rows = one("embedding.E", "embed_tokens.weight")
    for i in range(c.num_layers):
        a, f, theirs = f"layers.layers.{i}.self_attention", f"layers.layers.{i}.feedforward", f"layers.{i}"
        rows += one(f"{a}.norm.gamma", f"{theirs}.input_layernorm.weight")
        for ours, name in dict(q="q", k="k", v="v", out="o").items():
            rows += linear(f"{a}.sublayer.{ours}_proj", f"{theirs}.self_attn.{name}_proj", bias=False)
        rows += one(f"{f}.norm.gamma", f"{theirs}.post_attention_layernorm.weight")
        for name in ("gate_proj", "up_proj", "down_proj"):
            rows += linear(f"{f}.sublayer.{name}", f"{theirs}.mlp.{name}", bias=False)
    rows += one("layers.norm.gamma", "norm.weight")
    return rows + ([] if c.tie_output else linear("output", "lm_head", bias=False))


def vit(c):
    """ViTForImageClassification."""
    rows = one("class_token", "embeddings.cls_token") + one("position.W", "embeddings.position_embeddings", FIRST)
    projection = kernel(c.channels, c.patch_size)
    rows += linear("patch_embedding", "embeddings.patch_embeddings.projection", form=projection)
    for i in range(c.num_layers):
        a, f, theirs = f"encoder.layers.{i}.self_attention", f"encoder.layers.{i}.feedforward", f"encoder.layer.{i}"
        rows += layer_norm(f"{a}.norm", f"{theirs}.layernorm_before")
        for ours, name in dict(q="query", k="key", v="value").items():
            rows += linear(f"{a}.sublayer.{ours}_proj", f"{theirs}.attention.attention.{name}")
        rows += linear(f"{a}.sublayer.out_proj", f"{theirs}.attention.output.dense")
        rows += layer_norm(f"{f}.norm", f"{theirs}.layernorm_after")
        rows += linear(f"{f}.sublayer.linear1", f"{theirs}.intermediate.dense")
        rows += linear(f"{f}.sublayer.linear2", f"{theirs}.output.dense")
    return rows + layer_norm("encoder.norm", "layernorm") + linear("head", "classifier")


@dataclass(frozen=True)
class Names:
    """The names of one kind of model.

    Parameters
    ----------
    rows : callable
        Our config -> list of `Row`.
    prefix : str
        What some files put before the names of the body.
    skipped : str
        A regular expression of names that carry no weight: constants, and heads that are not ours.
    copies : dict
        Names of arrays that are tied to another's -> that name.
    """

    rows: object
    prefix: str
    skipped: str
    copies: dict


NAMES = {
    "bert": Names(bert, "bert.", r"embeddings\.position_ids", {
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }),
    "gpt2": Names(gpt2, "transformer.", r"h\.\d+\.attn\.(bias|masked_bias)", {"lm_head.weight": "wte.weight"}),
    "t5": Names(t5, "", r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight", {
        "encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    }),
    "llama": Names(llama, "model.", r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
                   {"lm_head.weight": "embed_tokens.weight"}),
    "vit": Names(vit, "vit.", r"pooler\.dense\.(weight|bias)", {}),
}  # fmt: skip


def plain_names(kind, tensors):
    """`tensors` without the prefix, the old spelling of BERT's norms, and what carries no weight."""
    table, found = NAMES[kind], {}
    for name, tensor in tensors.items():
        name = name.removeprefix(table.prefix)
        if kind == "bert":
            name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
            name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        if not re.fullmatch(table.skipped, name):
            found[name] = tensor
    return found
