import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.ignoring import ignoring

NAMES = ["a", "b", "foo", "foobar", "bar", "a.txt", "b.txt", "é", "[x]", "a b", "x ", "#c", "!d", "-", "\\z"]
ATOMS = [
    *("a", "b", "foo", "bar", ".txt", "é", "x", "*", "**", "***", "?", "/", "/**/", "**/", "[ab]", "[!a]"),
    *("[^a-f]", "[[:alpha:]]", "[]-]", "[a-", "[z-a]", "[[:no:]]", "\\a", "\\*", "\\", "[x]", " ", "!", "#"),
]
LINE = st.tuples(
    st.sampled_from(["", "!", "/"]),
    st.lists(st.sampled_from(ATOMS), min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "/", " ", "\r"]),
).map("".join)
PATTERNS = st.lists(LINE, max_size=4).map("\n".join)
FOLDERS = st.dictionaries(st.lists(st.sampled_from(NAMES), max_size=2).map(tuple), PATTERNS, max_size=4)
FILES = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8)


def shipped(root: Path) -> list[str]:
    found = []

    def walk(folder, ignored, prefix):
        ignored = ignored.reading(folder)
        for item in os.scandir(folder):
            is_folder = item.is_dir(follow_symlinks=False)
            if item.name == ".git" or ignored.leaves_out(item.name, folder=is_folder):
                continue
            if is_folder:
                walk(Path(item.path), ignored.inside(item.name), f"{prefix}{item.name}/")
            else:
                found.append(prefix + item.name)

    walk(root, ignoring(root), "")
    return sorted(found)


def git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True).stdout


def as_git(root: Path) -> list[str]:
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({os.fsdecode(path) for path in listed.split(b"\0") if path})


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    return root


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(folders=FOLDERS, files=FILES)
def test_what_is_left_out_is_what_git_leaves_out(repository, folders, files):
    for item in repository.iterdir():
        if item.name != ".git":
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    for parts in [*(folder for folder in folders if folder), *(file[:-1] for file in files)]:
        (repository / Path(*parts)).mkdir(parents=True, exist_ok=True)
    for file in files:
        if not (repository / Path(*file)).is_dir():
            (repository / Path(*file)).touch()
    for folder, patterns in folders.items():
        (repository / Path(*folder) / ".gitignore").write_bytes(patterns.encode())
    assert shipped(repository) == as_git(repository)


def test_a_tracked_file_is_shipped_although_a_pattern_names_it(repository):
    write(
        repository,
        **{".gitignore": "data\n*.bin\n", "data/kept": "", "data/other": "", "a.bin": "", "b.bin": ""},
    )
    git(repository, "add", "-f", "data/kept", "a.bin")
    assert shipped(repository) == as_git(repository) == [".gitignore", "a.bin", "data/kept"]


def test_patterns_above_the_directory_and_the_users_own_count(repository, tmp_path):
    write(repository, **{".gitignore": "*.log\n/sub/only-here\n", ".git/info/exclude": "mine\n"})
    write(tmp_path, **{"config/git/ignore": "editor~\n"})
    sub = repository / "sub"
    write(sub, **{"a.log": "", "only-here": "", "mine": "", "editor~": "", "train.py": ""})
    assert shipped(sub) == as_git(sub) == ["train.py"]


def test_the_users_excludes_file_is_that_of_the_configuration(repository, tmp_path):
    write(tmp_path, excludes="notes\n")
    git(repository, "config", "core.excludesFile", str(tmp_path / "excludes"))
    write(repository, notes="", code="")
    assert shipped(repository) == as_git(repository) == ["code"]


def test_a_nested_pattern_brings_back_what_an_outer_one_leaves_out(tmp_path):
    write(
        tmp_path,
        **{".gitignore": "*.txt\n", "in/.gitignore": "!kept.txt\n", "in/kept.txt": "", "in/b.txt": ""},
    )
    assert shipped(tmp_path) == [".gitignore", "in/.gitignore", "in/kept.txt"]


def test_a_directory_that_is_no_repository_has_its_gitignore_read_too(tmp_path):
    write(tmp_path, **{".gitignore": "out/\n", "out/model": "", "train.py": ""})
    assert shipped(tmp_path) == [".gitignore", "train.py"]


def test_divignore_has_the_last_word_in_both_directions(tmp_path):
    write(
        tmp_path,
        **{
            ".gitignore": "data/\n",
            ".divignore": "!data/\ndata/raw\nnotes.md\n",
            "data/.gitignore": "*\n",
            "data/.divignore": "!*\n",
            "data/train.csv": "",
            "data/raw": "",
            "notes.md": "",
        },
    )
    # The one in data/ is nearer, and brings everything there back.
    expected = [
        ".divignore",
        ".gitignore",
        "data/.divignore",
        "data/.gitignore",
        "data/raw",
        "data/train.csv",
    ]
    assert shipped(tmp_path) == expected


def test_divignore_leaves_out_what_git_tracks(repository):
    write(repository, **{".divignore": "large\n", "large": ""})
    git(repository, "add", "large")
    assert shipped(repository) == [".divignore"]


def test_what_python_rewrites_is_left_out_unless_brought_back(tmp_path):
    write(tmp_path, **{"pkg/__pycache__/a.pyc": "", "pkg/a.py": ""})
    assert shipped(tmp_path) == ["pkg/a.py"]
    write(tmp_path, **{".divignore": "!__pycache__/\n"})
    assert shipped(tmp_path) == [".divignore", "pkg/__pycache__/a.pyc", "pkg/a.py"]


def test_a_pattern_file_that_is_a_link_is_not_read(repository):
    write(repository, patterns="a\n", a="")
    (repository / ".gitignore").symlink_to("patterns")
    assert shipped(repository) == as_git(repository) == [".gitignore", "a", "patterns"]
