"""Which stored headers still lack their blob, so that catching up can ask for it.

A large blob is announced by its header alone (J7), and a peer may strip a small one. The list is
in memory only: after a restart the holes in sequences are known from the store, missing blobs are
not.

Source: J7; LP-6421 §2.2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from luxrelay.bus import ContentId, MessageId, MsgHeader, NamespaceId
from luxrelay.bus import constants as c

WANTED_MAX: Final = 4096
"""Headers without a blob that are remembered; beyond it the oldest is forgotten and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedBlob:
    """A blob to ask for."""

    message_id: MessageId
    """The slot whose header came without it."""
    header: MsgHeader
    """The header."""
    commitment: bytes
    """What the header commits to."""
    parent: NamespaceId
    """The namespace that brought the header."""
    until_ms: int
    """When the message is forgotten and its blob with it, Unix milliseconds."""


class WantedBlobs:
    """A bounded list, the longest unasked first; any thread may call it."""

    def __init__(
        self,
        *,
        ttl_ms: int,
        wanted_max: int = WANTED_MAX,
        largest: int = c.MAX_BLOB_BYTES,
    ) -> None:
        """Start empty.

        Args:
            ttl_ms: How long the store keeps a blob.
            wanted_max: Headers that are remembered.
            largest: Bytes of the largest blob that the store keeps; no larger one is asked for.

        """
        self._largest = largest
        self._ttl_ms = ttl_ms
        self._max = wanted_max
        self._lock = threading.Lock()
        self._wanted: dict[ContentId, WantedBlob] = {}
        self.forgotten = 0
        """Blobs that are no longer asked for because the list was full."""

    def __len__(self) -> int:
        with self._lock:
            return len(self._wanted)

    def add(self, header: MsgHeader, parent: NamespaceId) -> None:
        """Ask for the blob of a stored header from now on, if it would be kept."""
        if header.blob_len > self._largest:
            return
        wanted = WantedBlob(
            message_id=header.message_id,
            header=header,
            commitment=header.blob_commitment,
            parent=parent,
            until_ms=header.timestamp + self._ttl_ms,
        )
        with self._lock:
            if header.content_id not in self._wanted and len(self._wanted) >= self._max:
                del self._wanted[next(iter(self._wanted))]
                self.forgotten += 1
            self._wanted[header.content_id] = wanted

    def find(self, commitment: bytes) -> WantedBlob | None:
        """Return what is wanted under a commitment; cost grows with the list."""
        with self._lock:
            found = (each for each in self._wanted.values() if each.commitment == commitment)
            return next(found, None)

    def take(self, limit: int) -> list[WantedBlob]:
        """Return the first ones and put them last, so that each has its turn."""
        with self._lock:
            chosen = list(islice(self._wanted.items(), limit))
            for content, wanted in chosen:
                del self._wanted[content]
                self._wanted[content] = wanted
        return [wanted for _, wanted in chosen]

    def settle(self, held: Callable[[bytes], bool], now_ms: int) -> int:
        """Drop what is held or expired; return how many are held.

        Args:
            held: Whether the blob of a commitment is stored.
            now_ms: Unix milliseconds.

        """
        with self._lock:
            entries = list(self._wanted.items())
        here = [content for content, wanted in entries if held(wanted.commitment)]
        late = [content for content, wanted in entries if wanted.until_ms <= now_ms]
        with self._lock:
            for content in (*here, *late):
                self._wanted.pop(content, None)
        return len(here)
