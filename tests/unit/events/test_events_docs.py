"""docs/events.md says what the code does."""

import re
from pathlib import Path

from runtime.events.syvain import settings
from tests.support.docs import ROOT, blocks
from tests.support.strict_json import strict

PAGE = ROOT / "docs" / "events.md"
TEXT = PAGE.read_text()
SOURCES = "".join(path.read_text() for path in sorted((ROOT / "runtime" / "events").rglob("*.py")))


def test_the_example_lines_are_lines_of_the_contract():
    contract = (Path(__file__).parents[2] / "contract" / "events" / "lines.jsonl").read_text().splitlines()
    [block] = blocks(PAGE, "json")
    for line in block.text.splitlines():
        assert line in contract
        strict(line)


def test_every_kind_of_event_is_documented():
    kinds = set(re.findall(r'"kind": ?"(\w+)"', (ROOT / "runtime" / "events" / "kinds.py").read_text()))
    assert kinds == {"open", "metric", "annotation", "done"}
    for kind in kinds:
        assert f"| `{kind}` |" in TEXT


def test_every_reason_of_a_loss_is_documented():
    reasons = set(re.findall(r'\["([a-z ]+)"\] \+=', SOURCES)) | {"refused (<code>)"}
    assert {"not written", "not finite", "no room", "behind", "failed", "unreadable"} <= reasons
    for reason in reasons:
        assert f"| `{reason}` |" in TEXT


def test_every_variable_is_documented():
    names = [prefix + name for prefix in settings._PREFIXES for name in ("API_KEY", "HOST")]
    for name in [*names, "XDG_CONFIG_HOME", "TMPDIR"]:
        assert f"`{name}`" in TEXT
    assert settings.DEFAULT_HOST in TEXT
