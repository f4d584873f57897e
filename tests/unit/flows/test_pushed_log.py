"""An attempt's log on its way into the run's record."""

from __future__ import annotations

import codecs
import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flows.pushed_log import PushedLog


class Away(Exception):
    pass


class Server:
    """Keeps one log as a Metrics server does. Of its answers, those whose turn is in `lost` do not arrive."""

    def __init__(self, lost: set[int]) -> None:
        self.kept, self.turn, self.lost = b"", 0, lost

    def log_offset(self, number: int) -> int:
        assert number == 3
        return len(self.kept)

    def append_log(self, number: int, offset: int, text: str) -> int:
        assert number == 3
        assert text
        self.turn += 1
        if offset == len(self.kept):
            self.kept += text.encode()
        if self.turn in self.lost:
            raise Away
        return len(self.kept)


PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(["é", "€", "🙂", "\ufffd", "\n"]).map(str.encode),
    st.sampled_from([b"\xc3", b"\xe2\x82", b"\xf0\x9f\x99", b"\xed\xa0\x80"]),
)


@settings(max_examples=50)
@given(
    writes=st.lists(st.tuples(PIECES, st.booleans(), st.booleans()), max_size=12),
    lost=st.sets(st.integers(1, 8)),
)
@example(writes=[(b"\xff" * 3, True, True), (b"more", True, False)], lost=set())
@example(writes=[(b"\xc3", True, False), (b"\xa9", True, False)], lost=set())
@example(writes=[(b"a", True, False), (b"b", True, False)], lost={1})
def test_the_server_has_the_text_of_any_bytes_once_however_written_and_whoever_sends_them(writes, lost):
    """Bytes that are no UTF-8 become more or fewer of text: the next flow process sent some twice, or not."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        server, log = Server(lost), PushedLog(3, path)
        whole = b""
        for piece, pushed, by_another in writes:
            with path.open("ab") as file:
                file.write(piece)
            whole += piece
            log = PushedLog(3, path) if by_another else log
            if pushed:
                with contextlib.suppress(Away):
                    log.push(server)
        server.lost = set()
        log.push(server)
        assert not log.is_behind()
        # But for a last letter of which only the beginning is there: its end may come.
        assert server.kept.decode() == codecs.getincrementaldecoder("utf-8")(errors="replace").decode(whole)


def test_a_log_that_is_not_there_or_all_there_asks_nobody(tmp_path):
    log = PushedLog(3, tmp_path / "log")
    log.push(None)  # type: ignore[arg-type] # nobody is asked
    assert not log.is_behind()
