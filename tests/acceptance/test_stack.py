"""The stack on one machine, as its user sees it: real services, real commands, in this order."""

import json
import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from flows.parameters import experiment_path, from_json
from tests.support.docs import ROOT, blocks
from tests.support.stack import Stack, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

SERVICES = ["s3", "prefect", "metrics", "worker", "rescue"]


@pytest.fixture(scope="module")
def stack():
    made = Stack.new()
    up = made.up()
    try:
        assert up.returncode == 0, up.stderr
        yield made
    finally:
        made.remove()


def listeners(pids: list[int]) -> set[tuple[str, int]]:
    """(address, port) of every listening TCP socket of these processes."""
    inodes: set[str] = set()
    for pid in pids:
        # A process may end, or close a file, while it is looked at: that is no listener.
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(str(descriptor.readlink()))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, _, port = fields[1].partition(":")
                raw = b"".join(bytes.fromhex(address[n : n + 8])[::-1] for n in range(0, len(address), 8))
                found.add((socket.inet_ntop(family, raw), int(port, 16)))
    return found


def test_up_waits_until_every_service_is_well(stack):
    status = stack.status()
    assert list(status) == SERVICES
    assert all(row["well"] and row["pid"] for row in status.values()), status
    assert stack.slugline("status").returncode == 0


def test_everything_listens_on_loopback_and_on_the_ports_that_were_checked(stack):
    found = listeners(stack.processes())
    assert {address for address, _ in found} == {"127.0.0.1"}
    assert {port for _, port in found} == {port.number for port in stack.ports.needed()}


def test_up_twice_says_that_it_is_up(stack):
    before = {name: row["pid"] for name, row in stack.status().items()}
    again = stack.up()
    assert again.returncode == 0
    assert again.stderr == "the stack is up already\n"
    assert f"http://127.0.0.1:{stack.ports.prefect}" in again.stdout
    assert {name: row["pid"] for name, row in stack.status().items()} == before


def test_up_on_other_ports_while_it_is_up_is_refused(stack):
    result = stack.slugline("up", "--port-metrics", "9")
    assert result.returncode == 2
    assert "is up on other ports" in result.stderr


def test_another_stack_on_the_same_ports_starts_nothing(stack, tmp_path):
    result = stack.run(
        "slugline", "up", f"--port-prefect={stack.ports.prefect}", SLUGLINE_DATA=str(tmp_path / "other")
    )
    assert result.returncode == 2
    pid = stack.status()["prefect"]["pid"]
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"slugline: port {stack.ports.prefect} (Prefect) is in use by pid {pid} (")
    assert line.endswith("stop that process, or choose another port with --port-prefect")
    assert not (tmp_path / "other" / "supervisor.pid").exists()


