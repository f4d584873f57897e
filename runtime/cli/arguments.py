"""The flags of `sexpgpu`, and what `--help` says about them. Knows nothing of torch: help must be quick."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from runtime import __version__
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["parse_arguments"]

DESCRIPTION = "Train what an experiment file defines; run it again under the same slug and it goes on."

ENVIRONMENT = """\
environment:
  SEXPGPU_METRICS          targets when there is no --metrics, separated by spaces
  AWS_ENDPOINT_URL         the S3 server of an s3:// location, with AWS_ACCESS_KEY_ID,
                           AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_PROFILE
  O41_METRICS_HOST         the Metrics server of the target syvain, with its key O41_METRICS_API_KEY;
                           SYVAIN_METRICS_HOST and SYVAIN_METRICS_API_KEY are their older names
  DIVERGENT_TELEMETRY_PATH the run's telemetry file: every metric is written there as well, train/loss as
                           train.loss
  SLUGLINE_LIFELINE_FD     set by a flow: the pipe whose end asks the run to end

inside `div run` no flag is needed; what no flag says is found in:
  SLUGLINE_SLUG            the slug
  SLUGLINE_CHECKPOINTS     the location
  DIVERGENT_RUN            the run's name: there is Metrics, so events go to syvain

exit codes:
  0 done    1 the run's own error    2 a mistake in a flag or in the file, nothing touched
  75 the surroundings: a location, a missing file    76 a newer attempt owns the run
  128+n interrupted by signal n
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and leaves the ending to the caller."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{
                "allow_abbrev": False,
                "formatter_class": argparse.RawDescriptionHelpFormatter,
                "epilog": ENVIRONMENT,
                **options,
            }
        )

    def error(self, message: str) -> NoReturn:
        text = re.sub(r"^argument (\S+?)(/\S+)?: ", r"\1: ", message)
        raise Rejected(f"{text}; see {self.prog} --help")


class _Once(argparse.Action):
    """Takes one value, and refuses a second one instead of forgetting the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(
                f"{option_string} is given twice, as {getattr(namespace, self.dest)!r} and {values!r}"
            )
        setattr(namespace, self.dest, values)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return what `argv` says, every value as the text that it is; `command` is `run` or `check`.

    `--help` and `--version` print and exit.

    Raises:
        Rejected: an unknown flag or command, a flag without its value, or one that is given twice.
    """
    parser = _Parser(prog="sexpgpu", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"sexpgpu {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    run = commands.add_parser("run", help="train", description=DESCRIPTION)
    check = commands.add_parser(
        "check",
        help="do everything up to step 0 and touch nothing",
        description="Load an experiment file, make its model and first batches; train and touch nothing.",
    )
    _add_flags(run, json_prints="the summary of the run as a line of JSON")
    _add_flags(check, json_prints="the identity of the run as JSON instead of a table")
    known, unknown = parser.parse_known_args(list(argv))
    if known.command is None:
        raise Rejected("a command is missing: sexpgpu run FILE or sexpgpu check FILE; see sexpgpu --help")
    if unknown:
        raise Rejected(_unknown(unknown, {"run": run, "check": check}[known.command]))
    return known


def _add_flags(parser: argparse.ArgumentParser, *, json_prints: str) -> None:
    parser.add_argument("file", metavar="FILE", help="the experiment file")
    what = parser.add_argument_group("what is trained")
    _add(what, "--variant", "V", "a variant of the file (default: the defaults of its Knobs)")
    what.add_argument(
        "--knob",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a knob of the file; may be repeated",
    )
    _add(what, "--steps", "N", "set the knob steps")
    _add(what, "--eval-every", "N", "set the knob eval_every")
    _add(what, "--diagnostics", "off", "set the knob diagnostics; others than off are not taken yet")
    where = parser.add_argument_group("under which name, and where to")
    _add(where, "--slug", "S", "the name of the run (default: the file's name and the time)")
    _add(where, "--folder", "PATH|ID", "the folder of the experiment in Metrics")
    _add(where, "--location", "L", "where checkpoints go, a path or s3://bucket/prefix (default: nowhere)")
    where.add_argument(
        "--metrics",
        metavar="T",
        action="append",
        default=[],
        help="where events go: jsonl:PATH, stdout or syvain; may be repeated (default: SEXPGPU_METRICS)",
    )
    how = parser.add_argument_group("how")
    _add(how, "--device", "cpu|cuda", "default: cuda where there is one")
    _add(how, "--devices", "N", "the ordinal of the CUDA device (default: 0)")
    _add(
        how,
        "--resume",
        "auto|never|STEP",
        "from the newest checkpoint, from none, from that of a step (auto)",
    )
    _add(how, "--notice", "SECONDS", "how long the run may take to end after a signal (default: 20)")
    how.add_argument("--json", action="store_true", help=f"print {json_prints}")
    how.add_argument("--verbose", action="store_true", help="log more, and the traceback of a file's mistake")


def _add(group: argparse._ArgumentGroup, flag: str, metavar: str, text: str) -> None:
    group.add_argument(flag, metavar=metavar, action=_Once, help=text)


def _unknown(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    flag = unknown[0].partition("=")[0]
    if not flag.startswith("-"):
        return f"unexpected argument {flag!r}: {parser.prog} takes one FILE; see {parser.prog} --help"
    close = get_close_matches(flag, parser._option_string_actions, n=1)  # noqa: SLF001 - argparse lists them nowhere else
    hint = f", did you mean {close[0]}?" if close else ""
    return f"unknown flag {flag}{hint}; see {parser.prog} --help"
