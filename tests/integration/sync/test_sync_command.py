"""`luxrelay sync`: a node's store is caught up and compared while the node does not run."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hanging_ports import Taking

from luxrelay.bus import MsgHeader, SigningKey, lane, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.cli.main import main
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import RelaySyncServer, SyncClientConfig, SyncServerConfig
from luxrelay.sync.rpc import connection

TOPIC = "/chat/1/room"
PARENT = topic_namespace(TOPIC)
POLICY = default_policy(PARENT).policy_hash


def now_ms() -> int:
    """Return the wall clock, which the command reads as well."""
    return time.time_ns() // 1_000_000


class Writer:
    """Signs messages that a node takes."""

    def __init__(self) -> None:
        self.key = SigningKey.generate()
        self.lane = lane(PARENT, self.key.public_field)

    def message(self, seq: int, blob: bytes = b"hello") -> IncomingMessage:
        """Return a message of ten seconds ago."""
        stamp = now_ms() - 10_000
        header = MsgHeader(
            namespace_id=self.lane,
            seq=seq,
            timestamp=stamp,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=POLICY,
        )
        signed = self.key.sign_header(header)
        return IncomingMessage(header=signed, blob=blob, parent=PARENT, received_at=stamp)


class Place:
    """A node's folder, and relays to ask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "relay.toml"
        self._open: list[Callable[[], object]] = []

    def write(self, peers: Sequence[str] = ()) -> None:
        """Write the node's file."""
        self.config.write_text(
            f'[node]\nname = "n"\ndata_dir = "data"\n[sync]\npeers = {json.dumps(list(peers))}\n'
            f'[store]\nttl_ms = 600000\n[[namespace]]\ncontent_topic = "{TOPIC}"\n'
        )

    def relay(self, messages: Sequence[IncomingMessage]) -> str:
        """Return the address of a relay that holds some messages."""
        path = self.folder / f"relay{len(self._open)}"
        store = RelayStore.open(path, RelayStoreConfig.small(), now_ms=now_ms())
        store.put_many(messages, now_ms())
        server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=now_ms)
        self._open += [store.close, server.stop]
        return f"127.0.0.1:{server.start()}"

    def held(self) -> dict[bytes, tuple[int, int]]:
        """Return contiguous head and messages of each lane in the node's store."""
        with RelayStore.open_read_only(self.folder / "data" / "store", now_ms=now_ms()) as store:
            heads, _ = store.heads(PARENT, b"", 100)
            return {h.namespace_id: (h.contiguous_seq, h.messages) for h in heads}

    def close(self) -> None:
        """End the relays."""
        for end in reversed(self._open):
            end()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place that is closed afterwards."""
    made = Place(tmp_path)
    yield made
    made.close()


def run(place: Place, *options: str) -> int:
    """Run the command."""
    return main(["sync", "--config", str(place.config), *options])


def test_catch_up_from_two_relays(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """21-25, 21-27: holes come from the other relay, what is forged does not come, 0 says whole."""
    writer, other = Writer(), Writer()
    messages = [writer.message(seq) for seq in range(1, 41)]
    few = [other.message(seq) for seq in range(1, 6)]
    first = place.relay([*messages[:10], *messages[12:]])
    second = place.relay([*messages, *few])
    place.write([first])

    assert run(place, "--relay", first, "--relay", second, "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["complete"], told["stored"], told["stillMissing"]) == (True, 45, 0)
    assert [each["relay"] for each in told["relays"]] == [first, second]
    assert place.held() == {writer.lane: (40, 40), other.lane: (5, 5)}
    assert run(place, "--relay", first, "--relay", second) == 0
    assert "complete: 0 messages" in capsys.readouterr().out


def test_not_complete_says_what_to_do(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """A hole that the relay has as well, and a relay that is away: exit 1, what came is kept."""
    writer = Writer()
    relay = place.relay([writer.message(seq) for seq in (1, 2, 5, 6)])
    place.write([relay, "127.0.0.1:1"])

    assert run(place, "--topic", TOPIC) == 1

    said = capsys.readouterr()
    assert "2 messages are missing still" in said.err
    assert "unreachable" in said.out
    assert place.held() == {writer.lane: (2, 4)}


def _refuses(peer: socket.socket) -> None:
    peer.recv(1_000)
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    peer.close()


def _greets(peer: socket.socket) -> None:
    peer.sendall(b"\x13/multistream/1.0.0\n")


def _settles(peer: socket.socket) -> None:
    peer.sendall(b"\0\0\0\4\0\0\0\0\0")  # the settings of HTTP/2, and no word more


def _is_silent(peer: socket.socket) -> None:
    peer.setblocking(False)


@contextmanager
def other_port(act: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen on a port that is no relay's, and do with each connection what ``act`` does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taking = Taking(listener, act)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            taking.close()


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("dry", [False, True], ids=["catch-up", "dry-run"])
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (_refuses, "http1"),
        (_greets, "HTTP/2"),
        (_settles, "time"),  # ours says "in time", gRPC's "ping timeout"
        (_is_silent, "timed out"),
        (None, "onnection refused"),
    ],
    ids=["an HTTP port", "a gossip port", "settings and silence", "silence", "closed"],
)
def test_a_port_that_is_no_relay_is_told_with_the_reason(
    place: Place,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[socket.socket], None] | None,
    reason: str,
    *,
    dry: bool,
) -> None:
    """Exit 1 in bounded time with what happened, never '0 messages are missing still'."""
    short = SyncClientConfig(call_s=2.0, page_s=2.0, reconcile_s=2.0, connect_s=1.0)
    monkeypatch.setattr(connection, "SyncClientConfig", lambda: short)
    place.write([place.relay([])])
    assert run(place) == 0  # the store to compare with
    capsys.readouterr()
    with other_port(act) if act is not None else closed_port() as port:
        place.write([port])
        began = time.monotonic()
        assert run(place, *(["--dry-run"] if dry else [])) == 1
        assert time.monotonic() - began < 60
    said = capsys.readouterr().err
    assert reason in said
    assert port in said
    assert "missing still" not in said


@contextmanager
def closed_port() -> Iterator[str]:
    """Hold a port on which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_dry_run_names_what_differs(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Lane by lane, both directions and a fork; nothing changes; 0 only when all is equal."""
    writer, mine, same = Writer(), Writer(), Writer()
    messages = [writer.message(seq) for seq in range(1, 21)]
    alike = [same.message(seq) for seq in (1, 2)]
    relay = place.relay([*messages, *alike])
    place.write([place.relay([*messages[:12], *alike, mine.message(1)])])
    assert run(place) == 0
    before = place.held()
    capsys.readouterr()

    assert run(place, "--relay", relay, "--dry-run", "--json") == 1

    (told,) = json.loads(capsys.readouterr().out)["comparisons"]
    lanes = {bytes.fromhex(lane["namespaceId"][2:]): lane for lane in told["lanes"]}
    assert set(lanes) == {writer.lane, mine.lane}
    assert lanes[writer.lane]["onlyThere"] == [[13, 20]]
    assert (lanes[mine.lane]["onlyHere"], lanes[mine.lane]["there"]) == ([[1, 1]], 0)
    assert (told["alike"], told["contentsOnlyThere"], told["contentsOnlyHere"]) == (1, 8, 1)
    assert place.held() == before
    assert run(place, "--relay", relay, "--dry-run") == 1
    assert "2 lanes differ, 1 are alike" in capsys.readouterr().out
    run(place, "--relay", relay)
    capsys.readouterr()
    assert run(place, "--relay", relay, "--dry-run", "--json") == 1  # the relay lacks ours still
    (told,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert [lane["onlyThere"] for lane in told["lanes"]] == [[]]


def test_equal_stores_are_0(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that was caught up from a relay is equal to it."""
    relay = place.relay([Writer().message(1)])
    place.write([relay])
    run(place)
    capsys.readouterr()

    assert run(place, "--dry-run") == 0
    assert "equal, 1 lanes" in capsys.readouterr().out


def test_what_cannot_work_is_one_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """No relay, a foreign namespace, a store in use, no store: each says what to do."""
    place.write()
    assert run(place) == 1
    assert "name one with --relay" in capsys.readouterr().err
    relay = place.relay([])
    assert run(place, "--relay", relay, "--topic", "/other/1/x") == 1
    assert "does not carry that namespace" in capsys.readouterr().err
    assert run(place, "--relay", relay, "--dry-run") == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (place.folder / "data").exists()
    assert run(place, "--relay", relay) == 0
    capsys.readouterr()
    with RelayStore.open(place.folder / "data" / "store", now_ms=now_ms()):
        assert run(place, "--relay", relay) == 1
        assert "stop it first, or compare with --dry-run" in capsys.readouterr().err
        assert run(place, "--relay", relay, "--dry-run") == 0
