"""Settings and the tables they are read from."""

from dataclasses import dataclass

import pytest

from luxrelay.errors import ScenarioError
from luxrelay.sim.settings import check_fields, read_table, setting


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of each type."""

    count: int = setting(3, "Things", low=1, high=10)
    share: float = setting(0.5, "Share", high=1)
    on: bool = setting(False, "Switch")
    text: str = setting("a", "Name")


def test_reads_each_type() -> None:
    """Values take the type of their setting; what is not named has its default."""
    plan = read_table(Plan, {"share": 1, "on": True}, "plan")

    assert plan == Plan(share=1.0, on=True)
    assert isinstance(plan.share, float)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"count": 0}, "whole number from 1 to 10; plan.count"),
        ({"count": 2.5}, "whole number"),
        ({"count": True}, "whole number"),
        ({"share": 1.5}, "a number from 0 to 1"),
        ({"share": float("nan")}, "a number from 0 to 1"),
        ({"on": 1}, "true or false"),
        ({"text": 1}, "expected text"),
        ({"cuont": 1}, "unknown key 'cuont'; plan; known are count, share, on, text"),
        ([], "expected a table"),
    ],
)
def test_says_what_does_not_fit(table: object, says: str) -> None:
    """The error names the key and what fits."""
    with pytest.raises(ScenarioError, match=says):
        read_table(Plan, table, "plan")


def test_checks_what_was_built_in_python() -> None:
    """A dataclass made without a table is held to the same bounds."""
    check_fields(Plan(), "plan")
    with pytest.raises(ScenarioError, match=r"plan\.share"):
        check_fields(Plan(share=2.0), "plan")
