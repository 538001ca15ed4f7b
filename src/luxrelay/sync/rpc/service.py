"""`RelaySyncServer`: RelaySync and RelayNode over gRPC, in threads of its own.

The store and the publisher are called from these threads. Whatever a client sends, it gets an
answer or a status with a text that says what was wrong; the server goes on.

`MethodPool`: descriptors for reflection that are also found by the name of a method.

gRPC's reflection asks a pool for the file that contains a symbol. The pool of protobuf knows
services and messages, and says of a method (``lux.relay.v1.RelaySync.Reconcile``) that there is
none, so that tools which describe a method fail.

Source: LP-6421 §2.2, §8; 21-18 to 21-24, 21-56, 21-57; the gRPC server reflection protocol,
``file_containing_symbol``; decisions P18, P22, P23, P34, P35, P37, J6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1.health import SERVICE_NAME as HEALTH_NAME
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION_NAME
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from luxrelay.bus.header import NamespaceId
from luxrelay.errors import SyncUnreachableError
from luxrelay.sync.arrivals import ArrivalsConfig
from luxrelay.sync.cost import Payer, Price, price_of_piece
from luxrelay.sync.rpc import relay_node_pb2, relay_sync_pb2
from luxrelay.sync.rpc.backing import ArchiveFallback, FollowedNode, Handoff, Publisher, SyncStore
from luxrelay.sync.rpc.calls import CallBook
from luxrelay.sync.rpc.config import (
    FRAME_BYTES_MAX,
    SyncServerConfig,
)
from luxrelay.sync.rpc.entrance import Entrance, EntranceStats
from luxrelay.sync.rpc.fair_queue import Turnstile
from luxrelay.sync.rpc.grpc_auth import DoorInterceptor, Guard
from luxrelay.sync.rpc.metering import MeterStats, SharedMeter
from luxrelay.sync.rpc.publishing import NodeServicer
from luxrelay.sync.rpc.reading import SyncServicer
from luxrelay.sync.rpc.relay_node_pb2_grpc import add_RelayNodeServicer_to_server
from luxrelay.sync.rpc.relay_sync_pb2_grpc import add_RelaySyncServicer_to_server
from luxrelay.sync.rpc.stats import SyncCounters, SyncServerStats
from luxrelay.sync.rpc.stream_limit import StreamGate
from luxrelay.sync.rpc.tls import ServerTls
from luxrelay.sync.rpc.uplink import BlobUplink
from luxrelay.sync.rpc.waiting import PendingRequests, ReflectionLimit


class MethodPool:
    """Answers as the default pool does, and finds methods beside."""

    def __init__(self) -> None:
        self._pool: Any = descriptor_pool.Default()

    def FindFileContainingSymbol(self, name: str) -> Any:  # noqa: N802 - protobuf's name
        """Return the file of a symbol; a method's is its service's.

        Raises:
            KeyError: there is no such symbol.

        """
        try:
            return self._pool.FindFileContainingSymbol(name)
        except KeyError:
            service, _, method = name.rpartition(".")
            if not service:
                raise
            found = self._pool.FindServiceByName(service)
            if method not in found.methods_by_name:
                raise
            return found.file

    def __getattr__(self, name: str) -> Any:
        """Return whatever else a pool can do."""
        return getattr(self._pool, name)


HANDSHAKE_MS = 10_000
"""A connection that has not become HTTP/2 by then is closed."""

STOP_S = 5.0
"""A call that a stuck store does not let go is left behind after this long, seconds."""


class RelaySyncServer:
    """Serves one store, and takes messages for one publisher.

    Args:
        store: What is read; None answers every RelaySync call with UNIMPLEMENTED, so that clients
            ask another relay (21-56).
        config: Address and bounds.
        clock_ms: Wall clock, Unix milliseconds.
        publisher: Takes published messages; None answers Publish with UNIMPLEMENTED.
        tls: Certificate and authorities; None serves in the clear.
        subscribed: Parent namespaces whose readers get a larger share (LP-6421 §6.2).
        handoff: Takes an archive's watermarks; None answers SetWatermarks with PERMISSION_DENIED.
        followed: Tells subscribers; None answers Subscribe with UNIMPLEMENTED.
        counters: Counts the calls, with those of another server or alone.
        guard: Knows the tokens of callers; None lets everybody in.
        beyond: Knows what the store has no more; None for a port that answers from it alone.
        meter: What callers may cost, shared by all doors of a node; None counts nothing.
        uplink: What is sent of blobs, by all doors of a node or alone.

    """

    reflects: ClassVar[bool] = True
    """Whether tools may ask what calls there are."""
    services: ClassVar[Sequence[tuple[FileDescriptor, str]]] = (
        (relay_sync_pb2.DESCRIPTOR, "RelaySync"),
        (relay_node_pb2.DESCRIPTOR, "RelayNode"),
    )
    """What is served, for health and reflection."""

    def __init__(
        self,
        store: SyncStore | None,
        config: SyncServerConfig | None = None,
        *,
        clock_ms: Callable[[], int],
        publisher: Publisher | None = None,
        handoff: Handoff | None = None,
        subscribed: Container[NamespaceId] = frozenset(),
        tls: ServerTls | None = None,
        followed: FollowedNode | None = None,
        counters: SyncCounters | None = None,
        guard: Guard | None = None,
        beyond: ArchiveFallback | None = None,
        meter: SharedMeter | None = None,
        uplink: BlobUplink | None = None,
    ) -> None:
        self.config = config or SyncServerConfig()
        self.meter = meter
        self._counters = counters or SyncCounters()
        self._streams, self._publishers, self._subscribers = _gates_of(self.config)
        local = self.config.limit_local
        self._turns = Turnstile(self.config.fairness, name="luxrelay-sync-turns")
        book = partial(CallBook, limit_local=local, meter=meter, let_in=self._let_in)
        self._reading = book(self._counters, self._streams, self._turns)
        publishing = book(self._counters, self._publishers, self._turns)
        self._sync = SyncServicer(
            store,
            self.config,
            self._reading,
            clock_ms,
            subscribed=subscribed,
            beyond=beyond,
            uplink=uplink or BlobUplink(time.monotonic),
        )
        self._node = NodeServicer(
            publisher,
            handoff,
            self.config,
            publishing,
            followed=followed,
            following=book(self._counters, self._subscribers, self._turns),
        )
        self._tls = tls
        self._waiting, self._looks = _bounds_of(self.config)
        self._guard = guard
        self._health = HealthServicer()
        self._server: grpc.Server | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._entrance: Entrance | None = None

    def start(self) -> int:
        """Serve; return the port, chosen by the system when the configuration says 0.

        Raises:
            SyncUnreachableError: the port cannot be opened (``sync.port``).

        """
        assert self._server is None, "a server starts once"
        entrance = self._entrance_of() if self.config.entrance else None
        port = entrance.listen(self.config.host, self.config.port) if entrance else 0
        pool = ThreadPoolExecutor(self.config.workers, thread_name_prefix="luxrelay-sync")
        server = grpc.server(
            pool,
            interceptors=[
                DoorInterceptor(
                    self._guard,
                    self._waiting,
                    self._looks,
                    self._counters.mishaps,
                    meter=self.meter,
                )
            ],
            options=self._options(),
            maximum_concurrent_rpcs=self.config.calls_max,
        )
        self._serve(server)
        self._describe(server)
        if entrance is None:
            port = self._open_port(server, f"{self.config.host}:{self.config.port}")
        else:
            self._open_port(server, entrance.inner)
        if not port:
            server.stop(None)
            pool.shutdown(wait=False)
            raise SyncUnreachableError(
                "the sync port cannot be opened", where=self.config.host, code="sync.port"
            )
        server.start()
        if entrance is not None:
            entrance.start()
        self._server, self._pool, self._entrance = server, pool, entrance
        return port

    def stop(self, grace_s: float = 1.0) -> None:
        """Refuse new calls, let running ones end for ``grace_s`` seconds, then cancel them.

        May be called twice, and before `start`.
        """
        server, self._server = self._server, None
        entrance, self._entrance = self._entrance, None
        if entrance is not None:
            entrance.shut()
        if server is not None:
            self._health.enter_graceful_shutdown()
            server.stop(grace_s).wait(grace_s + STOP_S)
        if entrance is not None:
            entrance.close()
        self._waiting.close()
        self._looks.close()
        self._turns.shut()
        self._streams.close()
        self._publishers.close()
        self._subscribers.close()
        if self._pool is not None:
            # Its threads end by themselves: their calls are over, nothing waits for them.
            self._pool.shutdown(wait=False)
            self._pool = None

    @property
    def counters(self) -> SyncCounters:
        """What counts the calls."""
        return self._counters

    @property
    def servicer(self) -> SyncServicer:
        """What answers RelaySync's calls, for streams that are not gRPC's."""
        return self._sync

    def stats(self) -> SyncServerStats:
        """Return the counters as they stand."""
        meter = self.meter.stats() if self.meter is not None else MeterStats()
        entrance = self._entrance
        doors = EntranceStats() if entrance is None else entrance.stats()
        return replace(
            self._counters.snapshot(),
            cost_refused=meter.refused,
            cost_waited=meter.waited,
            cost_strangers_s=meter.strangers_us / 1e6,
            cost_payers=meter.payers,
            cost_pace=meter.pace,
            connections=doors.open,
            connections_refused=doors.refused,
            connections_crowded=doors.crowded,
            connections_silent=doors.silent,
            streams_crowded=sum(
                each.crowded for each in (self._streams, self._publishers, self._subscribers)
            ),
            waiting=self._turns.waiting,
            held_bytes=self._turns.held_bytes,
            stalled=self._turns.stalled,
        )

    def _entrance_of(self) -> Entrance:
        config = self.config
        return Entrance(
            ArrivalsConfig(
                places=config.connections_max,
                address_per_s=config.address_connections_per_s,
                address_burst=config.address_connections_burst,
            ),
            silence_s=HANDSHAKE_MS / 1000,
            accepts_per_s=config.accepts_per_s,
            pace=(lambda: 1.0) if self.meter is None else self.meter.pace,
            came=self._charge_connection,
            paid=self._charge_bytes,
        )

    def _charge_connection(self, host: str) -> None:
        if self.meter is not None:
            secure = self._tls is not None
            self.meter.settle(Payer.at(host), Price.CONNECTION + Price.HANDSHAKE * secure)

    def _charge_bytes(self, host: str, size: int) -> float:
        """Charge what a client without a token has sent; return in how long more may be read."""
        if self.meter is None:
            return 0.0
        payer = Payer.at(host)
        self.meter.settle(payer, price_of_piece(size))
        return self.meter.take(payer, 0.0)

    def _let_in(self, peer: str, known: bool) -> AbstractContextManager[None]:
        entrance = self._entrance
        return nullcontext() if entrance is None else entrance.call(peer, known=known)

    def _open_port(self, server: grpc.Server, address: str) -> int:
        """Have gRPC listen; return its port, 0 when it cannot."""
        try:
            if self._tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, self._tls.credentials())
        except RuntimeError:
            return 0

    def _serve(self, server: grpc.Server) -> None:
        """Add the services."""
        add_RelaySyncServicer_to_server(self._sync, server)
        _serve_encoded(self._sync, server)
        add_RelayNodeServicer_to_server(self._node, server)

    def _describe(self, server: grpc.Server) -> None:
        """Add the health service and reflection, so that any gRPC tool can ask and look around."""
        names = [file.services_by_name[name].full_name for file, name in self.services]
        add_HealthServicer_to_server(self._health, server)
        for name in ("", *names):
            self._health.set(name, HealthCheckResponse.SERVING)
        if self.reflects:
            enable_server_reflection(
                [*names, HEALTH_NAME, REFLECTION_NAME], server, pool=MethodPool()
            )

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a partner
            ("grpc.max_concurrent_streams", self.config.connection_streams_max),
            ("grpc.max_receive_message_length", self.config.request_bytes_max),
            ("grpc.max_send_message_length", FRAME_BYTES_MAX),
            # One that gave its place up may still be there for a moment.
            ("grpc.max_allowed_incoming_connections", _doubled(self.config)),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", self.config.idle_ms),
            ("grpc.keepalive_time_ms", self.config.keepalive_ms),
            ("grpc.keepalive_timeout_ms", self.config.keepalive_timeout_ms),
            ("grpc.http2.ping_timeout_ms", self.config.keepalive_timeout_ms),
            ("grpc.http2.max_pings_without_data", 0),  # a subscriber sends none for hours
            (
                "grpc.http2.min_recv_ping_interval_without_data_ms",
                self.config.keepalive_ms // 2,
            ),
        ]


def _doubled(config: SyncServerConfig) -> int:
    return config.connections_max * (2 if config.entrance else 1)


def _bounds_of(config: SyncServerConfig) -> tuple[PendingRequests, ReflectionLimit]:
    """Return the bounds of what anybody may begin, so that threads are left for the others."""
    streams = config.streams_max + config.publishers_max + config.subscribers_max
    half = max(1, config.workers // 2)
    looks = min(config.looks_max, max(1, config.workers - 1 - streams))
    return (
        PendingRequests(config.request_wait_s, min(config.address_waiting_max, half), half),
        ReflectionLimit(looks, config.address_looks_max, config.look_s),
    )


def _gates_of(config: SyncServerConfig) -> tuple[StreamGate, StreamGate, StreamGate]:
    """Return the places of reading, publishing and subscribing streams."""
    return (
        StreamGate(
            config.streams_max,
            config.stream_s,
            name="luxrelay-sync-streams",
            kind="reading streams",
        ),
        StreamGate(
            config.publishers_max,
            config.publisher_s,
            name="luxrelay-sync-publishers",
            kind="Publish streams",
            share_max=config.peer_publishers_max,
            silent_s=config.publisher_silent_s,
        ),
        StreamGate(
            config.subscribers_max,
            config.publisher_s,
            name="luxrelay-sync-subscribers",
            kind="subscriptions",
            share_max=config.peer_subscribers_max,
        ),
    )


def _serve_encoded(servicer: SyncServicer, server: grpc.Server) -> None:
    """Have the frames of SyncNamespace sent as they are: the servicer encodes them itself."""
    handler: grpc.RpcMethodHandler[relay_sync_pb2.SyncRequest, bytes] = (
        grpc.unary_stream_rpc_method_handler(
            servicer.SyncNamespace,
            request_deserializer=relay_sync_pb2.SyncRequest.FromString,
            response_serializer=None,
        )
    )
    name = relay_sync_pb2.DESCRIPTOR.services_by_name["RelaySync"].full_name
    # A method that is registered later takes the place of the generated one.
    server.add_registered_method_handlers(name, {"SyncNamespace": handler})
