"""The arrays of a Hugging Face folder: one safetensors file, or several with an index. Never a pickle.

A file is checked as a whole and its arrays are read one after another, when asked for. bfloat16, which NumPy has not,
is the upper half of float32, so its 16 bits are shifted up by 16.
"""

import json
import math
from pathlib import Path

import numpy as np

from numtrans.checkpoint import read_header
from numtrans.errors import CheckpointError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U8": "u1", "BOOL": "?",
}  # fmt: skip


class Tensor:
    """An array in a file, read when it is turned into a NumPy array.

    Parameters
    ----------
    path : Path
        A safetensors file.
    name, dtype : str
        Its name, and the dtype as the format spells it, such as ``"BF16"``.
    shape : tuple
    start : int
        Its first byte in the file.
    """

    def __init__(self, path, name, dtype, shape, start):
        self.path, self.name, self.dtype, self.shape, self.start = path, name, dtype, shape, start

    def __array__(self, dtype=None, copy=None):
        if self.dtype not in DTYPES:
            raise CheckpointError(
                f"{self.path}: {self.name} has dtype {self.dtype}, which is not read; expected one of "
                f"{', '.join(DTYPES)}"
            )
        stored = np.dtype(DTYPES[self.dtype])
        with open(self.path, "rb") as file:
            file.seek(self.start)
            array = np.fromfile(file, stored, math.prod(self.shape)).reshape(self.shape)
        if self.dtype == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array if dtype is None else array.astype(dtype)


def read_tensors(folder):
    """Name -> `Tensor` of all arrays in `folder`.

    Raises
    ------
    CheckpointError
        If there are no weights but a pickle, or none at all; if a file is missing, truncated or not safetensors, or
        the index names an array that is not in its file.
    """
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return read_file(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        raise CheckpointError(no_weights(folder))
    try:
        places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        files = {name: folder / Path(file).name for name, file in places.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / INDEX}: not an index of shards: expected JSON with weight_map") from error
    shards = {file: read_file(file) for file in sorted(set(files.values()))}
    absent = [f"{name} in {file.name}" for name, file in files.items() if name not in shards[file]]
    if absent:
        raise CheckpointError(f"{folder / INDEX} names arrays that are not there: {', '.join(absent)}")
    return {name: shards[file][name] for name, file in files.items()}


def read_file(path):
    """Name -> `Tensor` of one safetensors file, whose header and size are right."""
    entries, _, start = read_header(path)
    tensors = {}
    for name, entry in entries.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            size = math.prod(shape) * np.dtype(DTYPES.get(dtype, "u1")).itemsize
            if not all(isinstance(number, int) for number in (*shape, begin, end)):
                raise TypeError(f"{name} has a size or a place that is no whole number")
            fits = dtype not in DTYPES or (begin >= 0 and end - begin == size and min(shape, default=0) >= 0)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: not a safetensors file: {name} has no dtype, shape and place") from error
        if not fits:
            raise CheckpointError(
                f"{path}: corrupt: {name}, {dtype} of shape {shape}, has {end - begin} bytes, expected {size}"
            )
        tensors[name] = Tensor(path, name, dtype, shape, start + begin)
    return tensors


def no_weights(folder):
    """What to say of a folder without safetensors."""
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if not pickles:
        return f"{folder}: no weights: expected {WEIGHTS}, or {INDEX} and the files that it names, or a .gguf file"
    return (
        f"{folder}: holds {', '.join(pickles)} and no {WEIGHTS}. A .bin file is a pickle, which can run any code, so "
        f"it is not read. If you trust it, convert it once, in this folder, with PyTorch:\n"
        f'  import torch, safetensors.torch; state = torch.load("{pickles[0]}", weights_only=True)\n'
        f"  safetensors.torch.save_file({{name: t.clone().contiguous() for name, t in state.items()}}, "
        f'"{WEIGHTS}", {{"format": "pt"}})'
    )
