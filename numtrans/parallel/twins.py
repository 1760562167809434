"""Twins of a model: the same parameter values, with gradients and saved values of their own."""

import copy

from numtrans.module import Module, Parameter


def make_twin(module, memo=None):
    """A copy of the tree of modules in which every array is shared, and gradients and saved values are not.

    What a module holds twice (a tied parameter, a shared layer), the twin holds twice.
    """
    memo = {} if memo is None else memo
    if id(module) in memo:
        return memo[id(module)]
    twin = memo[id(module)] = copy.copy(module)
    for name, value in vars(module).items():
        vars(twin)[name] = _twin_of(value, memo)
    twin._stack = []
    return twin


def _twin_of(value, memo):
    if isinstance(value, Module):
        return make_twin(value, memo)
    if isinstance(value, Parameter):
        if id(value) not in memo:
            memo[id(value)] = copy.copy(value)
            memo[id(value)].grad = None
        return memo[id(value)]
    return type(value)([_twin_of(item, memo) for item in value]) if type(value) in (list, tuple) else value


class Twins:
    """The twins of a model and its loss; kept from step to step, and made anew when the model has other parts.

    Parameters
    ----------
    model, loss : Module
    """

    def __init__(self, model, loss):
        self.model, self.loss = model, loss
        self._modules, self._twins = [], []

    def get(self, number):
        """`number` pairs (model, loss), up to date with the model."""
        modules = list(self.model.modules())
        if modules != self._modules:
            self._modules, self._twins = modules, []
        while len(self._twins) < number:
            pair = make_twin(self.model), make_twin(self.loss)
            self._twins.append((pair, list(pair[0].modules()), pair[0].parameters()))
        parameters = self.model.parameters()
        for _, twin_modules, twin_parameters in self._twins[:number]:
            for module, twin in zip(modules, twin_modules):
                twin.training = module.training
                for name in module._buffers:
                    setattr(twin, name, getattr(module, name))
            for parameter, twin in zip(parameters, twin_parameters):
                twin.data, twin.requires_grad, twin.grad = parameter.data, parameter.requires_grad, None
        return [pair for pair, _, _ in self._twins[:number]]

    def modules(self):
        """The models and the losses."""
        return [module for pair, _, _ in self._twins for module in pair]

    def collect(self, number, spread=map):
        """Add the gradients of the first `number` twins to those of the model, and forget them there.

        `spread` calls a function for each of its jobs, as `map` does.
        """
        own, others = self.model.parameters(), [parameters for _, _, parameters in self._twins[:number]]

        def add(parameters):
            parameter, *twins = parameters
            for twin in twins:
                if twin.grad is not None:
                    parameter.add_grad(twin.grad)
                    twin.grad = None

        for _ in spread(add, zip(own, *others)):
            pass
