"""Which GPU is whose: locks of the kernel, so that no death leaves one taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from flows.gpus import Host, lease
from runtime.errors import Rejected, Unavailable
from tests.support.waiting import wait_until


def host(tmp_path, count: int = 2) -> Host:
    return Host.from_environment({"SLUGLINE_GPUS": str(count), "SLUGLINE_GPU_LOCKS": str(tmp_path / "locks")})


class Waited(Exception):
    """Raised in place of waiting."""


def no_waiting(_seconds: float) -> None:
    raise Waited


def take(count: int, of: Host):
    return lease(count, of, on_wait=lambda _text: None, sleep=no_waiting)


def test_a_host_pretends_as_many_as_it_is_told(tmp_path):
    assert host(tmp_path, 3).gpus == ("0", "1", "2")
    assert host(tmp_path, 0).gpus == ()


def test_a_worker_shares_only_the_gpus_that_it_sees_itself():
    assert Host.from_environment({"CUDA_VISIBLE_DEVICES": "3, GPU-8a1b"}).gpus == ("3", "GPU-8a1b")
    assert Host.from_environment({"CUDA_VISIBLE_DEVICES": ""}).gpus == ()


def test_a_bad_number_is_refused():
    with pytest.raises(Rejected, match="SLUGLINE_GPUS must be a whole number of at least 0, got 'two'"):
        Host.from_environment({"SLUGLINE_GPUS": "two"})


def test_what_one_user_makes_every_user_of_the_host_can_lock(tmp_path):
    """Under the stack's umask the first run kept the GPUs from all other users."""
    before = os.umask(0o077)
    try:
        with take(1, host(tmp_path)):
            modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "locks").iterdir()}
    finally:
        os.umask(before)
    assert modes == {"queue.lock": 0o644, "0.lock": 0o644}
    assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777


def test_locks_that_cannot_be_opened_are_named_and_waited_for(tmp_path):
    (tmp_path / "locks").touch()
    with (
        pytest.raises(Unavailable, match=r"lock .* cannot be opened .*SLUGLINE_GPU_LOCKS"),
        take(1, host(tmp_path)),
    ):
        pass


def test_two_leases_never_share_a_gpu_and_the_trainer_sees_its_own(tmp_path):
    gpus = host(tmp_path)
    with take(1, gpus) as first, take(1, gpus) as second:
        assert {*first.gpus, *second.gpus} == {"0", "1"}
        assert first.environment()["CUDA_VISIBLE_DEVICES"] == first.gpus[0]
        with pytest.raises(Waited), take(1, gpus):
            pass


def test_gpus_of_a_left_block_are_free_again(tmp_path):
    gpus = host(tmp_path)
    for _ in range(3):
        with take(2, gpus) as leased:
            assert leased.gpus == ("0", "1")
    with pytest.raises(KeyError), take(2, gpus):
        raise KeyError
    with take(2, gpus):
        pass


def test_none_is_leased_where_none_is_asked_for(tmp_path):
    with take(0, host(tmp_path, 0)) as leased:
        assert leased.descriptors == ()
        assert leased.environment()["CUDA_VISIBLE_DEVICES"] == ""


def test_more_than_the_host_has_is_refused_and_not_waited_for(tmp_path):
    with (
        pytest.raises(Rejected, match="gpus must be at most 2, what this host has, got 3"),
        take(3, host(tmp_path)),
    ):
        pass


def test_a_waiting_run_says_so_once_and_gets_the_gpu_when_it_frees(tmp_path):
    gpus = host(tmp_path, 1)
    told: list[str] = []
    slept: list[float] = []
    first = take(1, gpus)
    first.__enter__()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            first.__exit__(None, None, None)

    with lease(1, gpus, on_wait=told.append, sleep=sleep) as leased:
        assert leased.gpus == ("0",)
    assert told == ["waiting for 1 free GPU(s) of 1"]
    assert len(slept) == 3


def test_a_run_of_two_is_not_overtaken_by_runs_of_one(tmp_path):
    """It keeps the first GPU that frees and the head of the queue, while a run of one waits behind."""
    gpus, order, queued = host(tmp_path), [], threading.Event()
    one, two = take(1, gpus), take(1, gpus)
    one.__enter__()
    two.__enter__()
    free = threading.Event()

    def moment(_seconds: float) -> None:
        free.wait(0.01)

    def pair() -> None:
        with lease(2, gpus, on_wait=lambda _text: queued.set(), sleep=moment):
            order.append("pair")

    def single() -> None:
        queued.wait()
        with lease(1, gpus, on_wait=lambda _text: behind.set(), sleep=moment):
            order.append("single")

    behind = threading.Event()
    threads = [threading.Thread(target=pair), threading.Thread(target=single)]
    for thread in threads:
        thread.start()
    behind.wait()
    one.__exit__(None, None, None)
    two.__exit__(None, None, None)
    for thread in threads:
        thread.join(60)
    assert order == ["pair", "single"]


def test_a_gpu_stays_taken_while_the_trainer_that_inherited_it_lives_and_frees_when_it_is_killed(tmp_path):
    """The flow process may die first: its trainer still uses the GPU."""
    gpus = host(tmp_path, 1)
    with take(1, gpus) as leased:
        trainer = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=leased.descriptors
        )
    try:
        with pytest.raises(Waited), take(1, gpus):
            pass
    finally:
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.communicate()

    def free() -> bool:
        try:
            with take(1, gpus):
                return True
        except Waited:
            return False

    wait_until(free, within_s=60)
