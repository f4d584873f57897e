import json

import pytest

from runtime.errors import Rejected
from runtime.events.syvain.settings import DEFAULT_HOST, MetricsSettings, metrics_settings


@pytest.fixture
def env(tmp_path):
    return {"HOME": str(tmp_path)}


def save_login(tmp_path, client="o41-metrics", root=".config", **login):
    path = tmp_path / root / client / "auth.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"orgId": "o", "loginAt": "2026-01-01T00:00:00Z", **login}))
    return path


def test_the_environment_comes_first_and_the_newer_names_before_the_older(env, tmp_path):
    save_login(tmp_path, apiKey="saved", host="https://saved.example")
    env |= {"SYVAIN_METRICS_API_KEY": "old", "SYVAIN_METRICS_HOST": "https://old.example"}
    assert metrics_settings(env) == MetricsSettings("https://old.example", "old")
    env |= {"O41_METRICS_API_KEY": " new ", "O41_METRICS_HOST": "http://127.0.0.1:4300/"}
    assert metrics_settings(env) == MetricsSettings("http://127.0.0.1:4300", "new")


def test_a_key_of_the_environment_never_goes_to_the_saved_host(env, tmp_path):
    save_login(tmp_path, apiKey="saved", host="https://saved.example")
    assert metrics_settings(env | {"O41_METRICS_API_KEY": "k"}) == MetricsSettings(DEFAULT_HOST, "k")


def test_a_blank_variable_is_as_good_as_none(env, tmp_path):
    save_login(tmp_path, apiKey="saved", host="https://saved.example")
    assert metrics_settings(env | {"O41_METRICS_API_KEY": "  "}).api_key == "saved"


@pytest.mark.parametrize("client", ["o41-metrics", "syvain-metrics"])
def test_the_saved_login_is_found_under_either_name(env, tmp_path, client):
    save_login(tmp_path, client, apiKey="saved", host="https://saved.example")
    assert metrics_settings(env) == MetricsSettings("https://saved.example", "saved")


def test_the_newer_login_comes_first(env, tmp_path):
    save_login(tmp_path, "syvain-metrics", apiKey="old")
    save_login(tmp_path, "o41-metrics", apiKey="new")
    assert metrics_settings(env) == MetricsSettings(DEFAULT_HOST, "new")


def test_the_configuration_folder_can_be_elsewhere_if_it_is_absolute(env, tmp_path):
    save_login(tmp_path, root="elsewhere", apiKey="there")
    save_login(tmp_path, apiKey="here")
    assert metrics_settings(env | {"XDG_CONFIG_HOME": str(tmp_path / "elsewhere")}).api_key == "there"
    assert metrics_settings(env | {"XDG_CONFIG_HOME": "elsewhere"}).api_key == "here"


def test_a_saved_key_never_goes_to_another_host(env, tmp_path):
    save_login(tmp_path, apiKey="saved", host="https://saved.example")
    assert metrics_settings(env | {"O41_METRICS_HOST": "saved.example/"}).api_key == "saved"
    with pytest.raises(
        Rejected, match=r"belongs to https://saved.example, and the Metrics host is http://other"
    ):
        metrics_settings(env | {"O41_METRICS_HOST": "http://other"})


def test_no_key_at_all_is_refused_with_what_to_do(env, tmp_path):
    with pytest.raises(
        Rejected, match=r"no key for Metrics: set O41_METRICS_API_KEY .*o41-metrics/auth.json"
    ):
        metrics_settings(env)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"{}", b'{"apiKey":""}', b'{"apiKey":3}', b'{"apiKey":"k","host":3}', b"\xff"]
)
def test_a_login_that_is_none_is_refused(env, tmp_path, content):
    save_login(tmp_path).write_bytes(content)
    with pytest.raises(Rejected, match=r"the Metrics login .*auth.json .*log in again"):
        metrics_settings(env)


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("metrics.example", "https://metrics.example"),
        ("https://metrics.example//", "https://metrics.example"),
        ("http://127.0.0.1:4300/metrics/", "http://127.0.0.1:4300/metrics"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_a_host_is_a_url_whose_prefix_is_kept(env, given, origin):
    assert metrics_settings(env | {"O41_METRICS_API_KEY": "k", "O41_METRICS_HOST": given}).host == origin


@pytest.mark.parametrize(
    "host",
    [
        "ftp://h",
        "http://",
        "http://user:pw@h",
        "http://h:99999",
        "http://h:x",
        "http://h?a=1",
        "http://h#a",
        "http://a b",
        "http://hé",
        "http://[::1",
    ],
)
def test_a_host_that_is_no_url_is_refused(env, host):
    with pytest.raises(Rejected, match="the Metrics host must be a URL like"):
        metrics_settings(env | {"O41_METRICS_API_KEY": "k", "O41_METRICS_HOST": host})


@pytest.mark.parametrize("key", ["two words", "é", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(env, key):
    with pytest.raises(Rejected, match="the Metrics API key must be printable ASCII") as caught:
        metrics_settings(env | {"O41_METRICS_API_KEY": key})
    assert key not in str(caught.value)


def test_the_key_hides_from_logs(env):
    assert "secret" not in repr(metrics_settings(env | {"O41_METRICS_API_KEY": "secret"}))
