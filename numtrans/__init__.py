"""numtrans: a Transformer in NumPy, with every backward pass written by hand."""

__version__ = "0.1.0"
