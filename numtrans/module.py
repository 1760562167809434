"""The protocol of all layers and models: parameters, saved values, gradients, state.

A module computes ``y = module(x)`` and, later, ``dx = module.backward(dy)``. What backward needs, forward puts on a
last-in-first-out stack, so that a module that is used twice in one pass is right when its backwards run in reverse.
"""

import contextlib
from contextvars import ContextVar

import numpy as np

from numtrans.backend import backend_name, get_xp, load_backend, to_device, to_numpy
from numtrans.errors import BackwardError, DtypeError, MixedBackendError, ShapeError, StateDictError

_grad = ContextVar("grad", default=True)  # of a context, so that threads that work for another take over its mode


@contextlib.contextmanager
def _grad_mode(enabled):
    before = grad_enabled()
    _grad.set(enabled)
    try:
        yield
    finally:
        _grad.set(before)


def no_grad():
    """Within this context forward saves nothing for backward. Attention weights are still kept, see `clear`."""
    return _grad_mode(False)


def enable_grad():
    """Within this context forward saves what backward needs, also inside `no_grad`."""
    return _grad_mode(True)


def grad_enabled():
    """False inside `no_grad`, else True."""
    return _grad.get()


class Parameter:
    """An array that is learned, and its gradient.

    Parameters
    ----------
    data : array
        The values; not copied.
    name : str, optional
        Set by the module that the parameter is first assigned to, if not given.

    Attributes
    ----------
    grad : array or None
        None until the first backward and after ``zero_grad()``. Backward passes add to it.
    requires_grad : bool
        False for a frozen parameter: its gradient stays None and optimizers pass it by.
    collect : callable or None
        Where gradients go instead of `grad`, called with a gradient and `rows` of `add_grad`: set while several workers
        share the batch.
    """

    __slots__ = ("__weakref__", "collect", "data", "grad", "name", "requires_grad")

    def __init__(self, data, name=None):
        self.data, self.name = data, name
        self.grad, self.requires_grad, self.collect = None, True, None

    def add_grad(self, grad, rows=None):
        """``self.grad += grad``, or with `rows`, numbers that occur once each, ``self.grad[rows] += grad``.

        The first gradient is kept without a copy, so `grad` must be the caller's own.
        """
        if not self.requires_grad:
            return
        expected = self.data.shape if rows is None else (len(rows), *self.data.shape[1:])
        if grad.shape != expected:
            raise ShapeError(f"Parameter {self.name}: gradient has shape {grad.shape}, expected {expected}")
        if self.collect is not None:
            self.collect(grad, rows)
        else:
            self.grad = sum_of(self.grad, grad, rows, self.data)

    def __repr__(self):
        return f"Parameter({self.name}, shape={tuple(self.data.shape)}, dtype={self.data.dtype})"


def sum_of(total, grad, rows, data):
    """`total` with `grad` added to it, or to its `rows`; None counts as zeros like `data`."""
    if rows is None and total is None:
        return grad
    if rows is None:
        total += grad
        return total
    total = get_xp(data).zeros_like(data) if total is None else total
    total[rows] += grad
    return total


