"""Limits of messages before the store: rates, fees, finality."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from luxrelay.node.config import NodeConfig
from luxrelay.node.fees import FeeDesk
from luxrelay.node.finality import FinalityFile
from luxrelay.node.rates import NodeRates
from luxrelay.store import RelayStore


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLimits:
    """The guards of one node."""

    rates: NodeRates
    fees: FeeDesk
    finality: FinalityFile | None
    """None leaves every message pending (J9)."""
    store: RelayStore

    def public(self) -> dict[str, Any]:
        """Return what is taken of live messages now, as `/v1/limits` names it."""
        return {**self.rates.public(), **self.fees.public()}

    def learn_finality(self) -> None:
        """Read what is new of finality into the store; one thread at a time.

        Raises:
            StoreError: the store could not write; the next call goes on.

        """
        if self.finality is not None:
            self.finality.refresh()
            self.finality.hand_over(self.store.apply_finality)

    def upkeep(self, now_ms: int) -> None:
        """Forget the accounts that have ended.

        Args:
            now_ms: The wall clock, Unix milliseconds.

        Raises:
            StoreError: the store could not write; the next call goes on.

        """
        self.fees.forget(now_ms)


def make_guards(config: NodeConfig, store: RelayStore) -> MessageLimits:
    """Return the guards that a configuration asks for.

    Raises:
        ConfigError: the finality file cannot be read.
        NodeError: a quota's account in the store cannot be read.
        StoreError: the store could not take finality over.

    """
    finality = None
    if config.finality_file is not None:
        finality = FinalityFile(config.finality_file, config.network, config.finality_signers)
        finality.hand_over(store.apply_finality)
    return MessageLimits(
        rates=NodeRates(config.limits, time.monotonic),
        fees=FeeDesk(
            config.network,
            store.documents,
            issuers=config.prepaid_issuers,
            free_tier=config.free_tier,
        ),
        finality=finality,
        store=store,
    )
