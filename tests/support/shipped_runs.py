"""Commands that are shipped and run by real workers, and what came of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import httpx

from flows.ledger import Ledger, LedgerFile
from flows.processes import is_alive
from flows.scheduling import RunView, find_run
from flows.server import connect
from flows.ship_parameters import ShipParameters
from flows.shipping import ship
from flows.trees import trees_location
from runtime.checkpoints.location import open_store
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.metrics_server import MetricsServer
    from tests.support.prefect_stack import PrefectStack

__all__ = ["SCRIPT", "ShippedRun", "ShippedRuns"]

PATIENCE_S = 240

SCRIPT = """
    import json, os, signal, sys, time
    from pathlib import Path

    steps, code, *stand = map(int, sys.argv[1:])
    attempt = int(os.environ["DIVERGENT_ATTEMPT"])
    checkpoints = Path(os.environ["SLUGLINE_CHECKPOINTS"])
    done = max((int(path.stem.removeprefix("step-")) for path in checkpoints.glob("step-*")), default=0)
    print("attempt", attempt, "of", os.environ["DIVERGENT_RUN"], "from", done)
    print("in", Path("here.txt").read_text(), "with", os.environ.get("TOKEN"))
    with open(os.environ["DIVERGENT_TELEMETRY_PATH"], "a") as telemetry:
        for step in range(done + 1, steps + 1):
            point = {"step": step, "loss": 1 / step, "attempt": attempt}
            print(json.dumps({**point, "token": os.environ.get("TOKEN")}), file=telemetry, flush=True)
            half = checkpoints / "half"
            half.write_text("{}")
            half.rename(checkpoints / f"step-{step}")
            print("step", step)
            if [step] == stand[attempt - 1 : attempt]:
                signal.pause()  # it waits for its killer, who may come late on a busy machine
            time.sleep(0.05)
    Path(os.environ["DIVERGENT_RESULT_PATH"]).write_text(json.dumps({"f1": 0.97, "steps": steps}))
    sys.exit(code)
"""


@dataclass
class ShippedRun:
    """One shipped run, looked at from outside."""

    runs: ShippedRuns
    slug: str

    @property
    def location(self) -> Path:
        return self.runs.stack.home / "locations" / self.slug

    @property
    def folder(self) -> Path:
        """Its folder on the worker's host."""
        return self.runs.stack.home / "runs" / self.slug

    def view(self) -> RunView:
        return find_run(self.slug)

    def page(self) -> dict[str, Any]:
        """Its record in Metrics."""
        data: dict[str, Any] = self.runs.get(f"runs/{self.slug}").json()["data"]
        return data

    def points(self) -> list[dict[str, Any]]:
        """Its telemetry, as the server streams it."""
        text = self.runs.get(f"runs/{self.slug}/telemetry/points").text
        return [json.loads(line) for line in text.splitlines()]

    def served_log(self, attempt: int) -> str:
        return self.runs.get(f"runs/{self.slug}/log?attempt={attempt}").text

    def ledger(self) -> Ledger | None:
        return LedgerFile(open_store(str(self.location), {}), self.slug).read()

    def steps(self) -> int:
        """How many steps are kept."""
        return len(list((self.location / "checkpoints").glob("step-*")))

    def process(self, *, from_step: int) -> int:
        """The living process of the command, once so many steps are kept."""

        def look() -> int | None:
            ledger = self.ledger()
            if ledger is None or not ledger.attempts or self.steps() < from_step:
                return None
            entry = ledger.attempts[-1]
            trainer = entry.trainer if entry.ended_ms is None else None
            return trainer.pid if trainer is not None and is_alive(trainer) else None

        return wait_until(look, within_s=PATIENCE_S, what=self.told)  # type: ignore[return-value] # truthy, so a number

    def flow_process(self) -> int:
        """The process that looks after the run."""
        ledger = self.ledger()
        assert ledger is not None
        assert ledger.owner is not None
        return ledger.owner.process.pid

    def until(self, *states: str) -> RunView:
        with connect() as server:

            def look() -> bool:
                state = server.runs(slug=self.slug, limit=1)[0].state
                return state is not None and state.name in states

            wait_until(look, within_s=PATIENCE_S, what=self.told, poll_s=0.5)
        return self.view()

    def told(self) -> str:
        """Everything that helps to understand why a run did not get where it should."""
        logs = [path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log")]
        parts = [self.slug, str(self.view()), str(self.ledger()), *logs]
        return "\n".join([*parts, self.runs.stack.log("rescue")[-2000:]])


@dataclass
class ShippedRuns:
    """A directory that is shipped, and runs of commands in it."""

    stack: PrefectStack
    metrics: MetricsServer
    directory: Path

    def write(self, **files: str) -> None:
        """Put files into the directory, named by their stem."""
        for stem, text in files.items():
            (self.directory / f"{stem}.py").write_text(dedent(text))

    def start(self, slug: str, *command: str, deployment: str = "ship/ship", **more: Any) -> ShippedRun:
        """Ship the directory, make the run in Metrics, and schedule it."""
        environment = self.stack.env()
        tree, _ = ship(self.directory, open_store(trees_location(environment), environment))
        record = {"slug": slug, "command": list(command), "tree": tree.digest}
        record |= {name: more.pop(name) for name in ("telemetry", "checks") if name in more}
        made = self.post("runs", record)
        assert made.is_success, made.text
        parameters = ShipParameters(slug=slug, command=command, tree=tree.digest, notice_s=8, **more)
        with connect() as server:
            deployed = server.deployment_id(deployment)
            server.create_run(deployed, slug=slug, parameters=parameters.to_json(), key=slug)
        return ShippedRun(self, slug)

    def get(self, path: str) -> httpx.Response:
        """Ask the Metrics server."""
        reply = httpx.get(
            f"{self.metrics.url}/api/v1/{path}", headers=self._headers(), trust_env=False, timeout=60
        )
        assert reply.is_success, reply.text
        return reply

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Tell the Metrics server."""
        url = f"{self.metrics.url}/api/v1/{path}"
        return httpx.post(url, json=body, headers=self._headers(), trust_env=False, timeout=60)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.metrics.key}"}
