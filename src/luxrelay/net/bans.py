"""Bans with expiry, on disk: who was shown the door stays outside after a restart too.

The file is one JSON object and is replaced as a whole, so a crash leaves the old one or the new
one. Time is the wall clock in milliseconds: a ban outlives the process that made it.

Source: LP-6420 §5.3; decisions G16.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from luxrelay.errors import AddressError, NetError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import peer_id_from_text, peer_text

_LOGGER: Final = logging.getLogger("luxrelay.net")
_VERSION: Final = 1
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_REASON_MAX: Final = 200
"""Characters of a reason that are kept."""


@dataclass(frozen=True, slots=True)
class Ban:
    """One peer that is not let in."""

    until_ms: int
    """When it may come back, milliseconds since 1970."""
    reason: str
    """What it did."""


class BanList:
    """Banned peers, at most ``bans_max``: beyond it the ban that ends first goes.

    Args:
        bans_max: The bound.
        path: Where the list is kept, or None for memory alone.

    """

    def __init__(self, bans_max: int, path: Path | None = None) -> None:
        self._bans_max = bans_max
        self._path = path
        self._bans: dict[PeerId, Ban] = {}
        self._saved: dict[PeerId, Ban] = {}
        """What the file says."""
        self.set_aside: Path | None = None
        """Where a file that could not be read was moved to."""

    def load(self, now_ms: int) -> None:
        """The bans of the file that have not ended are in force.

        A file that is not ours is set aside under another name and the list begins empty: a node
        does not stay down because of it.

        Raises:
            NetError: The file is there and cannot be read or moved (``net.bans``).

        """
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                data = file.read(_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._trouble("read", error) from error
        try:
            bans = _parse(data)
        except (ValueError, TypeError, KeyError, RecursionError, AddressError):
            self.set_aside = self._path.with_suffix(".unreadable")
            try:
                self._path.replace(self.set_aside)
            except OSError as error:
                raise self._trouble("moved aside", error) from error
            return
        self._saved = dict(bans)
        for peer, ban in bans.items():
            if ban.until_ms > now_ms:
                self._put(peer, ban)

    def ban(self, peer: PeerId, until_ms: int, reason: str) -> None:
        """The peer is not let in until then; of two bans the one that lasts longer counts."""
        known = self._bans.get(peer)
        if known is None or known.until_ms < until_ms:
            self._put(peer, Ban(until_ms, reason[:_REASON_MAX]))

    def lift(self, peer: PeerId) -> bool:
        """The peer may come back; False when it was not banned."""
        return self._bans.pop(peer, None) is not None

    def banned(self, peer: PeerId, now_ms: int) -> Ban | None:
        """The ban that is in force, or None."""
        ban = self._bans.get(peer)
        if ban is not None and ban.until_ms <= now_ms:
            del self._bans[peer]
            return None
        return ban

    def all(self, now_ms: int) -> dict[PeerId, Ban]:
        """Every ban in force; those that have ended are forgotten."""
        self._bans = {peer: ban for peer, ban in self._bans.items() if ban.until_ms > now_ms}
        return dict(self._bans)

    @property
    def unsaved(self) -> bool:
        """Whether the file says something else than the list."""
        return self._path is not None and self._bans != self._saved

    def snapshot(self) -> dict[PeerId, Ban]:
        """The bans as they are now, for `write` in another thread and `written` in this one."""
        return dict(self._bans)

    def written(self, bans: dict[PeerId, Ban]) -> None:
        """The file holds this snapshot."""
        self._saved = bans

    def write(self, bans: dict[PeerId, Ban]) -> None:
        """The file says what the snapshot says; touches nothing else, so any thread may do it.

        Raises:
            NetError: It cannot be written (``net.bans``); the list stays in force.

        """
        if self._path is None:
            return
        rows = [
            {"peer": peer_text(peer), "until_ms": ban.until_ms, "reason": ban.reason}
            for peer, ban in bans.items()
        ]
        text = json.dumps({"version": _VERSION, "bans": rows}, indent=1) + "\n"
        beside = self._path.with_suffix(".new")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            raise self._trouble("written", error) from error

    async def keep_written(self, pause_s: float) -> None:
        """The file follows the list, a pause behind it, until cancelled."""
        while True:
            await trio.sleep(pause_s)
            if self.unsaved:
                snapshot = self.snapshot()
                try:
                    await trio.to_thread.run_sync(self.write, snapshot)
                except NetError as error:
                    _LOGGER.error("bans not saved", extra={"fields": {"error": str(error)}})
                else:
                    self.written(snapshot)

    def _put(self, peer: PeerId, ban: Ban) -> None:
        self._bans[peer] = ban
        if len(self._bans) > self._bans_max:
            del self._bans[min(self._bans, key=lambda known: self._bans[known].until_ms)]

    def _trouble(self, what: str, error: OSError) -> NetError:
        return NetError(
            f"The list of bans cannot be {what}: {error.strerror}",
            where=str(self._path),
            code="net.bans",
        )


def _parse(data: bytes) -> dict[PeerId, Ban]:
    """The bans in the bytes of a file; raises one of a handful of errors when they are not ours."""
    if len(data) > _FILE_BYTES_MAX:
        raise ValueError("too long")
    document = json.loads(data)
    if document["version"] != _VERSION:
        raise ValueError("another version")
    bans = {}
    for row in document["bans"]:
        until_ms, reason = row["until_ms"], row["reason"]
        if not isinstance(until_ms, int) or not isinstance(reason, str):
            raise TypeError("a ban is a time and a reason")
        bans[peer_id_from_text(row["peer"])] = Ban(until_ms, reason[:_REASON_MAX])
    return bans
