"""Text as bytes: corpora of files, and loaders of windows cut from them at random."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from runtime.errors import Rejected
from runtime.experiment.model import Batch
from runtime.std.draws import random_integers

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NUM_BYTES", "Corpus", "Windows", "folder", "python_source"]

NUM_BYTES = 256
"""How many different tokens a text of bytes has."""

UNSTABLE = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__")
"""Folders of the standard library that some distributions of Python leave out, or fill with other things."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Files under one folder, named by their paths relative to it, in sorted order."""

    root: Path
    names: tuple[str, ...]

    def split(self, held_out: float) -> tuple[Corpus, Corpus]:
        """Return (train, held out): whole files, about the fraction `held_out` of them in the second.

        Where a file goes depends on its name alone: adding a file moves no other one.

        Raises:
            Rejected: `held_out` is not between 0 and 1, or one of the two would have no file.
        """
        if not 0 < held_out < 1:
            raise Rejected(f"held_out must be between 0 and 1, got {held_out}")
        apart = {name for name in self.names if _fraction(name) < held_out}
        train = tuple(name for name in self.names if name not in apart)
        if not train or not apart:
            raise Rejected(
                f"{len(self.names)} files cannot be split with held_out={held_out}: one side is empty"
            )
        return Corpus(self.root, train), Corpus(
            self.root, tuple(name for name in self.names if name in apart)
        )

    def read(self) -> np.ndarray:
        """Return the bytes of all files as one array (uint8), a zero byte after each file."""
        return np.frombuffer(
            b"".join((self.root / name).read_bytes() + b"\0" for name in self.names), np.uint8
        )


def folder(root: str | Path, *, pattern: str = "**/*.txt") -> Corpus:
    """Return the corpus of the files under `root` that match the glob `pattern`.

    Raises:
        FileNotFoundError: there is no such folder on this host.
        Rejected: no file matches.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(2, "no such folder", str(root))
    return _corpus(root, [path for path in root.glob(pattern) if path.is_file()])


def python_source() -> Corpus:
    """Return the source of the Python standard library, which every Python carries: some 500 files, 10 MB.

    It differs between versions of Python. What some distributions leave out (tests, IDLE) is left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in root.glob("**/*.py") if not set(path.relative_to(root).parts) & set(UNSTABLE)]
    return _corpus(root, paths)


@dataclass
class Windows:
    """A loader of windows cut from a corpus at random places: batch *i* is a function of (seed, i).

    Batch data is (inputs_BT, targets_BT), int64, the targets one byte further on. The corpus is read once,
    at construction, and held in memory.
    """

    corpus: Corpus
    batch_size: int
    length: int
    seed: int = 0
    _text: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.length < 1:
            raise Rejected(f"Windows needs sizes of at least 1, got {self.batch_size} x {self.length}")
        self._text = self.corpus.read()
        if len(self._text) <= self.length:
            raise Rejected(
                f"Windows of {self.length} bytes need a longer corpus, got {len(self._text)} bytes"
            )

    def starts(self, index: int) -> np.ndarray:
        """Return where in the corpus the windows of batch `index` begin."""
        places = np.uint64(len(self._text) - self.length)
        starts: np.ndarray = (random_integers(self.batch_size, self.seed, index) % places).astype(np.int64)
        return starts

    def batch(self, index: int) -> Batch:
        """Return batch `index` (from 0)."""
        places = self.starts(index)[:, None] + np.arange(self.length + 1)
        windows = torch.from_numpy(self._text[places].astype(np.int64))
        num_tokens = self.batch_size * self.length
        return Batch((windows[:, :-1], windows[:, 1:]), self.batch_size, num_tokens)


def _corpus(root: Path, paths: Sequence[Path]) -> Corpus:
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    if not names:
        raise Rejected(f"a corpus needs at least one file, got none under {root}")
    return Corpus(root, tuple(names))


def _fraction(name: str) -> float:
    """Return a number in [0, 1) that is a function of `name`."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
