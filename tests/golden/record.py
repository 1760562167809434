"""Record the golden values with PyTorch: ``python tests/golden/record.py`` writes all files of ``values/`` anew."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import golden_file
import torch_attention  # noqa: F401 (registers its cases, as do the others)
import torch_layers  # noqa: F401
import torch_models  # noqa: F401
import torch_training  # noqa: F401
from recording import CASES


def record(folder):
    """Write one file for each case."""
    folder.mkdir(exist_ok=True)
    for name, run in CASES.items():
        golden_file.write(folder / f"{name}.safetensors", *run())


def main():
    for old in golden_file.VALUES.glob("*.safetensors"):
        old.unlink()
    record(golden_file.VALUES)
    size = sum(path.stat().st_size for path in golden_file.VALUES.iterdir())
    print(f"{len(CASES)} cases, {size} bytes in {golden_file.VALUES}")


if __name__ == "__main__":
    main()
