"""The reference documents every public name, and the guide of the command line every option."""

import argparse
import importlib
import inspect
import pkgutil
import re

import pytest
from site_files import ROOT, SITE, inventory

import numtrans
from numtrans import cli

API = ROOT / "docs" / "api"


def modules():
    """Every module of numtrans but those with a leading underscore."""
    found = (m.name for m in pkgutil.walk_packages(numtrans.__path__, "numtrans."))
    return ["numtrans", *(name for name in found if not any(part.startswith("_") for part in name.split(".")))]


def public(module):
    """Public names of `module`, as name -> where the object is at home.

    They are those of ``__all__``, and the functions and classes without an underscore that the module itself defines.
    """
    home = {}
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if name != "__version__":
            is_code = inspect.isclass(value) or inspect.isfunction(value)
            home[name] = f"{value.__module__}.{value.__qualname__}" if is_code else f"{module.__name__}.{name}"
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
            home[name] = f"{module.__name__}.{name}"
    return home


def canonical(name):
    """Where the object called `name` is at home, such as ``numtrans.module.Module`` for ``numtrans.Module``."""
    module, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module), last)
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    return f"{value.__module__}.{value.__qualname__}" if is_code else name


def documented():
    """What the built site documents; without a site, what the pages of the reference name."""
    if (SITE / "objects.inv").is_file():
        names = inventory()
    else:
        text = "\n".join(path.read_text(encoding="utf-8") for path in API.glob("*.rst"))
        names = set(re.findall(r"^\.\. auto(?:class|function|exception|data):: (\S+)$", text, re.MULTILINE))
    return names | {canonical(name) for name in names if not re.search(r"\.[A-Z]\w*\.", name)}


@pytest.mark.parametrize("name", modules())
def test_every_public_name_is_in_the_reference(name):
    missing = {own for own, home in public(importlib.import_module(name)).items() if home not in documented()}
    assert not missing, f"docs/api lacks {', '.join(sorted(missing))} of {name}"


def test_the_reference_lists_what_it_should():
    assert {"numtrans.layers.normalization.LayerNorm", "numtrans.module.Module"} <= documented()
    assert "LayerNorm" in public(importlib.import_module("numtrans.layers"))
    assert "make_norm" in public(importlib.import_module("numtrans.layers.normalization"))


def children(parser):
    """Name -> parser of each command below `parser`."""
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def options(parser):
    """All long options of `parser` and of the commands below it."""
    own = {name for action in parser._actions for name in action.option_strings if name.startswith("--")} - {"--help"}
    return own.union(*(options(child) for child in children(parser).values()))


@pytest.mark.parametrize("command", sorted(children(cli.parser())))
def test_guide_names_every_option(command):
    text = (ROOT / "docs" / "guides" / "command-line.md").read_text(encoding="utf-8")
    section = re.search(rf"^## `numtrans {command}`.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"no section '## `numtrans {command}`'"
    expected = options(children(cli.parser())[command])
    assert {option for option in expected if f"`{option}" not in section[0]} == set()
