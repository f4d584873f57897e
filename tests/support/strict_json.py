"""Reading event lines as strictly as the strictest consumer would."""

import json
from typing import Any


def strict(line: bytes | str) -> dict[str, Any]:
    """Return the object of one line; NaN, Infinity, a repeated key or anything but an object fails."""
    text = line.decode("utf-8") if isinstance(line, bytes) else line
    value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    assert isinstance(value, dict), f"no object: {text!r}"
    return value


def strict_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the objects of a whole file, each of whose lines must end in a line feed."""
    assert data == b"" or data.endswith(b"\n"), f"torn: {data[-80:]!r}"
    return [strict(line) for line in data.split(b"\n")[:-1]]


def _refuse(constant: str) -> None:
    raise AssertionError(f"not JSON: {constant}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key stands twice: {keys}"
    return dict(pairs)