def test_env_lets_a_shell_use_the_object_store_and_metrics(stack):
    exports = stack.run("bash", "-c", 'eval "$(slugline env)"; env -0').stdout.split("\0")
    env = dict(line.split("=", 1) for line in exports if line)
    s3 = boto3.client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        region_name=env["AWS_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )
    s3.put_object(Bucket="slugline", Key="a", Body=b"b")
    assert s3.get_object(Bucket="slugline", Key="a")["Body"].read() == b"b"
    s3.close()
    bearer = {"authorization": f"Bearer {env['SYVAIN_METRICS_API_KEY']}"}
    assert httpx.get(env["SYVAIN_METRICS_HOST"] + "/api/v2/auth/status", headers=bearer).is_success


def test_the_object_store_takes_no_other_key(stack):
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{stack.ports.s3}",
        region_name="us-east-1",
        aws_access_key_id="someone",
        aws_secret_access_key="else",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(ClientError, match=r"403|InvalidAccessKeyId"):
        s3.put_object(Bucket="slugline", Key="a", Body=b"b")
    s3.close()


def test_every_service_that_dies_comes_back(stack):
    before = stack.status()
    for name in SERVICES:
        os.kill(before[name]["pid"], signal.SIGKILL)

    def back() -> bool:
        now = stack.status()
        return all(now[name]["well"] and now[name]["pid"] != before[name]["pid"] for name in SERVICES)

    wait_for(back, timeout_s=200, what="the services are back")


def test_logs_show_each_service(stack):
    lines = stack.slugline("logs", "-n", "3").stdout.splitlines()
    assert {line.split(" | ")[0].strip() for line in lines} >= {"s3", "prefect", "metrics", "worker"}
    assert stack.slugline("logs", "prefect").stdout.strip()


def test_a_schedule_is_a_deployment_of_its_own(stack, tmp_path):
    experiment = write_readme_experiment(tmp_path)
    bad = stack.slugline("train", str(experiment), "--cron", "daily", "--slug", "every-night")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    assert "cron must be five fields" in bad.stderr
    for minute in ("1", "2"):  # the second replaces the first
        made = stack.slugline(
            "train", str(experiment), "--cron", f"{minute} 3 * * *", "--slug", "every-night"
        )
        assert made.returncode == 0, made.stderr
    url = f"http://127.0.0.1:{stack.ports.prefect}/api/deployments/name/train/every-night"
    deployment = httpx.get(url).json()
    assert [item["schedule"]["cron"] for item in deployment["schedules"]] == ["2 3 * * *"]
    given = deployment["parameters"]["parameters"]
    assert (given["experiment"], given["trees"]) == (experiment.name, "s3://slugline/.trees")
    assert deployment["description"].startswith(f"{experiment}, at 2 3 * * *")
    assert deployment["work_pool_name"] == "slugline"


def write_readme_experiment(folder: Path) -> Path:
    (block,) = blocks(ROOT / "README.md", "python")
    file = folder / "sine.py"
    file.write_text(block.text)
    return file


def test_the_readme_s_own_file_trains_as_it_says(stack, tmp_path):
    write_readme_experiment(tmp_path)
    shell = [block for block in blocks(ROOT / "README.md", "sh") if "sine.py" in block.text]
    assert len(shell) == 2
    script = "\n".join(block.text for block in shell)
    # Where the README's user has a checkout and the default ports, the test has its own.
    script = script.replace("source .venv/bin/activate\n", "").replace("/tmp/sine", str(tmp_path / "sine"))
    result = subprocess.run(
        ["bash", "-euxc", script],
        check=False,
        cwd=tmp_path,
        env=stack.environ(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^first-run +Completed ", result.stdout, re.MULTILINE), result.stdout


def test_a_run_of_train_has_telemetry_that_div_reads(stack):
    told = stack.run("div", "telemetry", "first-run")
    rows = told.stdout.splitlines()
    assert len(rows) > 1, told.stderr
    counts = {row.split()[0]: int(row.split()[1]) for row in rows[1:]}
    assert counts["train.loss"] > 0
    assert counts["step"] >= counts["train.loss"]
    shown = json.loads(stack.run("div", "show", "first-run", "--json").stdout)
    assert (shown["kind"], shown["state"], shown["exit_code"]) == ("train", "done", 0)
    assert "step" in stack.run("div", "logs", "first-run").stdout
    assert "sine.py" in stack.run("div", "files", "first-run").stdout


SHIPPED = """
import json, os
print("kept at", os.environ["SLUGLINE_CHECKPOINTS"])
with open(os.environ["DIVERGENT_TELEMETRY_PATH"], "a") as file:
    for step in range(3):
        print(json.dumps({"step": step, "loss": 1 / (1 + step)}), file=file)
raise SystemExit(5)
"""


def test_a_directory_becomes_a_run_of_this_machine_s_stack(stack, tmp_path):
    (tmp_path / "hello.py").write_text(SHIPPED)
    done = stack.run("bash", "-c", f"cd {tmp_path} && div run -f --slug hello -- python hello.py")
    assert done.returncode == 5, done.stderr
    assert done.stdout == "kept at s3://slugline/hello/checkpoints\n"
    table = stack.run("div", "telemetry", "hello", "loss").stdout
    assert table == "step\tloss\n0\t1.0\n1\t0.5\n2\t0.3333333333333333\n"


def test_down_lets_a_run_save_and_the_next_up_resumes_it(stack, tmp_path):
    experiment = write_readme_experiment(tmp_path)
    location = tmp_path / "long"
    schedule = stack.slugline(
        "train", str(experiment), "--slug=long", "--steps=4000000", f"--location={location}", "--json"
    )
    assert schedule.returncode == 0, schedule.stderr
    shipped = sha256(experiment.read_bytes()).hexdigest()
    experiment.unlink()  # what was there when it was scheduled is what runs, and is resumed

    def record():
        path = location / "run.json"
        return json.loads(path.read_text()) if path.exists() else None

    def trains():
        found = record()
        return found and found["checkpoints"]

    wait_for(trains, timeout_s=150, what="the first checkpoint")

    down = stack.slugline("down")
    assert (down.returncode, down.stderr.splitlines()[-1]) == (0, "the stack is down"), down.stderr
    assert stack.processes() == []
    saved = record()
    assert saved["ended"]["status"] == "interrupted"
    newest = max(checkpoint["step"] for checkpoint in saved["checkpoints"])
    assert newest == saved["ended"]["step"]

    assert stack.up().returncode == 0

    def opens() -> list[dict[str, Any]]:
        *whole, _torn = (stack.path / "runs/long/events.jsonl").read_bytes().split(b"\n")
        return [event for line in whole if (event := json.loads(line))["kind"] == "open"]

    wait_for(lambda: len(opens()) == 2, timeout_s=150, what="the resume")
    assert record()["attempt"]["number"] == 2
    assert [event["metadata"]["sources"][0] for event in opens()] == [
        {"path": "sine.py", "sha256": shipped}
    ] * 2
    assert stack.slugline("cancel", "long").returncode == 0

    def states() -> set[str]:
        listed = json.loads(stack.slugline("list", "--json").stdout)
        return {run["state"] for run in listed if run["slug"] == "long"}

    wait_for(lambda: states() == {"Cancelled"}, timeout_s=150, what=lambda: f"cancelled: {states()}")

    again = stack.slugline("resume", "long", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["slug"] == "long"
    twice = stack.slugline("resume", "long")
    assert (twice.returncode, twice.stderr.count("\n")) == (2, 1), twice.stderr
    assert "long is live" in twice.stderr
    assert stack.slugline("cancel", "long").returncode == 0
    # Its process may have died of the cancelling before it said so: then rescue does, within 90 s.
    wait_for(lambda: states() == {"Cancelled"}, timeout_s=150, what=lambda: f"cancelled again: {states()}")


def test_the_deployments_for_one_s_own_machines_deploy(stack):
    # Near the end: they take `train/train` to another pool, which this stack's worker does not serve.
    script = """
        eval "$(slugline env)"
        prefect work-pool create gpu --type process &&
        prefect --no-prompt deploy --all --prefect-file infra/prefect.yaml
    """
    result = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=stack.environ(), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    url = f"http://127.0.0.1:{stack.ports.prefect}/api/deployments/name/train/nightly"
    deployment = httpx.get(url).json()
    (schedule,) = deployment["schedules"]
    assert (schedule["schedule"]["cron"], schedule["active"]) == ("0 3 * * *", True)
    assert deployment["job_variables"]["stream_output"] is False
    parameters = from_json(deployment["parameters"]["parameters"])
    assert experiment_path(parameters.experiment) == ROOT / "flows/experiments/python_lm.py"


def test_down_leaves_no_process_even_when_the_supervisor_was_killed(stack):
    supervisor = int((stack.path / "supervisor.pid").read_text())
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: supervisor not in stack.processes(), timeout_s=60, what="the supervisor is gone")
    assert set(stack.processes())
    down = stack.slugline("down")
    assert down.returncode == 0, down.stderr
    assert stack.processes() == []
    for port in stack.ports.needed():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port.number)) != 0
