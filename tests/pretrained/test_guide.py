"""The sessions of the guide to real weights print what stands there. Skipped where the weights are not."""

import doctest
import re
from pathlib import Path

import pytest

from numtrans.pretrained.packages import where

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pretrained.md"

pytestmark = pytest.mark.slow


def test_the_sessions_of_the_guide():
    for name in ("tokenizers", "gguf"):
        pytest.importorskip(name)
    missing = [name for name in ("minilm", "smollm2") if where(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not on this machine")
    blocks = re.findall(r"^```pycon\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    session = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    printed = []
    results = doctest.DocTestRunner(verbose=False).run(session, out=printed.append)
    assert results.attempted >= 15
    assert results.failed == 0, "".join(printed)
