"""Pytest plugin: the fixtures ``gradcheck`` and ``assert_gradients``.

Installed with numtrans (entry point ``pytest11``), so that a test writes::

    def test_my_layer(assert_gradients):
        assert_gradients(MyLayer(8), x)
"""

import pytest


@pytest.fixture(name="gradcheck")
def _gradcheck():
    """`numtrans.gradcheck.gradcheck`."""
    from numtrans.gradcheck import gradcheck

    return gradcheck


@pytest.fixture(name="assert_gradients")
def _assert_gradients():
    """`numtrans.gradcheck.assert_gradients`: fails with the table of the check."""
    from numtrans.gradcheck import assert_gradients

    return assert_gradients
