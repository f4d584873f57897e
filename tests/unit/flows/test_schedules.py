"""Cron expressions: five fields, refused in one line before anything is asked of a server."""

import pytest

from flows.schedules import check_cron
from runtime.errors import Rejected


@pytest.mark.parametrize("cron", ["0 3 * * *", "*/15 8-18 * * mon-fri", "0 0 1,15 * *", "@daily"])
def test_five_fields_are_taken(cron):
    check_cron(cron)


@pytest.mark.parametrize(
    "cron", ["", "often", "0 3 * *", "60 * * * *", "* * * * * *", "0 3 * * * 30", "0 0 1 1 * 0 2030"]
)
def test_anything_else_is_refused_also_what_prefect_takes_for_seconds_and_years(cron):
    """Six fields made a run every second, until Prefect's server answered nobody any more."""
    with pytest.raises(Rejected, match=r"^cron must be five fields .*, got ") as refused:
        check_cron(cron)
    assert "\n" not in str(refused.value)
