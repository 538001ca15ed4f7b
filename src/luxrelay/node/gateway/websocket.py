"""Subscriptions and publishing over one WebSocket, ``/v1/stream``.

The client sends JSON as text, or messages to publish as bytes; docs/reference/http.md lists both
sides' messages. A session has three tasks: one reads, one tells, one pings. The store is read a
page at a time, only after the page before was taken, so a slow subscriber holds nothing but its
place; `Subscription` decides what comes next.

Source: docs/reference/http.md; user-01, user-02, user-05.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import BusArgumentError, GatewayError, LuxRelayError
from luxrelay.net.guarded import Faults
from luxrelay.node.gateway.bounds import Bodies, Work
from luxrelay.node.gateway.calls import (
    HttpCaller,
    Request,
    Scope,
    Stream,
    hex_bytes,
    hex_text,
    items_of_bytes,
    items_of_json,
    message_bytes,
    message_json,
    parsed_json,
    receipt_json,
)
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.guests import Guest, Guests, group_of
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.node.gateway.problem import problem
from luxrelay.node.gateway.sockets import (
    CROWDED,
    GOING_AWAY,
    INTERNAL,
    REFUSED,
    SLOW,
    SocketOverError,
    WebSocket,
)
from luxrelay.node.gateway.store_and_archive import StoreAndArchive
from luxrelay.node.gateway.subscription import (
    Blobs,
    InOrder,
    Read,
    Subscription,
    Tell,
    TellBeyond,
    TellGap,
    TellLive,
    TellRefused,
    TellWaiting,
    Told,
    Wish,
    sender_of_any,
)
from luxrelay.node.stages.deliver import Feed, Note
from luxrelay.node.subscription_messages import LATEST, beginnings
from luxrelay.store import NamespaceHead, NamespaceQuery, QueryPage, RelayStore, StoredMessage
from luxrelay.sync import PublishItem, PublishReceipt
from luxrelay.sync.cost import Price, price_of_refused
from luxrelay.sync.following import RATE_MAX, SENDERS_MAX

_ID_MAX: Final = 64
"""Characters of the id that a client gives a publication."""
READ_BYTES: Final = 1024 * 1024
"""Bytes of messages read for a subscriber at once; one message always fits."""
GAP_WAIT_MS_MAX: Final = 600_000
SHORT_BYTES: Final = 4096
"""Bytes of JSON that are read on the loop, which does nothing else meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamParts:
    """What sessions share."""

    store: RelayStore
    holdings: StoreAndArchive
    feed: Feed
    publish: Callable[[Sequence[PublishItem]], Sequence[PublishReceipt]]
    work: Work
    rates: Rates
    bodies: Bodies
    config: GatewayConfig
    clock_ms: Callable[[], int]
    in_order: InOrder | None = None
    """Judges for ordered views; None gives none."""
    carries: Callable[[NamespaceId], bool] = lambda _: True
    """Whether the node takes what comes of a namespace; may wait for the disk."""


@dataclass(slots=True, kw_only=True)
class StreamCounters:
    """What the sessions did since the start."""

    open: int = 0
    """Sessions now."""
    subscriptions: int = 0
    """Subscriptions begun."""
    messages: int = 0
    """Messages told to subscribers."""
    gaps: int = 0
    """Gaps told."""
    late: int = 0
    """Messages told late."""
    slow: int = 0
    """Sessions ended because the client took nothing."""
    faults: int = 0
    """Sessions ended by a failure that nobody expected."""
    crowded: int = 0
    """Sessions without token that gave their place to a newcomer."""
    published: int = 0
    """Messages published over WebSocket."""


