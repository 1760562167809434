"""Weights of our own modules in safetensors files, under our own names."""

from numtrans.checkpoint import load_weights, save_weights


def save(module, path):
    """Write all parameters and buffers of `module` to the safetensors file `path`, whole or not at all.

    For a file that other libraries read, see `save_pretrained` and `to_torch_state_dict`.
    """
    save_weights(module, path)


def load(module, path):
    """Read a file of `save`, or the model of a training checkpoint, into `module`, and return it.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or its names or shapes do not fit `module`; all that differ are listed.
    """
    load_weights(module, path)
    return module
