"""Making the work pool and the deployments of our flows, as often as you like: `python -m flows.deploy`."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.actions import WorkPoolCreate
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from flows.flags import Flags
from flows.prefect_client import prefect_client
from flows.ship import ship
from flows.train import train
from runtime.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient

__all__ = ["deploy", "main"]


def deploy(*, pool: str, name: str | None = None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Make the process pool `pool` and the deployments of `train` and `ship` in it; return their ids by name.

    What is there is brought up to date. `name` is that of both deployments; unset: `train/train` and
    `ship/ship`. `env` is given to every flow process, on top of its worker's.

    Raises:
        Rejected: no server is set, or it refuses.
        Unavailable: the Prefect server cannot be reached.
    """
    with prefect_client() as client:
        template = job_template(env or {})
        client.create_work_pool(
            WorkPoolCreate(
                name=pool,
                type="process",
                base_job_template=template,
                description="Training runs of Slugline",
            ),
            overwrite=True,
        )
        return {
            f"{flow.name}/{name or flow.name}": _create_deployment(
                client, flow, entrypoint=entrypoint, pool=pool, name=name or flow.name
            )
            for flow, entrypoint in ((train, "flows.train.train"), (ship, "flows.ship.ship"))
        }


def job_template(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the pool's job template.

    A flow process does not share its worker's output (`stream_output`): what it logs reaches the server all
    the same, and a worker that dies would else take it along. Its `command` starts it without Prefect's
    search for a workspace, which our deployment has none of: 3.6 s instead of 6.9 from pending to running;
    and through `sexpgpu`, so that a `PYTHONPATH` with a `flows` of its own does not keep it from starting.
    """
    template = copy.deepcopy(ProcessWorker.get_default_base_job_template())
    properties = template["variables"]["properties"]
    properties["stream_output"]["default"] = False
    properties["command"]["default"] = f"{sys.executable} -P -m sexpgpu prefect.engine"
    properties["env"]["default"] = dict(env)
    return template


def _create_deployment(
    client: SyncPrefectClient, flow: Flow[..., Any], *, entrypoint: str, pool: str, name: str
) -> str:
    return str(
        client.create_deployment(
            flow_id=client.create_flow(flow),
            name=name,
            description=flow.description,
            work_pool_name=pool,
            entrypoint=entrypoint,
            # No pull step: the flow is installed where the worker is.
            pull_steps=[],
            parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
            enforce_parameter_schema=True,
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Flags("flows.deploy", __doc__)
    parser.add_argument("--pool", required=True, metavar="NAME", help="the process work pool")
    parser.add_argument("--name", metavar="NAME", help="the deployments' name (that of their flow)")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for every flow process; repeats"
    )
    options = parser.parse_args(argv)
    if bad := [item for item in options.env if "=" not in item]:
        parser.error(f"--env takes NAME=VALUE, got {bad[0]!r}")
    try:
        made = deploy(
            pool=options.pool, name=options.name, env=dict(item.split("=", 1) for item in options.env)
        )
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    for deployment, found in made.items():
        sys.stdout.write(f"deployment {deployment} ({found}) in pool {options.pool}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
