"""The pytest plugin, run in a pytest of its own."""

import subprocess
import sys

TEST = """
import numpy as np
from numtrans.module import Module

class Square(Module):
    factor = 2
    def forward(self, x):
        self.save(x)
        return x * x
    def backward(self, dy):
        (x,) = self.saved()
        return self.factor * x * dy

class Wrong(Square):
    factor = 3

X = np.arange(1.0, 7.0).reshape(2, 3)

def test_right(gradcheck, assert_gradients):
    assert gradcheck(Square(), X)
    assert_gradients(Square(), X)

def test_wrong(assert_gradients):
    assert_gradients(Wrong(), X)
"""


def test_fixtures(tmp_path):
    (tmp_path / "test_layer.py").write_text(TEST)
    code = (
        "import importlib.metadata as m, sys, pytest;"
        "named = any(e.value == 'numtrans.gradcheck.plugin' for e in m.entry_points(group='pytest11'));"
        "extra = [] if named else ['-p', 'numtrans.gradcheck.plugin'];"
        f"sys.exit(pytest.main([*extra, '-q', '-p', 'no:cacheprovider', '--rootdir', {str(tmp_path)!r}, "
        f"{str(tmp_path / 'test_layer.py')!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "1 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    assert "GradientError" in run.stdout
    assert "1.5 times the right one" in run.stdout
    assert "worst index" in run.stdout
