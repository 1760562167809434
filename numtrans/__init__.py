"""numtrans: a Transformer in NumPy, with every backward pass written by hand.

``numtrans.layers`` holds the components, ``numtrans.models`` whole models, ``numtrans.gradcheck`` the proof of their
gradients, ``numtrans.training`` the loop.
"""

from numtrans.backend import get_xp, to_device, to_numpy
from numtrans.module import Module, Parameter, no_grad

__version__ = "0.1.0"

__all__ = ["Module", "Parameter", "__version__", "get_xp", "no_grad", "to_device", "to_numpy"]
