"""Activation recomputation: memory for time. Files of weights are the business of `numtrans.checkpoint`, not of this.

Shapes: those of the module that is wrapped.
"""

from numtrans.errors import ConfigError
from numtrans.layers.kv_cache import KVCache, StackCache, check_no_grad
from numtrans.module import Module, enable_grad, grad_enabled, no_grad

OWN = ("module", "training", "_stack", "_buffers")  # attributes of a Checkpoint itself; all others are the module's
STATE = ("training", "counter", "rows")  # the mode; the count of random draws, and for which rows of a batch they are


class Checkpoint(Module):
    r"""Compute a module's output, forget all that led to it, and compute it again when backward needs it.

    .. math::

        y = f(x) \text{ keeps } x \text{ alone}, \qquad
        dx = \left(\frac{\partial f}{\partial x}(x)\right)^{\!\top} dy \text{ computes } f(x) \text{ once more}

    A stack of ``L`` layers that save ``A`` numbers each, from inputs of ``n`` numbers, holds ``L n + A`` numbers
    instead of ``L A``, and a training step costs 4 forwards instead of 3 (a backward is two). The gradients are the
    module's own, bit for bit: the second forward starts from the same counters of random numbers, the same running
    statistics and modes as the first, and leaves them as it found them. (Only to rounding after `lay_out_weights`,
    which is for generation: the first forward, which saves nothing, then takes one product for several.)

    The wrapper has no name: parameters, state dict and random state are those of the module, and so are attributes, so
    weights load with and without it. Within `no_grad` a call goes straight through. Arrays that a part keeps for a
    look, such as attention weights, are dropped after each forward: look at them within `no_grad`.

    Parameters
    ----------
    module : Module
        Anything with a forward and a backward; a `Checkpoint` inside another is right, too.

    Raises
    ------
    ConfigError
        If `module` is no `Module`.
    BackwardError
        If forward is given a cache and gradients are on, as without the wrapper.

    References
    ----------
    Chen et al. (2016), Training deep nets with sublinear memory cost, arXiv:1604.06174.
    """

    def __init__(self, module):
        super().__init__()
        if not isinstance(module, Module):
            raise ConfigError(f"Checkpoint: module is {module!r}, expected a Module")
        self.module = module

    def forward(self, *inputs, **kwargs):
        """What the module returns. The inputs are kept as they are, so do not write into them before backward."""
        if not grad_enabled():
            return self.module(*inputs, **kwargs)
        if any(is_cache(x) for x in (*inputs, *kwargs.values())):
            check_no_grad(type(self.module).__name__)
        state = forward_state(self.module)
        with no_grad():
            y = self.module(*inputs, **kwargs)
        self.module.drop_transient()
        self.save(inputs, kwargs, state)
        return y

    def backward(self, dy):
        """What the module's backward returns."""
        inputs, kwargs, state = self.saved()
        now = forward_state(self.module)
        set_forward_state(state)
        try:
            with enable_grad():
                self.module(*inputs, **kwargs)
        finally:
            set_forward_state(now)
        self.module.drop_transient()
        return self.module.backward(dy)

    # ---- one with the module

    def named_modules(self, prefix="", _seen=None):
        """Yield this wrapper, then the module and its parts, under the paths that they have without it."""
        seen = set() if _seen is None else _seen
        if id(self) not in seen:
            seen.add(id(self))
            yield prefix, self
            yield from self.module.named_modules(prefix, seen)

    def __getattr__(self, name):
        if name.startswith("__") or "module" not in vars(self):  # asked of a copy that is being made
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.module, name)

    def __setattr__(self, name, value):
        if name in OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)


def checkpoint_layers(model):
    """Wrap each layer of each stack of `model` in a `Checkpoint`, in place; returns the model.

    A stack is a part with a list of modules called ``layers``, as `numtrans.blocks.Encoder` and ``Decoder`` have: so
    this serves all models of `numtrans.models`. Layers that are wrapped already stay as they are.

    Raises
    ------
    ConfigError
        If there is no stack in the model.
    """
    if not isinstance(model, Module):
        raise ConfigError(f"checkpoint_layers: model is {model!r}, expected a Module")
    stacks = [part for part in model.modules() if is_stack(part)]
    if not stacks:
        raise ConfigError(
            f"checkpoint_layers: {type(model).__name__} has no stack, a part with a list of modules called layers. "
            "Wrap parts of it in Checkpoint."
        )
    for stack in stacks:
        stack.layers = [layer if isinstance(layer, Checkpoint) else Checkpoint(layer) for layer in stack.layers]
    return model


def is_stack(module):
    """Whether `module` has a list of modules called ``layers``."""
    layers = vars(module).get("layers")
    return isinstance(layers, list) and all(isinstance(layer, Module) for layer in layers)


def is_cache(x):
    """Whether `x` holds keys and values of earlier tokens: a cache, or a pair of them as `DecoderLayer` takes it."""
    return isinstance(x, (KVCache, StackCache)) or (isinstance(x, (tuple, list)) and any(is_cache(part) for part in x))


def forward_state(module):
    """What a forward reads and changes besides inputs and parameters: (part, name, value), with copies of buffers."""
    state = []
    for part in module.modules():
        state += [(part, name, getattr(part, name)) for name in STATE if hasattr(part, name)]
        state += [(part, name, getattr(part, name).copy()) for name in part._buffers]
    return state


def set_forward_state(state):
    """Put back what `forward_state` returned."""
    for part, name, value in state:
        setattr(part, name, value)
