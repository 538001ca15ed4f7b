"""Samples of an archive, checked against itself and against a real relay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from luxrelay.archive.offsets import Span
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.verification import FINDINGS_MAX, VerifyReport, verify
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey
from luxrelay.bus.bound import sign_header_bound
from luxrelay.errors import SyncArgumentError
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import RelaySyncServer, SyncServerConfig, WireMessage

A = NamespaceId(b"a" * 20)
NOW = 1_704_067_260_000
Forge = Callable[..., WireMessage]


@pytest.fixture
def messages(forge: Forge) -> list[WireMessage]:
    """A namespace of two whole blocks and a bit, with a contested slot."""
    return [*(forge(A, seq) for seq in range(1, 530)), forge(A, 300, blob=b"rival")]


@pytest.fixture
def relay(messages: list[WireMessage], tmp_path: Path) -> Iterator[tuple[RelayStore, str]]:
    """A relay that holds them."""
    with RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=NOW) as store:
        store.put_many(
            [
                IncomingMessage(
                    header=MsgHeader.decode(each.header), blob=each.blob, parent=A, received_at=NOW
                )
                for each in messages
            ],
            NOW,
        )
        server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=lambda: NOW)
        yield store, f"127.0.0.1:{server.start()}"
        server.stop(0)


def _verify(path: Path, *relays: str) -> VerifyReport:
    return verify(ArchiveReader(path), rng=random.Random(1), relays=relays, sample=20, now_ms=NOW)


def test_an_honest_archive_agrees_with_itself_and_with_its_relay(
    archive_of: Callable[..., Path],
    messages: list[WireMessage],
    relay: tuple[RelayStore, str],
    tmp_path: Path,
) -> None:
    """Messages and proofs hold; the roots are equal, without what loses its slot (J4, J11)."""
    found = _verify(archive_of(tmp_path / "archive", messages), relay[1])

    assert (found.messages, found.proofs, found.wrong) == (20, 20, 0)
    assert [(each.root, each.ids) for each in found.relays] == [("equal", 529)]


def test_a_message_that_the_relay_has_otherwise_is_found(
    archive_of: Callable[..., Path],
    messages: list[WireMessage],
    relay: tuple[RelayStore, str],
    forge: Forge,
    tmp_path: Path,
) -> None:
    """Both contents are named, with their relay, and what the archive lacks can be read again."""
    changed = [forge(A, 400, blob=b"other") if m.seq == 400 else m for m in messages]

    found = _verify(archive_of(tmp_path / "archive", changed), relay[1])

    assert found.wrong == 2
    assert all(f"relay {relay[1]}" in each and "seq 400" in each for each in found.findings)
    assert found.missing_here() == [Span(A, 400, 400)]


def test_a_payload_that_somebody_changed_is_found(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path
) -> None:
    """Its commitment does not hold; every sample of a small archive hits it."""
    path = archive_of(tmp_path / "archive", [forge(A, 1)])
    table = DeltaTable(str(path / "messages")).to_pyarrow_table()
    place = table.schema.names.index("blob")
    lies = table.set_column(place, "blob", [[b"HELLO"]])
    write_deltalake(str(path / "messages"), lies.cast(table.schema), mode="overwrite")

    found = _verify(path)

    assert found.wrong == 20
    assert "a message that is none" in found.findings[0]


def test_a_sample_is_checked_by_the_rules_of_its_network(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path
) -> None:
    """Bound signatures hold when the network is named, and only then (H3)."""
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"\x2a" * 32)
    header = sign_header_bound(key, MsgHeader.decode(forge(A, 1).header), "closed")
    rules = ArchiveRules.of([], network="closed", bound=True)
    bound = replace(forge(A, 1), header=header.encode())
    reader = ArchiveReader(archive_of(tmp_path / "archive", [bound], rules=rules))

    assert verify(reader, rng=random.Random(1), sample=3, rules=rules).wrong == 0
    assert verify(reader, rng=random.Random(1), sample=3).wrong == 3


def test_files_of_tls_are_used_against_relays(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path
) -> None:
    """A file that is not there is said, before anything is asked in the clear."""
    path = archive_of(tmp_path / "archive", [forge(A, 1)])
    missing = {"tlsCa": str(tmp_path / "ca.pem")}

    with pytest.raises(SyncArgumentError, match=r"ca\.pem"):
        verify(ArchiveReader(path), rng=random.Random(1), relays=["127.0.0.1:1"], tls=missing)


def test_a_relay_that_does_not_answer_is_a_finding(
    archive_of: Callable[..., Path],
    forge: Forge,
    tmp_path: Path,
) -> None:
    """Nothing is called equal that was not compared."""
    path = archive_of(tmp_path / "archive", [forge(A, 1)])

    found = _verify(path, "127.0.0.1:1")

    assert found.wrong == 1
    assert "could not be compared" in found.findings[0]


def test_an_empty_archive_and_the_bound_of_findings(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path
) -> None:
    """Nothing to sample is no error; findings are counted beyond what is listed."""
    path = archive_of(tmp_path / "archive", [forge(A, 1)])
    DeltaTable(str(path / "messages")).delete()
    report = VerifyReport()
    for number in range(FINDINGS_MAX + 3):
        report.note(str(number))

    assert _verify(path).messages == 0
    assert (len(report.findings), report.wrong) == (FINDINGS_MAX, FINDINGS_MAX + 3)
