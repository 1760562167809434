"""Files that are whole or not there: arrays with settings as safetensors, JSON and text.

A file is written under a temporary name in its own folder, forced to the disk, and then renamed over the old one. A
full disk or a killed process leaves the old file as it was.

The layout of a safetensors file: 8 bytes with the length of the header (little-endian), the header (JSON: for each
array its dtype, shape and place; strings under ``__metadata__``), and the arrays, one after another. Nothing in it can
run code, as a pickle can.
"""

import contextlib
import json
import os
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from numtrans.errors import CheckpointError, StateDictError

_MARK = "numtrans"  # the key of the metadata under which our settings lie
_MAX_HEADER = 100_000_000  # the limit of the format


def write_arrays(path, arrays, kind, settings=None, metadata=None):
    """Write `arrays` (name -> NumPy array) and `settings` (what JSON can hold) to `path`, whole or not at all.

    Parameters
    ----------
    path : str or Path
    arrays : dict
    kind : str
        What the file is, such as ``"weights"``.
    settings : dict, optional
    metadata : dict of str, optional
        What other programs look for in the file, such as ``{"format": "pt"}``.

    Raises
    ------
    CheckpointError
        If the file cannot be written; an old one is left as it was.
    """
    metadata = {**(metadata or {}), _MARK: json.dumps({"kind": kind, "version": 1, "settings": settings or {}})}
    rows = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # safetensors scrambles other layouts
    _replace(path, safetensors.numpy.save(rows, metadata))


def read_arrays(path):
    """What `write_arrays` wrote.

    Returns
    -------
    arrays : dict
        Name -> NumPy array.
    kind : str
    settings : dict

    Raises
    ------
    CheckpointError
        If the file is missing, empty, truncated, not safetensors, or not written by numtrans; the message says which.
    """
    path = Path(path)
    _, metadata, _ = read_header(path)
    try:
        content = json.loads(metadata[_MARK])
        kind, settings = content["kind"], content["settings"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: a safetensors file, but not written by numtrans: its metadata has keys {sorted(metadata)}, "
            f"expected {_MARK!r}"
        ) from error
    try:
        return safetensors.numpy.load_file(path), kind, settings
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def read_header(path):
    """What the safetensors file `path` holds, after checks of its header and its size.

    Returns
    -------
    entries : dict
        Name -> ``{"dtype": ..., "shape": ..., "data_offsets": [begin, end]}``.
    metadata : dict
        Strings by name.
    start : int
        Where in the file the offsets count from.

    Raises
    ------
    CheckpointError
        If the file is missing, empty, truncated, or not safetensors.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            header = file.read(min(length, _MAX_HEADER))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError for a name that holds a zero byte
        raise CheckpointError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if size == 0:
        raise CheckpointError(f"{path}: the file is empty")
    if size >= 8 and (length > _MAX_HEADER or header[:1] not in (b"", b"{")):
        raise CheckpointError(f"{path}: not a safetensors file")
    if size < 8 + length or length == 0:
        raise CheckpointError(f"{path}: the file is truncated: it has {size} bytes, its header ends at {8 + length}")
    try:
        entries = json.loads(header)
        metadata = entries.pop("__metadata__", {})
        end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: its header is not as it should be") from error
    if size < end:
        raise CheckpointError(f"{path}: the file is truncated: it has {size} bytes, expected {end}")
    return entries, metadata, 8 + length


def save_weights(module, path, settings=None):
    """Write all parameters and buffers of `module` to `path` (safetensors), whole or not at all.

    Parameters
    ----------
    module : Module
    path : str or Path
    settings : dict, optional
        Kept in the file; JSON must be able to hold it.
    """
    write_arrays(path, module.state_dict(), "weights", settings)


def load_weights(module, path):
    """Read a file of `save_weights`, or the model of a training checkpoint, into `module`.

    Returns
    -------
    dict
        The settings that were saved along.

    Raises
    ------
    CheckpointError
        If the file cannot be read (see `read_arrays`) or its names or shapes do not fit `module`.
    """
    arrays, kind, settings = read_arrays(path)
    if kind == "training":
        arrays = under("model", arrays)
    load_state(module, arrays, path)
    return settings


def load_state(target, state, path):
    """``target.load_state_dict(state)``, with the name of the file in the error."""
    try:
        target.load_state_dict(state)
    except StateDictError as error:
        raise CheckpointError(f"{path}: does not fit. {error}") from error


def under(prefix, arrays):
    """The entries of `arrays` whose names start with ``prefix.``, without it."""
    return {name[len(prefix) + 1 :]: array for name, array in arrays.items() if name.startswith(prefix + ".")}


def write_text(path, text):
    """Write `text` (UTF-8) to `path`, whole or not at all."""
    _replace(path, text.encode())


def write_json(path, value):
    """Write `value` as JSON to `path`, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def append_text(path, text):
    """Add `text` to the end of the file `path`."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_folder(path):
    """Make the folder `path` if need be, and see that files can be written there.

    Raises
    ------
    CheckpointError
        If not; the message has the cause.
    """
    path = Path(path)
    probe = path / f".probe-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CheckpointError(f"{path}: not a folder that can be written to: {error.strerror or error}") from error


def _replace(path, data):
    """Put the bytes `data` in place of the file `path` in one step."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise CheckpointError(
                f"{path}: cannot be written: {error.strerror or error}. A file that was there is unchanged."
            ) from error
        raise
    with contextlib.suppress(OSError):  # the new name, too, must reach the disk; Windows cannot open folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
