"""Tables of names: how the arrays of another library correspond to the parameters of a module.

A table is a list of `Row`. Read forwards it fills a module, read backwards it writes the other library's arrays. All
that differs is in the row's form:

================  ===================================================  =====================================
form              their array                                          ours
================  ===================================================  =====================================
``SAME``          as it is                                             as it is
``TRANSPOSED``    ``nn.Linear`` keeps (out, in)                        (in, out), for ``y = x @ W``
``FIRST``         one axis of length 1 in front                        without it
``kernel(C, P)``  a convolution's (out, C, P, P)                       (C * P * P, out)
``pairs(H)``      as ``TRANSPOSED``, features of a head in pairs       (in, out), features of a head in halves
================  ===================================================  =====================================

Several names on our side lie side by side along our last axis: PyTorch packs the maps of queries, keys and values into
one ``in_proj_weight``, GPT-2 into ``c_attn``.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numtrans.backend import backend_name, to_device
from numtrans.errors import ConfigError, StateDictError


class Form(NamedTuple):
    """How one array is written in the other library: `read` makes ours of theirs, `write` the reverse."""

    read: Callable
    write: Callable


class Row(NamedTuple):
    """One array of the other library, the parameters of ours that it holds, and its form."""

    theirs: str
    ours: tuple
    form: Form


def transpose(a):
    """Axes in reverse order."""
    return a.T


SAME = Form(lambda a: a, lambda a: a)
TRANSPOSED = Form(transpose, transpose)
FIRST = Form(lambda a: a[0], lambda a: a[None])


def kernel(channels, size):
    """The form of a convolution whose patches do not overlap: a linear map of the pixels of a patch."""
    return Form(lambda a: a.reshape(len(a), -1).T, lambda a: a.T.reshape(-1, channels, size, size))


def pairs(num_heads):
    """The form of a query or key map whose RoPE turns neighbors (2i, 2i + 1) of a head, for ours, which turns halves.

    Feature i of the first half is their feature 2i, and of the second half their 2i + 1.
    """

    def read(a):
        out, width = a.shape
        return a.reshape(num_heads, -1, 2, width).swapaxes(1, 2).reshape(out, width).T

    def write(a):
        width, out = a.shape
        return a.T.reshape(num_heads, 2, -1, width).swapaxes(1, 2).reshape(out, width)

    return Form(read, write)


def fill(module, rows, arrays, *, stream=False):
    """Copy `arrays` (their name -> array) into the parameters and buffers of `module` that `rows` name.

    Parameters
    ----------
    module : Module
    rows : list of Row
    arrays : mapping
        NumPy arrays, torch tensors, or what has a ``shape`` and turns into an array.
    stream : bool, default False
        Convert and copy one after another, for a new module that is thrown away if an array cannot be read. Else all
        are converted first, so that after an error nothing is changed.

    Raises
    ------
    StateDictError
        If names are missing or unexpected, or shapes differ; all of them are listed and nothing is changed.
    """
    shapes = shapes_of(module)
    problems = differences(rows, arrays, shapes)
    if problems:
        raise StateDictError(f"{type(module).__name__}: the arrays do not fit.\n  " + "\n  ".join(problems))
    parameters = dict(module.named_parameters())
    buffers = {f"{path}.{name}" if path else name: (part, name)
               for path, part in module.named_modules() for name in part._buffers}  # fmt: skip

    def target(name):
        return parameters[name].data if name in parameters else getattr(*buffers[name])

    copies = ((name, copy_like(array, target(name))) for name, array in read(rows, arrays, shapes))
    for name, array in copies if stream else list(copies):
        if name in parameters:
            parameters[name].data = array
        else:
            setattr(*buffers[name], array)


def read(rows, arrays, shapes):
    """Yield (our name, our array) for all `rows`, one after another; views where the form allows it.

    Raises
    ------
    StateDictError
        If an array holds no floating-point numbers: integers are quantized weights, which need their scales, and of
        complex numbers half would be lost.
    """
    for row in rows:
        array = as_array(arrays[row.theirs])
        if array.dtype.kind != "f":
            raise StateDictError(f"{row.theirs} has dtype {array.dtype}, expected floating-point numbers")
        ours = row.form.read(array)
        ends = np.cumsum([shapes[name][-1] for name in row.ours])[:-1]
        yield from zip(row.ours, np.split(ours, ends, axis=-1))


def write(rows, state):
    """Their arrays by their names, from `state` (our name -> array)."""
    return {
        row.theirs: np.ascontiguousarray(row.form.write(np.concatenate([state[name] for name in row.ours], axis=-1)))
        for row in rows
    }


def differences(rows, arrays, shapes):
    """What keeps `arrays` from filling `rows`: missing, unexpected, wrong shapes; one line each."""
    names = {row.theirs for row in rows}
    problems = [f"missing: {row.theirs}" for row in rows if row.theirs not in arrays]
    problems += [f"unexpected: {name}" for name in arrays if name not in names]
    for row in rows:
        if row.theirs in arrays:
            found, expected = tuple(arrays[row.theirs].shape), their_shape(row, shapes)
            if found != expected:
                problems.append(f"wrong shape: {row.theirs} is {found}, expected {expected}")
    return problems


def their_shape(row, shapes):
    """The shape of their array, from ours; no memory is used."""
    parts = [shapes[name] for name in row.ours]
    width = sum(shape[-1] for shape in parts)
    return row.form.write(np.broadcast_to(np.int8(0), (*parts[0][:-1], width))).shape


def shapes_of(module):
    """Our name -> shape of all parameters and buffers."""
    shapes = {name: tuple(parameter.data.shape) for name, parameter in module.named_parameters()}
    shapes.update((name, tuple(np.shape(buffer))) for name, buffer in module.named_buffers())
    return shapes


def check_complete(owner, rows, module):
    """Raise `ConfigError` unless `rows` name every parameter and buffer of `module`."""
    covered = {name for row in rows for name in row.ours}
    left = [name for name in shapes_of(module) if name not in covered]
    if left:
        raise ConfigError(f"{owner} has no counterpart of {', '.join(left)}")


def as_array(value):
    """A NumPy array of `value`: an array, a torch tensor (also bfloat16, also one with a gradient), or a `Tensor`."""
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu()
            value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
        except (NotImplementedError, TypeError, RuntimeError) as error:  # without data, sparse, quantized
            raise StateDictError(f"a torch tensor cannot be read: {error}") from error
    return np.asarray(value)


def copy_like(array, target):
    """A copy of the NumPy array with the dtype and on the backend of `target`."""
    return to_device(np.array(array, dtype=target.dtype, order="C"), backend_name(target))
