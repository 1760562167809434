"""Llamas in GGUF files, the format of llama.cpp, whose matrices may be quantized.

The ``gguf`` package turns quantized blocks into float32. It can read the file too, but takes longer for its vocabulary
than for all the rest, so `read_header` finds the arrays. llama.cpp pairs neighbors of a head in RoPE, so in these
files the rows of the query and key maps are in another order; see ``pairs`` in `numtrans.pretrained.names`.
"""

import math
from pathlib import Path

import numpy as np

from numtrans.errors import CheckpointError
from numtrans.models import Llama, LlamaConfig
from numtrans.pretrained.gguf_vocabulary import read_header
from numtrans.pretrained.hf_names import linear, one
from numtrans.pretrained.names import pairs

# Our field, the name in the file after "llama."
FIELDS = {
    "max_len": "context_length", "d_model": "embedding_length", "num_layers": "block_count",
    "d_ff": "feed_forward_length", "num_heads": "attention.head_count", "num_kv_heads": "attention.head_count_kv",
    "d_kv": "attention.key_length", "norm_eps": "attention.layer_norm_rms_epsilon", "rope_base": "rope.freq_base",
}  # fmt: skip
NEEDED = ("max_len", "d_model", "num_layers", "d_ff", "num_heads", "norm_eps")


