"""`checks.toml`: what a run's result must be. Pure; read when the run is created, judged when it ends."""

from __future__ import annotations

import json
import math
import operator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from runtime.telemetry._tables import LayoutError, Table, shown, tables, top_table
from runtime.telemetry.rules import Number, is_key, leaves, number_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["OPERATIONS", "Check", "LayoutError", "Verdict", "judge", "parse_checks"]

OPERATIONS: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison: what the result has under `key` (dotted into nested objects) `op` `threshold`."""

    key: str
    op: str
    threshold: float

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain data, its fields by their names."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one check came out.

    `value` is what was compared, None when there was nothing to compare. `reason` says why a check failed;
    it is empty when the check passed.
    """

    key: str
    op: str
    threshold: float
    value: Number | None
    passed: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data, its fields by their names."""
        return asdict(self)


def parse_checks(text: str | bytes) -> tuple[Check, ...]:
    """Return the checks of a `checks.toml`, in their order.

    Raises:
        LayoutError: it cannot be read; the text names the table by its number, the key and what is accepted.
    """
    top = top_table("checks", text)
    top.only("check")
    return tuple(_check(table) for table in tables(top, "check"))


def judge(checks: Sequence[Check], result: str | None) -> tuple[Verdict, ...]:
    """Return a verdict for each check on the text of `result.json`; None: the run wrote none.

    Whatever the text holds, nothing is raised: a result that cannot be read fails every check.
    """
    if not checks:
        return ()
    values = _values(result)
    return tuple(_verdict(check, values) for check in checks)


def _check(table: Table) -> Check:
    table.only("key", "op", "threshold")
    for required in ("key", "op", "threshold"):
        if required not in table.values:
            table.refuse(f"no {required}, which is required")
    key, op, threshold = table.text("key"), table.one_of("op", tuple(OPERATIONS)), table.number("threshold")
    assert key is not None
    assert op is not None
    assert threshold is not None
    if not key:
        table.refuse('key "", which is not a key of the result')
    return Check(key=key, op=op, threshold=threshold)


def _values(result: str | None) -> Mapping[str, object] | str:
    """Return the result's values under dotted keys, or why there are none."""
    if result is None:
        return "the run wrote no result"
    try:
        record = json.loads(result.removeprefix("\ufeff"), parse_int=_integer)
    except RecursionError:
        return "the result nests too deeply"
    except ValueError as error:
        return f"the result is not JSON: {error}"
    if not isinstance(record, dict):
        return f"the result is {shown(record)}, which is not an object"
    return dict(leaves(record))


def _verdict(check: Check, values: Mapping[str, object] | str) -> Verdict:
    value, reason = _compared(check, values)
    return Verdict(
        key=check.key,
        op=check.op,
        threshold=check.threshold,
        value=value,
        passed=not reason,
        reason=reason,
    )


def _compared(check: Check, values: Mapping[str, object] | str) -> tuple[Number | None, str]:
    if isinstance(values, str):
        return None, values
    key = check.key if is_key(check.key) else shown(check.key)
    if check.key not in values:
        return None, f"the result has no {key}"
    value = values[check.key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, f"{key} is {shown(value)}, which is not a number"
    if not math.isfinite(value):
        return None, f"{key} is {value}, which is not a finite number"
    if OPERATIONS[check.op](value, check.threshold):
        return value, ""
    return value, f"{key} is {number_text(value)}, which is not {check.op} {number_text(check.threshold)}"


def _integer(digits: str) -> Number:
    # Beyond 64 bits an integer is the nearest double, as in telemetry; thousands of digits are infinite.
    return int(digits) if len(digits) < 19 else float(digits)
