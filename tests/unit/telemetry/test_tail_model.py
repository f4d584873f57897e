"""The tail against a model: whatever is interleaved, every whole line comes once, and in its file's order."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.telemetry.destination import MemoryDestination, Trouble
from runtime.telemetry.followed import FollowedFile
from runtime.telemetry.tail import Tail

LINGER_S = 5.0


@dataclass(eq=False)
class File:
    """A file that was written: the numbers of its lines in order, and where it is."""

    path: Path
    inode: int
    numbers: list[int] = field(default_factory=list)
    has_half: bool = False
    is_gone: bool = False
    """Whether it has no name any more: then only a tail that has it open can read it."""


class Flaky(MemoryDestination):
    """Fails when it is told to: before it has stored a batch, or after."""

    fails = ""

    def send(self, batch):
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise Trouble("unreachable")
        super().send(batch)
        if fails == "after":
            raise Trouble("the answer was lost")


class TailMachine(RuleBasedStateMachine):
    """Writers, whoever moves the file about, and a tail that may die at any moment.

    `must` are the lines that have to arrive, `may` those that were gone before anybody was sure to read them.
    """

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "telemetry.jsonl"
        self.destination = Flaky()
        self.now = 0.0
        self.files: list[File] = []
        self.current: File | None = None
        self.must: set[int] = set()
        self.may: set[int] = set()
        self.must_drop = self.may_drop = 0
        self.number = 0
        self.tail: Tail | None = None
        self.start()

    def teardown(self):
        try:
            if self.tail is None:
                self.start()
            self.settle()
            arrived = {point["n"] for point in self.destination.points}
            assert self.must <= arrived
            num_dropped = self.destination.dropped.get("not_json", 0)
            assert self.must_drop <= num_dropped <= self.must_drop + self.may_drop
        finally:
            self.reader.close()
            self.folder.cleanup()

    # The tail

    @precondition(lambda self: self.tail is None)
    @rule()
    def start(self):
        self.tail = Tail(
            self.path,
            self.destination,
            say=lambda _: None,
            linger_s=LINGER_S,
            clock=lambda: self.now,
        )
        self.turn()

    @precondition(lambda self: self.tail)
    @rule()
    def kill(self):
        """What only the tail knew is lost; a file that nobody else can find may never be read."""
        self.reader.close()
        self.tail = None
        for file in self.files:
            if file is not self.current and not self.is_stored(file):
                self.lose(file)

    @precondition(lambda self: self.tail)
    @rule(fails=st.sampled_from(["", "", "before", "after"]), later_s=st.sampled_from([0.0, 0.2, LINGER_S]))
    def turn(self, fails="", later_s=0.0):
        self.now += later_s
        self.destination.fails = fails
        with contextlib.suppress(Trouble):
            self.reader.turn()
        self.destination.fails = ""

    @precondition(lambda self: self.tail)
    @rule()
    def attempt_ends(self):
        """Every writer is gone; what they left of a line is one."""
        self.settle()

    @property
    def reader(self):
        assert self.tail is not None
        return self.tail

    def settle(self):
        self.reader.end_here()
        for file in self.files:
            if file.has_half and (file is self.current or self.is_open(file)):
                self.drop_half(file, is_sure=True)
        for _ in range(3):
            while self.reader.turn():
                pass
            self.now += LINGER_S

    # The writers

    @rule(num_lines=st.integers(1, 3))
    def write(self, num_lines):
        self.append(self.at_path(), num_lines)

    @rule()
    def write_garbage(self):
        file = self.at_path()
        if not file.has_half:
            self.number += 1  # a file that is cut and gets the very bytes that it had is the same file
            self.put(file, b"no json %d\n" % self.number)
            self.must_drop += 1

    @rule()
    def write_half(self):
        file = self.at_path()
        if not file.has_half:
            self.number += 1
            self.put(file, b'{"half": %d, "n"' % self.number)
            file.has_half = True

    @precondition(lambda self: len(self.files) > 1)
    @rule(data=st.data(), num_lines=st.integers(1, 2))
    def write_to_an_old_file(self, data, num_lines):
        """By somebody who had it open when it was moved."""
        file = data.draw(st.sampled_from(self.files))
        if file is not self.current and not file.is_gone and self.tail and self.is_open(file):
            self.append(file, num_lines)

    def append(self, file, num_lines):
        data = b""
        for _ in range(num_lines):
            self.number += 1
            data += (b": %d}\n" if file.has_half else b'{"n": %d}\n') % self.number
            file.has_half = False
            file.numbers.append(self.number)
            self.must.add(self.number)
        self.put(file, data)

    def put(self, file, data):
        with file.path.open("ab") as opened:
            opened.write(data)

    # Whoever moves the file about

    @rule()
    def make_it_anew(self):
        self.at_path()

    @precondition(lambda self: self.current)
    @rule()
    def rename(self):
        file, self.current = self.at_path(), None
        file.path = file.path.rename(self.path.with_name(f"telemetry.jsonl.{len(self.files)}"))
        if not self.is_known(file):
            self.lose(file)

    @precondition(lambda self: self.current)
    @rule(num_lines=st.integers(0, 2))
    def replace(self, num_lines):
        new = self.new_file(self.path.with_name("new"))
        self.append(new, num_lines)
        old, self.current = self.at_path(), new
        new.path = new.path.replace(self.path)
        old.is_gone = True
        if not (self.tail and self.is_open(old)):
            self.lose(old)

    @precondition(lambda self: self.current)
    @rule()
    def truncate(self):
        self.lose(self.at_path())
        os.truncate(self.path, 0)

    @precondition(lambda self: self.current and self.current.has_half)
    @rule()
    def cut_off_the_half(self):
        self.drop_half(self.at_path(), is_sure=False)
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    # The model

    @invariant()
    def nothing_comes_twice_or_from_nowhere_or_out_of_order(self):
        arrived = [point["n"] for point in self.destination.points]
        assert max(Counter(arrived).values(), default=0) <= 1
        assert set(arrived) <= self.must | self.may
        for file in self.files:
            places = [arrived.index(number) for number in file.numbers if number in arrived]
            assert places == sorted(places)

    def at_path(self):
        if self.current is None:
            self.current = self.new_file(self.path)
        return self.current

    def new_file(self, path):
        path.touch()
        file = File(path, path.stat().st_ino)
        self.files.append(file)
        return file

    def is_open(self, file):
        if any(one.inode == file.inode for one in self.files[self.files.index(file) + 1 :]):
            return False  # the number was free again: nobody had it open
        reader = self.reader._file
        return reader is not None and any(open_file.inode == file.inode for open_file in reader._files)

    def is_known(self, file):
        return self.is_open(file) if self.tail else self.is_stored(file)

    def is_stored(self, file):
        """Whether a tail finds the file in its folder; not if it was cut since, as it could be any other."""
        if file.is_gone:
            return False
        reader = FollowedFile(os.open(file.path, os.O_RDONLY), lambda: None)
        try:
            return any(map(reader.fits, self.destination.place.files))
        finally:
            reader.close()

    def lose(self, file):
        """Nobody is sure to read what of this file has not arrived yet."""
        arrived = {point["n"] for point in self.destination.points}
        lost = set(file.numbers) - arrived
        self.must -= lost
        self.may |= lost
        self.may_drop += 3
        self.must_drop = min(self.must_drop, self.destination.dropped.get("not_json", 0))
        self.drop_half(file, is_sure=False)

    def drop_half(self, file, *, is_sure):
        if file.has_half:
            file.has_half = False
            self.must_drop += is_sure
            self.may_drop += not is_sure


TestTail = TailMachine.TestCase
TestTail.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
