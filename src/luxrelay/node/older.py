"""What this node no longer has, from an archive on a sync port (`luxrelay archive serve`).

The gateway asks its own store first. Where a question begins below what the store still holds, the
archive named by ``gateway.archive`` answers for that part, page by page, and the store goes on
where the archive ends: both order messages alike, so one cursor serves for both. Nothing of the
archive is believed: each message is verified again, and an archive that serves something else is
not asked for a while, as one that does not answer.

*Threads*: any thread may ask. *Bounds*: one page at a time, as large as the question's own.

Source: LP-6440; decisions P20, P23, J2, J8.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from luxrelay.bus import MsgHeader, verify_header
from luxrelay.bus import constants as c
from luxrelay.bus.bound import verify_header_bound
from luxrelay.errors import HeaderError, SyncRemoteError, SyncUnreachableError
from luxrelay.node.logs import log
from luxrelay.store import NamespaceQuery, StoredMessage
from luxrelay.sync import ClientTls, RelaySyncClient, SyncClientConfig, WireMessage

PATIENCE: Final = SyncClientConfig(call_s=5.0, page_s=10.0, connect_s=2.0)
"""A caller waits meanwhile, and can be answered without the archive."""
QUIET_S: Final = 10.0
"""Time for which an archive that failed is not asked, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderPage:
    """Messages of the archive, all below what the store holds."""

    messages: list[StoredMessage]
    """One or more, ascending by sequence."""
    has_more: bool
    """The archive has more of what was asked for."""
    next_cursor: bytes
    """Where to go on: after the last message."""
    earliest_seq: int
    """Lowest sequence that the archive holds of the namespace."""
    gaps: list[tuple[int, int]]
    """What it does not hold within the page."""


class OlderMessages:
    """An archive that is asked for what the store has forgotten.

    Args:
        address: ``host:port`` of its sync port.
        tls: As sync peers are spoken to; None for in the clear.
        network: Name of a network whose signatures are bound (H3e); empty for LP-6411's own.
        config: How long it may take to answer.
        clock: Monotonic seconds.

    """

    def __init__(
        self,
        address: str,
        *,
        tls: ClientTls | None = None,
        network: str = "",
        config: SyncClientConfig = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = RelaySyncClient(address, config=config, tls=tls)
        self._network = network
        self._clock = clock
        self._quiet_until = float("-inf")

    def close(self) -> None:
        """Give the connection up."""
        self._client.close()

    def before(self, query: NamespaceQuery, earliest_seq: int) -> OlderPage | None:
        """Return what the archive holds of a question below what the store holds.

        Args:
            query: The question.
            earliest_seq: Lowest sequence that the store answers with; 0 when it has nothing.

        Returns:
            None when the store has everything that was asked for, or the archive nothing more, or
            does not answer.

        """
        begun = int.from_bytes(query.cursor[:8], "big") if query.cursor else query.from_seq + 1
        to_seq = query.to_seq or c.MAX_U64
        if earliest_seq:
            to_seq = min(to_seq, earliest_seq - 1)
        if begun > to_seq or self._clock() < self._quiet_until:
            return None
        try:
            page = self._client.sync_page(
                query.namespace_id,
                min(query.from_seq, to_seq),
                to_seq,
                query.limit,
                from_time=query.from_time,
                to_time=query.to_time,
                cursor=query.cursor,
                max_bytes=query.max_bytes,
            )
            messages = self._verified(page.messages)
        except (SyncUnreachableError, SyncRemoteError) as error:
            self._failed(error.what)
            return None
        if messages and query.cursor and _place(messages[0]) <= query.cursor:
            self._failed("a page before its cursor")  # would lead its reader round for ever
            return None
        if not messages:
            return None
        return OlderPage(
            messages=messages,
            has_more=page.status.has_more,
            next_cursor=_place(messages[-1]),
            earliest_seq=page.status.earliest_seq,
            gaps=[(gap.first, gap.last) for gap in page.status.gaps],
        )

    def slot(self, message_id: bytes) -> list[StoredMessage]:
        """Return the archived candidates of a slot; none when it does not answer."""
        if self._clock() < self._quiet_until:
            return []
        try:
            return self._verified(self._client.get_messages([message_id])[0])
        except (SyncUnreachableError, SyncRemoteError) as error:
            self._failed(error.what)
            return []

    def blob(self, commitment: bytes) -> bytes | None:
        """Return the archived blob of a SHA3 commitment; None without one, or without an answer."""
        if self._clock() < self._quiet_until:
            return None
        try:
            blob = self._client.get_blob(commitment)
        except (SyncUnreachableError, SyncRemoteError) as error:
            self._failed(error.what)
            return None
        if blob is not None and hashlib.sha3_256(blob).digest() != commitment:
            self._failed("a blob of another commitment")
            return None
        return blob

    def _verified(self, messages: Iterable[WireMessage]) -> list[StoredMessage]:
        """Return messages as the store has them.

        Raises:
            SyncRemoteError: one of them is none.

        """
        return [self._stored(message) for message in messages]

    def _stored(self, message: WireMessage) -> StoredMessage:
        try:
            header = MsgHeader.decode(message.header)
        except HeaderError as error:
            raise SyncRemoteError(error.what, where=self._client.address) from None
        if self._network:
            holds = verify_header_bound(header, self._network)
        else:
            holds = verify_header(header)
        if not holds:
            raise SyncRemoteError(
                f"the signature of sequence {header.seq} does not hold", where=self._client.address
            )
        return StoredMessage(
            header_bytes=message.header,
            blob=self._payload(header, message.blob),
            received_at=message.received_at,
            expires_at=message.expires_at,
            finality=message.finality,
        )

    def _payload(self, header: MsgHeader, blob: bytes) -> bytes | None:
        if not blob or header.flags & c.FLAG_KZG_COMMITMENT:  # no SHA3 to check a KZG payload by
            return None if header.blob_len else b""
        if len(blob) != header.blob_len or hashlib.sha3_256(blob).digest() != (
            header.blob_commitment
        ):
            raise SyncRemoteError(
                f"the payload of sequence {header.seq} is another one", where=self._client.address
            )
        return blob

    def _failed(self, what: str) -> None:
        self._quiet_until = self._clock() + QUIET_S
        log(
            logging.WARNING,
            "the archive does not answer for what is no longer here",
            archive=self._client.address,
            what=what,
        )


def _place(message: StoredMessage) -> bytes:
    """Return the cursor of a message: stores and archives order by it."""
    return message.seq.to_bytes(8, "big") + message.header.content_id
