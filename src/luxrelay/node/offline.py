"""A node's store and its sync door without the node: for catching up and comparing at a command.

What comes passes the same rules as in a running node: policies, signatures, fees, finality.

Source: LP-6421 §2.3; the verdict table's sync column.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from luxrelay.bus import NamespaceId
from luxrelay.node.assembly import judge_of, store_config_of
from luxrelay.node.blobs import MissingBlobs
from luxrelay.node.catch_up import StoreSink
from luxrelay.node.certificates import client_tls_of
from luxrelay.node.config import NodeConfig
from luxrelay.node.folder import STORE_FOLDER, DataFolder
from luxrelay.node.ingress import Doors, wall_ms
from luxrelay.node.message_limits import make_guards
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.policies import CurrentPolicies, carried_of
from luxrelay.store import RelayStore
from luxrelay.sync import RelaySyncClient, SyncClientConfig, run_catchup
from luxrelay.sync.postponed import PostponedMessages
from luxrelay.sync.report import CatchUpProgress, CatchUpReport
from luxrelay.sync.rpc.comparing import Comparison, compare_with
from luxrelay.sync.rpc.reconcile_driver import ReconcilePlan, ReconcileReport, reconcile_with


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineNode:
    """A store that is caught up by hand."""

    store: RelayStore
    sink: StoreSink
    clients: Sequence[RelaySyncClient]
    """The relays to ask, best first."""
    blobs: MissingBlobs
    plan: ReconcilePlan

    def catch_up(
        self, parent: NamespaceId | None, on_progress: Callable[[CatchUpProgress], None]
    ) -> CatchUpReport:
        """Bring one namespace and its lanes level with the relays.

        Raises:
            StoreError: the store cannot be written.

        """
        return run_catchup(self.clients, self.sink, parent=parent, on_progress=on_progress)

    def reconcile(self, client: RelaySyncClient, parent: NamespaceId | None) -> ReconcileReport:
        """Fetch what heads do not show, forks of a slot above all.

        Raises:
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        """
        return reconcile_with(
            client, self.store, self.sink, parent=parent, now_ms=wall_ms(), plan=self.plan
        )

    def fetch_blobs(self) -> int:
        """Ask for the blobs that came without; return how many arrived."""
        return self.blobs.settle(threading.Event())


@contextmanager
def clients_of(
    config: NodeConfig, relays: Sequence[str], timeout_s: float | None = None
) -> Iterator[list[RelaySyncClient]]:
    """Yield clients of some relays, with the TLS files of a node's configuration.

    Args:
        config: The node's.
        relays: Addresses.
        timeout_s: Seconds that a relay has for each call; None for the defaults.

    Raises:
        SyncArgumentError: an address is none, or a file is not what it should be.

    """
    tls = client_tls_of(config.sync_limits)
    with ExitStack() as stack:
        patience = SyncClientConfig.waiting(timeout_s)
        clients = [RelaySyncClient(relay, config=patience, tls=tls) for relay in relays]
        yield [stack.enter_context(client) for client in clients]


def plan_of(config: NodeConfig) -> ReconcilePlan:
    """Return the window that a node's contents are compared in."""
    return ReconcilePlan(ttl_ms=config.ttl_ms)


@contextmanager
def offline_node(config: NodeConfig, clients: Sequence[RelaySyncClient]) -> Iterator[OfflineNode]:
    """Yield the store of a node that does not run, with its door.

    Raises:
        StoreError: ``store.locked`` when the node runs, or the store cannot be opened.
        NodeError: the data folder is not a node's.
        ConfigError: a file that the configuration names cannot be read.

    """
    policies = CurrentPolicies(config)
    folder = DataFolder(config.data_dir)
    identity = folder.identity()
    with ExitStack() as stack:
        store = RelayStore.open(folder.store, store_config_of(config), now_ms=wall_ms())
        stack.callback(store.close)
        policies.attach(carried_of(config))
        guards = make_guards(config, store)
        judge = judge_of(config, store, policies, guards)
        stack.callback(judge.close)
        limits = config.store_limits
        wanted = WantedBlobs(
            ttl_ms=min(config.ttl_ms, limits.blob_ttl_ms or config.ttl_ms),
            largest=limits.largest_blob,
        )
        doors = Doors(
            store=store,
            judge=judge,
            identity=identity,
            network=config.network,
            inline_blob_max=config.inline_blob_max,
            clock_ms=wall_ms,
            spread=lambda items: [0] * len(items),
            wanted=wanted,
            fees=guards.fees if guards.fees.charges else None,
        )
        blobs = MissingBlobs(
            clients,
            store,
            doors.history,
            wanted,
            clock_ms=wall_ms,
            order=lambda peers: peers,
            blamed=lambda blame: None,  # noqa: ARG005  the blob is asked of the next relay
        )
        stack.callback(blobs.close)
        yield OfflineNode(
            store=store,
            sink=StoreSink(store, doors, PostponedMessages(config.sync_limits.postponed_max)),
            clients=clients,
            blobs=blobs,
            plan=plan_of(config),
        )


def compare(
    config: NodeConfig, client: RelaySyncClient, parents: Sequence[NamespaceId | None]
) -> list[Comparison]:
    """Return what differs between a node's store and one relay; the node may run meanwhile.

    Raises:
        StoreError: there is no store, or it cannot be read.
        SyncUnreachableError: no answer in time.
        SyncRemoteError: an answer that cannot be used.

    """
    path = config.data_dir / STORE_FOLDER
    plan, now_ms = plan_of(config), wall_ms()
    with RelayStore.open_read_only(path, store_config_of(config), now_ms=now_ms) as store:
        return [
            compare_with(client, store, parent=parent, now_ms=now_ms, plan=plan)
            for parent in parents
        ]
