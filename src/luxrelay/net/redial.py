"""Configured peers are kept connected: dialled, watched, and dialled again."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Final

import trio

from luxrelay.errors import AddressError, NetError
from luxrelay.gossip import PeerId
from luxrelay.net.config import NetConfig
from luxrelay.net.host import RelayHost
from luxrelay.net.links import DriverCounters

_LOGGER: Final = logging.getLogger("luxrelay.net")
_LOUD_AT: Final = 10
"""The failure that is said aloud once more; the others are logged at debug."""


class Redialler:
    """Dials a lost peer after a while that doubles, with jitter so that nodes do not march in step.

    Args:
        host: Who dials.
        config: `redial_min_s`, `redial_max_s`, `steady_s`.
        rng: The jitter: between half of the while and all of it.
        counters: Where dials are counted.

    """

    def __init__(
        self, host: RelayHost, config: NetConfig, rng: random.Random, counters: DriverCounters
    ) -> None:
        self._host = host
        self._config = config
        self._rng = rng
        self._counters = counters

    async def keep(self, addresses: Sequence[str], peer: PeerId) -> None:
        """The peer is connected, or dialled again after a while that grows.

        Args:
            addresses: All that the configuration names for the peer; each dial tries them in turn.
            peer: Who has to answer there.

        """
        delay = self._config.redial_min_s
        failures = 0
        while True:
            if not self._host.is_connected(peer):
                try:
                    await self._host.dial(*addresses)
                except (NetError, AddressError) as error:
                    self._counters.dials_failed += 1
                    failures += 1
                    _LOGGER.log(
                        logging.WARNING if failures in (1, _LOUD_AT) else logging.DEBUG,
                        "peer cannot be reached",
                        extra={"fields": {"failures": failures, "reason": str(error)}},
                    )
                else:
                    self._counters.dials += 1
                    failures = 0
            began = trio.current_time()
            while self._host.is_connected(peer):
                await self._host.wait_changed()
            if trio.current_time() - began >= self._config.steady_s:
                delay = self._config.redial_min_s
            await trio.sleep(delay * (0.5 + self._rng.random() / 2))
            delay = min(delay * 2, self._config.redial_max_s)
