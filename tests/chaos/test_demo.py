"""`make demo`, twice, on a stack of its own: everything comes true, and nothing is left behind."""

import re
import sys

import pytest

from tests.support.stack import Stack

pytestmark = [pytest.mark.chaos, pytest.mark.stack, pytest.mark.timeout(1500)]


@pytest.fixture
def stack():
    made = Stack.new()
    try:
        assert made.up().returncode == 0
        yield made
    finally:
        made.remove()


def test_the_demo_shows_what_it_promises_and_can_be_shown_again(stack):
    for _ in range(2):
        demo = stack.run(sys.executable, "-m", "flows.demo", timeout_s=600)
        assert demo.returncode == 0, demo.stdout + demo.stderr
        (killed,) = {int(step) for step in re.findall(r"killed at step (\d+)", demo.stdout)}
        (resumed,) = {int(step) for step in re.findall(r"resumed from step (\d+)", demo.stdout)}
        assert 0 < resumed <= killed
        for what in ("scheduled", "started", "noticed", "finished"):
            assert re.search(rf"^  {what} +\d+\.\d  ", demo.stdout, re.MULTILINE), what
        for page in ("Prefect", "Experiment"):
            assert re.search(rf"^{page} +http://127\.0\.0\.1:\d+/\S+$", demo.stdout, re.MULTILINE), page
        assert re.search(r"Equal: \d+ tensors .* and \d+ metric values are equal, bit for bit", demo.stdout)
    assert stack.slugline("down").returncode == 0
    assert stack.processes() == []
