"""Write cupy_api.json from an installed CuPy (no GPU needed): ``python tests/cupy_standin/record_api.py``.

To look at CuPy without a GPU: ``pip install --no-deps --target /tmp/cupy cupy-cuda12x cuda-pathfinder`` and put that
folder on PYTHONPATH.
"""

import inspect
import json
import pathlib
import re

import cupy


def parameters(function):
    """Names of the parameters, with their stars; compiled functions have them in the first line of the docstring."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    try:
        given = inspect.signature(function).parameters.values()
        return [stars.get(p.kind, "") + p.name for p in given if p.name != "self"]
    except (TypeError, ValueError):
        match = re.search(r"\((.*)\)", (function.__doc__ or "").split("\n")[0])
        parts = [part.strip().split("=")[0].split() for part in match.group(1).split(",")] if match else []
        return [part[-1] for part in parts if part and part[-1] not in ("*", "self")]


def main():
    public = [name for name in dir(cupy) if not name.startswith("_")]
    ufuncs = [name for name in public if isinstance(getattr(cupy, name), cupy.ufunc)]
    functions = [
        name
        for name in public
        if name not in ufuncs and callable(getattr(cupy, name)) and not isinstance(getattr(cupy, name), type)
    ]
    methods = [name for name in dir(cupy.ndarray) if not name.startswith("_") and callable(getattr(cupy.ndarray, name))]
    content = {
        "version": cupy.__version__,
        "ufuncs": " ".join(ufuncs),
        "other_names": " ".join(name for name in public if name not in ufuncs and name not in functions),
        "functions": {name: " ".join(parameters(getattr(cupy, name))) for name in functions},
        "methods": {name: " ".join(parameters(getattr(cupy.ndarray, name))) for name in methods},
    }
    path = pathlib.Path(__file__).parent / "cupy_api.json"
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
