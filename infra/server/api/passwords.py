"""Passwords as the routes use them: hashed two at a time beside everything else, tried only so often."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from infra.server.api.throttle import SignInThrottle
from infra.server.refusals import Refused
from infra.server.store import sign_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from infra.server.store.store import Store

__all__ = ["Passwords", "passwords_of"]

_MAX_WAITING = 64


class Passwords:
    """Lives as long as the application. A hash takes 64 MiB, so only two are made at a time."""

    def __init__(self, store: Store, *, throttle: SignInThrottle | None = None) -> None:
        self._store = store
        self._throttle = throttle or SignInThrottle()
        self._turns = asyncio.Semaphore(2)
        self._num_waiting = 0

    async def hash(self, password: str) -> str:
        """Return what is stored of a new password.

        Raises:
            Refused: Too many wait already.
        """
        async with self._turn():
            return await to_thread.run_sync(sign_in.hash_password, password)

    async def check(self, request: Request, email: str, password: str) -> int:
        """Return the id of the person whose address and password these are.

        Nobody of this address, nobody's password yet and a wrong password are one answer, after one time.

        Raises:
            Refused: They are not, or it was tried too often.
        """
        email, address = email.strip().lower(), "" if request.client is None else request.client.host
        self._throttle.take(email, address)
        found = await self._store.read(lambda connection: sign_in.password_of(connection, email))
        person_id, stored = found or (0, None)
        async with self._turn():
            good = await to_thread.run_sync(sign_in.verify_password, stored, password)
        if not good:
            raise Refused("sign_in_refused", "the address or the password is wrong")
        self._throttle.give_back(email, address)
        return person_id

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._num_waiting >= _MAX_WAITING:
            raise Refused("unavailable", "too many sign in at once", retry_after_s=5)
        self._num_waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._num_waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    async def sign_in(
        self, request: Request, email: str, password: str, *, organisation_uid: str | None = None
    ) -> str:
        """Return the secret of a new sign-in.

        `organisation_uid` unset means the organisation that the person joined first.

        Raises:
            Refused: The address or the password is wrong, they are no member, or it was tried too often.
        """
        person_id = await self.check(request, email, password)
        secret = await self._store.write(
            lambda connection: sign_in.begin(
                connection, person_id, organisation_uid, now_ms=self._store.clock_ms()
            )
        )
        if secret is None:
            raise Refused("sign_in_refused", "the address or the password is wrong")
        return secret


def passwords_of(request: Request) -> Passwords:
    """Return the application's passwords."""
    return cast("Passwords", request.app.state.passwords)
