"""What a hint or a block announcement claims, and whether that may be believed.

The codecs of `announcements` bound and take apart; here is what needs a clock and keys. Whoever
answers a `Validate` asks these functions; the router does not know them.

Rules, cheap ones first. A hint (G10): signed; at most 16 providers and 2 MiB, which its codec
holds; not over yet; over within ten minutes; signed by one of its providers or by an operator whom
we trust, so that nobody aims the traffic of others at a third. A block announcement (G12): signed
by its proposer, and of now, so that an old one cannot be sent round again for ever.

Source: LP-6420 §3.2, §3.3; decisions G9, G10, G12, G19; 20-11, 20-12, 20-34.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from luxrelay.bus import ACCEPTED, Code, Verdict
from luxrelay.bus.verdict import ignore, reject
from luxrelay.errors import EnvelopeError, GossipArgumentError
from luxrelay.gossip.announcements import BlobAvailabilityHint, BlockAnnouncement
from luxrelay.gossip.envelope import RelayMessage
from luxrelay.gossip.identity import PeerId, verify_by_peer


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimParams:
    """Bounds of what is believed."""

    hint_life_max_ms: int = 600_000
    """How far ahead a hint may expire, milliseconds (G10)."""
    block_age_max_ms: int = 60_000
    """How far a block announcement's timestamp may be from our clock, milliseconds (G9)."""
    operators_max: int = 32
    """Trusted operators whose keys are tried on a hint; further ones are not."""

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        for name in ("hint_life_max_ms", "block_age_max_ms", "operators_max"):
            if getattr(self, name) < 1:
                raise GossipArgumentError(f"{name} begins at 1", where="ClaimParams")


DEFAULTS = ClaimParams()


def judge_hint(
    message: RelayMessage,
    now_ms: int,
    *,
    params: ClaimParams = DEFAULTS,
    operators: Collection[PeerId] = (),
) -> Verdict:
    """Return the verdict on an envelope with a blob availability hint; never raises.

    Args:
        message: A decoded envelope of type BLOB_HINT.
        now_ms: Wall clock, Unix milliseconds.
        params: Bounds.
        operators: Peer ids of DA operators that may sign for others; at most ``operators_max``
            are tried. Cost: one Ed25519 verification each, and one a provider.

    """
    try:
        hint = BlobAvailabilityHint.decode(message.payload)
    except EnvelopeError as error:
        return reject(Code.MALFORMED_PAYLOAD, str(error))
    if not message.signature:
        return reject(Code.SOURCE_SIGNATURE, "a hint is signed (G10)")
    if hint.expires_at_ms <= now_ms:
        return ignore(Code.EXPIRED, "the hint is over (LP-6420 §3.2)")
    if hint.expires_at_ms > now_ms + params.hint_life_max_ms:
        return ignore(Code.TIMESTAMP_INVALID, "the hint promises more than ten minutes (G10)")
    signers = (*hint.providers, *islice(operators, params.operators_max))
    if not _signed_by_one(message, signers):
        return reject(Code.SOURCE_SIGNATURE, "no provider signed the hint (G10)")
    return ACCEPTED


def judge_block(message: RelayMessage, now_ms: int, *, params: ClaimParams = DEFAULTS) -> Verdict:
    """Return the verdict on an envelope with a block announcement; never raises.

    Whether the block is what its proposer says is for the finality plug-in (G12).

    Args:
        message: A decoded envelope of type BLOCK.
        now_ms: Wall clock, Unix milliseconds.
        params: Bounds.

    """
    try:
        block = BlockAnnouncement.decode(message.payload)
    except EnvelopeError as error:
        return reject(Code.MALFORMED_PAYLOAD, str(error))
    if abs(now_ms - block.timestamp_ms) > params.block_age_max_ms:
        return ignore(Code.TIMESTAMP_INVALID, "the block announcement is not of now (G9)")
    if not _signed_by_one(message, (block.proposer,)):
        return reject(Code.SOURCE_SIGNATURE, "the proposer did not sign (G10)")
    return ACCEPTED


def _signed_by_one(message: RelayMessage, signers: Iterable[bytes]) -> bool:
    signed = message.signed_bytes()
    return any(verify_by_peer(signer, signed, message.signature) for signer in signers)
