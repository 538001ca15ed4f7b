"""The capacity formula and its warning."""

from luxrelay.bus import NamespaceId
from luxrelay.store import RelayStoreConfig
from luxrelay.store.config import MINUTE_MS
from luxrelay.store.stats import DeclaredRate, capacity_warnings

CHAT = NamespaceId(b"c" * 20)
NEWS = NamespaceId(b"n" * 20)


def rate(namespace: NamespaceId, messages: int, message_bytes: int = 410) -> DeclaredRate:
    """Return a rate of messages of one size."""
    return DeclaredRate(
        namespace_id=namespace, messages_per_s=messages, bytes_per_s=messages * message_bytes
    )


def test_no_warning_when_everything_fits() -> None:
    """Rates within quota and store are nothing to say."""
    assert capacity_warnings(RelayStoreConfig(), [rate(CHAT, 100), rate(NEWS, 100)]) == []


def test_warn_when_a_rate_exceeds_its_quota() -> None:
    """A namespace that may fill its quota before the window ends is named (P31)."""
    (warning,) = capacity_warnings(RelayStoreConfig(), [rate(CHAT, 1_000)])

    assert CHAT.hex() in warning
    assert str(RelayStoreConfig().default_quota_bytes()) in warning


def test_warn_when_all_rates_exceed_the_store() -> None:
    """Namespaces that fit one by one may be too much together (P31)."""
    rates = [rate(NamespaceId(bytes([n]) * 20), 190) for n in range(1, 13)]
    (warning,) = capacity_warnings(RelayStoreConfig(), rates)

    assert warning.startswith("all namespaces")


def test_the_shorter_window_counts() -> None:
    """A TTL above the retention window does not need more room (J2)."""
    long = RelayStoreConfig(cold_store_ttl_ms=60 * MINUTE_MS, retention_window_ms=MINUTE_MS)

    assert capacity_warnings(long, [rate(CHAT, 1_000)]) == []
