"""The base of all optimizers: parameter groups, state beside each parameter, saving and loading it."""

import numbers

import numpy as np

from numtrans.backend import backend_name, get_xp, to_device, to_numpy
from numtrans.errors import ConfigError, ShapeError, StateDictError
from numtrans.module import Parameter

JOB = 1 << 20  # values that a thread updates at a time; for less, handing over costs more than it saves


class Optimizer:
    """Base of `SGD`, `Adam` and `AdamW`. A subclass writes ``update``.

    Parameters
    ----------
    params : list of Parameter, or list of dict
        Each dict is a group: ``{"params": [...], "lr": ..., "weight_decay": ...}``, whose other entries override the
        settings of the optimizer. A parameter that is given twice in one list, such as a tied one, is stepped once.
    **defaults
        The settings of groups that do not have their own; ``lr`` is one of them.

    Attributes
    ----------
    groups : list of dict
        The groups with all their settings.
    state : dict
        Parameter -> dict of its step count and arrays. Made at the first step of each parameter.

    Raises
    ------
    ConfigError
        If there are no parameters, a parameter is in two groups, or a setting is unknown or out of range.
    """

    def __init__(self, params, **defaults):
        self.groups, self.state, self._lr = [], {}, defaults["lr"]
        if not hasattr(params, "__iter__"):
            raise self._error(f"got a {type(params).__name__}, expected a list of parameters: module.parameters()")
        params = list(params)
        groups = params if params and isinstance(params[0], dict) else [{"params": params}]
        seen = set()
        for given in groups:
            unknown = [name for name in given if name not in defaults and name != "params"]
            if "params" not in given or unknown:
                raise self._error(f"a group has keys {list(given)}, expected params and any of {list(defaults)}")
            group = {**defaults, **given, "params": list(given["params"])}
            self._check_group(group, seen)
            group["lr_scale"] = group["lr"] / self._lr if group["lr"] != self._lr else 1.0
            self.groups.append(group)
        if not seen:
            raise self._error("got no parameters")

    def _error(self, message):
        return ConfigError(f"{type(self).__name__}: {message}")

    def _check_group(self, group, seen):
        for parameter in group["params"]:
            if not isinstance(parameter, Parameter):
                raise self._error(f"expected Parameter objects, got {type(parameter).__name__}")
        group["params"] = list(dict.fromkeys(group["params"]))  # each once
        for parameter in group["params"]:
            if parameter in seen:
                raise self._error(f"{parameter!r} is in two groups")
        seen.update(group["params"])
        for name in ("lr", "weight_decay", "eps", "momentum"):
            value = group.get(name, 0.0)
            if not isinstance(value, numbers.Real) or not 0 <= value < float("inf"):
                raise self._error(f"{name} is {value!r}, expected a number of 0 or more")
        for beta in group.get("betas", ()):
            if not 0 <= beta < 1:
                raise self._error(f"betas are {group['betas']}, expected 0 <= value < 1")
        if self._lr == 0 and group["lr"] != 0:
            raise self._error(f"a group has lr {group['lr']} while the lr of the optimizer is 0")

    @property
    def lr(self):
        """The learning rate. Setting it sets that of every group, which keep their ratios to it."""
        return self._lr

    @lr.setter
    def lr(self, value):
        if not 0 <= value < float("inf"):
            raise self._error(f"lr is {value!r}, expected a number of 0 or more")
        self._lr = float(value)
        for group in self.groups:
            group["lr"] = self._lr * group["lr_scale"]

    @property
    def parameters(self):
        """List of all parameters, group after group."""
        return [parameter for group in self.groups for parameter in group["params"]]

    def zero_grad(self):
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, spread=map):
        """Update every parameter that is not frozen and has a gradient, in place.

        `spread` calls a function for each of its jobs, as ``map`` does; that of a pool does so on several threads, so
        that `update` runs for several parameters at once.

        Raises
        ------
        ShapeError
            If a gradient has not the shape of its parameter; nothing is changed then.
        """

        def update(job):
            for parameter, state, group in job:
                state["step"] += 1
                self.update(parameter, state, group)

        jobs, size = [[]], 0
        for group in self.groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.grad is not None:
                    self._check_gradient(parameter)
                    if size > JOB:
                        jobs.append([])
                        size = 0
                    jobs[-1].append((parameter, self._state_of(parameter, group), group))
                    size += parameter.data.size
        for _ in spread(update, jobs):
            pass

    def _check_gradient(self, parameter):
        if parameter.grad.shape != parameter.data.shape:
            raise ShapeError(
                f"{type(self).__name__}: the gradient of {parameter.name} has shape {tuple(parameter.grad.shape)}, "
                f"expected {tuple(parameter.data.shape)}"
            )

    def update(self, parameter, state, group):
        """One step of one parameter."""
        raise TypeError(f"{type(self).__name__} does not define update")

    def state_names(self, group):
        """Names of the arrays that are kept for each parameter of `group`."""
        return ()

    def _state_of(self, parameter, group):
        """The state of `parameter`: zeros at first, moved and converted when the parameter was."""
        data = parameter.data
        state = self.state.setdefault(parameter, {"step": 0})
        for name in self.state_names(group):
            array = state.get(name)
            if array is None:
                state[name] = get_xp(data).zeros_like(data)
            elif backend_name(array) != backend_name(data) or array.dtype != data.dtype:
                state[name] = to_device(array, backend_name(data)).astype(data.dtype)
        return state

    # ---- saving and loading

    def state_dict(self):
        """All that is needed to go on later: settings and step counts (plain Python), and arrays (NumPy copies).

        Returns
        -------
        dict
            ``"settings"``: what JSON can hold; ``"arrays"``: copies by ``"<number of the parameter>.<name>"``.
            Parameters are numbered group after group.
        """
        steps, arrays = {}, {}
        for i, parameter in enumerate(self.parameters):
            for name, value in self.state.get(parameter, {}).items():
                if name == "step":
                    steps[str(i)] = value
                else:
                    arrays[f"{i}.{name}"] = np.array(to_numpy(value), order="C")
        groups = [
            {**{k: v for k, v in group.items() if k != "params"}, "size": len(group["params"])} for group in self.groups
        ]
        settings = {"optimizer": type(self).__name__, "lr": self._lr, "groups": groups, "steps": steps}
        return {"settings": settings, "arrays": arrays}

    def load_state_dict(self, state):
        """Take over what `state_dict` of an optimizer over the same parameters returned, learning rates included.

        Raises
        ------
        StateDictError
            If the optimizer is another one, or groups or shapes differ; nothing is changed then.
        """
        settings, arrays = state["settings"], state["arrays"]
        problems = self._misfits(settings, arrays)
        if problems:
            raise StateDictError(f"{type(self).__name__}: state dict does not fit.\n  " + "\n  ".join(problems))
        parameters = self.parameters
        self.state = {parameters[int(i)]: {"step": int(step)} for i, step in settings["steps"].items()}
        for key, array in arrays.items():
            i, _, name = key.partition(".")
            data = parameters[int(i)].data
            copy = np.array(to_numpy(array), dtype=data.dtype)
            self.state[parameters[int(i)]][name] = to_device(copy, backend_name(data))
        self._lr = settings["lr"]
        for group, saved in zip(self.groups, settings["groups"], strict=True):
            group.update((k, tuple(v) if isinstance(v, list) else v) for k, v in saved.items() if k != "size")

    def _misfits(self, settings, arrays):
        """What keeps a saved state from fitting, in words."""
        if settings["optimizer"] != type(self).__name__:
            return [f"saved by {settings['optimizer']}"]
        own, saved = [len(g["params"]) for g in self.groups], [g["size"] for g in settings["groups"]]
        if own != saved:
            return [f"saved with {saved} parameters in its groups, expected {own}"]
        of_each = [(p, group) for group in self.groups for p in group["params"]]
        shapes = {
            f"{i}.{name}": tuple(of_each[int(i)][0].data.shape)
            for i in settings["steps"]
            for name in self.state_names(of_each[int(i)][1])
        }
        problems = [f"missing: {key}" for key in shapes if key not in arrays]
        problems += [f"unexpected: {key}" for key in arrays if key not in shapes]
        return problems + [
            f"wrong shape: {key} is {tuple(arrays[key].shape)}, expected {shape}"
            for key, shape in shapes.items()
            if key in arrays and tuple(arrays[key].shape) != shape
        ]
