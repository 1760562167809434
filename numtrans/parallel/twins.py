"""Twins of a model: the same parameter values, with saved values of their own, and gradients that meet in one sum."""

import copy
import functools
import operator
import threading

from numtrans.errors import ConfigError
from numtrans.module import find_parts, sum_of

PASSING = ("_stack", "training", "counter", "rows")  # attributes of a module that its steps change


class GradientSum:
    """The gradient of one parameter, summed over the shards while they run.

    A gradient is added as soon as all that come before it are there: the first of each shard, in the order of the
    shards, then the second of each, and so on. So the sum does not depend on which thread was faster, and there is one
    array of it and not one a shard.

    Parameters
    ----------
    parameter : Parameter

    Attributes
    ----------
    total : array or None
    """

    def __init__(self, parameter):
        self.parameter, self.lock, self.total = parameter, threading.Lock(), None
        self.begin(0)

    def begin(self, shards):
        """Begin a sum over the gradients of `shards` shards."""
        self.total, self.counts, self.early, self.turn = None, [0] * shards, {}, (0, 0)

    def add(self, shard, *gradient):
        """Add what shard number `shard` gives next: an array, and numbers of rows or None."""
        with self.lock:
            self.early[self.counts[shard], shard] = gradient
            self.counts[shard] += 1
            while self.turn in self.early:
                self._take(self.turn)
                number, shard = self.turn
                self.turn = (number, shard + 1) if shard + 1 < len(self.counts) else (number + 1, 0)

    def end(self):
        """The sum, once all shards are done; some may have given fewer gradients than others."""
        for key in sorted(self.early):
            self._take(key)
        total, self.total = self.total, None
        return total

    def _take(self, key):
        self.total = sum_of(self.total, *self.early.pop(key), self.parameter.data)


def all_parts(model, loss):
    """Modules and parameters of the two, each once, those of the model first."""
    modules, parameters = find_parts(model)
    others = find_parts(loss)
    modules += [module for module in others[0] if not any(module is known for known in modules)]
    parameters += [parameter for parameter in others[1] if not any(parameter is known for known in parameters)]
    return modules, parameters


class Shard:
    """A model and its loss, and lists of their parts, so that no step has to look for them.

    Parameters
    ----------
    model, loss : Module
    """

    def __init__(self, model, loss):
        self.model, self.loss = model, loss
        self.modules, self.parameters = all_parts(model, loss)
        self.dropouts = [module for module in self.modules if hasattr(module, "rows")]
        self.buffered = [module for module in self.modules if module._buffers]
        self.passing = [{*PASSING, *module.transient, *module._buffers} for module in self.modules]
        self.look()

    def look(self):
        """Note what the modules hold now, for `is_current`."""
        self.held = list(self._held())

    def is_current(self):
        """Whether the modules hold what they held: the same parts, tied alike, and the same settings."""
        return all(
            len(now) == len(then) and all(map(operator.is_, now, then)) for now, then in zip(self._held(), self.held)
        )

    def _held(self):
        """For each module a list of what it holds and no step changes: lists and tuples with their items."""
        for module, passing in zip(self.modules, self.passing):
            held = []
            for name, value in vars(module).items():
                if name not in passing:
                    held.append(value)
                    if isinstance(value, (list, tuple)):
                        held.extend(value)
            yield held

    def twin(self, number, totals):
        """Shard `number`: a copy of model and loss over the same parameter values. `totals` has their `GradientSum`.

        What the two hold twice (a tied parameter, a shared layer), the copy holds twice. What is no parameter and no
        buffer is copied: two threads that write into one array would spoil it.

        Raises
        ------
        ConfigError
            If something that a module holds cannot be copied.
        """
        memo = {}
        for parameter, total in zip(self.parameters, totals, strict=True):
            twin = memo[id(parameter)] = copy.copy(parameter)
            twin.collect, twin.grad = functools.partial(total.add, number), None
            memo[id(parameter.data)] = parameter.data
        for module in self.modules:
            memo[id(module._stack)] = []
            for name in (*module.transient, *module._buffers):
                value = getattr(module, name)
                memo[id(value)] = value
        try:
            return Shard(*copy.deepcopy((self.model, self.loss), memo))
        except TypeError as error:
            raise ConfigError(
                f"{type(self.model).__name__}: a part of it cannot be copied for another thread ({error}); "
                "train with workers=1"
            ) from error

    def follow(self, other):
        """Take over what each step may change in `other`, of which this is a twin."""
        for own, module in zip(self.modules, other.modules, strict=True):
            own.training = module.training
        for own, module in zip(self.buffered, other.buffered, strict=True):
            vars(own).update((name, getattr(module, name)) for name in module._buffers)
        for own, parameter in zip(self.parameters, other.parameters, strict=True):
            own.data, own.requires_grad = parameter.data, parameter.requires_grad
            if hasattr(own, "__dict__"):  # of a subclass
                vars(own).update(vars(parameter))

    def check_buffers(self, buffers):
        """Raise `ConfigError` if a forward has put another array in the place of a buffer: it knew its rows only.

        Parameters
        ----------
        buffers : list of dict
            What `buffers` returned before.
        """
        for module, before in zip(self.buffered, buffers, strict=True):
            for name, array in before.items():
                if getattr(module, name) is not array:
                    raise ConfigError(
                        f"{type(module).__name__}: forward has changed the buffer {name!r}, of which every worker has "
                        "one; train with workers=1"
                    )

    def buffers(self):
        """The buffers of each module that has any, by name."""
        return [{name: getattr(module, name) for name in module._buffers} for module in self.buffered]

    def clear(self):
        """Drop what forwards have saved."""
        for module in self.modules:
            module.forget()
