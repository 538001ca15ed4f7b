"""Interface of RelayGateway and RelayAdmin to a node.

Source: ADR 0002; architecture, rule 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from luxrelay.bus import NamespaceId
from luxrelay.store import SenderQuery, TimeQuery
from luxrelay.sync.rpc.backing import StoreRow


class SearchPage(Protocol):
    """Messages in the order of an index, and how to go on."""

    @property
    def messages(self) -> Sequence[StoreRow]:
        """At most as many as asked for."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether a further page may hold something."""
        ...

    @property
    def next_cursor(self) -> bytes:
        """Where it begins."""
        ...


class GatewayPage(SearchPage, Protocol):
    """A page of a gateway, which may ask an archive as well."""

    @property
    def partial(self) -> bool:
        """Whether older messages may be missing, because the archive did not answer."""
        ...


class SearchedStore(Protocol):
    """A store that has indexes of time and of senders."""

    def query_time(self, query: TimeQuery, now_ms: int) -> SearchPage:
        """Return a page of all namespaces, ascending by timestamp."""
        ...

    def query_sender(self, query: SenderQuery, now_ms: int) -> SearchPage:
        """Return a page of a sender's messages, ascending by namespace and sequence."""
        ...


class GatewayDesk(Protocol):
    """A node's gateway, called from gRPC's threads.

    Every method raises GatewayError for what cannot be answered, and errors of the store.
    """

    def ask(self, call: str, values: Mapping[str, object], body: Mapping[str, object]) -> Any:
        """Return the JSON value that the HTTP call of this name answers with; None for none.

        Args:
            call: ``peers``, ``policies``, ``status``, ``limits``, or an admin call.
            values: Its parameters.
            body: Its body; empty for a call without one.

        """
        ...

    def search(
        self, sender: bytes, from_ms: int, to_ms: int, limit: int, cursor: bytes
    ) -> GatewayPage:
        """Return a page of a sender's messages, or of all by time when ``sender`` is empty."""
        ...

    def gaps(self, namespace_id: NamespaceId, limit: int) -> tuple[Sequence[tuple[int, int]], Any]:
        """Return what is missing of a namespace, and its head."""
        ...

    def blob(self, commitment: bytes) -> bytes | None:
        """Return a blob, the node's own or a peer's."""
        ...
