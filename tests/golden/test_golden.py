"""numtrans agrees with the values that `record.py` took from PyTorch in float64. Needs no PyTorch."""

import golden_file
import numpy as np
import pytest

from numtrans import layers

MODULES = sorted(golden_file.VALUES.glob("*.safetensors"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_output_and_all_gradients_agree(path):
    arrays, meta = golden_file.read(path)
    golden_file.assert_agree(golden_file.run(arrays, meta), arrays)
