"""py-libp2p logs through our loggers only, never to a terminal of its own accord.

At import the library sets its logger to WARNING without a handler, so that Python's handler of
last resort prints every warning to standard error; and its connection module calls
`logging.debug` on the module, which installs a handler on the root logger as a side effect.
Peers cause most of these lines, so a hostile peer could fill a log with them. We count instead.
"""

from __future__ import annotations

import logging
import os
from typing import Final

_NAME: Final = "libp2p"
_DEBUG_SWITCH: Final = "LIBP2P_DEBUG"


def quiet_libp2p() -> None:
    """The library is silent unless the operator sets ``LIBP2P_DEBUG`` (calling twice is fine)."""
    import libp2p.network.connection.swarm_connection as connection_module  # noqa: PLC0415 - heavy

    logger = logging.getLogger(_NAME)
    vars(connection_module)["logging"] = logger.getChild("connection")
    if os.environ.get(_DEBUG_SWITCH):
        return
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    logger.setLevel(logging.CRITICAL)
