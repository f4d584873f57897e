"""Message ids of clients that draw them at random: which of them were applied to an experiment.

An id is 16 bytes here, whatever its text: a hash of it. Random keys in an index cost a page each; here a
batch appends one row, and rows are merged by the keys' first bits (id_tree.py). What a lookup reads is
decided by filters in memory (id_pages.py), so a new id reads nearly nothing.

Ids are kept by *generations* of a week, and for one generation after their own: between 7 and 14 days.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from infra.server.store import sql
from infra.server.store.id_pages import KEY_BYTES, PAGE_KEYS, Columns, Probe, columns, hits
from infra.server.store.id_tree import TAIL, Piece, Tree, child_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

__all__ = ["GENERATION_MS", "MAX_MEMORY_BYTES", "Applied", "import_all"]

GENERATION_MS = 7 * 24 * 3_600_000
MAX_MEMORY_BYTES = 64 << 20
"""Of what is remembered of all experiments: two bytes an id. What is dropped is read again when it is needed;
the experiment that was written to last is remembered whatever its size."""

_SMALL_ROW = 512
_PRUNED_AT_ONCE = 16
_INSERT = (
    "INSERT INTO applied_keys (experiment_id, generation, depth, prefix, count, page, keys)"
    " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id"
)


class Applied:
    """Lives in the writer's thread, which makes what it remembers true: nobody else writes."""

    def __init__(self, *, max_memory_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._max_memory_bytes = max_memory_bytes
        self._experiments: OrderedDict[int, _Experiment] = OrderedDict()
        self._nbytes = 0
        self._hashed: dict[str, bytes] = {}

    @property
    def nbytes(self) -> int:
        """Memory in use, nearly."""
        return self._nbytes

    def forget(self) -> None:
        """Drop what is remembered: a transaction was rolled back, or somebody else has written."""
        self._experiments.clear()
        self._hashed.clear()
        self._nbytes = 0

    def forget_one(self, experiment_id: int) -> None:
        """Drop what is remembered of one experiment."""
        experiment = self._experiments.pop(experiment_id, None)
        if experiment is not None:
            self._nbytes -= experiment.nbytes
        self._hashed.clear()

    def known(
        self, connection: Connection, experiment_id: int, message_ids: Sequence[str], *, now_ms: int
    ) -> set[str]:
        """Return which of the ids were applied to the experiment before."""
        if len(self._hashed) >= PAGE_KEYS:  # of batches in which nothing was new
            self._hashed.clear()
        keys = columns(b"".join(self._hash(message_id) for message_id in message_ids))
        experiment = self._of(connection, experiment_id, now_ms)
        return {message_ids[place] for place in experiment.find(connection, keys)}

    def remember(
        self, connection: Connection, experiment_id: int, message_ids: Sequence[str], *, now_ms: int
    ) -> None:
        """Remember ids that are applied in this transaction; none of them is known."""
        experiment = self._of(connection, experiment_id, now_ms)
        for first in range(0, len(message_ids), PAGE_KEYS):
            some = message_ids[first : first + PAGE_KEYS]
            experiment.append(connection, b"".join(self._hash(message_id) for message_id in some))
        self._hashed.clear()
        self._nbytes -= experiment.nbytes
        experiment.weigh()
        self._nbytes += experiment.nbytes
        while self._nbytes > self._max_memory_bytes and len(self._experiments) > 1:
            self._nbytes -= self._experiments.popitem(last=False)[1].nbytes

    def _of(self, connection: Connection, experiment_id: int, now_ms: int) -> _Experiment:
        generation = now_ms // GENERATION_MS
        experiment = self._experiments.get(experiment_id)
        if experiment is None or experiment.generation != generation:
            if experiment is not None:
                self._nbytes -= experiment.nbytes
            experiment = self._experiments[experiment_id] = _Experiment(experiment_id, generation)
            experiment.load(connection)
            self._nbytes += experiment.nbytes
        self._experiments.move_to_end(experiment_id)
        return experiment

    def _hash(self, message_id: str) -> bytes:
        """Return an id's key. A batch asks twice: whether it is known, and to remember it."""
        key = self._hashed.get(message_id)
        if key is None:
            key = self._hashed[message_id] = _key_of(message_id)
        return key


class _Experiment:
    """The ids of one experiment, from the generation before this one on."""

    def __init__(self, experiment_id: int, generation: int) -> None:
        self.id = experiment_id
        self.generation = generation
        self.nbytes = 0
        self._trees: dict[int, Tree] = {}

    def load(self, connection: Connection) -> None:
        """Read which rows there are, with their filters, and the keys of tails."""
        rows = sql.run(
            connection,
            "SELECT id, generation, depth, prefix, count, page FROM applied_keys"
            " WHERE experiment_id = ? AND generation >= ? ORDER BY id",
            (self.id, self.generation - 1),
        )
        for row_id, generation, depth, prefix, count, content in rows:
            tree = self._tree(generation)
            if depth == TAIL:
                tree.tail.append((row_id, count))
            else:
                tree.add((depth, prefix), Piece(row_id, tree.pages.new(content)))
        for tree in self._trees.values():
            if tree.tail:
                keys = b"".join(_read(connection, row_id) for row_id, _ in tree.tail)
                tree.enter_tail(Probe.of(columns(keys)))
        self.weigh()

    def weigh(self) -> None:
        """Note what is remembered."""
        self.nbytes = 1_000 + sum(tree.nbytes for tree in self._trees.values())

    def find(self, connection: Connection, keys: Columns) -> set[int]:
        """Return the places of keys that are there."""
        found: set[int] = set()
        if not self._trees or not len(keys):
            return found
        probe = Probe.of(keys)
        for tree in self._trees.values():
            where: dict[int, list[int]] = {}
            for place, row_id in tree.may_hold(keys, probe):
                where.setdefault(row_id, []).append(place)
            for row_id, places in where.items():
                rows = [row_id] if row_id else [tail_id for tail_id, _ in tree.tail]
                stored = b"".join(_read(connection, one) for one in rows)
                found.update(places[at] for at in hits(keys[places], stored))
        return found

    def append(self, connection: Connection, keys: bytes) -> None:
        """Store new keys, at most a page of them."""
        tree = self._tree(self.generation)
        tree.enter_tail(Probe.of(columns(keys)))
        if tree.num_tail_keys + len(keys) // KEY_BYTES >= PAGE_KEYS:
            self._make_piece(connection, tree, keys)
            for _ in range(tree.depth // 2 + 1):
                self._deal(connection, tree)
            _prune(connection, self.generation - 1)
            return
        absorbed = []
        while tree.tail and tree.tail[-1][1] < min(_SMALL_ROW, 1 + len(keys) // KEY_BYTES):
            row_id, _ = tree.tail.pop()
            absorbed.append(row_id)
            keys = _read(connection, row_id) + keys
        _delete(connection, absorbed)
        row_id = self._insert(connection, TAIL, 0, b"", keys)
        tree.tail.append((row_id, len(keys) // KEY_BYTES))

    def _make_piece(self, connection: Connection, tree: Tree, keys: bytes) -> None:
        """Make the tail, with the last keys, a piece of the root."""
        rows = [row_id for row_id, _ in tree.tail]
        keys = b"".join([*(_read(connection, row_id) for row_id in rows), keys])
        _delete(connection, rows)
        row_id = self._insert(connection, 0, 0, tree.pages.content(tree.tail_page), keys)
        tree.add((0, 0), Piece(row_id, tree.tail_page))
        tree.tail, tree.tail_page = [], 0

    def _deal(self, connection: Connection, tree: Tree) -> None:
        """Deal out the pieces of one node that is due to its children."""
        due = tree.next_due()
        if due is None:
            return
        (depth, _), pieces = due
        stored = b"".join(_read(connection, piece.id) for piece in pieces)
        _delete(connection, [piece.id for piece in pieces])
        for piece in pieces:
            tree.pages.free(piece.page)
        keys = columns(stored)
        children = child_of(keys, depth + 1)
        for prefix in np.unique(children).tolist():
            mine = keys[children == prefix]
            page = tree.pages.new()
            tree.pages.add(page, Probe.of(mine))
            row_id = self._insert(connection, depth + 1, prefix, tree.pages.content(page), mine.tobytes())
            tree.add((depth + 1, prefix), Piece(row_id, page))

    def _insert(self, connection: Connection, depth: int, prefix: int, content: bytes, keys: bytes) -> int:
        row = (self.id, self.generation, depth, prefix, len(keys) // KEY_BYTES, content, keys)
        return int(sql.scalar(connection, _INSERT, row))

    def _tree(self, generation: int) -> Tree:
        return self._trees.setdefault(generation, Tree())


def import_all(connection: Connection, *, now_ms: int) -> None:
    """Copy every id of the table `applied_ids`, as if it were applied now."""
    rows = connection.exec_driver_sql(
        "SELECT experiment_id, message_id FROM applied_ids ORDER BY experiment_id",
        execution_options={"yield_per": 10_000},
    )
    for experiment_id, of_experiment in groupby(rows, key=itemgetter(0)):
        experiment = _Experiment(experiment_id, now_ms // GENERATION_MS)
        while keys := b"".join(_key_of(row[1]) for row in islice(of_experiment, PAGE_KEYS)):
            experiment.append(connection, keys)


def _key_of(message_id: str) -> bytes:
    return hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def _read(connection: Connection, row_id: int) -> bytes:
    return bytes(sql.scalar(connection, "SELECT keys FROM applied_keys WHERE id = ?", (row_id,)))


def _delete(connection: Connection, row_ids: Sequence[int]) -> None:
    sql.many(connection, "DELETE FROM applied_keys WHERE id = ?", [(row_id,) for row_id in row_ids])


def _prune(connection: Connection, oldest: int) -> None:
    """Delete some rows of generations that are past, whose experiment ever they are."""
    rows = sql.run(
        connection,
        "SELECT id FROM applied_keys WHERE generation < ? LIMIT ?",
        (oldest, _PRUNED_AT_ONCE),
    )
    _delete(connection, [row_id for (row_id,) in rows.all()])
