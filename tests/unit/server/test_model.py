"""The whole store against a plain model in memory: folders, experiments, series, revisions, step by step."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from infra.server.limits import partition
from infra.server.refusals import Refused
from infra.server.store import access, experiments, folders, removal, series, sessions
from infra.server.store.commands import Annotate, Change, Records
from infra.server.store.store import Store
from infra.server.store.streams import Order
from tests.support.series import small_blocks

EXAMPLES = {"sqlite": 60, "postgresql": 25}
STEPS = 30
ORDERS = list(itertools.product(("step", "timestamp"), (False, True), (False, True)))

Owner = tuple[int, str | None]
"""Whose a point is: the place of the token's session, and the sender's name where the id carries one."""

names = st.sampled_from(["a", "b", "é"])
slugs = st.sampled_from(["one", "two", "ünï'\x00"])
picks = st.integers(0, 2**16)
keys = st.tuples(st.sampled_from(["loss", "acc"]), st.sampled_from([(), (("split", "train"),)]))
points = st.tuples(
    keys,
    st.integers(-1, 5),
    st.integers(0, 6),
    st.sampled_from([0.0, -0.0, 1.5, 5e-324, 1.7976931348623157e308]),
)


@dataclass
class Experiment:
    """What the model holds of one experiment."""

    uid: str
    description: str
    meta: str
    folder: str | None = None
    status: str = "created"
    error: str | None = None
    started: int | None = None
    done: int | None = None
    holder: Owner | None = None
    sessions: list[sessions.Session] = field(default_factory=list)
    senders: list[str] = field(default_factory=list)
    adopted: set[str] = field(default_factory=set)
    applied: set[str] = field(default_factory=set)
    points: dict[Any, list[tuple[int, int, float, Owner]]] = field(default_factory=dict)
    annotations: list[tuple[int, str]] = field(default_factory=list)

    def rank(self, owner: Owner) -> tuple[int, bool, bool]:
        """Order owners as their processes began; a sender is its token's own once it has started."""
        place, sender = owner
        return place, sender is None or sender in self.adopted, sender is not None


