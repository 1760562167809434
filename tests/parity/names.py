"""Names of parameters: those of numtrans, and those of PyTorch and of the library `transformers`.

A table maps each of our names to (their name, transform or None). The transform takes their array to our layout, and
their gradient to that of ours, because it only moves or selects entries.
"""

import numpy as np

from numtrans.pretrained.names import SAME, Row, read, shapes_of
from numtrans.pretrained.torch_names import encoder_decoder, torch_rows, under


def linear(ours, theirs, bias=True):
    """A linear layer: ours of shape (in, out), theirs (out, in)."""
    names = {f"{ours}.W": (f"{theirs}.weight", np.transpose)}
    return names | ({f"{ours}.b": (f"{theirs}.bias", None)} if bias else {})


def conv1d(ours, theirs):
    """GPT-2's linear layer, which holds its matrix as ours do, (in, out)."""
    return {f"{ours}.W": (f"{theirs}.weight", None), f"{ours}.b": (f"{theirs}.bias", None)}


def layer_norm(ours, theirs):
    return {f"{ours}.gamma": (f"{theirs}.weight", None), f"{ours}.beta": (f"{theirs}.bias", None)}


def columns(k, width):
    """The k-th block of `width` columns of a packed matrix or bias."""
    block = slice(k * width, (k + 1) * width)
    return lambda x: x[..., block]


# ---- PyTorch: by the tables of `numtrans.pretrained`


def of_torch(module):
    """From arrays of the counterpart in `torch.nn` to ours; an encoder with a decoder is a `torch.nn.Transformer`."""
    rows = encoder_decoder(module) if hasattr(module, "encoder") else torch_rows(module)
    return lambda arrays: read(rows, arrays, shapes_of(module))


def of_seq2seq(model):
    """`numtrans.models.Transformer` and `Seq2Seq` of torch_checks.py."""
    rows = under("stacks.", "", encoder_decoder(model))
    rows += [Row(f"{side}.weight", (f"{side}_embedding.embedding.E",), SAME) for side in ("src", "tgt")]
    return lambda arrays: read(rows, arrays, shapes_of(model))


# ---- transformers


def bert(layers=2, head="mlm"):
    """`BertForMaskedLM`; with another head `BertModel`."""
    prefix = "bert." if head == "mlm" else ""
    e = f"{prefix}embeddings"
    names = {
        "embedding.token.E": (f"{e}.word_embeddings.weight", None),
        "embedding.position.W": (f"{e}.position_embeddings.weight", None),
        "embedding.token_type.E": (f"{e}.token_type_embeddings.weight", None),
    } | layer_norm("embedding.norm", f"{e}.LayerNorm")
    for i in range(layers):
        ours, theirs = f"encoder.layers.{i}", f"{prefix}encoder.layer.{i}"
        for a, b in {"q": "self.query", "k": "self.key", "v": "self.value", "out": "output.dense"}.items():
            names |= linear(f"{ours}.self_attention.sublayer.{a}_proj", f"{theirs}.attention.{b}")
        names |= layer_norm(f"{ours}.self_attention.norm", f"{theirs}.attention.output.LayerNorm")
        names |= linear(f"{ours}.feedforward.sublayer.linear1", f"{theirs}.intermediate.dense")
        names |= linear(f"{ours}.feedforward.sublayer.linear2", f"{theirs}.output.dense")
        names |= layer_norm(f"{ours}.feedforward.norm", f"{theirs}.output.LayerNorm")
    if head == "pooled":
        names |= linear("head.dense", "pooler.dense")
    if head == "mlm":
        names |= linear("head.dense", "cls.predictions.transform.dense")
        names |= layer_norm("head.norm", "cls.predictions.transform.LayerNorm")
        names["head.bias"] = ("cls.predictions.bias", None)
    return names


def gpt2(d_model, layers=2):
    """`GPT2LMHeadModel`, whose three input projections are one matrix (D, 3 D)."""
    names = {
        "embedding.embedding.E": ("transformer.wte.weight", None),
        "embedding.position.W": ("transformer.wpe.weight", None),
    } | layer_norm("layers.norm", "transformer.ln_f")
    for i in range(layers):
        ours, theirs = f"layers.layers.{i}", f"transformer.h.{i}"
        for k, part in enumerate("qkv"):
            for a, b in {"W": "weight", "b": "bias"}.items():
                packed = (f"{theirs}.attn.c_attn.{b}", columns(k, d_model))
                names[f"{ours}.self_attention.sublayer.{part}_proj.{a}"] = packed
        names |= conv1d(f"{ours}.self_attention.sublayer.out_proj", f"{theirs}.attn.c_proj")
        names |= conv1d(f"{ours}.feedforward.sublayer.linear1", f"{theirs}.mlp.c_fc")
        names |= conv1d(f"{ours}.feedforward.sublayer.linear2", f"{theirs}.mlp.c_proj")
        names |= layer_norm(f"{ours}.self_attention.norm", f"{theirs}.ln_1")
        names |= layer_norm(f"{ours}.feedforward.norm", f"{theirs}.ln_2")
    return names


