"""The library's loggers are silent, and stay so when asked twice."""

from __future__ import annotations

import logging

import libp2p.network.connection.swarm_connection as connection_module
import pytest

from luxrelay.net.host import quiet_libp2p


def test_silent_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below CRITICAL leaves the library, and its module no longer logs on the root."""
    monkeypatch.delenv("LIBP2P_DEBUG", raising=False)

    quiet_libp2p()
    quiet_libp2p()

    logger = logging.getLogger("libp2p")
    assert not logger.isEnabledFor(logging.ERROR)
    assert not logger.propagate
    assert sum(isinstance(handler, logging.NullHandler) for handler in logger.handlers) == 1
    assert vars(connection_module)["logging"] is logging.getLogger("libp2p.connection")
