"""A flow process that was taken for dead and was not: another looks after its run now."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from prefect.exceptions import Abort, TerminationSignal

from flows import care
from flows.care import Care
from flows.flow_runs import FlowRun, State
from flows.ledger import LedgerFile
from flows.processes import is_alive
from flows.ship import Commands
from flows.ship_parameters import ShipParameters
from flows.shipping import ship
from runtime.checkpoints.local import LocalStore
from runtime.errors import Unavailable
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flows.endings import Ended
    from flows.ledger import Ledger

NOW = datetime(2027, 1, 1, tzinfo=UTC)
COMMAND = """
    trap 'echo "{}" > "$DIVERGENT_RESULT_PATH"; touch told; exit' TERM
    touch begun; sleep 30 & wait
    touch "$SLUGLINE_CHECKPOINTS/too-late"
"""
"""It says what it has as its result when it is told to end."""


class CancelledOnes:
    """A Prefect whose runs are all being cancelled."""

    def __init__(self) -> None:
        self.num_looks = 0

    @contextlib.contextmanager
    def __call__(self, **_: Any) -> Iterator[CancelledOnes]:
        yield self

    def run(self, run_id: str) -> FlowRun:
        self.num_looks += 1
        state = State(id="c", type="CANCELLING", name="Cancelling", timestamp=NOW)
        return FlowRun(id=run_id, name="a", state=state, created=NOW)


@pytest.fixture
def terminated() -> Iterator[None]:
    """SIGTERM raises in the main thread, as in a flow process."""

    def on_signal(number: int, _frame: object) -> None:
        raise TerminationSignal(signal=number)

    before = signal.signal(signal.SIGTERM, on_signal)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def one(monkeypatch, tmp_path: Path) -> Care:
    """A flow process's care for a shipped command, whose Prefect and Metrics are away."""
    (tmp_path / "directory").mkdir()
    tree, _ = ship(tmp_path / "directory", LocalStore(tmp_path / "trees"))
    monkeypatch.setenv("SLUGLINE_WORK_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("SLUGLINE_GPUS", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no logins"))
    for name in ("O41_METRICS_HOST", "O41_METRICS_API_KEY", "SYVAIN_METRICS_HOST", "SYVAIN_METRICS_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def away(**_: Any) -> None:
        raise Unavailable("Prefect is away")

    def untracked(number: int, run: Callable[[], Ended]) -> Ended:
        del number
        return run()

    monkeypatch.setattr(care, "connect", away)
    monkeypatch.setattr(care, "_read_secrets", dict)
    monkeypatch.setattr(care, "get_run_logger", lambda: logging.getLogger("run"))
    monkeypatch.setattr(care, "shown_as_task", untracked)
    monkeypatch.setattr(care, "WATCH_S", 0.1)
    parameters = ShipParameters(
        slug="a",
        location=str(tmp_path / "location"),
        trees=str(tmp_path / "trees"),
        tree=tree.digest,
        command=("bash", "-c", COMMAND),
        notice_s=5.0,
    )
    state = State(id="s", type="RUNNING", name="Running", timestamp=NOW)
    return Care(parameters, FlowRun(id="f", name="a", state=state, created=NOW), frozenset("s"), Commands())


@pytest.mark.usefixtures("terminated")
def test_a_flow_process_whose_run_another_has_taken_stops_its_command_and_says_nothing_more(
    one, monkeypatch, tmp_path
):
    """A host that was frozen ran its command on beside the new one, to its end.

    Its pulse and heartbeats went on too: had the new one's host died, no rescue would have seen it.
    """
    store = LocalStore(tmp_path / "location")
    file = LedgerFile(store, "a")
    said: list[Any] = []
    monkeypatch.setattr(one._page, "stopped", lambda **word: said.append(word))

    def replace_owner() -> None:
        wait_until(
            lambda: (ledger := file.read()) and ledger.attempts and ledger.attempts[-1].trainer, within_s=20
        )

        def other(old: Ledger) -> Ledger:
            assert old.owner is not None
            process = replace(old.owner.process, host="another")
            return replace(old, owner=replace(old.owner, token="its", process=process))

        file.change(other)

    other_host = threading.Thread(target=replace_owner)
    other_host.start()
    with pytest.raises(Abort, match="another flow process"):
        one.keep()
    other_host.join()
    ledger = file.read()
    assert ledger is not None
    assert not is_alive(ledger.attempts[-1].trainer)  # type: ignore[arg-type] # it was waited for
    assert ledger.attempts[-1].ended_ms is None, "what became of the attempt is the new owner's to say"
    assert [found.key for found in store.list("checkpoints/")] == []
    assert [path.name for path in tmp_path.rglob("told")] == ["told"]
    assert [found.key for found in store.list("result.json")] == [], "the newer attempt's result is replaced"
    assert said == []


@pytest.mark.usefixtures("terminated")
def test_a_process_that_leaves_is_not_told_to_leave_again(one, monkeypatch, tmp_path):
    """Its worker told it of a cancellation that its own look had seen too, as the command was still saving.

    The look that a thread makes before it ends was the second, and its signal broke the last words off: the
    page never said that the run was cancelled.
    """
    server = CancelledOnes()
    monkeypatch.setattr(care, "connect", server)
    monkeypatch.setattr(care, "WATCH_S", 60.0)
    said: list[Any] = []
    monkeypatch.setattr(one._page, "close", lambda **_: said.append("closed"))

    def deliver() -> None:
        wait_until(lambda: server.num_looks and list(tmp_path.rglob("begun")), within_s=20)
        os.kill(os.getpid(), signal.SIGTERM)

    worker = threading.Thread(target=deliver)
    worker.start()
    with pytest.raises(TerminationSignal):
        one.keep()
    worker.join()
    assert said == ["closed"]
