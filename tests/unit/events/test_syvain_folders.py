import pytest

from runtime.errors import Rejected
from runtime.events.syvain.folders import check_folder, find_folder

LR = {
    "folderId": "00000000-0000-4000-8000-00000000000b",
    "name": "lr sweep",
    "folders": [],
    "experiments": [],
}
LM = {"folderId": "00000000-0000-4000-8000-00000000000a", "name": "lm", "folders": [LR], "experiments": []}
TREE = {"folders": [LM, {**LR, "name": "other", "folderId": "x"}], "experiments": []}


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ("/", "/"),
        ("/lm//lr sweep/", "/lm/lr sweep"),
        ("0000000A-0000-4000-8000-00000000000B", "0000000a-0000-4000-8000-00000000000b"),
    ],
)
def test_a_folder_is_a_path_or_an_id(given, checked):
    assert check_folder(given) == checked


@pytest.mark.parametrize("folder", ["", "lm", "0000000a-0000-4000-8000", "./lm"])
def test_anything_else_is_refused(folder):
    with pytest.raises(Rejected, match="--folder must be a path that starts with / or a folder's id, got"):
        check_folder(folder)


def test_a_path_is_walked_and_an_id_looked_for_everywhere():
    assert find_folder(TREE, "/") is None
    assert find_folder(TREE, "/lm") == LM["folderId"]
    assert find_folder(TREE, "/lm/lr sweep") == LR["folderId"]
    assert find_folder(TREE, "00000000-0000-4000-8000-00000000000b") == LR["folderId"]


def test_a_missing_folder_is_refused_with_what_is_there():
    with pytest.raises(Rejected, match="there is no 'x' in /, only: lm, other"):
        find_folder(TREE, "/x")
    with pytest.raises(Rejected, match="there is no 'x' in /lm/lr sweep, only: none"):
        find_folder(TREE, "/lm/lr sweep/x")
    with pytest.raises(Rejected, match="no folder of that id"):
        find_folder(TREE, "00000000-0000-4000-8000-0000000000ff")