class StoreAndModel(RuleBasedStateMachine):
    """Every rule does one thing to both; what the store refuses, the model must have refused."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.organisation = self.store.write_now(
            lambda view: access.create_organisation(view, uuid.uuid4().hex, now_ms=1)
        ).id
        self.folders: dict[str, tuple[str | None, str]] = {}
        self.experiments: dict[str, Experiment] = {}
        self.revisions: dict[str, tuple[int, int]] = {}
        self.may_change: dict[str, set[str]] = {}
        self.must_change: dict[str, set[str]] = {}
        self.now_ms = 1_000

    def write(self, work: Any) -> Any:
        """Do something in the store; a refusal comes back as its code."""
        self.now_ms += 1
        try:
            return self.store.write_now(work)
        except Refused as refusal:
            return refusal.code

    def changed(self, experiment: Experiment, what: str, *, surely: bool = True) -> None:
        (self.must_change if surely else self.may_change).setdefault(experiment.uid, set()).add(what)

    def some_folder(self, pick: int) -> str | None:
        return [None, *self.folders][pick % (len(self.folders) + 1)]

    def some_experiment(self, pick: int) -> Experiment:
        return list(self.experiments.values())[pick % len(self.experiments)]

    def taken(self, parent: str | None, name: str, *, but: str | None = None) -> bool:
        return any(at == (parent, name) and uid != but for uid, at in self.folders.items())

    def above(self, uid: str | None) -> list[str]:
        way = []
        while uid is not None:
            way.append(uid)
            uid = self.folders[uid][0]
        return way

    # Folders

    @rule(pick=picks, name=names)
    def create_folder(self, pick, name):
        parent = self.some_folder(pick)
        uid = self.write(
            lambda view: folders.create(view, self.organisation, name, parent, now_ms=self.now_ms)
        )
        if self.taken(parent, name):
            assert uid == "folder_already_exists"
        else:
            self.folders[uid] = parent, name

    @precondition(lambda self: self.folders)
    @rule(pick=picks, to=picks, name=st.none() | names, by_path=st.booleans())
    def change_folder(self, pick, to, name, by_path):
        uid = list(self.folders)[pick % len(self.folders)]
        parent, old = self.folders[uid]
        target = self.some_folder(to)
        ref = self.path(uid) if by_path else uid
        result = self.write(
            lambda view: folders.change(view, self.organisation, ref, name=name, parent=target)
        )
        if target != parent and uid in self.above(target):
            assert result == "cycle"
        elif self.taken(target, name or old, but=uid):
            assert result == "folder_already_exists"
        else:
            assert isinstance(result, int)
            self.folders[uid] = target, name or old

    @precondition(lambda self: self.folders)
    @rule(pick=picks)
    def remove_folder(self, pick):
        uid = list(self.folders)[pick % len(self.folders)]
        result = self.write(lambda view: folders.remove(view, self.organisation, uid))
        inner = any(parent == uid for parent, _ in self.folders.values())
        if inner or any(one.folder == uid for one in self.experiments.values()):
            assert result == "folder_not_empty"
        else:
            del self.folders[uid]

    def path(self, uid: str | None) -> str:
        return "/" + "/".join(self.folders[one][1] for one in reversed(self.above(uid)))

    # Experiments

    @rule(slug=slugs, description=names, meta=names)
    def open(self, slug, description, meta):
        text = json.dumps({"k": meta}, separators=(",", ":"))

        def work(view):
            opened = experiments.open_experiment(
                view,
                organisation_id=self.organisation,
                slug=slug,
                description=description,
                meta=text,
                now_ms=self.now_ms,
            )
            found = sessions.find(view, opened.token.secret, opened.uid, now_ms=self.now_ms)
            assert found is not None
            return found[1]

        session = self.write(work)
        known = self.experiments.setdefault(slug, Experiment(session.experiment_uid, description, text))
        assert known.uid == session.experiment_uid, "one experiment for each slug"
        same = (known.description, known.meta) == (description, text)
        self.changed(known, "experiment", surely=not same)
        known.description, known.meta = description, text
        known.sessions.append(session)
        known.senders.append(uuid.uuid4().hex)

    @precondition(lambda self: self.experiments)
    @rule(pick=picks, source=picks, goal=picks)
    def place(self, pick, source, goal):
        experiment = self.some_experiment(pick)
        from_uid, to_uid = self.some_folder(source), self.some_folder(goal)
        result = self.write(
            lambda view: folders.place(
                view, self.organisation, experiment.uid, from_uid=from_uid, to_uid=to_uid
            )
        )
        if experiment.folder not in {from_uid, to_uid}:
            assert result == "experiment_folder_move_conflict"
        else:
            experiment.folder = to_uid

    @precondition(lambda self: self.experiments)
    @rule(pick=picks, finish=st.booleans())
    def delete(self, pick, finish):
        slug = list(self.experiments)[pick % len(self.experiments)]
        gone = self.experiments.pop(slug)
        experiment_id = gone.sessions[0].experiment_id
        self.write(lambda view: removal.begin(view, experiment_id, now_ms=self.now_ms))
        self.revisions.pop(gone.uid, None)
        while finish and self.write(removal.step):
            pass

    # Events

    def identify(self, experiment: Experiment, place: int, number: int, *, own: bool) -> tuple[str, Owner]:
        sender = experiment.senders[place]
        return (f"{sender}.{number}", (place, sender)) if own else (f"{place}-{number}", (place, None))

    @precondition(lambda self: self.experiments)
    @rule(
        pick=picks,
        which=picks,
        beginning=st.tuples(st.booleans(), st.integers(0, 60)),
        batch=st.lists(points, min_size=1, max_size=24),
    )
    def record(self, pick, which, beginning, batch):
        own, first = beginning
        experiment = self.some_experiment(pick)
        place = which % len(experiment.sessions)
        ids = [self.identify(experiment, place, first + number, own=own) for number in range(len(batch))]
        found = [partition(name, items) for (name, items), *_ in batch]
        partitions = list(dict.fromkeys(found))
        records = Records(
            message_ids=[message_id for message_id, _ in ids],
            partitions=partitions,
            which=[partitions.index(one) for one in found],
            steps=[step for _, step, _, _ in batch],
            timestamps_ms=[at_ms for _, _, at_ms, _ in batch],
            values=[value for *_, value in batch],
        )
        result = self.apply(experiment, place, records, [])
        assert result == ({}, {})
        for (message_id, owner), (key, step, at_ms, value) in zip(ids, batch, strict=True):
            if message_id not in experiment.applied:
                experiment.applied.add(message_id)
                experiment.points.setdefault(key, []).append((step, at_ms, value, owner))
                self.changed(experiment, "series")

    @precondition(lambda self: self.experiments)
    @rule(
        pick=picks,
        which=picks,
        message=st.tuples(st.booleans(), st.integers(0, 60)),
        kind=st.sampled_from(["start", "start", "done", "error", "annotate"]),
        at_ms=st.integers(0, 900),
    )
    def tell(self, pick, which, message, kind, at_ms):
        own, number = message
        experiment = self.some_experiment(pick)
        place = which % len(experiment.sessions)
        message_id, owner = self.identify(experiment, place, number, own=own)
        error = ("E: x", "{}") if kind == "error" else (None, None)
        command = (
            Annotate(message_id, "note", "{}", at_ms)
            if kind == "annotate"
            else Change(message_id, kind, at_ms, *error)
        )
        assert self.apply(experiment, place, None, [command]) == ({}, {})
        if message_id in experiment.applied:
            return
        experiment.applied.add(message_id)
        self.changed(experiment, "experiment")
        if kind == "annotate":
            experiment.annotations.append((at_ms, "note"))
            return
        if kind == "start" and owner[1] is not None:
            experiment.adopted.add(owner[1])
        self.model_status(experiment, owner, kind, at_ms)

    def model_status(self, experiment: Experiment, owner: Owner, kind: str, at_ms: int) -> None:
        holder = experiment.holder
        replaced = holder is not None and experiment.rank(owner) < experiment.rank(holder)
        if kind == "start":
            if not (replaced and experiment.status == "running"):
                experiment.holder = owner
            experiment.started = at_ms if experiment.started is None else experiment.started
            experiment.status, experiment.error, experiment.done = "running", None, None
        elif not replaced:
            experiment.status, experiment.done = kind, at_ms
            experiment.error = "E: x" if kind == "error" else None

    def apply(self, experiment: Experiment, place: int, records: Records | None, others: list[Any]) -> Any:
        empty = Records([], [], [], [], [], [])
        return self.write(
            lambda view: self.store.ingest.apply_columns(
                view, experiment.sessions[place], records or empty, others, now_ms=self.now_ms
            )
        )

    # What must hold after every step

    @invariant()
    def the_tree_is_the_models(self):
        tree = self.store.read_now(lambda view: folders.tree(view, self.organisation))
        found: dict[str, tuple[str | None, str]] = {}
        placed: dict[str, tuple[str | None, str]] = {}

        def walk(level, at):
            for one in level["experiments"]:
                placed[one["experimentId"]] = at, one["slug"]
            for one in level["folders"]:
                found[one["folderId"]] = at, one["name"]
                walk(one, one["folderId"])

        walk(tree, None)
        assert found == self.folders
        assert placed == {one.uid: (one.folder, slug) for slug, one in self.experiments.items()}
        paths = self.store.read_now(lambda view: folders.places(view, self.organisation)).values()
        assert {one.uid: one.path for one in paths} == {uid: self.path(uid) for uid in self.folders}

    @invariant()
    def records_and_revisions_are_the_models(self):
        uids = [one.uid for one in self.experiments.values()]
        rows = self.store.read_now(lambda view: experiments.find_all(view, self.organisation, uids))
        shown = {row.uid: experiments.record(row) for row in rows}
        assert set(shown) == set(uids)
        for slug, one in self.experiments.items():
            record = shown[one.uid]
            assert (record["slug"], record["description"]) == (slug, one.description)
            assert (record["meta"], record["status"]) == (json.loads(one.meta), one.status)
            assert (record["startedAtMs"], record["doneAtMs"]) == (one.started, one.done)
            assert (record["error"] and record["error"]["message"]) == one.error
            self.check_revisions(one, record["experimentRevision"], record["seriesRevision"])
        self.must_change.clear()
        self.may_change.clear()

    def check_revisions(self, one: Experiment, experiment: int, of_series: int) -> None:
        before, self.revisions[one.uid] = self.revisions.get(one.uid), (experiment, of_series)
        if before is None:
            return
        must, may = self.must_change.get(one.uid, set()), self.may_change.get(one.uid, set())
        for what, old, new in (("experiment", before[0], experiment), ("series", before[1], of_series)):
            if what in must:
                assert new > old, f"{what} changed"
            elif what not in may:
                assert new == old, f"{what} did not change"

    @invariant()
    def series_are_the_models(self):
        """In one of the orders at each step: all come in turn."""
        axis, descending, newest = ORDERS[self.now_ms % len(ORDERS)]
        for one in self.experiments.values():
            self.check_series(one, axis, descending=descending, newest=newest)

    def teardown(self):
        for one, (axis, descending, newest) in itertools.product(self.experiments.values(), ORDERS):
            self.check_series(one, axis, descending=descending, newest=newest)

    def check_series(self, one: Experiment, axis: Any, *, descending: bool, newest: bool) -> None:
        experiment_id = one.sessions[0].experiment_id
        read = self.store.read_now
        ranks = read(lambda view: sessions.ranks(view, experiment_id)) if newest else None
        order = Order(axis, descending=descending, newest=ranks)
        listed = read(lambda view: list(series.of_experiment(view, experiment_id)))
        found: dict[Any, list[str]] = {}
        for frame_of, frame in series.stream_each(read, listed, order, frame_points=7):
            key = frame_of.name, tuple(frame_of.metadata.items())
            rows = zip(frame.steps.tolist(), frame.timestamps_ms.tolist(), frame.values.tolist(), strict=True)
            found.setdefault(key, []).extend(map(repr, rows))
        assert found == {
            key: [
                repr(row[:3]) for row in self.in_order(one, rows, axis, descending=descending, newest=newest)
            ]
            for key, rows in one.points.items()
        }
        assert {key: len(rows) for key, rows in one.points.items()} == {
            (each.name, tuple(each.metadata.items())): each.num_points for each in listed
        }

    @staticmethod
    def in_order(one: Experiment, rows: Any, axis: str, *, descending: bool, newest: bool) -> Any:
        kept = list(enumerate(rows))
        if newest:
            best: dict[Any, Any] = {}
            for arrival, row in kept:
                step = row[0] if row[0] >= 0 else ("none", arrival)
                if step not in best or one.rank(row[3]) >= one.rank(best[step][1][3]):
                    best[step] = arrival, row
            kept = list(best.values())
        column = 0 if axis == "step" else 1
        kept.sort(key=lambda item: (item[1][column], item[0]), reverse=descending)
        return [row for _, row in kept]


@pytest.fixture
def store(address):
    store = Store(address)
    with small_blocks():
        yield store
    store.close()


@pytest.mark.timeout(900)  # a failure is made small for up to five minutes before it is told
def test_the_store_does_what_the_model_does(store):
    kind = "sqlite" if isinstance(store.database.address, Path) else "postgresql"
    machine = type("Machine", (StoreAndModel,), {"store": store})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES[kind],
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
