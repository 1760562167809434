"""Every error that numtrans raises on purpose. Each message names the class, what was expected and what came."""


class NumtransError(Exception):
    """Base of all errors below, so that one ``except`` can catch them."""


class ShapeError(NumtransError, ValueError):
    """An array has a shape that the layer cannot use."""


class DtypeError(NumtransError, TypeError):
    """An array has a dtype that the layer cannot use, or two arrays differ in dtype."""


class ConfigError(NumtransError, ValueError):
    """A constructor argument, or two of them together, make no sense."""


class IndexRangeError(NumtransError, IndexError):
    """A token id, a class index or a position lies outside its table."""


class BackwardError(NumtransError, RuntimeError):
    """``backward`` was called without a pending ``forward``."""


class BackendError(NumtransError, RuntimeError):
    """The asked-for array library or device is not there."""


class MixedBackendError(NumtransError, TypeError):
    """Arrays of NumPy and CuPy met in one operation."""


class StateDictError(NumtransError, ValueError):
    """A state dict has missing, unexpected or wrongly shaped entries."""


class CheckpointError(NumtransError, ValueError):
    """A file is not a checkpoint that can be read."""


class DataError(NumtransError, ValueError):
    """A data file or a data set cannot be used as asked."""


class GradientError(NumtransError, AssertionError):
    """A gradient check failed; the message is the table of the check."""


class WorkerError(NumtransError, RuntimeError):
    """A process that shares the work has ended, or does not do the same as the others."""


class NonFiniteError(NumtransError, FloatingPointError):
    """A loss or a gradient is NaN or infinite."""
