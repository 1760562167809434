"""How the error of a numeric difference depends on its step: the V that every student should see once."""

from dataclasses import dataclass, field

import numpy as np

from numtrans.errors import ConfigError, NumtransError
from numtrans.gradcheck import numeric
from numtrans.gradcheck.point import Point

METHODS = ("forward", "central", "complex")


@dataclass
class StepSizeStudy:
    """Relative error of numeric slopes against step size.

    Attributes
    ----------
    title : str
        Name of the module's class.
    steps : ndarray
        From large to small.
    errors : dict
        Method -> relative error at each step.
    notes : list of str
        Which methods do not apply, and why.
    """

    title: str
    steps: np.ndarray
    errors: dict
    notes: list = field(default_factory=list)

    def plot(self, path=None):
        """Draw error against step size on logarithmic axes; returns the figure, saved to `path` if given."""
        from numtrans.gradcheck.plots import plot_study

        return plot_study(self, path)


def step_size_study(module, *inputs, steps=None, methods=METHODS, seed=0, **kwargs):
    """Error of forward, central and complex differences against the step size.

    All is measured on the slope along one random direction through all inputs and parameters; the backward of the
    module, which `gradcheck` should have proven before, gives the exact value. From right to left each curve first
    falls (curvature: in proportion to h or h^2), then rises (rounding: in proportion to 1/h). Only the complex step,
    which subtracts nothing, stays down.

    Parameters
    ----------
    module : Module
    *inputs
        As in `gradcheck`.
    steps : sequence of float, optional
        1e-1 down to 1e-13, three a decade.
    methods : sequence of {"forward", "central", "complex"}
        "complex" is left out, with a note, where the module does not run on complex numbers.
    seed : int, default 0
    **kwargs
        Keyword arguments of forward.

    Returns
    -------
    StepSizeStudy
    """
    unknown = [m for m in methods if m not in METHODS]
    if unknown:
        raise ConfigError(f"step_size_study: unknown methods {unknown}, expected some of {METHODS}")
    point = Point.of(module, inputs, kwargs, seed=seed)
    gradients, _ = point.gradients()
    rng = np.random.default_rng(seed)
    directions = {name: rng.standard_normal(tensor.shape) for name, tensor in point.tensors().items()}
    length = np.sqrt(sum(float(np.sum(v * v)) for v in directions.values()))
    directions = {name: v / length for name, v in directions.items()}
    exact = sum(float(np.sum(g * directions[name])) for name, g in gradients.items() if g is not None)
    study = StepSizeStudy(
        type(module).__name__, np.logspace(-1, -13, 37) if steps is None else np.asarray(steps, dtype=float), {}
    )
    real, y0 = _Ray(point, directions), point.forward()
    for method in methods:
        try:
            if method == "complex":
                line = _Ray(point.astype(np.complex128), directions)
                slopes = [numeric.complex_step(line, h) for h in study.steps]
            elif method == "central":
                slopes = [numeric.central(real, h) for h in study.steps]
            else:
                slopes = [numeric.forward_difference(real, y0, h) for h in study.steps]
        except (NumtransError, TypeError, ValueError) as error:
            if method != "complex":
                raise
            study.notes.append(f"complex steps do not apply: {type(error).__name__}: {error}")
            continue
        study.errors[method] = np.abs(np.array(slopes) - exact) / max(abs(exact), np.finfo(float).tiny)
    return study


class _Ray:
    """A line through all tensors of a point at once."""

    def __init__(self, point, directions):
        self.point = point
        self.moves = [(tensor, tensor.copy(), directions[name]) for name, tensor in point.tensors().items()]

    def at(self, t):
        for tensor, start, direction in self.moves:
            tensor[...] = start + t * direction
        try:
            return self.point.forward()
        finally:
            for tensor, start, _ in self.moves:
                tensor[...] = start