class Streams:
    """Serves the sessions of one gateway."""

    def __init__(self, parts: StreamParts) -> None:
        """Keep the parts."""
        self._parts = parts
        self._faults = Faults(logger=logging.getLogger("luxrelay.node.gateway"))
        self._guests = Guests(parts.config.subscribers_max)
        self._ending = 0
        """Sessions that have lost their place and are not over yet."""
        self.counters = StreamCounters()

    def check_room(self, caller: HttpCaller) -> None:
        """Return when one session more has room; asked before the handshake.

        Raises:
            GatewayError: there are ``subscribers_max``, and none that gives way (``gateway.busy``).

        """
        self._guests.make_room(
            self.counters.open - self._ending, None if caller.name else group_of(caller.key)
        )
        self.counters.crowded = self._guests.crowded

    def _place(self, caller: HttpCaller) -> tuple[trio.CancelScope, Guest | None]:
        """Return what ends a session, and its place among the guests when it is one."""
        scope = trio.CancelScope()
        if caller.name:
            return scope, None

        def end() -> None:
            self._ending += 1
            scope.cancel()

        scope.deadline = trio.current_time() + self._parts.config.guest_ms / 1000
        guest = Guest(group_of(caller.key), end)
        self._guests.enter(guest)
        return scope, guest

    async def take_over(self, request: Request, stream: Stream, received: bytes) -> None:
        """Serve one session until it is over."""
        parts = self._parts
        socket = WebSocket(
            stream,
            received,
            parts.config,
            request.caller,
            rates=parts.rates,
            bodies=parts.bodies,
        )
        self.counters.open += 1
        scope, guest = self._place(request.caller)

        def subscribed() -> None:
            scope.deadline = float("inf")
            if guest is not None:
                guest.subscribed = True

        try:
            with scope:
                await _Session(self._parts, self.counters, request, socket, subscribed).run()
            if scope.cancelled_caught:
                await socket.close(*_why(guest))
        except* SocketOverError as group:
            codes = {error.code for error in _leaves(group) if isinstance(error, SocketOverError)}
            if SLOW in codes:
                self.counters.slow += 1
                await socket.close(SLOW, "gateway.slow: nothing was taken for too long")
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* trio.Cancelled:
            await socket.close(GOING_AWAY, "the node stops; subscribe again after your positions")
            raise
        except* Exception as group:  # noqa: BLE001  this is the place for the unexpected
            # What a client provokes ends its own session: with a word, counted, told once a minute.
            self.counters.faults += 1
            self._faults.note("websocket", group)
            await socket.close(INTERNAL, "gateway.fault: see the node's log")
        finally:
            socket.release()
            self.counters.open -= 1
            if guest is not None:
                self._guests.leave(guest)
                self._ending -= guest.crowded


def _why(guest: Guest | None) -> tuple[int, str]:
    if guest is not None and guest.crowded:
        return CROWDED, "gateway.busy: others need the place; bring a token"
    return SLOW, "gateway.slow: nothing was subscribed in time"


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


