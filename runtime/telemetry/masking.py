"""Secrets masked in what a run prints and writes, before anybody reads it. Pure: bytes in, bytes out."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import quote

from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["MASK", "MAX_SECRET_BYTES", "MIN_SECRET_CHARS", "Masker", "check_secret"]

MASK = b"***"
MIN_SECRET_CHARS = 4
"""White space around it not counted. Three characters occur by chance in every other line."""
MIN_NUMERIC_CHARS = 8
"""Of one like `1234567`, `0.01` or `1e-05`: a shorter one stands in numbers, and their lines were lost."""
MIN_LINE_CHARS = 8
"""From how long on one line of a secret of several lines is masked where it stands alone."""
MAX_SECRET_BYTES = 65_536

_HEAD_BYTES = 4
_WORDS = ("true", "false", "null", "Infinity")
_LINE_END = re.compile(r"\r\n|\r|\n")
_NUMERIC = re.compile(r"(?=.*\d)[\d.eE+-]+")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_UNICODE_ESCAPE = re.compile(r"(\\\\)|\\u[0-9a-f]{4}")
_URL_SAFE = ("", "/", "*", "!*'()", "!*'();/?:@&=+$,#")
"""What encoders of URLs leave as it is, besides letters, digits, `_.-~`: Python's, forms', JavaScript's."""
_HTML_SAFE = ("", "<>&", "<>&='")
"""What encoders of JSON write as `\\u003c` so that it may stand in HTML: Python nothing, Go, Gson."""


def check_secret(name: str, value: str) -> None:
    """Check a secret's value when it is set: masking it must neither be impossible nor mask everything.

    Raises:
        Rejected: it is too short or too long, or holds what no environment variable can. The text shows the
            name, never the value.
    """
    problem = _problem(value)
    if problem:
        raise Rejected(f"secret {name} {problem}")


class Masker:
    """Replaces secrets by `***` in one stream of bytes, also where one is split over two reads.

    A secret is found as its text, escaped as in JSON and encoded as in a URL; one of several lines as a whole
    and line by line. What overlaps or touches is masked as one. Line feeds stay, so that as many lines come
    out as went in. Values that `check_secret` would refuse for being short are not masked: `unmasked` names
    them. Lives as long as the stream; memory is bounded by the longest secret.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.unmasked = tuple(name for name, value in secrets.items() if _is_common(value))
        masked = [value for name, value in secrets.items() if name not in self.unmasked]
        self._forms = _Forms(form for value in masked for form in _forms(value))
        self._stream = _Stream(self._forms)

    @property
    def at_rest(self) -> bool:
        """Whether nothing fed so far is held back, and no secret that began there may go on."""
        return self._stream.at_rest

    def feed(self, chunk: bytes) -> bytes:
        """Return what is certain after `chunk`; what may be the beginning of a secret is held back."""
        return self._stream.feed(chunk)

    def flush(self) -> bytes:
        """Return what is held back, as the stream has ended; the next `feed` begins another one."""
        return self._stream.flush()

    def mask(self, data: bytes) -> bytes:
        """Return `data`, which is whole, masked; it has nothing to do with what was fed."""
        stream = _Stream(self._forms)
        return stream.feed(data) + stream.flush()


class _Stream:
    """The state between two reads: the bytes held back, and how far into them a masked region reaches."""

    def __init__(self, forms: _Forms) -> None:
        self._forms = forms
        self._held = b""
        self._covered = -1
        """How many of the held bytes the last masked region covers; -1: it ended before them."""
        self._is_marked = False
        """Whether that region has its `***` on the current line."""

    @property
    def at_rest(self) -> bool:
        return not self._held and self._covered <= 0

    def feed(self, chunk: bytes) -> bytes:
        data = self._held + chunk
        found, cut = self._forms.find(data)
        return self._put_out(data, found, cut)

    def flush(self) -> bytes:
        found, _ = self._forms.find(self._held)
        out = self._put_out(self._held, found, len(self._held))
        self._covered = -1
        return out

    def _put_out(self, data: bytes, found: list[tuple[int, int]], cut: int) -> bytes:
        """Return `data` up to `cut` masked, and hold back the rest."""
        before = [(0, self._covered)] if self._covered >= 0 else []
        self._covered = -1
        num_open = len(before)
        out: list[bytes] = []
        position = 0
        for number, (start, end) in enumerate(_united(before + found)):
            is_open = number < num_open
            if start >= cut and not is_open:
                break  # in what is held back: it is found again
            out.append(data[position:start])
            self._is_marked = self._is_marked and is_open
            position = min(end, cut)
            out.extend(self._marks(data[start:position]))
            if end >= cut:
                self._covered = end - cut
        out.append(data[position:cut])
        self._held = data[cut:]
        return b"".join(out)

    def _marks(self, region: bytes) -> Iterator[bytes]:
        for number, part in enumerate(region.split(b"\n")):
            if number:
                self._is_marked = False
                yield b"\n"
            if part and not self._is_marked:
                self._is_marked = True
                yield MASK


class _Forms:
    """Every form of every secret, by its first bytes: most variants of a secret begin alike."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        heads: dict[bytes, list[bytes]] = {}
        for form in sorted(set(forms)):
            heads.setdefault(form[:_HEAD_BYTES], []).append(form)
        self._heads = tuple(heads.items())
        self._beginnings = {head[:size] for head in heads for size in range(1, _HEAD_BYTES)}

    def find(self, data: bytes) -> tuple[list[tuple[int, int]], int]:
        """Return where secrets stand in `data`, and where the first begins that its end may cut off."""
        found: list[tuple[int, int]] = []
        cut = self._short_cut(data)
        for head, forms in self._heads:
            start = data.find(head)
            while start >= 0:
                for form in forms:
                    if data.startswith(form, start):
                        found.append((start, start + len(form)))
                    elif start < cut and start + len(form) > len(data) and form.startswith(data[start:]):
                        cut = start
                start = data.find(head, start + 1)
        return found, cut

    def _short_cut(self, data: bytes) -> int:
        """Return where a beginning shorter than a head is cut off; the end of `data` if none is."""
        for size in range(min(_HEAD_BYTES - 1, len(data)), 0, -1):
            if data[-size:] in self._beginnings:
                return len(data) - size
        return len(data)


