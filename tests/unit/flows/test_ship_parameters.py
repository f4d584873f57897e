import pytest

from flows.parameters import file_name
from flows.secret_names import block_name, secret_name
from flows.ship_parameters import ShipParameters, ship_parameters
from runtime.errors import Rejected

TREE = "ab" * 32


def asked(**values) -> ShipParameters:
    return ShipParameters(**{"command": ("python", "train.py"), "tree": TREE, **values})


def test_what_prefect_keeps_is_what_was_asked():
    parameters = asked(
        slug="a/b",
        env={"LR": "3e-4"},
        secrets=("HF_TOKEN", "HF_TOKEN"),
        gpus=0,
        retries=2,
        telemetry="",
        folder="/x",
    )
    kept = parameters.to_json()
    assert ship_parameters(kept) == parameters
    assert kept == {
        "command": ["python", "train.py"],
        "tree": TREE,
        "slug": "a/b",
        "folder": "/x",
        "telemetry": "",
        "env": {"LR": "3e-4"},
        "secrets": ["HF_TOKEN"],
        "gpus": 0,
        "retries": 2,
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"command": ()}, "no command: name the program to run after --"),
        ({"command": ("",)}, "no command"),
        ({"command": ("a", "b\0")}, "a command's words are texts without NUL"),
        ({"command": ("a",) * 4097}, "a command has at most 4,096 words and 65,536 bytes of JSON, got 4,097"),
        ({"command": ("é" * 32_767,)}, "got 1 words and 65,538 bytes: have it read a list from a file"),
        ({"tree": "AB"}, "tree must be a directory's digest, 64 hex digits, got 'AB'"),
        ({"slug": ""}, "slug: "),
        ({"location": "runs"}, "location must be s3://bucket/prefix or an absolute path, got 'runs'"),
        ({"trees": "trees"}, "location must be s3://bucket/prefix or an absolute path, got 'trees'"),
        ({"gpus": -1}, "gpus must be a whole number of at least 0, got -1"),
        ({"retries": -1}, "retries must be a whole number of at least 0, got -1"),
        ({"retries": True}, "retries must be a whole number"),
        ({"retries": 10**20}, "retries must be a whole number of at most 9,007,199,254,740,991"),
        ({"no_progress": 0}, "no_progress must be a whole number of at least 1"),
        ({"notice_s": 60.0}, "notice_s must be above 0 and at most 25"),
        ({"env": {"1A": ""}}, "--env takes K=V, and K is of letters, digits and _, got '1A'"),
        ({"env": {"A": "\0"}}, "--env A: a variable's value is a text without NUL"),
        ({"env": {"DIVERGENT_RUN": "x"}}, "DIVERGENT_RUN is set by the run itself: choose another name"),
        ({"env": {"SLUGLINE_SLUG": "x"}}, "SLUGLINE_SLUG is set by the run itself"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "CUDA_VISIBLE_DEVICES is set by the run itself"),
        (
            {"secrets": ("hf_token",)},
            "of capital letters, digits and _, got 'hf_token': write it like HF_TOKEN",
        ),
        ({"secrets": ("SLUGLINE_SLUG",)}, "SLUGLINE_SLUG is set by the run itself"),
        ({"env": {"A": "x"}, "secrets": ("A",)}, "A is given as --env and as --secret"),
    ],
    ids=lambda value: "-".join(f"{name}" for name in value) if isinstance(value, dict) else "",
)
def test_what_no_run_can_have_is_refused(values, said):
    with pytest.raises(Rejected) as refused:
        asked(**values)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"command": ["a"]}, "tree is missing: schedule the run with `div run -- COMMAND...`"),
        ({"tree": TREE}, "command is missing"),
        (
            {"command": ["a"], "tree": TREE, "knobs": {}},
            "unknown parameter 'knobs': ship takes checks, command, env, ",
        ),
    ],
    ids=["tree", "command", "unknown"],
)
def test_what_prefect_keeps_is_checked(values, said):
    with pytest.raises(Rejected, match=said.replace("(", r"\(")):
        ship_parameters(values)


def test_a_first_start_decides_slug_and_location():
    pinned = asked().pinned(slug="nightly-1", location="s3://bucket/nightly-1")
    assert (pinned.slug, pinned.location, pinned.failures) == ("nightly-1", "s3://bucket/nightly-1", 0)


@pytest.mark.parametrize("name", ["A", "HF_TOKEN", "A__B", "X1_"])
def test_a_secret_and_its_block_name_each_other(name):
    assert secret_name(block_name(name)) == name


@pytest.mark.parametrize("block", ["hf-token", "slugline-secret-", "slugline-secret-1"])
def test_a_block_of_somebody_else_is_no_secret_of_ours(block):
    assert secret_name(block) is None


def test_no_run_lies_where_the_shipped_directories_are():
    assert file_name(".trees") != ".trees"