class Module:
    """Base of every layer, loss and model. A subclass writes ``forward`` and ``backward``.

    Attributes that are parameters, modules, or lists of modules are found by themselves, in the order in which they
    were assigned.
    """

    transient = ()  # names of attributes that are kept for a look only: `clear` sets them to None
    needs_whole_batch = False  # whether a row of the output depends on other rows, so that no batch may be split

    def __init__(self):
        self.training = True
        self._stack = []
        self._buffers = []

    def __setattr__(self, name, value):
        if isinstance(value, Parameter) and value.name is None:
            value.name = name
        super().__setattr__(name, value)

    def forward(self, *inputs):
        """The output for `inputs`."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def backward(self, dy):
        """The gradient with respect to each array input, given `dy`, the one with respect to the output."""
        raise TypeError(f"{type(self).__name__} does not define backward")

    def __call__(self, *inputs, **kwargs):
        return self.forward(*inputs, **kwargs)

    # ---- saved values

    def save(self, *values):
        """Put `values` on the stack for the backward of this call. Does nothing inside `no_grad`."""
        if grad_enabled():
            self._stack.append(values)

    def saved(self):
        """Take the values of the latest forward whose backward is still to come.

        Raises
        ------
        BackwardError
            If there is none.
        """
        if not self._stack:
            raise BackwardError(
                f"{type(self).__name__}: backward without a pending forward. Call forward first (not inside no_grad), "
                "and backward once for each forward."
            )
        return self._stack.pop()

    def clear(self):
        """Drop what pending forwards have saved, here and in all parts, and arrays kept for a look.

        Call it after an error in the middle of a forward or a backward: what was saved until then is still there.
        """
        for module in self.modules():
            module.forget()

    def forget(self):
        """What `clear` does, for this module without its parts."""
        self._stack.clear()
        for name in self.transient:
            setattr(self, name, None)

    def drop_transient(self):
        """Drop the arrays kept for a look, here and in all parts; a forward that waits for its backward stays."""
        for module in self.modules():
            for name in module.transient:
                setattr(module, name, None)

    @property
    def pending(self):
        """Number of forwards, here and in all parts, whose backward has not run."""
        return sum(len(module._stack) for module in self.modules())

    # ---- parts

    def named_children(self):
        """Yield (name, module) for each direct part."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                for i, item in enumerate(value):
                    if isinstance(item, Module):
                        yield f"{name}.{i}", item

    def named_modules(self, prefix="", _seen=None):
        """Yield (path, module) for this module and all parts, each once, a whole before its parts."""
        seen = set() if _seen is None else _seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self):
        """List of this module and all parts, each once, in the order of `named_modules`."""
        return find_parts(self)[0]

    def named_parameters(self):
        """Yield (path, parameter), each parameter once: a tied one under its first name."""
        seen = set()
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def parameters(self):
        """List of all parameters, each once, in the order of `named_parameters`."""
        return find_parts(self)[1]

    def register_buffer(self, name, array):
        """Keep `array` as attribute `name`: saved and moved with the module, but not learned."""
        self._buffers.append(name)
        setattr(self, name, array)

    def named_buffers(self):
        """Yield (path, array) for each buffer."""
        for path, module in self.named_modules():
            for name in module._buffers:
                yield (f"{path}.{name}" if path else name), getattr(module, name)

    def num_parameters(self):
        """Number of learned values; tied parameters count once."""
        return sum(parameter.data.size for parameter in self.parameters())

    # ---- modes

    def train(self, mode=True):
        """Set training mode (dropout on, batch statistics) here and in all parts."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self):
        """Set evaluation mode (dropout off, running statistics) here and in all parts."""
        return self.train(False)

    def zero_grad(self):
        """Forget all gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def freeze(self):
        """Learn nothing here or in any part: gradients of these parameters stay None."""
        for parameter in self.parameters():
            parameter.requires_grad, parameter.grad = False, None
        return self

    def unfreeze(self):
        """Undo `freeze`."""
        for parameter in self.parameters():
            parameter.requires_grad = True
        return self

    # ---- state

    def state_dict(self):
        """Copies of all parameters and buffers as NumPy arrays, by name."""
        state = {name: np.array(to_numpy(parameter.data)) for name, parameter in self.named_parameters()}
        state.update((name, np.array(to_numpy(buffer))) for name, buffer in self.named_buffers())
        return state

    def load_state_dict(self, state):
        """Copy the arrays of `state` into the parameters and buffers, converted to their dtype and backend.

        Raises
        ------
        StateDictError
            If names are missing or unexpected, or shapes differ; all of them are listed and nothing is changed.
        """
        own = dict(self.named_parameters())
        buffers = dict(self.named_buffers())
        shapes = {name: tuple(p.data.shape) for name, p in own.items()}
        shapes.update((name, tuple(np.shape(b))) for name, b in buffers.items())
        problems = [f"missing: {name}" for name in shapes if name not in state]
        problems += [f"unexpected: {name}" for name in state if name not in shapes]
        problems += [
            f"wrong shape: {name} is {tuple(np.shape(state[name]))}, expected {shape}"
            for name, shape in shapes.items()
            if name in state and tuple(np.shape(state[name])) != shape
        ]
        if problems:
            raise StateDictError(f"{type(self).__name__}: state dict does not fit.\n  " + "\n  ".join(problems))
        for name, parameter in own.items():
            parameter.data = _like(state[name], parameter.data)
        for path, module in self.named_modules():
            for name in module._buffers:
                full = f"{path}.{name}" if path else name
                setattr(module, name, _like(state[full], getattr(module, name)))

    def random_state(self):
        """Counters of all parts that draw random numbers (dropout), by path: save them to redraw the same numbers."""
        return {path: module.counter for path, module in self.named_modules() if hasattr(module, "counter")}

    def load_random_state(self, state):
        """Set the counters that `random_state` returned."""
        for path, module in self.named_modules():
            if path in state and hasattr(module, "counter"):
                module.counter = int(state[path])

    def to(self, backend):
        """Move parameters, gradients and buffers to ``"numpy"`` or ``"cupy"``, in place; returns the module."""
        load_backend(backend)
        return self._convert(lambda array: to_device(array, backend))

    def astype(self, dtype):
        """Convert parameters, gradients and floating buffers to `dtype`, in place; returns the module."""
        return self._convert(lambda array: array.astype(dtype) if array.dtype.kind in "fc" else array)

    def _convert(self, function):
        for parameter in self.parameters():
            parameter.data = function(parameter.data)
            if parameter.grad is not None:
                parameter.grad = function(parameter.grad)
        for module in self.modules():
            for name in module._buffers:
                setattr(module, name, function(getattr(module, name)))
        return self

    # ---- checks of what a user passes in

    def check_floating(self, name, x, like=None):
        """Raise unless `x` is a floating array, of the dtype and backend of the parameter or array `like`."""
        if type(x) is type(like) and x.dtype == like.dtype and x.dtype.kind in "fc":
            return  # the common case, at once
        if not hasattr(x, "dtype"):
            raise DtypeError(f"{type(self).__name__}: {name} must be a numpy or cupy array, got {type(x).__name__}")
        if x.dtype.kind not in "fc":
            raise DtypeError(f"{type(self).__name__}: {name} has dtype {x.dtype}, expected floating point")
        if like is None:
            return
        if backend_name(x) != backend_name(like):
            raise MixedBackendError(
                f"{type(self).__name__}: {name} is a {backend_name(x)} array, expected {backend_name(like)}. Move one: "
                'model.to("cupy") moves parameters, numtrans.to_device(x, "cupy") moves data.'
            )
        if x.dtype != like.dtype:
            raise DtypeError(
                f"{type(self).__name__}: {name} has dtype {x.dtype}, expected {like.dtype}. "
                f"Convert one of them: {name}.astype({like.dtype}) or module.astype({x.dtype})."
            )

    def check_last_axis(self, x, size, name="input", like=None, label="d_model"):
        """Raise unless `x` is floating (see `check_floating`) and its last axis has `size` entries."""
        self.check_floating(name, x, like)
        if x.ndim == 0 or x.shape[-1] != size:
            last = x.shape[-1] if x.ndim else "none"
            raise ShapeError(
                f"{type(self).__name__}: {name} has last axis {last}, expected {label}={size} (shape {tuple(x.shape)})"
            )

    def check_dy(self, dy, shape, like):
        """Raise unless `dy` has `shape`, the shape of the output, and the dtype and backend of `like`."""
        self.check_floating("dy", dy, like)
        if tuple(dy.shape) != tuple(shape):
            raise ShapeError(
                f"{type(self).__name__}: dy has shape {tuple(dy.shape)}, expected that of the output, {tuple(shape)}"
            )