def t5(version, encoder_layers=2, decoder_layers=2):
    """`T5ForConditionalGeneration` of version 1.0 or 1.1."""
    names = {"embedding.E": ("shared.weight", None)}
    if version == "1.1":
        names |= linear("output", "lm_head", bias=False)
    network = {"1.0": {"linear1": "wi", "linear2": "wo"},
               "1.1": {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"}}[version]  # fmt: skip
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        names[f"{side}.norm.gamma"] = (f"{side}.final_layer_norm.weight", None)
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        names[f"{side}.layers.0.self_attention.sublayer.attention.position.W"] = (bias, None)
        attentions = {"self_attention": "0.SelfAttention"}
        attentions |= {"cross_attention": "1.EncDecAttention"} if side == "decoder" else {}
        last = len(attentions)
        for i in range(layers):
            ours, theirs = f"{side}.layers.{i}", f"{side}.block.{i}.layer"
            for a, b in attentions.items():
                for part in ("q", "k", "v", "o"):
                    name = "out" if part == "o" else part
                    names |= linear(f"{ours}.{a}.sublayer.{name}_proj", f"{theirs}.{b}.{part}", bias=False)
                names[f"{ours}.{a}.norm.gamma"] = (f"{theirs}.{b[0]}.layer_norm.weight", None)
            for a, b in network.items():
                names |= linear(f"{ours}.feedforward.sublayer.{a}", f"{theirs}.{last}.DenseReluDense.{b}", bias=False)
            names[f"{ours}.feedforward.norm.gamma"] = (f"{theirs}.{last}.layer_norm.weight", None)
    return names


def llama(tied, layers=2):
    """`LlamaForCausalLM`."""
    names = {"embedding.E": ("model.embed_tokens.weight", None), "layers.norm.gamma": ("model.norm.weight", None)}
    if not tied:
        names |= linear("output", "lm_head", bias=False)
    for i in range(layers):
        ours, theirs = f"layers.layers.{i}", f"model.layers.{i}"
        for part in ("q", "k", "v", "o"):
            name = f"{ours}.self_attention.sublayer.{'out' if part == 'o' else part}_proj"
            names |= linear(name, f"{theirs}.self_attn.{part}_proj", bias=False)
        for part in ("gate", "up", "down"):
            names |= linear(f"{ours}.feedforward.sublayer.{part}_proj", f"{theirs}.mlp.{part}_proj", bias=False)
        names[f"{ours}.self_attention.norm.gamma"] = (f"{theirs}.input_layernorm.weight", None)
        names[f"{ours}.feedforward.norm.gamma"] = (f"{theirs}.post_attention_layernorm.weight", None)
    return names


def vit(layers=2):
    """`ViTForImageClassification`."""
    names = {
        "class_token": ("vit.embeddings.cls_token", None),
        "position.W": ("vit.embeddings.position_embeddings", lambda x: x[0]),
        "patch_embedding.W": ("vit.embeddings.patch_embeddings.projection.weight", lambda x: x.reshape(len(x), -1).T),
        "patch_embedding.b": ("vit.embeddings.patch_embeddings.projection.bias", None),
    } | layer_norm("encoder.norm", "vit.layernorm") | linear("head", "classifier")  # fmt: skip
    for i in range(layers):
        ours, theirs = f"encoder.layers.{i}", f"vit.layers.{i}"
        for a, b in {"q": "q", "k": "k", "v": "v", "out": "o"}.items():
            names |= linear(f"{ours}.self_attention.sublayer.{a}_proj", f"{theirs}.attention.{b}_proj")
        names |= layer_norm(f"{ours}.self_attention.norm", f"{theirs}.layernorm_before")
        names |= layer_norm(f"{ours}.feedforward.norm", f"{theirs}.layernorm_after")
        for k in (1, 2):
            names |= linear(f"{ours}.feedforward.sublayer.linear{k}", f"{theirs}.mlp.fc{k}")
    return names
