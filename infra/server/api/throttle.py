"""How often somebody may try a password: by account and by address, in memory of a fixed size."""

from __future__ import annotations

import ipaddress
import math
import secrets
import time
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

from infra.server.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SignInThrottle", "Throttle", "network_of"]


class Throttle:
    """Lets each name try `burst` times at once and once every `interval_s` thereafter.

    Names fall into a fixed number of slots by a secret hash, so that no number of names costs more memory,
    pushes another name's tries out, or can be chosen to share a slot with somebody. Whoever shares one by
    chance shares its tries.
    """

    def __init__(
        self,
        *,
        burst: int,
        interval_s: float,
        num_slots: int = 65_536,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spare_s = (burst - 1) * interval_s
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._secret = secrets.token_bytes(16)
        # The time at which all tries of a slot's names will be there again.
        self._full_s = array("d", bytes(8 * num_slots))

    def wait_s(self, name: str) -> float:
        """Return how long a name has to wait before it may try; 0 when it may now."""
        return max(0.0, self._full_s[self._slot(name)] - self._clock_s() - self._spare_s)

    def take(self, name: str) -> None:
        """Count a try."""
        slot = self._slot(name)
        self._full_s[slot] = max(self._full_s[slot], self._clock_s()) + self._interval_s

    def give_back(self, name: str) -> None:
        """Uncount a try that was right."""
        self._full_s[self._slot(name)] -= self._interval_s

    def _slot(self, name: str) -> int:
        digest = blake2b(name.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "big") % len(self._full_s)


class SignInThrottle:
    """Ten wrong passwords at once and one a minute for an account, known to us or not.

    Thirty at once and three a minute for an address.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._accounts = Throttle(burst=10, interval_s=60, clock_s=clock_s)
        self._addresses = Throttle(burst=30, interval_s=20, clock_s=clock_s)

    def take(self, account: str, address: str) -> None:
        """Count a try before it is made, so that many at once are counted too.

        Raises:
            Refused: It may not be made yet.
        """
        address = network_of(address)
        wait_s = max(self._accounts.wait_s(account), self._addresses.wait_s(address))
        if wait_s > 0:
            raise Refused(
                "too_many_attempts", "too many attempts: wait and try again", retry_after_s=math.ceil(wait_s)
            )
        self._accounts.take(account)
        self._addresses.take(address)

    def give_back(self, account: str, address: str) -> None:
        """Uncount a try that was right."""
        self._accounts.give_back(account)
        self._addresses.give_back(network_of(address))


def network_of(address: str) -> str:
    """Return what one subscriber has: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(parsed), 64), strict=False))
    return str(parsed)
