"""Says hello to each new peer and answers theirs; a peer of another network is let go.

Source: decisions G32, G36; requirements 20-03, 20-55.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

import trio
from libp2p.abc import INetConn

from luxrelay.conduct import Cause
from luxrelay.errors import FrameError, HelloError, NetError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import peer_text
from luxrelay.net.config import NetConfig
from luxrelay.net.hello import HELLO, HELLO_MAX, Hello
from luxrelay.net.host import RelayHost, declined
from luxrelay.net.peer_clocks import PeerClocks
from luxrelay.net.streams import RelayStream, encode_frame, read_frame

_LOGGER: Final = logging.getLogger("luxrelay.net")
_RETRY_S: Final = 0.1
"""Seconds before the second stream, doubled before the next."""


@dataclass(slots=True, kw_only=True)
class GreetingCounters:
    """What came of hello."""

    accepted: int = 0
    """Peers of our network and version."""
    foreign: int = 0
    """Peers let go because they are of another network or version."""
    silent: int = 0
    """Peers without hello."""
    errors: int = 0
    """Peers let go because their hello cannot be read."""
    late: int = 0
    """Peers let go, free to come again, because their hello did not come whole in time."""


class Greeted(Enum):
    """What a peer turned out to be."""

    OURS = "ours"
    """It is of our network."""
    PLAIN = "plain"
    """It does not speak hello and may stay all the same."""
    GONE = "gone"
    """It has to go, or is gone."""


class Greeter:
    """Both halves of hello.

    Args:
        host: Whose peers are greeted.
        config: What we say, `require_hello` and `hello_timeout_s`.
        clocks: Learns what time the peers tell.

    """

    def __init__(self, host: RelayHost, config: NetConfig, clocks: PeerClocks) -> None:
        self._host = host
        self._config = config
        self._clocks = clocks
        self.counters = GreetingCounters()

    def own(self) -> Hello:
        """What we say."""
        config = self._config
        return Hello(
            network=config.network,
            roles=config.roles,
            passes_on=True,
            proof=config.validator_proof,
            agent=config.agent,
            frame_max=config.frame_max,
            inline_blob_max=config.inline_blob_max,
            time_ms=self._host.wall_ms(),
            record=self._host.own_record(),
        )

    async def greet(self, peer: PeerId) -> tuple[Greeted, Hello | None]:
        """What the peer is, and what it said; one that may not stay is disconnected."""
        known = self._host.connections(peer)
        try:
            theirs = await self._hear(peer, known)
        except NetError:
            return await self._silent(peer, known)
        except (FrameError, HelloError) as error:
            if not self._same(peer, known):
                return Greeted.GONE, None
            self.counters.errors += 1
            return await self._let_go(peer, Cause.HELLO_UNREADABLE, str(error))
        if theirs is None:
            if self._same(peer, known):
                self.counters.late += 1
                return await self._let_go(peer, Cause.HELLO_LATE, "")
            return Greeted.GONE, None
        objection = self.own().objection(theirs)
        if objection:
            self.counters.foreign += 1
            return await self._let_go(peer, Cause.FOREIGN, objection)
        self.counters.accepted += 1
        return Greeted.OURS, theirs

    async def ask_time(self, peer: PeerId) -> None:
        """The peer's clock is known anew, unless it does not answer in time."""
        with suppress(
            NetError, FrameError, HelloError, trio.BrokenResourceError, trio.TooSlowError
        ):
            await self._ask(peer)

    async def _hear(self, peer: PeerId, known: Sequence[INetConn]) -> Hello | None:
        """What the peer says; None when nothing came in time or each stream broke.

        Raises:
            NetError: It says that it does not speak hello.
            FrameError, HelloError: What came is no hello.

        """
        for attempt in range(self._config.hello_attempts_max):
            try:
                return await self._ask(peer)
            except trio.TooSlowError:
                break
            except NetError as error:
                if declined(error):
                    raise
            except trio.BrokenResourceError:
                pass
            await trio.sleep(_RETRY_S * 2**attempt)  # reset, by either side, for whatever reason
            if not self._same(peer, known):
                break
        return None

    async def _ask(self, peer: PeerId) -> Hello:
        """What the peer says on a stream of its own.

        Raises:
            NetError: It opens none.
            trio.BrokenResourceError: The stream ended before the hello was whole.
            trio.TooSlowError: Nothing came in time.
            FrameError, HelloError: What came is no hello.

        """
        stream = await self._host.open_stream(peer, HELLO)
        try:
            with trio.fail_after(self._config.hello_timeout_s):
                asked_ms = self._host.steady_ms()
                await stream.send_all(encode_frame(self.own().encode()))
                theirs = Hello.decode(await read_frame(stream, HELLO_MAX))
                if theirs.time_ms:
                    self._clocks.hello(peer, theirs.time_ms, asked_ms, self._host.steady_ms())
                return theirs
        finally:
            await stream.reset()

    async def answer(self, stream: RelayStream) -> None:
        """The peer's own hello is answered; what it says is taken from the one it answers us."""
        try:
            with trio.fail_after(self._config.hello_timeout_s):
                Hello.decode(await read_frame(stream, HELLO_MAX))
                await stream.send_all(encode_frame(self.own().encode()))
                await stream.send_eof()
                while await stream.receive_some(HELLO_MAX):
                    pass  # until the peer has taken it; the stream is reset when we return
        except (trio.TooSlowError, trio.BrokenResourceError, FrameError, HelloError):
            return

    def _same(self, peer: PeerId, known: Sequence[INetConn]) -> bool:
        """Whether the peer is here over no other connection than those it was greeted on.

        What went wrong with a connection that is over is not held against the next one.
        """
        live = self._host.connections(peer)
        return bool(live) and all(conn in known for conn in live)

    async def _silent(
        self, peer: PeerId, known: Sequence[INetConn]
    ) -> tuple[Greeted, Hello | None]:
        if not self._same(peer, known):
            return Greeted.GONE, None
        self.counters.silent += 1
        if self._config.require_hello:
            return await self._let_go(peer, Cause.NO_HELLO, "")
        return Greeted.PLAIN, None

    async def _let_go(
        self, peer: PeerId, cause: Cause, detail: str
    ) -> tuple[Greeted, Hello | None]:
        """The peer is disconnected, and refused for a while only for what no network causes."""
        reason = f"{cause.value}: {detail}" if detail else cause.value
        if cause.misconduct:
            fields = {"peer": peer_text(peer), "reason": reason}
            _LOGGER.warning("peer refused", extra={"fields": fields})
            await self._host.ban(peer, self._config.foreign_ban_s, reason)
        else:
            await self._host.disconnect(peer, reason)
        return Greeted.GONE, None
