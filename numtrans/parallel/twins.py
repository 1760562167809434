"""Twins of a model: the same parameter values, with saved values of their own, and gradients that meet in one sum."""

import copy
import threading

from numtrans.module import Module, Parameter, find_parts, sum_of


class GradientSum:
    """The gradient of one parameter, summed over the shards while they run.

    A gradient is added as soon as all that come before it are there: the first of each shard, in the order of the
    shards, then the second of each, and so on. So the sum does not depend on which thread was faster, and there is one
    array of it and not one a shard.

    Attributes
    ----------
    total : array or None
    """

    def __init__(self):
        self.lock, self.total = threading.Lock(), None
        self.begin(0)

    def begin(self, shards):
        """Begin a sum over the gradients of `shards` shards."""
        self.total, self.counts, self.early, self.turn = None, [0] * shards, {}, (0, 0)

    def add(self, shard, *gradient):
        """Add what shard number `shard` gives next: an array, numbers of rows or None, the values of the parameter."""
        with self.lock:
            self.early[self.counts[shard], shard] = gradient
            self.counts[shard] += 1
            while self.turn in self.early:
                self.total = sum_of(self.total, *self.early.pop(self.turn))
                number, shard = self.turn
                self.turn = (number, shard + 1) if shard + 1 < len(self.counts) else (number + 1, 0)

    def end(self):
        """The sum, once all shards are done; some may have given fewer gradients than others."""
        for key in sorted(self.early):
            self.total = sum_of(self.total, *self.early.pop(key))
        total, self.total = self.total, None
        return total


class TwinParameter(Parameter):
    """The values of a parameter, for shard number `shard`, whose gradients go into `total`, a `GradientSum`."""

    __slots__ = ("shard", "total")

    def __init__(self, parameter, shard, total):
        super().__init__(parameter.data, parameter.name)
        self.shard, self.total = shard, total

    def _accumulate(self, grad, rows):
        self.total.add(self.shard, grad, rows, self.data)


def make_twin(module, memo):
    """A copy of the tree of modules in which every array is shared, and saved values are not.

    What a module holds twice (a tied parameter, a shared layer), the twin holds twice.

    Parameters
    ----------
    module : Module
    memo : dict
        The twin of each parameter by its ``id``; modules are added to it.
    """
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

    def twin(self, number, totals):
        """Shard `number`: a twin of the model and one of the loss. `totals` has a `GradientSum` for each parameter."""
        pairs = zip(self.parameters, totals, strict=True)
        memo = {id(parameter): TwinParameter(parameter, number, total) for parameter, total in pairs}
        return Shard(make_twin(self.model, memo), make_twin(self.loss, {}))

    def follow(self, other):
        """Take over what may have changed in `other`, of which this is a twin."""
        for own, module in zip(self.modules, other.modules, strict=True):
            own.training = module.training
            for name in module._buffers:
                setattr(own, name, getattr(module, name))
        for own, parameter in zip(self.parameters, other.parameters, strict=True):
            own.data, own.requires_grad = parameter.data, parameter.requires_grad

    def clear(self):
        """Drop what forwards have saved."""
        for module in self.modules:
            module.forget()
        self.loss.clear()
