"""Credentials are checked before anybody shakes hands."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync import ClientTls, RelaySyncClient, ServerTls
from luxrelay.sync.rpc.tls import PEM_BYTES_MAX
from luxrelay.testing.certificates import TestAuthority

AUTHORITY = TestAuthority("ca", at_ms=1_800_000_000_000)
ONE, OTHER = AUTHORITY.sign("one"), AUTHORITY.sign("other")


def test_read_from_files(tmp_path: Path) -> None:
    """Both sides read PEM files."""
    for name, data in (("c", ONE.certificate), ("k", ONE.key), ("ca", AUTHORITY.certificate)):
        (tmp_path / name).write_bytes(data)

    server = ServerTls.from_files(tmp_path / "c", tmp_path / "k", tmp_path / "ca")
    client = ClientTls.from_files(tmp_path / "ca", tmp_path / "c", tmp_path / "k")

    assert server.client_ca == client.ca == AUTHORITY.certificate
    assert ServerTls.from_files(tmp_path / "c", tmp_path / "k").client_ca == b""
    assert ClientTls.from_files() == ClientTls()


@pytest.mark.parametrize(
    ("certificate", "key", "client_ca", "why"),
    [
        (b"no PEM", ONE.key, b"", "not PEM"),
        (ONE.certificate, b"no PEM", b"", "cannot be used"),
        (ONE.certificate, OTHER.key, b"", "not the key of its certificate"),
        (ONE.certificate, ONE.key, b"no PEM", "authority of clients is not PEM"),
    ],
)
def test_refuse_what_no_handshake_can_use(
    certificate: bytes, key: bytes, client_ca: bytes, why: str
) -> None:
    """A wrong file is a clear word at once."""
    with pytest.raises(SyncArgumentError, match=why):
        ServerTls(certificate=certificate, key=key, client_ca=client_ca)


def test_refuse_half_of_a_client_certificate() -> None:
    """A certificate without its key is refused, and an authority that is none."""
    with pytest.raises(SyncArgumentError, match="belong together"):
        ClientTls(certificate=ONE.certificate)
    with pytest.raises(SyncArgumentError, match="authority of relays"):
        ClientTls(ca=b"no PEM")


def test_name_the_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names the file; an endless one is not read to its end."""
    with pytest.raises(SyncArgumentError, match="absent"):
        ClientTls.from_files(tmp_path / "absent")
    large = tmp_path / "large"
    large.write_bytes(bytes(PEM_BYTES_MAX + 1))
    with pytest.raises(SyncArgumentError, match="larger"):
        ClientTls.from_files(large)


def test_keys_are_not_shown_and_travel() -> None:
    """A key stands in no representation; a client takes its credentials along when pickled."""
    tls = ClientTls(ca=AUTHORITY.certificate, certificate=ONE.certificate, key=ONE.key)

    assert "PRIVATE" not in repr(tls)
    assert "PRIVATE" not in repr(ServerTls(certificate=ONE.certificate, key=ONE.key))
    with RelaySyncClient("relay:1", tls=tls) as client:
        copy = pickle.loads(pickle.dumps(client))  # noqa: S301  our own bytes
    assert copy.tls == tls
