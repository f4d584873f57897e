"""What of a directory is not shipped: `.gitignore` as git reads it, and `.divignore`, the last word."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.globs import expression

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable

__all__ = ["DIVIGNORE", "GITIGNORE", "Ignoring", "Patterns", "ignoring"]

GITIGNORE = ".gitignore"
DIVIGNORE = ".divignore"
BY_DEFAULT = b"__pycache__/"
"""Python rewrites these as it runs: with them, the same sources would be another directory each time."""


class Patterns:
    """The patterns of one file: the last one that fits an entry decides.

    Source: gitignore(5), and git's dir.c where the page is silent. All in bytes, as git does it.
    """

    def __init__(self, text: bytes) -> None:
        read = [_Pattern.read(line) for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
        self._newest_first = [pattern for pattern in reversed(read) if pattern is not None]

    def decide(self, path: bytes, *, folder: bool) -> bool | None:
        """Say whether what is at `path`, relative to the file's folder, is left out; None: no word on it."""
        name = path.rpartition(b"/")[2]
        for pattern in self._newest_first:
            if pattern.folders_only and not folder:
                continue
            if pattern.fits.fullmatch(name if pattern.by_name else path):
                return not pattern.negated
        return None


@dataclass(frozen=True, slots=True)
class _Pattern:
    fits: re.Pattern[bytes]
    by_name: bool
    folders_only: bool
    negated: bool

    @classmethod
    def read(cls, line: bytes) -> _Pattern | None:
        text = _without_spaces_at_its_end(line.removesuffix(b"\r"))
        if not text or text.startswith(b"#"):
            return None
        negated = text.startswith(b"!")
        text = text[1:] if negated else text
        folders_only = text.endswith(b"/")
        text = text.removesuffix(b"/")
        by_name = b"/" not in text
        fits = expression(text.removeprefix(b"/"), by_name=by_name)
        return None if fits is None else cls(fits, by_name, folders_only, negated)


def _without_spaces_at_its_end(line: bytes) -> bytes:
    """Without those that no backslash keeps."""
    end = len(line.rstrip(b" "))
    slashes = end - len(line[:end].rstrip(b"\\"))
    return line[: end + slashes % 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignoring:
    """What is left out of one folder; `inside` gives that of a folder in it.

    `base` is the folder's path below the top of its repository, with a slash at its end. `by_git` and
    `by_div` are the patterns that hold there, the outermost first, each with the length of its own folder's
    path. `tracked` are what git tracks in spite of its patterns, and the folders of these. `only_tracked`:
    git leaves out this whole folder, but for those.
    """

    base: bytes = b""
    by_git: tuple[tuple[int, Patterns], ...] = ((0, Patterns(BY_DEFAULT)),)
    by_div: tuple[tuple[int, Patterns], ...] = ()
    tracked: frozenset[bytes] = frozenset()
    only_tracked: bool = False

    def reading(self, folder: Path) -> Ignoring:
        """Return the same with the pattern files of the folder itself, which is at `folder`."""
        git, div = (_patterns(folder / name) for name in (GITIGNORE, DIVIGNORE))
        return replace(
            self,
            by_git=(*self.by_git, *((len(self.base), patterns) for patterns in git)),
            by_div=(*self.by_div, *((len(self.base), patterns) for patterns in div)),
        )

    def inside(self, name: str) -> Ignoring:
        """Return what is left out of the folder `name` in this one, its own pattern files not read yet."""
        path = self.base + os.fsencode(name)
        kept = _decided(self.by_div, path, folder=True) is False
        only_tracked = not kept and self._git_leaves_out(path, folder=True)
        return replace(self, base=path + b"/", only_tracked=only_tracked)

    def leaves_out(self, name: str, *, folder: bool) -> bool:
        """Say whether the entry `name` of this folder stays at home."""
        path = self.base + os.fsencode(name)
        decided = _decided(self.by_div, path, folder=folder)
        if decided is not None:
            return decided
        return path not in self.tracked and self._git_leaves_out(path, folder=folder)

    def _git_leaves_out(self, path: bytes, *, folder: bool) -> bool:
        return self.only_tracked or bool(_decided(self.by_git, path, folder=folder))


def _decided(levels: tuple[tuple[int, Patterns], ...], path: bytes, *, folder: bool) -> bool | None:
    for length, patterns in reversed(levels):  # the innermost has the word
        if (decided := patterns.decide(path[length:], folder=folder)) is not None:
            return decided
    return None


def _patterns(file: Path) -> Iterable[Patterns]:
    """Read a pattern file, where there is one; like git, not through a link."""
    return [Patterns(file.read_bytes())] if file.is_file() and not file.is_symlink() else []


def ignoring(root: Path) -> Ignoring:
    """Return what is left out of the directory `root`, its own pattern files not read yet.

    In a git repository that is what git leaves out: also by the folders above and by the user's own excludes,
    and not what it tracks all the same.
    """
    root = root.resolve()
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), None)
    if top is None:
        return Ignoring()
    found = Ignoring(
        by_git=(
            *Ignoring().by_git,
            *((0, patterns) for file in _excludes(top) for patterns in _patterns(file)),
        ),
        tracked=_tracked(top),
    )
    for name in root.relative_to(top).parts:
        found = replace(
            found.reading(top / os.fsdecode(found.base)), base=found.base + os.fsencode(name) + b"/"
        )
    return found


def _excludes(top: Path) -> list[Path]:
    """The user's own pattern files: what counts more comes later."""
    of_user = _git(top, "config", "--path", "--get", "core.excludesFile").strip(b"\n")
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    of_repository = _git(top, "rev-parse", "--git-path", "info/exclude").strip(b"\n")
    files = [Path(os.fsdecode(of_user)) if of_user else home / "git" / "ignore"]
    return [*files, *([top / os.fsdecode(of_repository)] if of_repository else [])]


def _tracked(top: Path) -> frozenset[bytes]:
    """The files that git tracks in spite of its patterns, and their folders."""
    found: set[bytes] = set()
    listed = _git(top, "ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
    for path in listed.split(b"\0"):
        parts = path.split(b"/")
        found |= {b"/".join(parts[: n + 1]) for n in range(len(parts))} if path else set()
    return frozenset(found)


def _git(top: Path, *arguments: str) -> bytes:
    """What git prints; nothing where it is not installed, or will not say."""
    git = shutil.which("git")
    if git is None:
        return b""
    # Of a hook, these would name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        [git, "-C", str(top), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    ).stdout
