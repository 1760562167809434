"""Every recorded fault has a test."""

import ast
import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
RECORD = json.loads(Path(__file__).with_name("ids.json").read_text())


def named_in(source):
    """Ids that the test functions of a file name: ``test_att_01_...``, or "ATT-01" in their body or decorators."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            text = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
            matches = re.findall(r"\b([A-Z]{2,4})-(\d\d)\b", text)
            matches += re.findall(r"(?:^test|_)_([a-z]{2,4})_(\d\d)(?=_|$)", node.name)
            found |= {f"{kind.upper()}-{number}" for kind, number in matches}
    return found


@pytest.fixture(scope="module")
def covered():
    files = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    return set().union(*(named_in(path.read_text(encoding="utf-8")) for path in files))


def test_the_record_is_whole():
    assert len(RECORD) == len(set(RECORD)) == 75


@pytest.mark.parametrize("identity", RECORD)
def test_fault_has_a_test(identity, covered):
    assert identity in covered


def test_the_search_finds_only_what_is_there():
    source = "def test_att_01_x():\n    pass\n\ndef test_y():\n    fault('CE-03')\n\n# DRP-01\nX = 'OPT-01'\n"
    assert named_in(source) == {"ATT-01", "CE-03"}