class _Session:
    """One client; follows the feed for its subscription."""

    def __init__(
        self,
        parts: StreamParts,
        counters: StreamCounters,
        request: Request,
        socket: WebSocket,
        subscribed: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._counters = counters
        self._request = request
        self._socket = socket
        self._subscription: Subscription | None = None
        self._followed: tuple[NamespaceId, ...] = ()
        self._binary = False
        self._lanes = True
        self._ready = False
        self._early: dict[NamespaceId, Note] = {}
        self._wake = trio.Event()
        self._subscribed = subscribed

    async def run(self) -> None:
        """Serve until the client goes, or breaks the rules."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._socket.keep_alive)
                nursery.start_soon(self._tell)
                if self._request.values.get("namespace") is not None:
                    await self._guard(self._subscribe, _of_query(self._request.values))
                while True:
                    message = await self._socket.receive()
                    await self._guard(self._take, message)
        finally:
            self._parts.feed.leave(self._followed, self)

    # What the feed calls.

    def note(self, note: Note) -> None:
        """Learn of a stored message."""
        if self._subscription is None or not (self._lanes or note.namespace_id in self._followed):
            return
        if not self._ready:
            # The heads are still being read; whatever is noted meanwhile is read after them.
            if note.blob:
                self._subscription.blob_came(note.content_id)
            elif len(self._early) < self._parts.config.subscription_lanes_max:
                self._early[note.namespace_id] = note
            return
        self._noted(self._subscription, note)
        self._wake.set()

    @staticmethod
    def _noted(subscription: Subscription, note: Note) -> None:
        if note.blob:
            subscription.blob_came(note.content_id)
        else:
            subscription.note(note.namespace_id, note.parent, note.seq, note.content_id)

    def look_everywhere(self) -> None:
        """Learn that notes were dropped."""
        if self._subscription is not None:
            self._subscription.look_everywhere()
            self._wake.set()

    # What the client asks.

    async def _guard(self, work: Callable[[Any], Any], value: Any) -> None:
        """Do what a message asks; what is wrong with it is told, and the session goes on."""
        try:
            await work(value)
        except LuxRelayError as error:
            await self._send_json({"type": "error", "problem": problem(error)})

    async def _take(self, message: str | bytes) -> None:
        parts = self._parts
        parts.rates.request(self._request.caller, trio.current_time())
        if isinstance(message, bytes):
            read = partial(items_of_bytes, message, parts.config.publish_items_max)
            await self._publish(read, len(message), None)
            return
        value = await self._parsed(message)
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "subscribe":
            await self._subscribe(value)
        elif kind == "publish":
            batch = {"messages": value.get("messages")}
            read = partial(items_of_json, batch, parts.config.publish_items_max)
            identity = value.get("id")
            try:
                await self._publish(read, len(message), identity)
            except LuxRelayError as error:  # with the id: several may be under way
                known = identity if isinstance(identity, str) and len(identity) <= _ID_MAX else None
                await self._send_json({"type": "error", "id": known, "problem": problem(error)})
        elif kind == "ping":
            await self._send_json({"type": "pong"})
        else:
            raise GatewayError("expected type subscribe, publish or ping", where="type")

    async def _parsed(self, message: str) -> Any:
        """Return the JSON of a message; a long one is paid for first, and read beside the loop."""
        data = message.encode("utf-8", "surrogatepass")
        if len(data) <= SHORT_BYTES:
            return parsed_json(data)
        rates, caller = self._parts.rates, self._request.caller
        bound = len(data) / 1024 * Price.JSON
        await rates.patience(caller, bound)
        try:
            return await self._parts.work.run(partial(parsed_json, data))
        finally:
            rates.settle(caller, -bound)  # what the thread has spent was charged there

    async def _publish(
        self, read: Callable[[], list[PublishItem]], size: int, identity: object
    ) -> None:
        self._require(Scope.PUBLISH)
        if identity is not None and (not isinstance(identity, str) or len(identity) > _ID_MAX):
            raise GatewayError(f"an id is text of {_ID_MAX} characters at most", where="id")
        rates, caller = self._parts.rates, self._request.caller
        rates.publish(caller, size, trio.current_time())
        taken = rates.signatures(caller, size)

        def work() -> Sequence[PublishReceipt]:
            return self._parts.publish(read())

        receipts: Sequence[PublishReceipt] = ()
        try:
            receipts = await self._parts.work.run(work)
        finally:
            rates.settle(caller, price_of_refused(receipts) - taken)
        self._counters.published += len(receipts)
        shown = [receipt_json(receipt) for receipt in receipts]
        await self._send_json({"type": "receipts", "id": identity, "receipts": shown})

    async def _subscribe(self, value: dict[str, Any]) -> None:
        self._require(Scope.READ)
        if self._subscription is not None:
            raise GatewayError("one subscription a connection", where="type")
        try:
            wanted = _Wanted.of(value, self._parts.config, views=self._parts.in_order is not None)
        except GatewayError as error:
            await self._send_json({"type": "error", "problem": problem(error)})
            await self._socket.close(REFUSED, error.what)
            raise SocketOverError(REFUSED) from error
        subscription = Subscription(
            lanes_max=self._parts.config.subscription_lanes_max,
            gap_wait_ms=wanted.gap_wait_ms,
            begin=wanted.positions,
            in_order=self._parts.in_order if wanted.ordered else None,
            wish=wanted.wish,
            expects=self._parts.feed.expects,
        )
        # Followed before anything is read: what is stored from here on is noted.
        self._followed = tuple(wanted.namespaces)
        self._lanes = wanted.lanes
        self._binary = wanted.binary
        self._subscription = subscription
        self._parts.feed.follow(self._followed, self)
        subscription.not_carried, heads = await self._parts.work.run(partial(self._begin, wanted))
        for namespace_id, parent, after in heads:
            subscription.follow(namespace_id, parent, after)
        self._counters.subscriptions += 1
        self._subscribed()
        shown = {hex_text(each): after for each, _, after in heads}
        await self._send_json({"type": "subscribed", "positions": shown})
        # In one step: what is noted until here stands in `early`, what comes after is read.
        for note in self._early.values():
            subscription.note(note.namespace_id, note.parent, note.seq, note.content_id)
        if len(self._early) >= self._parts.config.subscription_lanes_max:
            subscription.look_everywhere()
        self._early.clear()
        self._ready = True
        self._wake.set()

    def _begin(
        self, wanted: _Wanted
    ) -> tuple[frozenset[NamespaceId], list[tuple[NamespaceId, NamespaceId, int]]]:
        """Return which namespaces are not carried, and what there is to follow; a worker."""
        lacking = frozenset(each for each in wanted.namespaces if not self._parts.carries(each))
        return lacking, beginnings(
            self._parts.store,
            wanted.namespaces,
            wanted.positions,
            lanes=wanted.lanes,
            lanes_max=self._parts.config.subscription_lanes_max,
        )

    def _require(self, scope: Scope) -> None:
        if scope not in self._request.caller.scopes:
            named = bool(self._request.caller.name)
            raise GatewayError(
                f"the token lacks the scope {scope.value!r}" if named else "the call needs a token",
                code="gateway.scope" if named else "gateway.token",
            )

    # What the client is told.

    async def _tell(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            subscription = self._subscription
            if subscription is None or not self._ready:
                continue
            rates, caller = self._parts.rates, self._request.caller
            if self._lanes and subscription.next_search():
                await rates.patience(caller, Price.TURN)
                heads = await self._parts.work.run(self._search)
                subscription.found((each, parent) for each, parent, _ in heads)
            while (read := subscription.next_read(trio.current_time())) is not None:
                await self._page(subscription, read)
            more = True
            while more and (wanted := subscription.next_late()):
                await rates.patience(caller, Price.TURN)
                late, missing = await self._parts.work.run(partial(self._read_late, wanted))
                more = subscription.late(wanted, late, missing)
                await self._send(subscription.drain())
            await self._send(subscription.drain())
            await self._sleep(subscription)

    async def _page(self, subscription: Subscription, read: Read) -> None:
        """Read a page and tell it; its subscriber pays for both, told or not."""
        rates, caller = self._parts.rates, self._request.caller
        bound = self._parts.config.subscription_page * Price.ROW
        await rates.patience(caller, bound)
        query, held, head, before = await self._parts.work.run(partial(self._read, read))
        page = await self._parts.holdings.replay(query, held, head)
        page = page._replace(before=before)
        subscription.page(read, page, trio.current_time(), self._parts.clock_ms())
        tells = subscription.drain()
        # What the thread spent is measured (`Work`); this is for the loop.
        rates.settle(caller, len(page.messages) * Price.ROW - bound)
        await self._send(tells)

    def _search(self) -> list[tuple[NamespaceId, NamespaceId, int]]:
        """Return what is there to follow now; a worker."""
        return beginnings(
            self._parts.store,
            dict.fromkeys(self._followed, 0),
            {},
            lanes=True,
            lanes_max=self._parts.config.subscription_lanes_max,
        )

    async def _sleep(self, subscription: Subscription) -> None:
        wake_at = subscription.wake_at()
        if wake_at is None:
            return
        with trio.move_on_at(wake_at):
            await self._wake.wait()
        subscription.wake(trio.current_time())
        self._wake.set()

    def _read(
        self, read: Read
    ) -> tuple[NamespaceQuery, QueryPage, NamespaceHead, tuple[int, int] | None]:
        """Return a question to the store, its answer, and the head after it; a worker.

        For an ordered view with the message before what is asked.
        """
        store = self._parts.store
        query = NamespaceQuery(
            namespace_id=read.namespace_id,
            from_seq=read.after,
            to_seq=read.to,
            limit=min(read.limit or c.MAX_U64, self._parts.config.subscription_page),
            max_bytes=READ_BYTES,
            cursor=read.cursor,
        )
        page = store.query(query, self._parts.clock_ms())
        store.mark_regressed(page.messages)
        before = None
        if read.ordered:
            before = store.predecessor(read.namespace_id, read.after + 1)
        return query, page, store.head(read.namespace_id), before

    def _read_late(
        self, wanted: Sequence[ContentId]
    ) -> tuple[list[StoredMessage], list[ContentId]]:
        found, missing = self._parts.store.get_contents(wanted, self._parts.clock_ms())
        self._parts.store.mark_regressed(found)
        return found, missing

    async def _send(self, tells: Sequence[Tell]) -> None:
        if tells:
            shown = [self._shown(tell) for tell in tells]
            rates, caller = self._parts.rates, self._request.caller
            rates.settle(caller, len(shown) * Price.ROW)
            rates.sent(caller, sum(map(len, shown)))
            await self._socket.send(shown)

    def _shown(self, tell: Tell) -> str | bytes:
        if isinstance(tell, Told):
            self._counters.messages += 1
            self._counters.late += tell.late
            marks = {"late": tell.late, "completes": tell.completes}
            if self._binary:
                return message_bytes(tell.message, tell.parent, **marks)
            shown = message_json(tell.message, tell.parent, **marks)
            return _text({"type": "message", **shown})
        if isinstance(tell, TellGap):
            self._counters.gaps += 1
            return _text(
                {
                    "type": "gap",
                    "namespaceId": hex_text(tell.namespace_id),
                    "first": tell.first,
                    "last": tell.last,
                    "reason": tell.reason,
                }
            )
        if isinstance(tell, TellLive):
            positions = {hex_text(each): seq for each, seq in tell.positions.items()}
            live: dict[str, Any] = {"type": "live", "positions": positions}
            if tell.not_carried:
                live["notCarried"] = sorted(map(hex_text, tell.not_carried))
            return _text(live)
        if isinstance(tell, TellBeyond):
            return _text(
                {
                    "type": "beyond",
                    "namespaceId": hex_text(tell.namespace_id),
                    "held": tell.held,
                    "position": tell.position,
                }
            )
        if isinstance(tell, TellRefused):
            return _text(
                {
                    "type": "refused",
                    "namespaceId": hex_text(tell.namespace_id),
                    "seq": tell.seq,
                    "contentId": hex_text(tell.content_id),
                    "code": tell.code,
                    "reason": tell.reason,
                }
            )
        if isinstance(tell, TellWaiting):
            name, first, last = hex_text(tell.namespace_id), tell.first, tell.last
            return _text({"type": "waiting", "namespaceId": name, "first": first, "last": last})
        shown = {"type": "dropped", "lanes": tell.lanes, "late": tell.late, "blobs": tell.blobs}
        return _text(shown)

    async def _send_json(self, value: dict[str, Any]) -> None:
        await self._socket.send([_text(value)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A subscription that was asked for."""

    namespaces: dict[NamespaceId, int]
    """Namespace to the sequence behind which it begins; -1 for the latest."""
    positions: dict[NamespaceId, int]
    """The same for single lanes."""
    lanes: bool
    binary: bool
    gap_wait_ms: int
    ordered: bool
    """The view of a validator."""
    wish: Wish

    @classmethod
    def of(cls, value: dict[str, Any], config: GatewayConfig, *, views: bool) -> _Wanted:
        """Return what a client's message asks for; ``views`` says whether ordered ones are given.

        Raises:
            GatewayError: it does not fit; ``where`` names the part.

        """
        known = {
            "type", "namespaces", "after", "positions", "lanes", "format", "gapWaitMs", "ordered",
            "senders", "maxRate", "blobs",
        }  # fmt: skip
        unknown = sorted(set(value) - known)
        if unknown:
            raise GatewayError("an unknown member", where=f"subscribe.{unknown[0][:40]}")
        names = value.get("namespaces")
        if not isinstance(names, list) or not names:
            raise GatewayError("expected a list of namespace ids", where="subscribe.namespaces")
        if len(names) > config.subscription_namespaces_max:
            raise GatewayError(
                f"more than {config.subscription_namespaces_max} namespaces",
                where="subscribe.namespaces",
            )
        after = _seq(value.get("after", 0), "subscribe.after", latest=True)
        positions = value.get("positions", {})
        if not isinstance(positions, dict) or len(positions) > config.subscription_lanes_max:
            raise GatewayError(
                f"expected an object of {config.subscription_lanes_max} lanes at most",
                where="subscribe.positions",
            )
        wait_ms = value.get("gapWaitMs", config.gap_wait_ms)
        if not _is_whole(wait_ms, GAP_WAIT_MS_MAX):
            raise GatewayError(
                f"expected milliseconds up to {GAP_WAIT_MS_MAX}", where="subscribe.gapWaitMs"
            )
        if value.get("format", "json") not in ("json", "binary"):  # a list is not hashable
            raise GatewayError("expected json or binary", where="subscribe.format")
        for flag in ("lanes", "ordered"):
            if not isinstance(value.get(flag, True), bool):
                raise GatewayError("expected true or false", where=f"subscribe.{flag}")
        if value.get("ordered") and not views:
            raise GatewayError("no ordered view is given here", where="subscribe.ordered")
        return cls(
            namespaces={_namespace(each, "subscribe.namespaces"): after for each in names},
            positions={
                _namespace(each, "subscribe.positions"): _seq(seq, f"subscribe.positions.{each}")
                for each, seq in positions.items()
            },
            lanes=value.get("lanes", True),
            binary=value.get("format") == "binary",
            gap_wait_ms=wait_ms,
            ordered=value.get("ordered", False),
            wish=_wish(value),
        )


def _wish(value: dict[str, Any]) -> Wish:
    """Return which messages are wanted, how fast and with what (LP-6420 §8.1)."""
    senders, rate = value.get("senders", []), value.get("maxRate", 0)
    if not isinstance(senders, list) or len(senders) > SENDERS_MAX:
        raise GatewayError(f"expected a list of {SENDERS_MAX} at most", where="subscribe.senders")
    if not _is_whole(rate, RATE_MAX):
        raise GatewayError(
            f"expected messages a second up to {RATE_MAX}", where="subscribe.maxRate"
        )
    blobs = value.get("blobs", Blobs.HELD)
    if not isinstance(blobs, str) or blobs not in list(Blobs):
        named = ", ".join(Blobs)
        raise GatewayError(f"expected one of {named}", where="subscribe.blobs")
    return Wish(
        senders=frozenset(_sender(each) for each in senders), max_rate=rate, blobs=Blobs(blobs)
    )


def _sender(value: Any) -> bytes:
    """Return the address of a sender, given as such or as the key field."""
    found = hex_bytes(value, "subscribe.senders")
    try:
        return sender_of_any(found)
    except BusArgumentError as error:
        raise GatewayError(error.what, where="subscribe.senders") from error


def _of_query(values: Any) -> dict[str, Any]:
    """Return the subscription that the query of the handshake asks for."""
    return {
        "namespaces": [values["namespace"].hex()],
        "after": values["after"],
        "lanes": values["lanes"],
        "format": values["format"],
        "ordered": values["ordered"],
        "blobs": values["blobs"],
    }


def _namespace(value: Any, where: str) -> NamespaceId:
    found = hex_bytes(value, where)
    if len(found) != c.NAMESPACE_BYTES:
        raise GatewayError(f"expected {2 * c.NAMESPACE_BYTES} hex digits", where=where)
    return NamespaceId(found)


def _seq(value: Any, where: str, *, latest: bool = False) -> int:
    if latest and value == "latest":
        return LATEST
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        value = int(value)
    if not _is_whole(value, c.MAX_U64):
        raise GatewayError("expected a sequence number" + ' or "latest"' * latest, where=where)
    return int(value)


def _is_whole(value: Any, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