class QuantizedTensor:
    """An array in a GGUF file, turned into float32 when it is turned into a NumPy array.

    Parameters
    ----------
    path : Path
    name : str
    shape : tuple
    kind : int
        Its type, a number of ``gguf.GGMLQuantizationType``.
    start : int
        Its first byte in the file.

    Raises
    ------
    CheckpointError
        If the type is not known, or the file ends before the array does.
    """

    def __init__(self, path, name, shape, kind, start):
        gguf = import_gguf()
        self.path, self.name, self.shape, self.start = path, name, shape, start
        try:
            self.kind = gguf.GGMLQuantizationType(kind)
            block, size = gguf.GGML_QUANT_SIZES[self.kind]
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{path}: {name} has type {kind}, which is not known") from error
        if not shape or shape[-1] % block:
            raise CheckpointError(f"{path}: {name} has shape {shape}, but {self.kind.name} comes in blocks of {block}")
        self.rows = (*shape[:-1], shape[-1] // block * size)  # its shape in bytes
        missing = start + math.prod(self.rows) - path.stat().st_size
        if missing > 0:
            raise CheckpointError(f"{path}: the file is truncated: {name} lacks {missing} bytes")

    def __array__(self, dtype=None, copy=None):
        with open(self.path, "rb") as file:
            file.seek(self.start)
            data = np.fromfile(file, np.uint8, math.prod(self.rows)).reshape(self.rows)
        try:
            array = import_gguf().dequantize(data, self.kind)
        except NotImplementedError as error:
            raise CheckpointError(f"{self.path}: {self.name} has type {self.kind.name}, which is not read") from error
        return np.asarray(array, np.float32 if dtype is None else dtype)


def read_gguf(path, dtype=np.float32):
    """The Llama in a GGUF file, in evaluation mode.

    Parameters
    ----------
    path : str or Path
    dtype : dtype, default float32

    Returns
    -------
    Llama

    Raises
    ------
    CheckpointError
        If the file cannot be read, is not of a Llama, or needs what `Llama` has not (experts, scaled RoPE).
    ImportError
        If the ``gguf`` package is not installed.
    """
    from numtrans.pretrained.huggingface import make_model

    path = Path(path)
    import_gguf()
    metadata, entries = read_header(path)
    tensors = {name: QuantizedTensor(path, name, *entry) for name, entry in entries.items()}
    config = read_config(metadata, tensors, path)
    return make_model(Llama, config, rows_of(config), tensors, dtype, path)


def read_config(metadata, tensors, path):
    """The configuration that the named values of a GGUF file describe."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{path}: architecture {architecture} is not supported in a GGUF file; known is llama")
    found = {ours: metadata[f"llama.{name}"] for ours, name in FIELDS.items() if f"llama.{name}" in metadata}
    missing = [f"llama.{FIELDS[name]}" for name in NEEDED if name not in found]
    if missing or "token_embd.weight" not in tensors:
        raise CheckpointError(f"{path}: lacks {', '.join(missing or ['token_embd.weight'])}")
    check_sizes(tensors, found, path)
    refuse_others(metadata, tensors, found, path)
    return LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0], tie_output="output.weight" not in tensors, **found
    )


def check_sizes(tensors, found, path):
    """Raise `CheckpointError` for sizes that are none, or not those of the arrays: they may fill the memory."""
    for name in ("max_len", "d_model", "num_layers", "d_ff", "num_heads", "num_kv_heads", "d_kv"):
        if name in found and (not isinstance(found[name], int) or isinstance(found[name], bool) or found[name] < 1):
            raise CheckpointError(f"{path}: {FIELDS[name]} is {found[name]!r}, expected an integer of at least 1")
    blocks = len({name.split(".")[1] for name in tensors if name.startswith("blk.")})
    shape, width = tensors["token_embd.weight"].shape, found["d_model"]
    if found["num_layers"] != blocks or len(shape) != 2 or shape[1] != width:
        raise CheckpointError(
            f"{path}: the file says {found['num_layers']} layers of width {width}, but holds {blocks}, and "
            f"token_embd.weight of shape {shape}"
        )
    largest = max(max(tensor.shape) for tensor in tensors.values())
    wide = max(found["d_ff"], found["num_heads"] * found.get("d_kv", 1), found.get("num_kv_heads", 1))
    if wide > largest:
        raise CheckpointError(f"{path}: the file says a layer is {wide} wide, but no array is wider than {largest}")


def refuse_others(metadata, tensors, found, path):
    """Raise `CheckpointError` if the file needs what `Llama` has not."""
    d_head = found.get("d_kv", found["d_model"] // found["num_heads"])
    allowed = {
        "rope.dimension_count": (d_head,), "attention.value_length": (d_head,), "rope.scaling.type": ("none",),
        "expert_count": (0,), "expert_used_count": (0,), "attention.sliding_window": (0,),
        "attention.causal": (True,), "use_parallel_residual": (False,),
    }  # fmt: skip
    wrong = [f"{name}={metadata[f'llama.{name}']}, expected {values[0]}" for name, values in allowed.items()
             if np.ndim(metadata.get(f"llama.{name}", 0))
             or metadata.get(f"llama.{name}", values[0]) not in values]  # fmt: skip
    if "rope_freqs.weight" in tensors:
        wrong.append("rope_freqs.weight, frequencies of its own for RoPE")
    known = {f"llama.{name}" for name in (*FIELDS.values(), *allowed, "vocab_size", "rope.scaling.factor")}
    wrong += [f"{name}={metadata[name]}, which is not known" for name in metadata
              if name.startswith("llama.") and name not in known]  # fmt: skip
    if wrong:
        raise CheckpointError(f"{path}: needs what numtrans does not support: {'; '.join(wrong)}")


def rows_of(c):
    """The table of a Llama under llama.cpp's names."""
    rows = one("embedding.E", "token_embd.weight")
    for i in range(c.num_layers):
        a, f, theirs = f"layers.layers.{i}.self_attention", f"layers.layers.{i}.feedforward", f"blk.{i}"
        rows += one(f"{a}.norm.gamma", f"{theirs}.attn_norm.weight")
        rows += linear(f"{a}.sublayer.q_proj", f"{theirs}.attn_q", bias=False, form=pairs(c.num_heads))
        rows += linear(f"{a}.sublayer.k_proj", f"{theirs}.attn_k", bias=False, form=pairs(c.num_kv_heads))
        rows += linear(f"{a}.sublayer.v_proj", f"{theirs}.attn_v", bias=False)
        rows += linear(f"{a}.sublayer.out_proj", f"{theirs}.attn_output", bias=False)
        rows += one(f"{f}.norm.gamma", f"{theirs}.ffn_norm.weight")
        for ours, name in dict(gate_proj="gate", up_proj="up", down_proj="down").items():
            rows += linear(f"{f}.sublayer.{ours}", f"{theirs}.ffn_{name}", bias=False)
    rows += one("layers.norm.gamma", "output_norm.weight")
    return rows + ([] if c.tie_output else linear("output", "output", bias=False))


def import_gguf():
    """The ``gguf`` package."""
    try:
        import gguf
    except ImportError as error:
        raise ImportError('a GGUF file needs the gguf package: pip install "numtrans[pretrained]"') from error
    return gguf
