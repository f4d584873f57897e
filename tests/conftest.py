"""Fixtures that any test may ask for."""

pytest_plugins = [
    "tests.support.metrics_server",  # before those that import it
    "tests.support.browser",
    "tests.support.databases",
    "tests.support.forge",
    "tests.support.runs",
    "tests.support.s3_proxy",
    "tests.support.seaweed",
]
