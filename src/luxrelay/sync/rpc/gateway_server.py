"""`GatewayRpcServer`, `AdminRpcServer` and `SearchRpcServer`: listeners with more calls.

The first serves what the sync port serves, and RelayGateway, to callers with tokens; the second
serves RelayAdmin alone; the third is a sync port that also answers RelayGateway's search.

Source: ADR 0002; decision P37.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import grpc

from luxrelay.sync.rpc import relay_gateway_pb2, relay_node_pb2, relay_sync_pb2
from luxrelay.sync.rpc.backing import ArchiveFallback, FollowedNode, Publisher, SyncStore
from luxrelay.sync.rpc.config import SyncServerConfig
from luxrelay.sync.rpc.gateway_calls import AdminServicer, GatewayServicer, SearchServicer
from luxrelay.sync.rpc.gateway_desk import GatewayDesk, SearchedStore
from luxrelay.sync.rpc.grpc_auth import Guard
from luxrelay.sync.rpc.metering import SharedMeter
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import (
    add_RelayAdminServicer_to_server,
    add_RelayGatewayServicer_to_server,
)
from luxrelay.sync.rpc.service import RelaySyncServer
from luxrelay.sync.rpc.stats import SyncCounters
from luxrelay.sync.rpc.tls import ServerTls


class ServedStore(SyncStore, SearchedStore, Protocol):
    """A store behind a sync port that is also searched."""


class GatewayRpcServer(RelaySyncServer):
    """RelaySync, RelayNode and RelayGateway behind a guard.

    Args:
        store: What is read.
        config: Address and bounds.
        clock_ms: Wall clock, Unix milliseconds.
        publisher: Takes published messages.
        followed: Tells subscribers.
        desk: The node's gateway.
        guard: Knows the tokens.
        tls: Certificate; None serves in the clear.
        counters: Counts the calls, with those of another server or alone.
        beyond: Knows what the store has no more; None without.
        meter: What callers may cost, shared by all doors of a node; None counts nothing.

    """

    services = (
        (relay_sync_pb2.DESCRIPTOR, "RelaySync"),
        (relay_node_pb2.DESCRIPTOR, "RelayNode"),
        (relay_gateway_pb2.DESCRIPTOR, "RelayGateway"),
    )

    def __init__(
        self,
        store: SyncStore,
        config: SyncServerConfig,
        *,
        clock_ms: Callable[[], int],
        publisher: Publisher,
        followed: FollowedNode,
        desk: GatewayDesk,
        guard: Guard,
        tls: ServerTls | None = None,
        counters: SyncCounters | None = None,
        beyond: ArchiveFallback | None = None,
        meter: SharedMeter | None = None,
    ) -> None:
        super().__init__(
            store,
            config,
            clock_ms=clock_ms,
            publisher=publisher,
            followed=followed,
            tls=tls,
            counters=counters,
            guard=guard,
            beyond=beyond,
            meter=meter,
        )
        self._desk = desk

    def _serve(self, server: grpc.Server) -> None:
        super()._serve(server)
        add_RelayGatewayServicer_to_server(GatewayServicer(self._desk, self._reading), server)


class SearchRpcServer(RelaySyncServer):
    """A sync port that is also searched by time and by sender, as an archive's is.

    Args:
        store: What is read and searched.
        config: Address and bounds.
        clock_ms: Wall clock, Unix milliseconds.
        tls: Certificate and authorities; None serves in the clear.

    """

    services = GatewayRpcServer.services

    def __init__(
        self,
        store: ServedStore,
        config: SyncServerConfig,
        *,
        clock_ms: Callable[[], int],
        tls: ServerTls | None = None,
    ) -> None:
        super().__init__(store, config, clock_ms=clock_ms, tls=tls)
        # The generated class answers its other calls with UNIMPLEMENTED, whatever its stub says.
        self._search = SearchServicer(store, self._reading, clock_ms)  # type: ignore[abstract]

    def _serve(self, server: grpc.Server) -> None:
        super()._serve(server)
        add_RelayGatewayServicer_to_server(self._search, server)


class AdminRpcServer(RelaySyncServer):
    """RelayAdmin behind a guard, and nothing else.

    Args are those of `GatewayRpcServer`.
    """

    reflects = False
    services = ((relay_gateway_pb2.DESCRIPTOR, "RelayAdmin"),)

    def __init__(
        self,
        config: SyncServerConfig,
        *,
        clock_ms: Callable[[], int],
        desk: GatewayDesk,
        guard: Guard,
        tls: ServerTls | None = None,
        counters: SyncCounters | None = None,
    ) -> None:
        super().__init__(None, config, clock_ms=clock_ms, tls=tls, counters=counters, guard=guard)
        self._desk = desk

    def _serve(self, server: grpc.Server) -> None:
        add_RelayAdminServicer_to_server(AdminServicer(self._desk, self._reading), server)
