"""From arrays of PyTorch and of `transformers`, weights or gradients, to ours: by the tables of `numtrans.pretrained`.

A table only moves and selects entries, so that it takes gradients to ours as it takes weights. Each function returns
one that does so, from a dict by their names to a dict by ours.
"""

import re

from numtrans.pretrained.hf_names import NAMES, plain_names
from numtrans.pretrained.names import SAME, Row, read, shapes_of
from numtrans.pretrained.torch_names import encoder_decoder, torch_rows, under

# What the files of a ViT call otherwise than the model that transformers makes of them.
VIT = {
    r"^(vit\.)?layers\.": "encoder.layer.", r"attention\.q_proj": "attention.attention.query",
    r"attention\.k_proj": "attention.attention.key", r"attention\.v_proj": "attention.attention.value",
    r"attention\.o_proj": "attention.output.dense", r"mlp\.fc1": "intermediate.dense", r"mlp\.fc2": "output.dense",
}  # fmt: skip


def of_torch(module):
    """From the counterpart in `torch.nn`; for an encoder with a decoder that is `torch.nn.Transformer`."""
    rows = encoder_decoder(module) if hasattr(module, "encoder") else torch_rows(module)
    return lambda arrays: dict(read(rows, arrays, shapes_of(module)))


def of_seq2seq(model):
    """From `Seq2Seq` of torch_checks.py, for `numtrans.models.Transformer`."""
    rows = under("stacks.", "", encoder_decoder(model))
    rows += [Row(f"{side}.weight", (f"{side}_embedding.embedding.E",), SAME) for side in ("src", "tgt")]
    return lambda arrays: dict(read(rows, arrays, shapes_of(model)))


def of_huggingface(kind, model):
    """From the counterpart in `transformers`; `kind` is ``"bert"``, ``"gpt2"``, ``"t5"``, ``"llama"`` or ``"vit"``."""
    rows = NAMES[kind].rows(model.config)

    def translate(arrays):
        if kind == "vit":
            for pattern, name in VIT.items():
                arrays = {re.sub(pattern, name, key): array for key, array in arrays.items()}
        return dict(read(rows, plain_names(kind, arrays), shapes_of(model)))

    return translate
