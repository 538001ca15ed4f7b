"""Public names: exactly these, each to be had, none equal to a module of its room."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src" / "luxrelay"
PROMISED = {
    "luxrelay": {
        "AsyncRelayClient", "GossipRouter", "LaneSigner", "LuxRelayError", "MsgHeader",
        "NamespaceId", "RelayClient", "RelayStore", "RelaySyncClient", "SigningKey",
        "create_reliable_channel", "lane",
    },
    "luxrelay.bus": {
        "MsgHeader", "TFHESidecarRef", "SignatureScheme", "SigningKey", "VerifyKey",
        "sha3_commitment", "NamespaceId", "namespace_id", "derived_namespace", "lane",
        "NamespacePolicy", "message_id", "HybridClock", "pack_stamp", "unpack_stamp",
        "validate_structure", "validate", "Verdict",
    },
    "luxrelay.gossip": {
        "GossipRouter", "GossipParams", "RelayMessage", "HeaderAnnouncement",
        "BlobAvailabilityHint", "BlockAnnouncement", "topic_for_namespace",
    },
    "luxrelay.store": {
        "RelayStore", "RelayStoreConfig", "NamespaceQuery", "StoredMessage", "CycleStats",
    },
    "luxrelay.sync": {"RelaySyncServer", "RelaySyncClient"},
    "luxrelay.archive": {
        "ArchiveSession", "register_source", "ingest", "compact", "retain", "audit", "report",
        "restore",
    },
    "luxrelay.channel": {
        "create_reliable_channel", "ReliableChannel", "SdsConfig", "SegmentationConfig",
        "RateLimitConfig", "Encryption", "Persistence", "Messaging",
    },
    "luxrelay.net": {"RelayHost", "GossipDriver", "NetConfig"},
    "luxrelay.client": {
        "RelayClient", "AsyncRelayClient", "subscribe", "subscribe_async", "Subscribe", "Place",
        "LaneSigner", "PublishStream", "Message", "Gap", "Live", "Receipt", "Query", "Checks",
    },
    "luxrelay.node": {"NodeConfig", "load_config"},
    "luxrelay.sim": {
        "ChatMessage", "generate_chat", "read_chat", "Scenario", "SimReport", "load_scenario",
        "shipped", "simulate",
    },
    "luxrelay.testing": {"message_line", "signing_key", "breakages"},
}  # fmt: skip


@pytest.mark.parametrize("room", sorted(PROMISED))
def test_room_keeps_its_promise(room: str) -> None:
    """Every promised name stands in ``__all__`` and can be had."""
    module = importlib.import_module(room)

    assert PROMISED[room] <= set(module.__all__)
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("room", sorted(PROMISED))
def test_no_public_name_hides_a_module(room: str) -> None:
    """A function must not have the name of a module of its room: imports would see one of them."""
    module = importlib.import_module(room)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}

    assert not modules & set(module.__all__)


def test_the_package_loads_nothing_by_itself() -> None:
    """`import luxrelay` costs what one small file costs; a name loads its room and no more."""
    code = (
        "import sys; before = set(sys.modules); import luxrelay; "
        "assert set(sys.modules) - before == {'luxrelay'}, set(sys.modules) - before; "
        "luxrelay.MsgHeader; assert 'luxrelay.bus' in sys.modules; "
        "assert not {'luxrelay.store', 'luxrelay.net', 'grpc', 'trio'} & set(sys.modules); "
        "assert 'RelayStore' in dir(luxrelay)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
