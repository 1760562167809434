"""Images small enough for a CPU: the 8 x 8 handwritten digits that scikit-learn ships.

Shapes: ``N`` images.
"""
import numpy as np

from numtrans.errors import DataError


def load_digits(test=360, seed=0):
    """The 1797 digits, shuffled and split.

    Parameters
    ----------
    test : int, default 360
        Number of images that are kept for the test.
    seed : int, default 0
        Of the split.

    Returns
    -------
    train, test : two pairs (images, labels)
        Images (N, 1, 8, 8) in float32, grey values from -1 to 1; labels (N,) from 0 to 9.

    Raises
    ------
    ImportError
        Without scikit-learn, which is optional.
    DataError
        If `test` leaves no image on one of the sides.
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise ImportError("load_digits: the digits come with scikit-learn; pip install scikit-learn") from error
    data = load()
    if not 0 < test < len(data.target):
        raise DataError(f"load_digits: test={test}, expected 1 to {len(data.target) - 1} of {len(data.target)} images")
    images = (data.images[:, None] / 8 - 1).astype(np.float32)          # (N, 1, 8, 8), from 0 ... 16
    order = np.random.default_rng(seed).permutation(len(images))
    images, labels = images[order], data.target[order].astype(np.int64)
    return (images[test:], labels[test:]), (images[:test], labels[:test])
