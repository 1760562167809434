"""The list of mutations fits the code: every edit can be made, every component and test file exists."""

import ast
from pathlib import Path

import pytest
from mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]


def test_there_are_enough_and_no_id_twice():
    ids = [mutation.id for mutation in MUTATIONS]
    assert len(ids) == len(set(ids)) >= 70


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_mutation_applies(mutation):
    text = (ROOT / "numtrans" / mutation.file).read_text(encoding="utf-8")
    changed = mutation.apply(text)
    assert changed != text
    ast.parse(changed)
    assert mutation.checked() or mutation.tested()
    for path in mutation.tested():
        assert (ROOT / "tests" / path).exists(), path


def test_components_exist():
    from numtrans.components import components

    named = {component.name for component in components()}
    assert {name for mutation in MUTATIONS for name in mutation.checked()} <= named
