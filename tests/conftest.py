"""Fixtures that any test may ask for, and the signals that every process started by a test begins with."""

import signal

pytest_plugins = [
    "tests.support.metrics_server",  # before those that import it
    "tests.support.browser",
    "tests.support.certificates",
    "tests.support.databases",
    "tests.support.forge",
    "tests.support.patience",
    "tests.support.runs",
    "tests.support.s3_proxy",
    "tests.support.seaweed",
]


def pytest_configure() -> None:
    """Let processes that tests start begin with the usual signals: `nohup` and `&` hand down ignored ones.

    A signal that is caught is its default in whatever is started; pytest itself goes on ignoring it.
    """
    for signum in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, lambda *_: None)
