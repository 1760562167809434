"""Pieces of large arrays that the processor's cache can hold."""

from numtrans.backend import get_xp

BLOCK = 1 << 16  # values: 256 KiB of float32


def in_blocks(written, read=()):
    """Yield the arrays of `written` and of `read`, all of one shape, in pieces of 64k values.

    A computation of several passes over a large array reads and writes main memory in every pass; over one piece after
    another it does so once. On the GPU, or if an array of `written` is not laid out row by row, the one piece is the
    whole. A piece of arrays without axes has one, as an operation on such arrays returns a number, not an array.

    Parameters
    ----------
    written : tuple of arrays
        Those that the caller writes into.
    read : tuple of arrays, optional
        Those that it only reads: one that is not laid out row by row is copied.
    """
    xp, small = get_xp(*written, *read), written[0].size <= BLOCK
    if small or xp.__name__ != "numpy" or not all(array.flags.c_contiguous for array in written):
        yield [array[None] if array.ndim == 0 else array for array in (*written, *read)]
        return
    flat = [array.reshape(-1) for array in (*written, *read)]
    for start in range(0, flat[0].size, BLOCK):
        piece = slice(start, start + BLOCK)
        yield [array[piece] for array in flat]
