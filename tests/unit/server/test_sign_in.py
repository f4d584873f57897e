"""Passwords and sign-ins as they are stored."""

import pytest

from infra.server.store import access, people, sign_in
from infra.server.store.schema import sign_ins
from infra.server.store.store import Store


def test_a_password_is_kept_as_argon2id_with_a_salt_of_its_own():
    first, second = (sign_in.hash_password("correct horse") for _ in range(2))
    assert first.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert first != second
    assert sign_in.verify_password(first, "correct horse")
    assert not sign_in.verify_password(first, "correct horsf")


def test_nobodys_password_is_no_password():
    assert not sign_in.verify_password(None, "")
    assert not sign_in.verify_password("no hash at all", "no hash at all")


@pytest.fixture
def store(address):
    store = Store(address)
    yield store
    store.close()


def test_a_sign_in_lasts_as_long_as_it_says_and_expired_ones_are_forgotten(store):
    def work(connection):
        organisation = access.create_organisation(connection, "ours", now_ms=0)
        person = people.add(
            connection,
            organisation.id,
            email="a@example.com",
            name="a",
            role="viewer",
            password_hash=None,
            now_ms=0,
        )
        secret = sign_in.begin(connection, person.id, None, now_ms=0)
        assert secret is not None
        found = sign_in.find(connection, secret, now_ms=sign_in.LIFETIME_MS - 1)
        assert found is not None
        assert (found.person_id, found.organisation, found.role) == (person.id, organisation, "viewer")
        assert sign_in.find(connection, secret, now_ms=sign_in.LIFETIME_MS) is None
        assert sign_in.find(connection, secret + "x", now_ms=0) is None
        sign_in.begin(connection, person.id, None, now_ms=sign_in.LIFETIME_MS)
        assert len(connection.execute(sign_ins.select()).all()) == 1
        assert sign_in.begin(connection, person.id, "nowhere", now_ms=0) is None

    store.write_now(work)
