"""Any life of a run, against a perfect model: saves, failures, kills, resumes, rewinds, damage, prunes."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.checkpoints.location import Location
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.saver import Published  # noqa: TC001  (one import more is not worth a block)
from runtime.errors import Superseded, Unavailable
from tests.support.checkpoints import NOTHING_UNSENT, SLUG, begin, same, saver_of, state, the
from tests.support.faults import FaultPlan, FaultyStore


class Killed(Exception):
    """What stands for SIGKILL: nothing that comes after it reaches the store."""


class MortalStore(FaultyStore):
    """Dies at an operation: from there on it does nothing, as a killed process does nothing."""

    dead = False

    def _do(self, operation, key, act, half=None):  # noqa: ARG002  (nothing is torn here)
        if self.dead:
            raise Killed
        if not self._is_hit(operation, key):
            return act()
        self.dead = True
        if self.plan.when == "after":
            act()
        raise Killed


class Lifetimes(RuleBasedStateMachine):
    """`good` is the model: what each published checkpoint holds, by (step, attempt), until it is damaged.

    `best` is the newest that verified so far: only damage and rewinding may ever lower it.
    """

    @initialize(
        keep_last=st.integers(2, 4),
        keep_every=st.none() | st.integers(2, 6),
        shard_bytes=st.sampled_from([200, 1 << 20]),
    )
    def start(self, keep_last, keep_every, shard_bytes):
        self.store = MemoryStore("s3://bucket/run")
        self.tuning = {
            "keep_last": keep_last,
            "keep_every": keep_every,
            "shard_bytes": shard_bytes,
            "workers": 1,
        }
        self.good: dict[tuple[int, int], int] = {}
        self.best = (-1, 0)
        self.values = 0
        self.savers = []
        self.resume()

    def resume(self, resume="auto"):
        self.attempt = begin(self.store, resume=resume)
        self.saver = saver_of(self.attempt, **self.tuning)
        self.savers.append(self.saver)
        self.step = self.attempt.started_from

    def save(self, store=None):
        """Run to the next step and save there; the saver works on `store` if that is given."""
        self.step += 1
        self.values += 1
        self.saver._store = self.attempt.store = store or self.store
        value = self.values
        published: list[Published] = []
        assert self.saver.save(
            self.step, state(value), {"value": value}, lambda: NOTHING_UNSENT, published.append
        )
        try:
            self.saver.wait()
        finally:
            if published:
                self.good[self.step, self.attempt.number] = value

    @rule()
    def saves(self):
        self.save()

    @rule(at=st.integers(1, 9), times=st.integers(1, 6))
    def the_store_fails_for_a_while(self, at, times):
        with suppress(Unavailable):
            self.save(FaultyStore(self.store, FaultPlan().raise_at(at, times=times)))

    @rule(at=st.integers(1, 9), when=st.sampled_from(["before", "after"]))
    def is_killed_in_a_save_and_resumes(self, at, when):
        mortal = MortalStore(self.store, FaultPlan().kill_at(at, when))
        try:
            self.save(mortal)
        except Killed:
            # Published or not, nobody was told: only the record knows.
            named = {entry.order for entry in the(Location(self.store).record()).checkpoints}
            if (self.step, self.attempt.number) in named:
                self.good[self.step, self.attempt.number] = self.values
        self.resume()

    @rule()
    def is_killed_between_saves_and_resumes(self):
        self.resume()

    @rule()
    def a_zombie_saves(self):
        """The older attempt goes on while a newer one has claimed."""
        older, saver = self.attempt, self.saver
        self.resume()
        saver._store = older.store = self.store
        assert saver.save(self.step + 1, state(10_000), {}, lambda: NOTHING_UNSENT, never)
        with pytest.raises(Superseded):
            saver.wait()

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def is_rewound(self, data):
        steps = sorted({step for step, _ in self.good if self.is_counted(step)})
        if not steps:
            return
        step = data.draw(st.sampled_from(steps))
        newest = max(order for order in self.good if order[0] == step and order in self.counted())
        self.resume(step)
        assert the(self.attempt.checkpoint).entry.order == newest
        self.good = {order: value for order, value in self.good.items() if order[0] <= step}
        self.best = newest

    @precondition(lambda self: len(self.verified()) > 1)
    @rule(data=st.data())
    def one_is_damaged(self, data):
        """A bit flips in a shard or a manifest; never in the last one that is whole."""
        order = data.draw(st.sampled_from(sorted(self.verified())))
        entry = next(e for e in the(Location(self.store).record()).checkpoints if e.order == order)
        token = entry.manifest.rpartition("manifest-")[2].removesuffix(".json")
        files = sorted(found.key for found in self.store.list(f"step-{order[0]:08d}/") if token in found.key)
        key = data.draw(st.sampled_from(files))
        content = bytearray(self.store.get(key)[0])
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        self.store.put(key, bytes(content))
        del self.good[order]
        self.best = max(self.verified())
        self.resume()  # whoever holds it in memory as good has to look again

    @rule(data=st.data())
    def times_are_shuffled(self, data):
        """Copies and restores change every file's time; nothing may depend on them."""
        with self.store._lock:
            for key, (content, _) in list(self.store._objects.items()):
                if key.startswith("step-"):
                    self.store._objects[key] = (content, data.draw(st.integers(0, 4_000_000_000_000)))

    def counted(self):
        return {entry.order for entry in the(Location(self.store).record()).checkpoints}

    def is_counted(self, step):
        return any(step == order[0] for order in self.counted())

    def verified(self):
        return {order for order in self.good if order in self.counted()}

    @invariant()
    def the_newest_that_verifies_is_what_a_resume_would_find(self):
        found = Location(self.store).find(slug=SLUG)
        newest = max(self.verified(), default=(-1, 0))
        assert newest >= self.best
        self.best = newest
        if newest == (-1, 0):
            assert found.checkpoint is None
            return
        checkpoint = the(found.checkpoint)
        assert checkpoint.entry.order == newest
        assert same(checkpoint.tensors, state(self.good[newest]))
        assert checkpoint.data == {"value": self.good[newest]}

    def teardown(self):
        for saver in self.savers:
            saver.close()


def never(published):
    pytest.fail(f"a zombie published {published}")


TestLifetimes = Lifetimes.TestCase
TestLifetimes.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
