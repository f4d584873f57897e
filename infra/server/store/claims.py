"""Claims: which points of a batch are new, and whose they are.

A point of one of our senders belongs to that sender's session, any other to the session of its token.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from infra.server.store.sessions import parse_message_id, parse_message_ids

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from infra.server.store.senders import Sender

__all__ = ["Claim", "claim"]


class Known(Protocol):
    """Tells which of clients' random ids were applied before."""

    def __call__(self, message_ids: Sequence[str], /) -> set[str]: ...


class Senders(Protocol):
    """Gives one of our senders by its name."""

    def __call__(self, name: str, /) -> Sender: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The places of a batch's points that were not applied before, ascending.

    `owners` holds the sender and the number of each, or None where the id is no sender's. `one_sender` is set
    where all of them are of one sender and ascend beyond what it sent so far. `all` says that nothing of the
    batch was applied before.
    """

    places: Sequence[int]
    owners: Sequence[tuple[Sender, int] | None]
    one_sender: tuple[Sender, Sequence[int]] | None
    all: bool

    def __len__(self) -> int:
        return len(self.places)

    def without(self, refused: Container[int]) -> Claim:
        """Return the claim without places that are refused: their ids were not applied."""
        kept = [at for at, place in enumerate(self.places) if place not in refused]
        one = self.one_sender
        return Claim(
            [self.places[at] for at in kept],
            [self.owners[at] for at in kept] if self.owners else (),
            (one[0], [one[1][at] for at in kept]) if one else None,
            all=False,
        )

    def mark(self, message_ids: Sequence[str]) -> list[str]:
        """Remember senders' numbers as applied; return the ids that have to be remembered one by one."""
        if self.one_sender is not None:
            sender, numbers = self.one_sender
            sender.marks.add_ascending(numbers)
            return []
        foreign = []
        for place, owner in zip(self.places, self.owners, strict=True):
            if owner is None:
                foreign.append(message_ids[place])
            else:
                owner[0].marks.add(owner[1])
        return foreign

    def sessions(self, of_token: int) -> int | list[int]:
        """Return the session of each point, or the one that all belong to."""
        if self.one_sender is not None:
            return self.one_sender[0].session_id
        found = [of_token if owner is None else owner[0].session_id for owner in self.owners]
        return found[0] if len(set(found)) == 1 else found


def claim(known: Known, sender: Senders, message_ids: Sequence[str]) -> Claim:
    """Find out which of at least one point were not applied before; of two with one id the first."""
    own = parse_message_ids(message_ids)
    if own is not None:
        whose, numbers = sender(own[0]), own[1]
        if numbers[0] >= whose.marks.next and _ascend(numbers):
            return Claim(range(len(numbers)), (), (whose, numbers), all=True)
    return _one_by_one(known, sender, message_ids)


def _ascend(numbers: Sequence[int]) -> bool:
    return isinstance(numbers, range) or all(one < other for one, other in pairwise(numbers))


def _one_by_one(known: Known, sender: Senders, message_ids: Sequence[str]) -> Claim:
    parsed = [parse_message_id(message_id) for message_id in message_ids]
    foreign = [message_id for message_id, own in zip(message_ids, parsed, strict=True) if own is None]
    seen = known(foreign) if foreign else set()
    places: list[int] = []
    owners: list[tuple[Sender, int] | None] = []
    for place, (message_id, own) in enumerate(zip(message_ids, parsed, strict=True)):
        if message_id in seen:
            continue
        seen.add(message_id)
        owner = None
        if own is not None:
            owner = (sender(own[0]), own[1])
            if own[1] in owner[0].marks:
                continue
        places.append(place)
        owners.append(owner)
    return Claim(places, owners, None, all=len(places) == len(message_ids))
