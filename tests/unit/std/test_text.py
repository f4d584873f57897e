from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from runtime.errors import Rejected
from runtime.std import text
from tests.support.experiments import write_project

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def corpus(tmp_path: Path) -> text.Corpus:
    write_project(tmp_path, {f"{number:03d}.txt": f"file {number} " * 20 for number in range(200)})
    return text.folder(tmp_path)


def test_the_split_goes_by_file_name_alone(corpus: text.Corpus, tmp_path: Path):
    train, held_out = corpus.split(held_out=0.1)
    assert sorted(train.names + held_out.names) == list(corpus.names)
    assert 10 <= len(held_out.names) <= 30
    write_project(tmp_path, {"added.txt": "more"})
    again_train, again_held_out = text.folder(tmp_path).split(held_out=0.1)
    assert {*again_train.names, *again_held_out.names} - {*corpus.names} == {"added.txt"}
    assert set(held_out.names) <= set(again_held_out.names)
    assert set(held_out.names) <= set(corpus.split(held_out=0.5)[1].names)


def test_a_batch_is_windows_of_the_corpus_and_what_follows_each_byte(corpus: text.Corpus):
    windows = text.Windows(corpus, batch_size=5, length=16, seed=2)
    batch = windows.batch(7)
    inputs, targets = batch.data
    assert inputs.shape == targets.shape == (5, 16)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    whole = corpus.read().tobytes()
    for row, start in enumerate(windows.starts(7)):
        assert bytes([*inputs[row].tolist(), int(targets[row, -1])]) == whole[start : start + 17]
    assert (batch.num_examples, batch.num_tokens) == (5, 80)


def test_a_batch_is_a_function_of_seed_and_index(corpus: text.Corpus):
    first, again = (text.Windows(corpus, batch_size=3, length=8, seed=4) for _ in range(2))
    again.batch(100)
    assert torch.equal(first.batch(5).data[0], again.batch(5).data[0])
    assert not torch.equal(first.batch(5).data[0], first.batch(6).data[0])
    other = text.Windows(corpus, batch_size=3, length=8, seed=5)
    assert not torch.equal(first.batch(5).data[0], other.batch(5).data[0])


def test_every_place_of_a_short_corpus_is_drawn_and_none_beyond(tmp_path: Path):
    write_project(tmp_path, {"a.txt": "abcdef"})
    windows = text.Windows(text.folder(tmp_path), batch_size=200, length=4)
    assert set(windows.starts(0).tolist()) == {0, 1, 2}


def test_files_are_bytes_with_a_zero_between_them(tmp_path: Path):
    (tmp_path / "b.txt").write_bytes(b"\xff\x00")
    (tmp_path / "a.txt").write_bytes("é".encode())
    assert text.folder(tmp_path).read().tobytes() == b"\xc3\xa9\x00\xff\x00\x00"


def test_the_standard_library_is_megabytes_of_stable_code():
    corpus = text.python_source()
    assert "json/decoder.py" in corpus.names
    assert not [name for name in corpus.names if {"site-packages", "test", "tests"} & set(name.split("/"))]
    train, held_out = corpus.split(held_out=0.05)
    size = len(held_out.read())
    assert 0.01 < size / (size + len(train.read())) < 0.15
    assert isinstance(held_out.read(), np.ndarray)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda root: text.folder(root / "gone"), FileNotFoundError, "gone"),
        (lambda root: text.folder(root, pattern="*.md"), Rejected, "needs at least one file, got none under"),
        (
            lambda root: text.folder(root).split(held_out=1),
            Rejected,
            "held_out must be between 0 and 1, got 1",
        ),
        (lambda root: text.folder(root).split(held_out=1e-9), Rejected, "one side is empty"),
        (lambda root: text.Windows(text.folder(root), 1, 9), Rejected, "need a longer corpus, got 7 bytes"),
        (lambda root: text.Windows(text.folder(root), 0, 9), Rejected, "sizes of at least 1, got 0 x 9"),
    ],
)
def test_what_cannot_be_cut_is_refused(tmp_path: Path, make: Any, error: type[Exception], message: str):
    write_project(tmp_path, {"a.txt": "abcdef"})
    with pytest.raises(error, match=message):
        make(tmp_path)
