"""Build the site: ``python docs/build.py``. It lies in ``docs/_build/html`` and works from the disk.

Needs the packages of the dependency group ``docs`` and, the first time, npm, from which MathJax comes. Warnings are
errors. Every notebook is executed; ``NUMTRANS_FAST=1`` in the environment makes them small.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
OUT = DOCS / "_build"
MATHJAX = DOCS / "_static" / "mathjax"
SCRIPT = "tex-svg-full.js"  # TeX in, SVG out, with every TeX package and the shapes of all letters in one file


def main(argv=None):
    """Build the site and return the exit status."""
    parser = argparse.ArgumentParser(description="Build the site of numtrans into docs/_build/html.")
    parser.add_argument(
        "--no-execute", action="store_true", help="leave the notebooks without output, and read changed pages only"
    )
    parser.add_argument("--jobs", default="auto", help="processes (default: one a core)")
    arguments = parser.parse_args(argv)
    try:
        fetch_mathjax()
    except RuntimeError as error:
        print(f"docs/build.py: {error}", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-c", str(DOCS), "-d", str(OUT / "doctrees"),
               "-W", "-n", "--keep-going", "-j", arguments.jobs, "-q"]  # fmt: skip
    if arguments.no_execute:
        command += ["-D", "nb_execution_mode=off"]
    else:
        shutil.rmtree(OUT, ignore_errors=True)  # nothing of an older build is left over
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    status = subprocess.run([*command, str(ROOT), str(OUT / "html")], env=environment, check=False).returncode
    if status == 0:
        print(f"The site is in {OUT / 'html' / 'index.html'}")
    return status


def fetch_mathjax():
    """Put MathJax in place, unless it is there: one file of the npm package, with its licence."""
    if (MATHJAX / SCRIPT).is_file():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is missing; it comes with Node.js (Debian: apt-get install npm) and fetches MathJax")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "mathjax@3", "--silent", "--pack-destination", folder]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("mathjax-*.tgz"))
        if result.returncode or not archives:
            raise RuntimeError(f"npm could not fetch mathjax@3:\n{result.stdout}{result.stderr}".rstrip())
        members = {"LICENSE": "package/LICENSE", SCRIPT: f"package/es5/{SCRIPT}"}
        try:
            with tarfile.open(archives[0]) as archive:
                files = {name: archive.extractfile(member).read() for name, member in members.items()}
        except (tarfile.TarError, KeyError, EOFError, OSError, zlib.error) as error:
            raise RuntimeError(f"the archive of mathjax@3 is broken or holds other files: {error}") from error
        MATHJAX.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            temporary = MATHJAX / f"{name}.tmp"
            temporary.write_bytes(data)
            temporary.replace(MATHJAX / name)  # a build that is stopped here leaves no half of a file


if __name__ == "__main__":
    sys.exit(main())
