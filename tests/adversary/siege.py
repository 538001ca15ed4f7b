"""A node under attack: who attacks, who is served meanwhile, and what is watched."""

from __future__ import annotations

import os
import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

from luxrelay.bus import MsgHeader, SignatureScheme, SigningKey, topic_namespace
from luxrelay.client import LaneSigner, Message, Outgoing, RelayClient, Retry, Subscribe, subscribe
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.sync.following import Followed, SubscribeWanted

TOPIC = "/chat/1/room"
PARENT = topic_namespace(TOPIC)
FAULT = re.compile(r'a module failed|Traceback|"level": ?"(error|critical)"')
PATIENCE_S = 120.0
"""Within this time an honest client is served on any machine."""


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def valid_messages(count: int, seed: int) -> list[Outgoing]:
    """Signed messages of a few senders, to be spoiled; the times are of now."""
    rng = random.Random(f"{seed}/senders")
    signers = [
        LaneSigner(SigningKey.from_seed(SignatureScheme.ED25519, rng.randbytes(32)), PARENT)
        for _ in range(4)
    ]
    begin = now_ms() - 60_000
    return [
        signers[place % 4].sign(b"material %d" % place, begin + place) for place in range(count)
    ]


class Honest:
    """Publishes over HTTP and gRPC in turn, and reads over WebSocket, gRPC and a second node.

    Without an address of the sync port it uses the gateway alone, where it has a token.
    """

    def __init__(self, gateway: str, sync: str, neighbour: str, token: str) -> None:
        self._gateway, self._sync, self._neighbour = gateway, sync, neighbour
        self._token = token
        self._signer = LaneSigner(SigningKey.generate(), PARENT)
        self._over = threading.Event()
        self._read_all = threading.Event()
        self.failures: list[str] = []
        self.waits: list[float] = []
        """Seconds that each publication took."""
        self.published = 0
        self.read: dict[str, set[int]] = {"websocket": set()}
        readers = [self._read_socket]
        if sync:
            self.read["grpc"] = set()
            readers.append(self._read_rpc)
        self._publisher, *self._readers = (
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._publish, *readers)
        )
        for thread in (self._publisher, *self._readers):
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  whatever it meets is told
            if not self._over.is_set():
                self.failures.append(f"{work.__name__}: {error!r}")

    def _publish(self) -> None:
        with (
            RelayClient(self._gateway, token=self._token, timeout_s=PATIENCE_S) as client,
            RelaySyncClient(self._sync) if self._sync else nullcontext() as sync,
        ):
            while not self._over.is_set():
                message = self._signer.sign(b"honest %d" % self.published, now_ms())
                begun = time.monotonic()
                if sync is None or self.published % 2:
                    stored = client.publish([message])[0].stored
                else:
                    item = PublishItem(
                        header=message.header, blob=message.blob, parent_id=message.parent
                    )
                    stored = sync.publish([item])[0].stored
                self.waits.append(time.monotonic() - begun)
                assert stored, f"message {self.published} was refused"
                self.published += 1
                self._over.wait(0.25)

    def _read_socket(self) -> None:
        wanted = Subscribe(namespaces=[PARENT])
        with (
            RelayClient(self._gateway, token=self._token, timeout_s=PATIENCE_S) as client,
            closing(subscribe(client, wanted, retry=Retry(attempts_max=1))) as events,
        ):
            for event in events:
                if isinstance(event, Message):
                    self._note("websocket", event.header.namespace_id, event.header.seq)
                if self._read_all.is_set():
                    return

    def _read_rpc(self) -> None:
        with (
            RelaySyncClient(self._sync) as client,
            closing(client.subscribe(SubscribeWanted(namespaces=(PARENT,)))) as events,
        ):
            for event in events:
                if isinstance(event, Followed):
                    header = MsgHeader.decode(event.message.header)
                    self._note("grpc", header.namespace_id, header.seq)
                if self._read_all.is_set():
                    return

    def close(self) -> None:
        """End the readers, which the publisher's messages wake, then the publisher."""
        self._read_all.set()
        for thread in self._readers:
            thread.join(30)
        self._over.set()
        self._publisher.join(30)

    def _note(self, door: str, namespace_id: bytes, seq: int) -> None:
        if namespace_id == self._signer.namespace_id:
            self.read[door].add(seq)

    def check(self) -> None:
        """Nobody has met a failure so far."""
        assert not self.failures, self.failures

    def end(self, eventually: Callable[..., Any]) -> None:
        """Everything that was published came to every reader, and to the other node."""
        before = self.published
        eventually(lambda: self.published > before or self.failures, PATIENCE_S)
        self.check()
        wanted = set(range(1, self.published + 1))
        for door in self.read:
            eventually(lambda: wanted <= self.read[door] or self.failures, PATIENCE_S)  # noqa: B023
        self.check()
        with RelaySyncClient(self._neighbour) as other:
            lane = self._signer.namespace_id
            eventually(lambda: other.get_head(lane).contiguous_seq >= max(wanted), PATIENCE_S)


class Watch:
    """What the process holds: resident memory, descriptors, threads and tasks."""

    def __init__(self, pid: int, pages: str, eventually: Callable[..., Any]) -> None:
        self._proc = Path(f"/proc/{pid}")
        self._eventually = eventually
        self._pages = pages

    def page(self, path: str) -> str:
        """A page of the node."""

        def asked() -> str:
            address = f"http://{self._pages}{path}"
            with suppress(OSError), urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
            return ""

        return str(self._eventually(asked, PATIENCE_S))

    def rss_kib(self) -> int:
        """Resident memory."""
        status = (self._proc / "status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def cpu_s(self) -> float:
        """CPU time that the process has used."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def held(self) -> dict[str, int]:
        """Descriptors, threads and tasks now."""
        tasks = re.search(r"^luxrelay_process_tasks (\S+)$", self.page("/metrics"), re.MULTILINE)
        assert tasks is not None
        return {
            "fds": len(list((self._proc / "fd").iterdir())),
            "threads": len(list((self._proc / "task").iterdir())),
            "tasks": int(float(tasks[1])),
        }

    def settled(self) -> dict[str, int]:
        """The same, once three looks in a row agree or a minute has gone."""
        looks = [self.held()]
        for _ in range(60):
            time.sleep(1)
            looks.append(self.held())
            if len(looks) > 12 and all(
                max(look[name] for look in looks[-3:]) - looks[-1][name] <= 1 for name in looks[-1]
            ):
                break
        return looks[-1]
