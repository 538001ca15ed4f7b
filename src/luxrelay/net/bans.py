"""Bans with expiry, on disk, so that they survive a restart.

The file is one JSON object and is replaced as a whole, so a crash leaves the old one or the new
one. A ban counts the steady milliseconds in which the node runs, and the file says how many are
left: a wall clock that is set, forward or back, neither ends a ban nor prolongs it. The time when
the node is down does not count, because nothing but the wall clock could tell it.

Files without ``left_ms``, of an older node, hold wall times; what is left of such a ban is believed
up to `OLD_BAN_MAX_MS`.

Source: LP-6420 §5.3; decisions G16.
"""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from luxrelay.errors import AddressError, NetError
from luxrelay.files import read_bounded, write_whole
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import peer_id_from_text, peer_text
from luxrelay.net.scopes import shielded
from luxrelay.text import parse_json

_LOGGER: Final = logging.getLogger("luxrelay.net")
_VERSION: Final = 1
OLD_BAN_MAX_MS: Final = 86_400_000
"""Longest rest of a ban that a file without ``left_ms`` is believed, milliseconds."""
_DURATION_MAX_MS: Final = 2**53
_LAST_SAVE_S: Final = 2.0
"""Seconds for the write at the stop."""
_RESAVE_MS: Final = 30_000
"""Milliseconds after which the file is written again while bans run down, so that a crash prolongs
none of them by more."""
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_REASON_MAX: Final = 200
"""Characters of a reason that are kept."""


def steady_ms() -> int:
    """Milliseconds of a clock that runs steadily, whatever the wall clock does."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Ban:
    """One peer that is not let in."""

    until_ms: int
    """When it may come back, milliseconds of the clock that the list is asked with."""
    reason: str
    """What it did."""


class BanList:
    """Banned peers, at most ``bans_max``: beyond it the ban that ends first goes.

    Args:
        bans_max: The bound.
        path: Where the list is kept, or None for memory alone.
        steady_ms: The clock of every time in the list, which nobody sets; milliseconds.
        wall_ms: The wall clock, for files of an older version and for people; milliseconds.

    """

    def __init__(
        self,
        bans_max: int,
        path: Path | None = None,
        *,
        steady_ms: Callable[[], int] = steady_ms,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._bans_max = bans_max
        self._steady_ms = steady_ms
        self._wall_ms = wall_ms
        self._saved_at = 0
        self._path = path
        self._bans: dict[PeerId, Ban] = {}
        self._saved: dict[PeerId, Ban] = {}
        """What the file says."""
        self.set_aside: Path | None = None
        """Where a file that could not be read was moved to."""

    def load(self, now_ms: int) -> None:
        """The bans of the file that have not ended are in force for what is left of them.

        Args:
            now_ms: Steady milliseconds.

        A file that is not ours is set aside under another name and the list begins empty: a node
        does not stay down because of it.

        Raises:
            NetError: The file is there and cannot be read or moved (``net.bans``).

        """
        if self._path is None:
            return
        try:
            bans = _parse(read_bounded(self._path, _FILE_BYTES_MAX), now_ms, self._wall_ms())
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError, AddressError):
            self._put_aside(self._path)
            return
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise self._trouble("read", error) from error
            self._put_aside(self._path)
            return
        self._saved, self._saved_at = dict(bans), now_ms
        for peer, ban in bans.items():
            if ban.until_ms > now_ms:
                self._put(peer, ban)

    def _put_aside(self, path: Path) -> None:
        self.set_aside = path.with_suffix(".unreadable")
        try:
            path.replace(self.set_aside)
        except OSError as error:
            raise self._trouble("moved aside", error) from error

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
        """Whether the file says something else than the list, or what was left a while ago."""
        if self._path is None:
            return False
        aged = bool(self._bans) and self._steady_ms() - self._saved_at >= _RESAVE_MS
        return aged or self._bans != self._saved

    def snapshot(self) -> dict[PeerId, Ban]:
        """The bans as they are now, for `write` in another thread and `written` in this one."""
        return dict(self._bans)

    def written(self, bans: dict[PeerId, Ban]) -> None:
        """The file holds this snapshot."""
        self._saved, self._saved_at = bans, self._steady_ms()

    def write(self, bans: dict[PeerId, Ban]) -> None:
        """The file says what the snapshot says; touches nothing else, so any thread may do it.

        Raises:
            NetError: It cannot be written (``net.bans``); the list stays in force.

        """
        if self._path is None:
            return
        now_ms, wall_ms = self._steady_ms(), self._wall_ms()
        rows = [
            {
                "peer": peer_text(peer),
                "left_ms": max(0, ban.until_ms - now_ms),
                "until_ms": wall_ms + ban.until_ms - now_ms,  # for people, and for older nodes
                "reason": ban.reason,
            }
            for peer, ban in bans.items()
        ]
        text = json.dumps({"version": _VERSION, "bans": rows}, indent=1) + "\n"
        try:
            write_whole(self._path, text.encode())
        except OSError as error:
            raise self._trouble("written", error) from error

    async def keep_written(self, pause_s: float) -> None:
        """The file follows the list, a pause behind it, until cancelled; then it is written last.

        The last write tells what is left of each ban at the stop.
        """
        try:
            while True:
                await trio.sleep(pause_s)
                if self.unsaved:
                    await self._save()
        finally:
            if self._path is not None and (self._bans or self._bans != self._saved):
                with shielded(_LAST_SAVE_S):
                    await self._save()

    async def _save(self) -> None:
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


def _parse(data: bytes, now_ms: int, wall_ms: int) -> dict[PeerId, Ban]:
    """The bans in the bytes of a file; raises one of a handful of errors when they are not ours."""
    document = parse_json(data)
    if document["version"] != _VERSION:
        raise ValueError("another version")
    bans = {}
    for row in document["bans"]:
        reason = row["reason"]
        if "left_ms" in row:
            left_ms = row["left_ms"]
        else:
            left_ms = min(row["until_ms"] - wall_ms, OLD_BAN_MAX_MS)
        if not isinstance(left_ms, int) or not isinstance(reason, str):
            raise TypeError("a ban is a duration and a reason")
        until_ms = now_ms + min(left_ms, _DURATION_MAX_MS)
        bans[peer_id_from_text(row["peer"])] = Ban(until_ms, reason[:_REASON_MAX])
    return bans
