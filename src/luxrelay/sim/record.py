"""Inputs of a router as lines, and their replay.

A recording is JSON lines: first what the router was made of, then each input with its arguments
and its time, and for each `drain` a digest of the actions. A replay feeds the same inputs to a
fresh router and compares the digests: the same code gives the same ones, and a change shows where
it first acts differently. `RecordedRouter` wraps a router's inputs, so a run without recording
pays nothing.

Source: architecture, rule 2.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Final

from luxrelay.bus import VerdictKind
from luxrelay.errors import GossipArgumentError, LuxRelayError, RecordingError
from luxrelay.gossip import Action, DiversityParams, GossipParams, GossipRouter, PeerId, ScoreParams

FORMAT: Final = 1
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest line of a recording, bytes: a frame of 1 MiB in hexadecimal, and more."""
_INPUTS: Final = frozenset(
    {
        "peer_connected",
        "peer_disconnected",
        "peer_record",
        "received",
        "subscribe",
        "unsubscribe",
        "publish",
        "validated",
        "wake",
    }
)


class RecordedRouter(GossipRouter):
    """A router that writes down its inputs and a digest of its outputs.

    Args:
        params: As of `GossipRouter`.
        seed: What its `random.Random` is made from; any text.
        own_id: As of `GossipRouter`.
        scores: As of `GossipRouter`.
        diversity: As of `GossipRouter`.
        write: Takes one line without its end.

    """

    def __init__(
        self,
        params: GossipParams,
        *,
        seed: str,
        own_id: PeerId,
        scores: ScoreParams,
        diversity: DiversityParams,
        write: Callable[[str], None],
    ) -> None:
        super().__init__(
            params,
            rng=random.Random(seed),
            own_id=own_id,
            scores=scores,
            diversity=diversity,
        )
        self._write = write
        self._note(
            format=FORMAT,
            seed=seed,
            own_id=own_id.hex(),
            params=asdict(params),
            scores=_changed(scores),
            diversity=asdict(diversity),
        )

    def _note(self, **values: object) -> None:
        self._write(json.dumps(values, separators=(",", ":")))

    def __getattribute__(self, name: str) -> Any:
        """Return the attribute; an input comes wrapped."""
        found = super().__getattribute__(name)
        if name not in _INPUTS:
            return found

        def recorded(*args: object, **named: object) -> object:
            self._note(input=name, args=[_plain(arg) for arg in args], named=named)
            return found(*args, **named)

        return recorded

    def drain(self) -> list[Action]:
        """Return what is to be done, and write down its digest."""
        actions = super().drain()
        if actions:
            self._note(actions=digest_of(actions))
        return actions


@dataclass(frozen=True, slots=True)
class Replay:
    """How a replay went."""

    inputs: int
    """Inputs that were fed."""
    drains: int
    """Digests that were compared."""
    differs_at: int | None
    """Line of the first digest that differs; None when all agree."""


def replay(lines: Iterable[str | bytes]) -> Replay:
    """Feed a recording to a fresh router and compare what it does.

    Args:
        lines: The recording, line by line.

    Raises:
        RecordingError: it is no recording, or one of another format; says at which line.

    """
    router: GossipRouter | None = None
    inputs = drains = 0
    for number, line in enumerate(lines, 1):
        entry = _entry(line, number)
        if router is None:
            router = _router(entry, number)
        elif "input" in entry:
            inputs += 1
            _feed(router, entry, number)
        else:
            drains += 1
            if digest_of(router.drain()) != entry.get("actions"):
                return Replay(inputs, drains, number)
    if router is None:
        raise RecordingError("the recording is empty", where="line 1")
    return Replay(inputs, drains, None)


def digest_of(actions: list[Action]) -> str:
    """Return a short digest of actions in their order."""
    hasher = hashlib.sha256()
    for action in actions:
        assert is_dataclass(action)
        values = [_plain(getattr(action, each.name)) for each in fields(action)]
        hasher.update(json.dumps([type(action).__name__, values]).encode())
    return hasher.hexdigest()[:16]


def _plain(value: object) -> object:
    """Return a value as JSON has it; bytes as hexadecimal digits behind ``x:``."""
    if isinstance(value, bytes):
        return "x:" + value.hex()
    if isinstance(value, VerdictKind):
        return int(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, each.name)) for each in fields(value)]
    return value


def _restored(value: object) -> object:
    if isinstance(value, str) and value.startswith("x:"):
        return bytes.fromhex(value[2:])
    return value


def _changed(scores: ScoreParams) -> dict[str, object]:
    """Return the plain fields that differ from the default; those of topics are not kept apart."""
    default = ScoreParams()
    return {
        each.name: getattr(scores, each.name)
        for each in fields(scores)
        if getattr(scores, each.name) != getattr(default, each.name)
        and not is_dataclass(getattr(scores, each.name))
    }


def _entry(line: str | bytes, number: int) -> Mapping[str, Any]:
    where = f"line {number}"
    if len(line) > LINE_BYTES_MAX:
        raise RecordingError("the line is too long", where=where)
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"not JSON: {error}", where=where) from error
    if not isinstance(entry, dict):
        raise RecordingError("expected a JSON object", where=where)
    return entry


def _router(entry: Mapping[str, Any], number: int) -> GossipRouter:
    if entry.get("format") != FORMAT:
        raise RecordingError(f"not a recording of format {FORMAT}", where=f"line {number}")
    try:
        return GossipRouter(
            GossipParams(**entry["params"]),
            rng=random.Random(str(entry["seed"])),
            own_id=PeerId(bytes.fromhex(entry["own_id"])),
            scores=ScoreParams(**entry["scores"]),
            diversity=DiversityParams(**entry["diversity"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(
            f"the router cannot be made: {error}", where=f"line {number}"
        ) from error


def _feed(router: GossipRouter, entry: Mapping[str, Any], number: int) -> None:
    name, args, named = entry["input"], entry.get("args"), entry.get("named")
    known = isinstance(name, str) and name in _INPUTS
    if not known or not isinstance(args, list) or not isinstance(named, dict):
        raise RecordingError("no input of a router", where=f"line {number}")
    try:
        values = [_restored(arg) for arg in args]
        if name == "validated":
            values[1] = VerdictKind(int(str(values[1])))
        getattr(router, name)(*values, **named)
    except GossipArgumentError:
        return  # the router refused it when it was recorded as well
    except (TypeError, ValueError, IndexError, AttributeError, LuxRelayError) as error:
        raise RecordingError(f"the input cannot be fed: {error}", where=f"line {number}") from error
