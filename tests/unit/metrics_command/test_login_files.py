"""infra.login_files: the files lie where the public clients look, and only their owner reads them."""

import json
from pathlib import Path

import pytest

from infra.login_files import config_home, login_paths, write_logins
from runtime.events.syvain.settings import metrics_settings


@pytest.mark.parametrize(
    ("env", "root"),
    [
        ({"HOME": "/home/me"}, "/home/me/.config"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": "/etc/me"}, "/etc/me"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": "relative"}, "/home/me/.config"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": " "}, "/home/me/.config"),
    ],
)
def test_files_lie_below_the_configuration_directory(env, root):
    assert config_home(env) == Path(root)


def test_both_files_are_written_and_read_as_a_login(tmp_path):
    written = write_logins(tmp_path, key="k1", host="http://127.0.0.1:1", organisation_id="o", now_ms=5)
    assert (
        written
        == login_paths(tmp_path)
        == [
            tmp_path / "syvain-metrics" / "auth.json",
            tmp_path / "o41-metrics" / "auth.json",
        ]
    )
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o600
        assert json.loads(path.read_text()) == {
            "apiKey": "k1",
            "host": "http://127.0.0.1:1",
            "orgId": "o",
            "loginAt": 5,
        }
        assert [other.name for other in path.parent.iterdir()] == ["auth.json"]
    settings = metrics_settings({"XDG_CONFIG_HOME": str(tmp_path)})
    assert (settings.host, settings.api_key) == ("http://127.0.0.1:1", "k1")


def test_a_file_that_others_could_read_is_replaced(tmp_path):
    path = login_paths(tmp_path)[0]
    path.parent.mkdir()
    path.write_text("{}")
    path.chmod(0o644)
    write_logins(tmp_path, key="k1", host="http://127.0.0.1:1", organisation_id="o", now_ms=5)
    assert path.stat().st_mode & 0o777 == 0o600
