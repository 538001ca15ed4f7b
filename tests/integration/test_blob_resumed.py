"""A blob that is read over a connection which is cut again and again comes whole, once."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from luxrelay.bus import SigningKey, sha3_commitment, topic_namespace
from luxrelay.client import AsyncRelayClient, LaneSigner, RelayClient
from luxrelay.errors import ClientRemoteError, SyncUnreachableError
from luxrelay.sync import PublishItem, RelaySyncClient

pytestmark = pytest.mark.slow
PARENT = topic_namespace("/chat/1/room")
BLOB = random.Random(5).randbytes(600_000)
KEY = sha3_commitment(BLOB)


@dataclass
class Cutter:
    """Passes connections on, and ends each after so many bytes of the answer."""

    target: tuple[str, int]
    each: int
    """Bytes after which a connection ends."""
    dialled: int = 0
    passed: int = 0
    """Bytes of answers that went through."""
    port: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port.getsockname()[1]}"

    def run(self) -> None:
        """Take connections until the port is closed."""
        with suppress(OSError):
            while True:
                near, _ = self.port.accept()
                self.dialled += 1
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, socket.create_connection(self.target) as far:
            threading.Thread(target=_copy, args=(near, far), daemon=True).start()
            left = self.each
            with suppress(OSError):
                while left and (data := far.recv(min(left, 16_384))):
                    near.sendall(data)
                    left -= len(data)
                    self.passed += len(data)
            for end in (near, far):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def _copy(near: socket.socket, far: socket.socket) -> None:
    with suppress(OSError):
        while data := near.recv(16_384):
            far.sendall(data)


@contextmanager
def cutting(address: str, each: int) -> Iterator[Cutter]:
    """Yield a way to an address that is cut after so many bytes."""
    host, _, port = address.rpartition(":")
    cutter = Cutter((host, int(port)), each)
    threading.Thread(target=cutter.run, daemon=True).start()
    try:
        yield cutter
    finally:
        cutter.port.close()


def test_a_blob_is_gone_on_with_where_a_connection_was_lost(
    new_node: Callable[[str], Any],
) -> None:
    """P50: over HTTP by ranges and over RelaySync by parts, nothing is sent twice."""
    node = new_node("relay")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    runtime = node.start()
    signed = LaneSigner(SigningKey.generate(), PARENT).sign(BLOB, time.time_ns() // 1_000_000)
    item = PublishItem(header=signed.header, blob=signed.blob, parent_id=PARENT)
    with RelaySyncClient(runtime.sync) as relay:
        assert next(iter(relay.publish([item]))).stored

    with cutting(runtime.gateway, 250_000) as way:
        with RelayClient(way.address) as client:
            assert client.blob(KEY) == BLOB
            assert client.blob(KEY, 1_000, 499_999) == BLOB[1_000:500_000]
        assert way.dialled == 5
        assert way.passed < 1.02 * (600_000 + 499_000)

        async def read() -> bytes:
            async with AsyncRelayClient(way.address) as other:
                return await other.blob(KEY)

        assert anyio.run(read) == BLOB
    with cutting(runtime.sync, 250_000) as way:
        with RelaySyncClient(way.address) as relay:
            assert relay.get_blob(KEY) == BLOB
        assert way.dialled >= 3
        assert way.passed < 2 * 600_000  # gRPC drops what it has not handed out

    # A way that ends before a byte of the blob is an error, at once.
    with cutting(runtime.gateway, 20) as way, RelayClient(way.address) as client:
        with pytest.raises(ClientRemoteError, match="closed"):
            client.blob(KEY)
        assert way.dialled == 1
    with (
        cutting(runtime.sync, 20) as way,
        RelaySyncClient(way.address) as relay,
        pytest.raises(SyncUnreachableError),
    ):
        relay.get_blob(KEY)
    assert node.stop() == 0
