"""infra.client.ending: what an error of the surroundings is called."""

from __future__ import annotations

import errno

import pytest

from infra.client.ending import unusable


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EACCES, "Permission denied", "a.csv"), "a.csv cannot be used: Permission denied"),
        (OSError(errno.ENOSPC, "No space left"), "standard output cannot be used: No space left"),
        (
            FileNotFoundError(errno.ENOENT, "No such file"),
            "the working directory is gone: change to one that exists",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
    ids=["file", "output", "folder", "other"],
)
def test_what_could_not_be_used_is_named_only_where_it_is_known(error: OSError, says: str):
    assert unusable(error) == says
