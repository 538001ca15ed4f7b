"""archive serve: an archive that is looked at again and again."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from luxrelay.archive.serving import ArchiveStore
from luxrelay.bus import NamespaceId
from luxrelay.cli.archive_restore import keep_fresh, server_of
from luxrelay.cli.main import build_parser
from luxrelay.errors import ArchiveError, SyncArgumentError, SyncUnreachableError, UsageError
from luxrelay.sync import ClientTls, RelaySyncClient, RelaySyncServer, SyncClientConfig
from luxrelay.testing.certificates import TestAuthority


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "archive" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"served_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FORGE = _load("conftest")
NS = NamespaceId(b"n" * 20)


class Moved(ArchiveStore):
    """An archive whose folder is away for the first look, and is looked at three times."""

    def __init__(self, path: Path, stop: threading.Event) -> None:
        super().__init__(path)
        self._path, self._stop, self.looks = path, stop, 0
        self.failed: list[str] = []

    def refresh(self) -> None:
        """Look at the tables."""
        self.looks += 1
        if self.looks == 3:
            self._stop.set()
        away = self._path / "messages-away"
        if self.looks == 1:
            (self._path / "messages").rename(away)
        try:
            super().refresh()
        except ArchiveError as error:
            self.failed.append(error.what)
            raise
        finally:
            if away.exists():
                away.rename(self._path / "messages")


def test_a_look_that_fails_is_told_and_the_next_one_sees_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was seen before is served meanwhile; the server does not end."""
    path = FORGE._archive_of(tmp_path / "archive", [FORGE._forge(NS, 1)])
    stop = threading.Event()
    store = Moved(path, stop)
    FORGE._archive_of(path, [FORGE._forge(NS, 2)], roots=False)

    keep_fresh([store], stop, 0)

    assert store.looks == 3
    assert len(store.failed) == 1
    assert "cannot be opened" in capsys.readouterr().err
    assert store.head(NS).latest_seq == 2


def _server(archive: Path, *words: str) -> RelaySyncServer:
    line = ["archive", "serve", "--out", str(archive), "--port", "0", *words]
    return server_of(build_parser("archive").parse_args(line), ArchiveStore(archive))


def test_another_machine_is_served_over_tls(tmp_path: Path) -> None:
    """Nodes that dial their sync peers over TLS are served by an archive as well (P37)."""
    archive = FORGE._archive_of(tmp_path / "archive", [FORGE._forge(NS, 1)])
    authority = TestAuthority("ca", at_ms=time.time_ns() // 1_000_000)
    files = {}
    shown, known = authority.sign("archive.example"), authority.sign("node")
    for name, data in (
        ("certificate", shown.certificate),
        ("key", shown.key),
        ("client-ca", authority.certificate),
    ):
        files[name] = tmp_path / f"{name}.pem"
        files[name].write_bytes(data)
    words = [part for name, path in files.items() for part in (f"--tls-{name}", str(path))]
    server = _server(archive, *words)
    address = f"127.0.0.1:{server.start()}"
    patient = SyncClientConfig(call_s=60, connect_s=60)
    tls = ClientTls(ca=authority.certificate, certificate=known.certificate, key=known.key)
    with RelaySyncClient(address, config=patient, tls=tls) as client:
        assert [head.namespace_id for head in client.list_heads()] == [NS]
        assert [message.seq for message in client.search().messages] == [1]
    with (
        RelaySyncClient(address, config=SyncClientConfig(call_s=5)) as stranger,
        pytest.raises(SyncUnreachableError),
    ):
        list(stranger.list_heads())
    server.stop(0)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--tls-key", "k"], UsageError),
        (["--tls-certificate", "c"], UsageError),
        (["--tls-client-ca", "c"], UsageError),
        (["--tls-certificate", "none.pem", "--tls-key", "none.pem"], SyncArgumentError),
    ],
)
def test_refuse_half_of_tls(tmp_path: Path, words: list[str], error: type[Exception]) -> None:
    """Each option that needs another says so, before a port is opened."""
    archive = FORGE._archive_of(tmp_path / "archive", [FORGE._forge(NS, 1)])

    with pytest.raises(error):
        _server(archive, *words)
