"""What retention takes and leaves, by its own SQL; Spark runs it in tests/integration/archive."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.archive.upkeep import KEEP_DAYS, RetentionConfig, past_condition
from luxrelay.bus.policy import RetentionClass
from luxrelay.errors import ArchiveArgumentError

NOW = 1_785_974_400_000
DAY = 86_400_000
EDGES = [NOW - days * DAY for days in (1, 29, 30, 31, 364, 365, 366, 4_000)]
stamps = st.sampled_from(EDGES).flatmap(lambda edge: st.integers(edge - DAY - 1, edge + DAY + 1))


def _chosen(config: RetentionConfig, rows: list[tuple[int | None, int, int]]) -> list[bool]:
    """Evaluate the condition for (class, timestamp, received_at) rows."""
    database = duckdb.connect()
    database.sql(
        "CREATE TABLE m (n INT, date DATE, retention INT, timestamp BIGINT, received_at BIGINT)"
    )
    for number, (kind, timestamp, received_at) in enumerate(rows):
        day = datetime.fromtimestamp(timestamp / 1000, UTC).date()
        database.execute(
            "INSERT INTO m VALUES (?, ?, ?, ?, ?)", [number, day, kind, timestamp, received_at]
        )
    condition = past_condition(config, NOW) or "false"
    found = database.sql(f"SELECT n FROM m WHERE {condition}").fetchall()  # noqa: S608
    return [(number,) in found for number in range(len(rows))]


@given(
    st.lists(st.tuples(st.sampled_from([None, 1, 2, 3]), stamps, stamps), min_size=1, max_size=12)
)
def test_nothing_younger_than_its_class_goes_and_all_that_is_past_does(
    rows: list[tuple[int | None, int, int]],
) -> None:
    """By whichever clock it is younger: the sender's, or that of the first relay (J1, J2)."""
    wanted = []
    for kind, timestamp, received_at in rows:
        days = KEEP_DAYS[1 if kind is None else kind]
        age = NOW - max(timestamp, received_at)
        wanted.append(days is not None and age > days * DAY)

    assert _chosen(RetentionConfig(), rows) == wanted


def test_classes_may_be_kept_otherwise() -> None:
    """An operator keeps longer, shorter, for ever, and says what an unknown class is."""
    config = RetentionConfig(
        keep_days={
            RetentionClass.STANDARD: None,
            RetentionClass.ARCHIVE: 2,
            RetentionClass.PERMANENT: None,
        },
        unknown=RetentionClass.ARCHIVE,
    )
    old = NOW - 3 * DAY

    assert _chosen(config, [(1, old, old), (2, old, old), (3, old, old), (None, old, old)]) == [
        False, True, False, True,
    ]  # fmt: skip


def test_nothing_goes_when_every_class_is_for_ever() -> None:
    """There is no condition then, and so no deletion."""
    keep = dict.fromkeys(KEEP_DAYS)

    assert past_condition(RetentionConfig(keep_days=keep), NOW) == ""


def test_a_clock_before_1970_takes_nothing() -> None:
    """A machine whose clock is wrong by decades deletes nothing."""
    config = RetentionConfig()

    assert "DATE'1970-01-01' + 0" in past_condition(config, 5 * DAY)
    assert "timestamp < -" in past_condition(config, 5 * DAY)


@pytest.mark.parametrize(
    "changed",
    [
        {"keep_days": {}},
        {"keep_days": {**KEEP_DAYS, RetentionClass.EPHEMERAL: 1}},
        {"keep_days": {**KEEP_DAYS, RetentionClass.STANDARD: 0}},
        {"served_days": 0},
        {"unknown": 0},
    ],
)
def test_refuse_what_would_delete_by_accident(changed: dict[str, object]) -> None:
    """Ephemeral has no time, no class is left out, nothing is kept for no time."""
    with pytest.raises(ArchiveArgumentError):
        RetentionConfig(**changed)  # type: ignore[arg-type]
