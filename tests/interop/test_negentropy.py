"""Our range reconciliation against go-nostr's, byte for byte, on both sides."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from luxrelay.sync.idset import SortedIds
from luxrelay.sync.negentropy import Initiator, ReconcileConfig, Responder

PROGRAM = Path(__file__).resolve().parents[2] / ".make" / "interop-negentropy"
pytestmark = pytest.mark.interop
Item = tuple[int, bytes]


class Foreign:
    """One side in a process of its own."""

    def __init__(self, items: list[Item], frame: int) -> None:
        self._process = subprocess.Popen(
            [str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say({"items": [[stamp, each.hex()] for stamp, each in items], "frame": frame})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=10)

    def start(self) -> bytes:
        """Return its first message."""
        return bytes.fromhex(self._ask({"start": True})["message"])

    def receive(self, message: bytes) -> dict[str, Any]:
        """Return what it answers."""
        return self._ask({"receive": message.hex()})

    def _ask(self, line: dict[str, Any]) -> dict[str, Any]:
        self._say(line)
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert not answer.get("error"), answer
        return answer

    def _say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()


def items(rng: random.Random, count: int, spread: int) -> list[Item]:
    """Return random items of this age, timestamps in milliseconds."""
    return [(1_800_000_000_000 + rng.randrange(spread), rng.randbytes(32)) for _ in range(count)]


@pytest.mark.parametrize("frame", [0, 4_096, 20_000], ids=lambda frame: f"frame {frame}")
@pytest.mark.parametrize("spread", [1, 30, 10**7], ids=lambda spread: f"spread {spread}")
@pytest.mark.parametrize(
    ("common", "ours", "theirs"),
    [(0, 0, 0), (0, 40, 0), (31, 1, 1), (32, 0, 0), (500, 3, 7), (3_000, 200, 150), (10, 900, 900)],
)
def test_every_byte_agrees(common: int, ours: int, theirs: int, spread: int, frame: int) -> None:
    """J5: client and server of both implementations say the same and find the same."""
    rng = random.Random(f"{common} {ours} {theirs} {spread}")
    base = items(rng, common, spread)
    mine, other = base + items(rng, ours, spread), base + items(rng, theirs, spread)
    config = ReconcileConfig(frame_bytes=frame or 2**40, rounds_max=10_000)
    initiator = Initiator(SortedIds.of(mine), config)
    responder = Responder(SortedIds.of(other), config)

    with Foreign(mine, frame) as client, Foreign(other, frame) as server:
        message: bytes | None = initiator.start()
        assert client.start() == message
        while message is not None:
            answer = responder.receive(message)
            assert server.receive(message)["message"] == answer.hex()
            message = initiator.receive(answer)
            said = client.receive(answer)
            assert said["message"] == (message or b"").hex()
        # It names an id again when a full frame has cut a list; as sets they are the same.
        assert set(said.get("have") or []) == {each.hex() for each in initiator.have}
        assert set(said.get("need") or []) == {each.hex() for each in initiator.need}
    assert set(initiator.need) == {each for _, each in other[common:]}
    assert set(initiator.have) == {each for _, each in mine[common:]}
