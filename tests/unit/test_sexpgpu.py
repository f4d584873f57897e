"""sexpgpu: the streams that a command begins with."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = "import sexpgpu, sys; sexpgpu._import_ours = lambda: None; sexpgpu._begin(); "


def began(program: str, redirections: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = f"{shlex.join([sys.executable, '-c', BEGIN + program])} {redirections}"
    environment = os.environ | variables
    return subprocess.run(["sh", "-c", command], capture_output=True, env=environment, timeout=60, check=True)


def test_what_is_printed_to_a_closed_stream_goes_into_no_file(tmp_path: Path):
    program = (
        f"sys.stdin.read(); file = open({str(tmp_path / 'file')!r}, 'w'); "
        "print('out'); print('error', file=sys.stderr); file.write('kept')"
    )
    began(program, "<&- >&- 2>&-")
    assert (tmp_path / "file").read_text() == "kept"


def test_any_text_can_be_printed_in_any_locale():
    done = began(r"print('caf\xe9 \udcff')", "", PYTHONIOENCODING="ascii")
    assert done.stdout == b"caf\xc3\xa9 \\udcff\n"
