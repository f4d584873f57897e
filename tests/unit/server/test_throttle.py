"""How often somebody may try."""

import pytest

from infra.server.api.throttle import SignInThrottle, Throttle, network_of
from infra.server.refusals import Refused


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def test_a_name_tries_its_burst_at_once_and_then_one_an_interval():
    clock = Clock()
    throttle = Throttle(burst=3, interval_s=60, clock_s=clock)
    for _ in range(3):
        assert throttle.wait_s("a") == 0
        throttle.take("a")
    assert throttle.wait_s("a") == 60
    assert throttle.wait_s("b") == 0
    clock.now_s += 59
    assert throttle.wait_s("a") == 1
    clock.now_s += 1
    assert throttle.wait_s("a") == 0
    throttle.take("a")
    assert throttle.wait_s("a") == 60


def test_tries_come_back_whole_after_a_while_and_never_more():
    clock = Clock()
    throttle = Throttle(burst=2, interval_s=10, clock_s=clock)
    throttle.take("a")
    clock.now_s += 10_000
    for _ in range(2):
        assert throttle.wait_s("a") == 0
        throttle.take("a")
    assert throttle.wait_s("a") == 10


def test_a_try_that_was_right_is_given_back():
    throttle = Throttle(burst=1, interval_s=10, clock_s=Clock())
    for _ in range(5):
        assert throttle.wait_s("a") == 0
        throttle.take("a")
        throttle.give_back("a")


def test_any_number_of_names_takes_the_same_memory_and_no_name_pushes_another_out():
    throttle = Throttle(burst=1, interval_s=1000, num_slots=64, clock_s=Clock())
    throttle.take("victim")
    for number in range(10_000):
        throttle.take(f"name {number}")
    assert throttle.wait_s("victim") > 0
    assert len(throttle._full_s) == 64


def test_which_names_share_a_slot_is_a_secret():
    one, two = (Throttle(burst=1, interval_s=1, clock_s=Clock()) for _ in range(2))
    names = [f"name {number}" for number in range(20)]
    assert [one._slot(name) for name in names] != [two._slot(name) for name in names]


def test_an_account_is_bounded_over_all_addresses_and_an_address_over_all_accounts():
    throttle = SignInThrottle(clock_s=Clock())
    for number in range(10):
        throttle.take("a@example.com", f"192.0.2.{number}")
    with pytest.raises(Refused) as caught:
        throttle.take("a@example.com", "192.0.2.99")
    assert (caught.value.code, caught.value.retry_after_s) == ("too_many_attempts", 60)
    for number in range(30):
        throttle.take(f"{number}@example.com", "2001:db8::1")
    with pytest.raises(Refused):
        throttle.take("x@example.com", "2001:db8::ffff")
    throttle.take("x@example.com", "2001:db8:0:1::1")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("a socket", "a socket"),
    ],
)
def test_an_address_stands_for_what_one_subscriber_has(address, network):
    assert network_of(address) == network
