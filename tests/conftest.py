"""Fixtures that any test may ask for."""

pytest_plugins = [
    "tests.support.databases",
    "tests.support.forge",
    "tests.support.runs",
    "tests.support.s3_proxy",
    "tests.support.seaweed",
]
