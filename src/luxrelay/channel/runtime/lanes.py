"""One sender in one topic of a gateway: signs in sequence, publishes in batches.

A call to a node takes milliseconds and carries one message as well as sixteen, so whoever finds a
call under way waits for it and goes with the next, as in a group commit.

*Order*: payloads are signed in the order in which `send` was called. *Sequences* are certain only
once the receipt is here: after a failure what was signed is handed over again as it is, then the
lane's head is asked for before the next signature.
*A caller that is cancelled* may have been sent; what waited with it goes with the next call, which
can make it twice on the way, never lost.

Source: decision J6; docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio

from luxrelay.bus import sha3_commitment
from luxrelay.bus.prepaid import PrepaidPayer
from luxrelay.channel.runtime.messaging import ChannelReceipt
from luxrelay.client import AsyncRelayClient, LaneSigner, Outgoing, Receipt
from luxrelay.errors import (
    ClientRefusedError,
    ClientRemoteError,
    ClientUnreachableError,
    MessagingError,
    QuotaError,
)

ATTEMPTS_MAX: Final = 4
"""Times that a payload is signed when its slot was taken meanwhile."""
BATCH_MAX: Final = 16
"""Payloads in one call."""
BATCH_BYTES_MAX: Final = 1024 * 1024
"""Bytes of payloads in one call; one payload always fits."""
_FINAL: Final = frozenset({400, 401, 403, 413})
"""Refusals that the same call would meet again."""


@dataclass(slots=True, eq=False)
class _Sending:
    payload: bytes
    attempts: int = 0
    receipt: ChannelReceipt | None = None
    error: MessagingError | None = None

    @property
    def ended(self) -> bool:
        return self.receipt is not None or self.error is not None


class SendingLane:
    """The lane of one key in one topic.

    Args:
        client: The node.
        signer: Signs for the lane.
        clock_ms: Unix milliseconds.
        fee: What the signer pays from; the node's count is asked for once.

    """

    def __init__(
        self,
        client: AsyncRelayClient,
        signer: LaneSigner,
        clock_ms: Callable[[], int],
        fee: PrepaidPayer | None = None,
    ) -> None:
        self._uncounted = () if fee is None else tuple(each.account for each in fee.quotas)
        self._fee = fee
        self._client = client
        self._signer = signer
        self._clock_ms = clock_ms
        self._known = False
        self._turn = anyio.Lock()
        self._waiting: list[_Sending] = []
        self._unsettled: list[Outgoing] = []

    async def send(self, payload: bytes) -> ChannelReceipt:
        """Publish a payload and return once the node has it.

        Raises:
            MessagingError: ``channel.messaging`` when trying again may help, ``channel.refused``
                when it cannot.

        """
        sending = _Sending(payload)
        self._waiting.append(sending)
        try:
            while not sending.ended:
                async with self._turn:
                    if not sending.ended:
                        await self._publish(self._take())
        finally:
            with suppress(ValueError):
                self._waiting.remove(sending)
        if sending.error is not None:
            raise sending.error
        assert sending.receipt is not None
        return sending.receipt

    def _take(self) -> list[_Sending]:
        batch, size = self._waiting[:1], len(self._waiting[0].payload)
        for sending in self._waiting[1:BATCH_MAX]:
            size += len(sending.payload)
            if size > BATCH_BYTES_MAX:
                break
            batch.append(sending)
        del self._waiting[: len(batch)]
        return batch

    async def _publish(self, batch: list[_Sending]) -> None:
        """Publish what was taken; whatever has not ended waits again, ahead of what came since."""
        try:
            if self._unsettled:
                # What the node made of them is not known: the same bytes once more are harmless,
                # other ones in their slots would be not.
                await self._client.publish(self._unsettled)
                self._unsettled = []
            await self._count()
            if not self._known:
                head = await self._client.head(self._signer.namespace_id)
                self._signer.follow(head.latest_seq, head.latest_timestamp)
            self._known = False
            signed = self._signed(batch)
            if not signed:
                return
            messages = [message for _, message in signed]
            self._unsettled = messages
            receipts = await self._client.publish(messages)
            self._unsettled = []
            self._known = self._settle([sending for sending, _ in signed], receipts)
        except (ClientRefusedError, ClientRemoteError, ClientUnreachableError) as error:
            if isinstance(error, ClientRefusedError):
                self._unsettled = []  # the node has answered: it took none of them
            for sending in batch:
                sending.error = failed(error)
        finally:
            self._waiting[:0] = [sending for sending in batch if not sending.ended]

    async def _count(self) -> None:
        """Count what the node has counted of the quotas; an older one does not tell."""
        accounts, self._uncounted = self._uncounted, ()
        for account in accounts:
            assert self._fee is not None, "there are quotas"
            with suppress(ClientRefusedError):
                use = await self._client.quota(account)
                self._fee.follow(account, use.messages_used, use.bytes_used)

    def _signed(self, batch: Sequence[_Sending]) -> list[tuple[_Sending, Outgoing]]:
        """Return what could be signed; what no quota pays has ended."""
        signed = []
        for sending in batch:
            try:
                signed.append((sending, self._signer.sign(sending.payload, self._clock_ms())))
            except QuotaError as error:
                sending.error = MessagingError(
                    error.what, where=error.where, hint=error.hint, code="channel.refused"
                )
        return signed

    def _settle(self, batch: Sequence[_Sending], receipts: Sequence[Receipt]) -> bool:
        """Tell each what became of it; return whether the next sequence is certain."""
        certain = True
        for sending, receipt in zip(batch, receipts, strict=True):
            self._signer.lost(receipt)
            if receipt.stored:
                sending.receipt = ChannelReceipt(hint=sha3_commitment(sending.payload), stored=True)
                continue
            certain = False
            sending.attempts += 1
            if not receipt.expected_seq:
                final = receipt.verdict == "reject"
                sending.error = MessagingError(
                    f"the node did not take the payload: {receipt.reason}",
                    where=f"verdict {receipt.verdict}, code {receipt.code}",
                    code="channel.refused" if final else "channel.messaging",
                )
            elif sending.attempts == ATTEMPTS_MAX:
                sending.error = MessagingError(
                    "the slot was taken again and again; is the key used elsewhere?"
                )
        return certain


def failed(
    error: ClientRefusedError | ClientRemoteError | ClientUnreachableError,
) -> MessagingError:
    """Return what a client's error is for a channel."""
    final = isinstance(error, ClientRefusedError) and error.status in _FINAL
    return MessagingError(
        error.what,
        where=error.where,
        hint=error.hint if isinstance(error, ClientUnreachableError) else None,
        code="channel.refused" if final else "channel.messaging",
    )
