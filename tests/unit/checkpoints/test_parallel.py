import threading

import pytest

from runtime.checkpoints.parallel import each


def test_results_stand_in_the_order_of_the_items():
    assert each(lambda item: item * 2, range(20), workers=4, name="test") == [item * 2 for item in range(20)]


def test_nothing_to_do_is_done():
    assert each(lambda item: item, [], workers=4, name="test") == []


def test_as_many_run_at_once_as_there_are_workers():
    together = threading.Barrier(3)
    each(lambda _: together.wait(60), range(9), workers=3, name="test")


def test_the_first_error_is_raised_and_what_has_not_begun_never_does():
    begun = []

    def work(item):
        begun.append(item)
        if item == 2:
            raise OSError("item 2")

    with pytest.raises(OSError, match="item 2"):
        each(work, range(100), workers=1, name="test")
    assert begun == [0, 1, 2]


def test_no_thread_keeps_a_process_alive():
    daemons = each(lambda _: threading.current_thread().daemon, range(3), workers=2, name="test")
    assert daemons == [True, True, True]
