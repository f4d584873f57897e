"""Where the keys of one experiment are stored, as its writer remembers it: a tree by the keys' first bits.

Keys come into a *tail*. A tail of a page's size becomes a *piece* of the root; four pieces of a node are
dealt out to its four children, a piece each. So every piece is about as large as any other, a key moves once
a level, and what a commit does is bounded. Each piece has its page in memory; the keys are in the database.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from infra.server.store.id_pages import Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.server.store.id_pages import Columns, Probe

__all__ = ["FAN_OUT", "TAIL", "Node", "Piece", "Tree", "child_of"]

FAN_OUT = 4
TAIL = -1
"""The depth at which the rows of a tail are stored."""

_BITS = 2
_MAX_DEPTH = 12

Node: TypeAlias = "tuple[int, int]"
"""A depth and the first `2 * depth` bits that its keys share."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A row of keys and the page that knows them."""

    id: int
    page: int


@dataclass(slots=True)
class _Level:
    """The nodes of one depth. `tables` hold, for each place among a node's pieces, the page by node."""

    depth: int
    nodes: dict[int, list[Piece]] = field(default_factory=dict)
    tables: list[npt.NDArray[np.int32]] = field(default_factory=list)

    def set_page(self, place: int, prefix: int, page: int) -> None:
        if place == len(self.tables):
            self.tables.append(np.zeros(FAN_OUT**self.depth, dtype=np.int32))
        self.tables[place][prefix] = page


class Tree:
    """One writer's; what it says of the database is true until a transaction is rolled back."""

    def __init__(self) -> None:
        self.tail: list[tuple[int, int]] = []
        """Row and number of keys."""
        self.tail_page = 0
        self.pages = Pages()
        self._levels: list[_Level] = []
        self._due: OrderedDict[Node, None] = OrderedDict()

    @property
    def depth(self) -> int:
        """How many levels there are."""
        return len(self._levels)

    @property
    def num_tail_keys(self) -> int:
        """Keys that are in no piece yet."""
        return sum(count for _, count in self.tail)

    @property
    def nbytes(self) -> int:
        """Memory in use, nearly."""
        tables = sum(table.nbytes for level in self._levels for table in level.tables)
        pieces = sum(len(node) for level in self._levels for node in level.nodes.values())
        return self.pages.nbytes + tables + 200 * pieces

    def enter_tail(self, probe: Probe) -> None:
        """Let the tail's page know keys."""
        if not self.tail_page:
            self.tail_page = self.pages.new()
        self.pages.add(self.tail_page, probe)

    def add(self, node: Node, piece: Piece) -> None:
        """Remember a piece of a node."""
        depth, prefix = node
        while len(self._levels) <= depth:
            self._levels.append(_Level(len(self._levels)))
        level = self._levels[depth]
        pieces = level.nodes.setdefault(prefix, [])
        level.set_page(len(pieces), prefix, piece.page)
        pieces.append(piece)
        self._note(node, len(pieces))

    def next_due(self) -> tuple[Node, list[Piece]] | None:
        """Return a node whose first pieces are to be dealt out now, and forget those; None when none is."""
        if not self._due:
            return None
        node, _ = self._due.popitem(last=False)
        level, prefix = self._levels[node[0]], node[1]
        pieces = level.nodes[prefix]
        dealt, kept = pieces[:FAN_OUT], pieces[FAN_OUT:]
        level.nodes[prefix] = kept
        for place in range(len(pieces)):
            level.set_page(place, prefix, kept[place].page if place < len(kept) else 0)
        self._note(node, len(kept))
        return node, dealt

    def may_hold(self, keys: Columns, probe: Probe) -> Iterator[tuple[int, int]]:
        """Give the keys that a piece may hold, each with the piece's row; row 0 is the tail."""
        if self.tail_page:
            for key in self.pages.hits(self.tail_page, probe):
                yield key, 0
        for level in self._levels:
            prefixes = child_of(keys, level.depth)
            for place, table in enumerate(level.tables):
                for key in self.pages.hits(table[prefixes], probe):
                    yield key, level.nodes[int(prefixes[key])][place].id

    def _note(self, node: Node, num_pieces: int) -> None:
        # So many bits are the pages' alone: a node at the bottom keeps what it gets.
        if num_pieces >= FAN_OUT and node[0] < _MAX_DEPTH:
            self._due[node] = None


def child_of(keys: Columns, depth: int) -> npt.NDArray[np.int64]:
    """Return the prefix of the node of a depth that each key belongs to."""
    if depth == 0:
        return np.zeros(len(keys), dtype=np.int64)
    return (keys[:, 0] >> np.uint64(64 - _BITS * depth)).astype(np.int64)
