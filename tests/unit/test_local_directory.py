"""infra.local.directory: one folder, this user's alone, with keys that stay."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from infra.local.directory import DataDirectory, default_data_directory
from infra.local.errors import StackError
from infra.local.ports import Ports


@pytest.fixture
def directory(tmp_path):
    made = DataDirectory.at(tmp_path / "data")
    made.create()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_readable_by_this_user_alone(directory):
    assert mode(directory.path) == 0o700
    assert mode(directory.path / "secrets.json") == 0o600
    assert mode(directory.identities) == 0o600


def test_keys_are_made_once_and_differ_between_directories(directory, tmp_path):
    keys = directory.secrets()
    directory.create()
    assert directory.secrets() == keys
    other = DataDirectory.at(tmp_path / "other")
    other.create()
    assert other.secrets() != keys


def test_the_s3_server_knows_exactly_these_keys(directory):
    (identity,) = msgspec.json.decode(directory.identities.read_bytes())["identities"]
    keys = directory.secrets()
    assert identity["credentials"] == [{"accessKey": keys.s3_access_key, "secretKey": keys.s3_secret_key}]


def test_keys_are_hidden_in_repr(directory):
    keys = directory.secrets()
    assert keys.s3_secret_key not in repr(keys)


def test_ports_are_remembered(directory):
    assert directory.ports() == Ports()
    directory.remember(Ports(prefect=1, metrics=2, s3=3))
    assert DataDirectory.at(directory.path).ports() == Ports(prefect=1, metrics=2, s3=3)


def test_keys_that_are_none_are_named_with_the_way_out(directory):
    (directory.path / "secrets.json").write_text("")
    with pytest.raises(StackError, match=r"secrets.json does not hold the stack's keys: .*: remove it"):
        directory.secrets()


def test_ports_that_were_edited_into_nonsense_are_named(directory):
    (directory.path / "stack.json").write_text('{"ports":{"s3":"x"}}')
    with pytest.raises(StackError, match=r"stack.json does not hold the ports: .*: correct it or remove it"):
        directory.ports()


def test_a_path_too_long_for_the_supervisor_s_socket_is_refused():
    """It binds its socket as `supervisor.sock.PID` first, and the longest path left no room for that."""
    root = Path("/" + "d" * 83)
    with pytest.raises(
        StackError, match=r"path is too long for a unix socket: .* at most 83 bytes with --data"
    ):
        DataDirectory.at(root)
    longest = DataDirectory.at(root.with_name("d" * 82))
    assert len(os.fsencode(longest.socket)) + len(".4194304") == 107


def test_a_path_that_leads_nowhere_is_one_line(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (tmp_path / "circle", Path("~nobody-of-this-name/data")):
        with pytest.raises(StackError, match=r"cannot be found: .*[^.]: choose another with --data"):
            DataDirectory.at(path)


@pytest.mark.parametrize("letter", ["%", "?", "\n"])
def test_letters_that_the_services_read_as_something_else_are_refused(tmp_path, letter):
    with pytest.raises(StackError, match=r"must not hold .*: .*: choose another with --data") as error:
        DataDirectory.at(tmp_path / f"a{letter}b")
    assert "\n" not in str(error.value)


def test_without_a_home_directory_one_must_be_chosen(monkeypatch):
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(StackError, match="no home directory: choose a data directory with --data"):
        default_data_directory({})
    assert default_data_directory({"SLUGLINE_DATA": "/a"}) == Path("/a")


def test_a_file_is_no_data_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match="is not a directory"):
        DataDirectory.at(tmp_path / "file")


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        StackError, match=r"cannot be written: .*: Not a directory: choose another with --data"
    ):
        DataDirectory(tmp_path / "file" / "below").create()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLUGLINE_DATA": "/a/b", "XDG_DATA_HOME": "/x"}, Path("/a/b")),
        ({"XDG_DATA_HOME": "/x"}, Path("/x/slugline")),
        ({}, Path.home() / ".local/share/slugline"),
    ],
)
def test_where_the_data_directory_is_unless_told(environ, expected):
    assert default_data_directory(environ) == expected
