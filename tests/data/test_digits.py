"""The digits of scikit-learn as images."""

import sys

import numpy as np
import pytest

from numtrans.data import load_digits
from numtrans.errors import DataError


def test_split():
    datasets = pytest.importorskip("sklearn.datasets")
    (images, labels), (test_images, test_labels) = load_digits(test=300, seed=2)
    assert images.shape == (1497, 1, 8, 8)
    assert test_images.shape == (300, 1, 8, 8)
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert (images.min(), images.max()) == (-1, 1)
    assert set(labels) == set(test_labels) == set(range(10))
    # every image once, with its label
    source = datasets.load_digits()
    expected = sorted((*image.ravel(), label) for image, label in zip(source.images, source.target))
    both = zip(np.concatenate([images, test_images]), np.concatenate([labels, test_labels]))
    assert sorted((*(8 * (image.ravel() + 1)), label) for image, label in both) == expected
    again = load_digits(test=300, seed=2)
    np.testing.assert_array_equal(again[1][0], test_images)
    assert (load_digits(test=300, seed=3)[1][1] != test_labels).any()
    with pytest.raises(DataError, match="load_digits: test=1797, expected 1 to 1796 of 1797 images"):
        load_digits(test=1797)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        load_digits()
