"""Twins of a model: the same parameter values, with gradients and saved values of their own."""

import copy

from numtrans.module import Module, Parameter, find_parts


def make_twin(module, memo=None):
    """A copy of the tree of modules in which every array is shared, and gradients and saved values are not.

    What a module holds twice (a tied parameter, a shared layer), the twin holds twice.
    """
    memo = {} if memo is None else memo
    if id(module) not in memo:
        twin = memo[id(module)] = copy.copy(module)
        for name, value in vars(module).items():
            vars(twin)[name] = _twin_of(value, memo)
        twin._stack = []
    return memo[id(module)]


def _twin_of(value, memo):
    if isinstance(value, Module):
        return make_twin(value, memo)
    if isinstance(value, Parameter):
        if id(value) not in memo:
            memo[id(value)] = copy.copy(value)
        return memo[id(value)]
    return type(value)([_twin_of(item, memo) for item in value]) if type(value) in (list, tuple) else value


class Shard:
    """A model and its loss, and lists of their parts, so that no step has to look for them.

    Parameters
    ----------
    model, loss : Module
    """

    def __init__(self, model, loss):
        self.model, self.loss = model, loss
        self.modules, self.parameters = find_parts(model)
        self.dropouts = [module for module in self.modules if hasattr(module, "rows")]

    def is_current(self):
        """Whether the lists are still those of the model."""
        return (self.modules, self.parameters) == find_parts(self.model)

    def twin(self):
        """A shard with a twin of the model and one of the loss."""
        return Shard(make_twin(self.model), make_twin(self.loss))

    def follow(self, other):
        """Take over what may have changed in `other`, of which this is a twin, and forget gradients."""
        for own, module in zip(self.modules, other.modules, strict=True):
            own.training = module.training
            for name in module._buffers:
                setattr(own, name, getattr(module, name))
        for own, parameter in zip(self.parameters, other.parameters, strict=True):
            own.data, own.requires_grad, own.grad = parameter.data, parameter.requires_grad, None

    def clear(self):
        """Drop what forwards have saved."""
        self.model.clear()
        self.loss.clear()