def _united(regions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return `regions` in order, those that overlap or touch as one."""
    united: list[tuple[int, int]] = []
    for start, end in sorted(regions):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


def _forms(value: str) -> Iterator[bytes]:
    """Yield the bytes that a secret may appear as."""
    for text in _texts(value):
        yield text.encode()
        for form in (*_in_json(text), *_in_url(text)):
            yield form.encode()


def _texts(value: str) -> set[str]:
    """Return the whole, with either line end, and each line that is long enough.

    White space around them stays: a form that begins with a line feed would hold back the end of every line.
    """
    lines = _LINE_END.split(value)
    wholes = {value.strip(), *(end.join(lines).strip() for end in ("\n", "\r\n"))}
    return wholes | {line.strip() for line in lines if len(line.strip()) >= MIN_LINE_CHARS}


def _in_json(text: str) -> Iterator[str]:
    for is_ascii, escapes_slash, html, is_upper in product(
        (True, False), (True, False), _HTML_SAFE, (True, False)
    ):
        form = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
        if escapes_slash:
            form = form.replace("/", "\\/")
        for character in html:
            form = form.replace(character, f"\\u{ord(character):04x}")
        yield _UNICODE_ESCAPE.sub(_upper, form) if is_upper else form


def _in_url(text: str) -> Iterator[str]:
    for safe, tilde, space, is_lower in product(_URL_SAFE, ("~", "%7E"), ("%20", "+"), (True, False)):
        form = quote(text, safe=safe).replace("~", tilde).replace("%20", space)
        yield _PERCENT.sub(lambda match: match[0].lower(), form) if is_lower else form


def _upper(match: re.Match[str]) -> str:
    return match[0] if match[1] else f"\\u{match[0][2:].upper()}"


def _is_common(value: str) -> bool:
    """Return whether `value` stands by chance in what has nothing to do with it."""
    text = value.strip()
    least = MIN_NUMERIC_CHARS if _NUMERIC.fullmatch(text) else MIN_SECRET_CHARS
    return len(text) < least or text in _WORDS


def _problem(value: str) -> str:
    text = value.strip()
    if len(text) < MIN_SECRET_CHARS:
        return (
            f"has {len(text)} characters without the white space around them; it must have at least"
            f" {MIN_SECRET_CHARS}, as a shorter one cannot be masked without masking much else"
        )
    if _NUMERIC.fullmatch(text) and len(text) < MIN_NUMERIC_CHARS:
        return (
            f"has {len(text)} characters, all as in numbers; such a one must have at least"
            f" {MIN_NUMERIC_CHARS}, as fewer occur in numbers by chance and masking them would break these"
        )
    if text in _WORDS:
        return "is a word of JSON, which cannot be masked; set no secret for it"
    if "\0" in value:
        return "holds a NUL character, which no environment variable can; store it encoded, as in base64"
    return _size_problem(value)


def _size_problem(value: str) -> str:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode; store it encoded, as in base64"
    if size > MAX_SECRET_BYTES:
        return f"has {size:,} bytes; it must have at most {MAX_SECRET_BYTES:,}"
    return ""
