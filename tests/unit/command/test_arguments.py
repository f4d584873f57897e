from __future__ import annotations

import subprocess
import sys

import pytest

import runtime
from runtime.cli.arguments import parse_arguments
from runtime.errors import Rejected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "a command is missing: sexpgpu run FILE or sexpgpu check FILE; see sexpgpu --help"),
        (["tran", "x.py"], "COMMAND: invalid choice: 'tran'"),
        (["run"], "the following arguments are required: FILE; see sexpgpu run --help"),
        (["check", "x.py", "y.py"], "unexpected argument 'y.py': sexpgpu check takes one FILE"),
        (["run", "x.py", "--stpes=3"], "unknown flag --stpes, did you mean --steps?; see sexpgpu run --help"),
        (["run", "x.py", "--ver"], "unknown flag --ver"),
        (["run", "x.py", "--zzz", "3"], "unknown flag --zzz; see sexpgpu run --help"),
        (["run", "x.py", "--steps"], "--steps: expected one argument; see sexpgpu run --help"),
        (["run", "x.py", "--slug", "a", "--slug", "b"], "--slug is given twice, as 'a' and 'b'"),
        (["run", "x.py", "--json=yes"], "--json: ignored explicit argument 'yes'"),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(argv: list[str], message: str):
    with pytest.raises(Rejected) as refused:
        parse_arguments(argv)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_flags_that_take_several_values_repeat():
    given = parse_arguments(["run", "x.py", "--metrics", "a", "--metrics=b", "--knob=c=d", "--knob", "e=f"])
    assert (given.metrics, given.knob) == (["a", "b"], ["c=d", "e=f"])
    assert parse_arguments(["run", "y.py"]).metrics == []


@pytest.mark.parametrize("command", [[], ["run"], ["check"]])
def test_help_names_every_environment_variable_and_exit_code(
    command: list[str], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match=r"^0$"):
        parse_arguments([*command, "--help"])
    text = capsys.readouterr().out
    for name in ("SEXPGPU_METRICS", "AWS_ENDPOINT_URL", "SYVAIN_METRICS_API_KEY", "75", "76", "128+n"):
        assert name in text


def test_help_and_version_import_neither_torch_nor_numpy():
    script = (
        "import sys\nfrom runtime.cli.main import main\n"
        "try:\n    main([sys.argv[1]])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "sys.exit(len({'torch', 'numpy', 'boto3', 'prefect', 'rich'} & set(sys.modules)))"
    )
    for flag in ("--help", "--version"):
        ended = subprocess.run(
            [sys.executable, "-c", script, flag], capture_output=True, text=True, check=True
        )
        assert ended.stderr == ""
    assert ended.stdout == f"sexpgpu {runtime.__version__}\n"