def find_parts(module):
    """All modules of the tree of `module` and all their parameters, each once.

    The order is that of `Module.named_modules` and `Module.named_parameters`. Training asks for them in every step, so
    this does without names, which cost most of the time, and asks each type only once what it is.

    Returns
    -------
    modules : list of Module
    parameters : list of Parameter
    """
    modules, parameters = {}, {}
    _visit(module, modules, parameters)
    return list(modules.values()), list(parameters.values())


def _visit(module, modules, parameters):
    if id(module) in modules:
        return
    modules[id(module)] = module
    parts = []
    for value in vars(module).values():
        kind = _kinds.get(type(value)) or _kind_of(type(value))
        if kind is Module:
            parts.append(value)
        elif kind is Parameter:
            parameters[id(value)] = value
        elif kind is list and value:
            parts.extend(item for item in value if isinstance(item, Module))
    for part in parts:
        _visit(part, modules, parameters)


_kinds = {}


def _kind_of(cls):
    """Which of the types that matter for `find_parts` the class `cls` is; `object` for none."""
    kind = next((kind for kind in (Module, Parameter, list, tuple) if issubclass(cls, kind)), object)
    _kinds[cls] = list if kind is tuple else kind
    return _kinds[cls]


def _like(array, target):
    """A copy of `array` with the dtype and on the backend of `target`."""
    xp = get_xp(target)
    return xp.array(to_device(to_numpy(array), backend_name(target)), dtype=target.dtype)
