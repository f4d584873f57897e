"""infra.local.environment: the services talk to this stack and to nothing else."""

from urllib.request import proxy_bypass

import pytest

from infra.local.directory import DataDirectory
from infra.local.environment import MARKER, client_environment, service_environment
from infra.local.errors import StackError


@pytest.fixture
def directory(tmp_path):
    made = DataDirectory.at(tmp_path)
    made.create()
    return made


def test_a_shell_gets_what_it_needs_and_not_the_marker(directory):
    variables = client_environment(directory, {})
    assert variables["AWS_ENDPOINT_URL"] == "http://127.0.0.1:4220"
    assert variables["AWS_SECRET_ACCESS_KEY"] == directory.secrets().s3_secret_key
    assert variables["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
    assert variables["SLUGLINE_LOCATION"] == "s3://slugline"
    # `down` ends every process with the marker: a shell must not be one of them.
    assert MARKER not in variables


def test_a_run_from_a_shell_shares_its_cores_as_the_services_do(directory):
    assert client_environment(directory, {})["OMP_WAIT_POLICY"] == "passive"
    assert client_environment(directory, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"


def test_the_metrics_key_is_there_once_the_server_has_made_it(directory):
    assert "SYVAIN_METRICS_API_KEY" not in client_environment(directory, {})
    (directory.metrics / "key").write_text("secret\n")
    assert client_environment(directory, {})["SYVAIN_METRICS_API_KEY"] == "secret"


def test_without_a_stack_there_is_no_environment(tmp_path):
    with pytest.raises(StackError, match=r"there is no stack in .*: start one with slugline up"):
        client_environment(DataDirectory(tmp_path / "none"), {})


def test_services_take_nothing_of_the_callers_own_servers(directory):
    own = {"AWS_PROFILE": "work", "PREFECT_API_KEY": "k", "SYVAIN_METRICS_API_KEY": "theirs"}
    own |= {"O41_METRICS_API_KEY": "theirs", "O41_METRICS_HOST": "https://metrics.example"}
    environment = service_environment(directory, {**own, "HF_HOME": "/h", "SLUGLINE_GPUS": "2"})
    assert not own.keys() & environment.keys()
    assert environment["HF_HOME"] == "/h"
    assert environment["SLUGLINE_GPUS"] == "2"


def test_third_parties_hear_nothing(directory):
    environment = service_environment(directory, {})
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert environment["PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY"] == "false"


def test_a_proxy_is_for_the_outside(directory):
    assert client_environment(directory, {"NO_PROXY": "corp"})["NO_PROXY"] == "corp,127.0.0.1,localhost"


def test_a_small_no_proxy_does_not_send_the_stack_through_the_proxy(directory, monkeypatch):
    """Python prefers it: everything that was asked of 127.0.0.1 went to the proxy."""
    own = {"http_proxy": "http://proxy:3128", "no_proxy": "corp, intra"}
    for variables in (client_environment(directory, own), service_environment(directory, own)):
        for name, value in {**own, **variables}.items():
            monkeypatch.setenv(name, value)
        assert proxy_bypass("127.0.0.1:4200")
        assert variables["no_proxy"] == variables["NO_PROXY"] == "corp,intra,127.0.0.1,localhost"
