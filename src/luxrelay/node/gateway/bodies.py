"""Budget of bytes for bodies and WebSocket messages that are being received.

One budget for a listener's requests and its WebSockets. Callers without a token share a quarter of
it, so that they take nothing from those who publish.

Source: architecture, rule 4.
"""

from __future__ import annotations

from luxrelay.errors import GatewayError


class Bodies:
    """Counts bytes that are held."""

    def __init__(self, bytes_max: int) -> None:
        """Start with none of ``bytes_max``."""
        self._max = bytes_max
        self._strangers_max = max(1, bytes_max // 4)
        self._held = self._strangers = 0
        self.refused = 0
        """Pieces that there was no room for."""

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held

    def hold(self, size: int, *, known: bool = True) -> None:
        """Count bytes of a body; ``known`` says whether a token came with it.

        Raises:
            GatewayError: all together would be too many (``gateway.busy``); nothing is counted.

        """
        full = self._held + size > self._max
        if full or (not known and self._strangers + size > self._strangers_max):
            self.refused += 1
            raise GatewayError("too much is being uploaded", code="gateway.busy")
        self._held += size
        if not known:
            self._strangers += size

    def let_go(self, size: int, *, known: bool = True) -> None:
        """Count them no longer."""
        self._held -= size
        if not known:
            self._strangers -= size
