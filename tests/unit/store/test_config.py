"""The configuration is refused when it could not work."""

import pytest

from luxrelay.errors import StoreArgumentError
from luxrelay.store import Durability, RelayStoreConfig
from luxrelay.store.config import BATCH_FLOOR_BYTES
from luxrelay.store.messages import require_ms
from luxrelay.store.slices import expiry_of

DAY_MS = 86_400_000
NO_BOUNDS = {"blobs_enabled", "durability", "when_full", "namespace_quotas", "thin_ratios"}


def test_defaults_are_those_of_the_document() -> None:
    """The defaults are LP-6421's and the retention document's (21-01)."""
    config = RelayStoreConfig()

    assert config.cold_store_ttl_ms == 600_000
    assert config.max_storage_bytes == 1024**3
    assert config.retention_window_ms == 30 * DAY_MS
    assert (config.gc_batch_limit, config.gc_chunk_size) == (100_000, 1_000)
    assert (config.gc_interval_ms, config.gc_short_interval_ms) == (3_600_000, 60_000)
    assert config.network_differences() == []
    assert (config.page_messages_default, config.page_messages_max) == (1_000, 10_000)
    assert config.page_bytes_max == 16 * 1024**2
    assert config.durability is Durability.FSYNC


@pytest.mark.parametrize(
    "field",
    [name for name in RelayStoreConfig.__dataclass_fields__ if name not in NO_BOUNDS],
)
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_refuse_a_bound_that_is_no_positive_integer(field: str, value: object) -> None:
    """Every bound is a positive integer, and the error names the field."""
    with pytest.raises(StoreArgumentError) as caught:
        RelayStoreConfig(**{field: value})  # type: ignore[arg-type]  # the point of the test

    assert caught.value.where == f"RelayStoreConfig.{field}"


@pytest.mark.parametrize("field", ["group_bytes_max", "page_bytes_max"])
def test_refuse_a_byte_bound_below_one_message(field: str) -> None:
    """A group or a page always has room for the largest message."""
    with pytest.raises(StoreArgumentError):
        RelayStoreConfig(**{field: BATCH_FLOOR_BYTES - 1})  # type: ignore[arg-type]  # by name

    RelayStoreConfig(**{field: BATCH_FLOOR_BYTES})  # type: ignore[arg-type]  # by name


def test_refuse_a_default_page_above_the_cap() -> None:
    """The default page is no larger than the largest."""
    with pytest.raises(StoreArgumentError):
        RelayStoreConfig(page_messages_default=11, page_messages_max=10)


def test_read_durability_from_its_name() -> None:
    """A configuration file's word becomes the choice; another word is refused."""
    for word in ("fsync", "group", "os"):
        config = RelayStoreConfig(durability=word)  # type: ignore[arg-type]  # from a file
        assert config.durability is Durability(word)

    with pytest.raises(StoreArgumentError):
        RelayStoreConfig(durability="maybe")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    ("received_at", "timestamp", "expected"),
    [
        (2_000, 1_000, 1_000 + 600_000),
        (1_000, 2_000, 1_000 + 600_000),
        (1_000, 1_000, 1_000 + 600_000),
    ],
)
def test_expire_by_the_earlier_of_arrival_and_timestamp(
    received_at: int, timestamp: int, expected: int
) -> None:
    """The TTL runs from the earlier of arrival and timestamp (P14)."""
    assert expiry_of(RelayStoreConfig(), received_at, timestamp) == expected


def test_expire_by_the_retention_window_when_that_is_earlier() -> None:
    """A TTL above the retention window does not extend it (J2)."""
    config = RelayStoreConfig(cold_store_ttl_ms=40 * DAY_MS, retention_window_ms=30 * DAY_MS)

    assert expiry_of(config, received_at=5_000, timestamp=1_000) == 1_000 + 30 * DAY_MS


@pytest.mark.parametrize("value", [-1, 0, 1_764_000_000, 10**11 - 1, 2**64])
def test_refuse_times_that_are_no_milliseconds(value: int) -> None:
    """A time that looks like seconds is refused, not believed (21-54, P8)."""
    with pytest.raises(StoreArgumentError):
        require_ms("now_ms", value)


@pytest.mark.parametrize("value", [10**11, 1_764_000_000_000, 2**64 - 1])
def test_accept_times_in_milliseconds(value: int) -> None:
    """Milliseconds of any date from 1973 on are accepted."""
    require_ms("now_ms", value)


def test_the_interval_is_short_after_a_limit() -> None:
    """A cycle that hit its limit is followed soon (retention document)."""
    config = RelayStoreConfig()

    assert config.cycle_interval_ms(hit_limit=True) == 60_000
    assert config.cycle_interval_ms(hit_limit=False) == 3_600_000


def test_say_what_differs_from_the_network() -> None:
    """A window of one's own is possible and named."""
    (line,) = RelayStoreConfig(retention_window_ms=DAY_MS).network_differences()

    assert line == f"retention_window_ms is {DAY_MS}, the network's is {30 * DAY_MS}"


def test_the_cutoff_is_now_less_the_window() -> None:
    """The cut-off is computed from the clock, never below zero (retention document, J1)."""
    config = RelayStoreConfig(retention_window_ms=1_000)

    assert config.cutoff_ms(10_000) == 9_000
    assert config.cutoff_ms(10) == 0


@pytest.mark.parametrize("quotas", [{b"short": 1}, {b"n" * 20: -1}, {b"n" * 20: True}])
def test_refuse_quotas_that_mean_nothing(quotas: dict[bytes, int]) -> None:
    """A quota names a namespace and is not negative."""
    with pytest.raises(StoreArgumentError) as caught:
        RelayStoreConfig(namespace_quotas=quotas)  # type: ignore[arg-type]  # the point of the test

    assert caught.value.where == "RelayStoreConfig.namespace_quotas"
