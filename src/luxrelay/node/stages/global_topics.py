"""Global topics at the doors: headers, claims, blocks and blob hints.

*Claims*: block announcements and blob hints are judged by their signature and their time, counted,
and remembered where somebody needs them. *Announcements*: what is published here is announced on
the global topics as well.

Source: LP-6420 §2.2, §3; 20-08, 20-11, 20-12; decisions G10, G12, G28, J6.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from luxrelay.bus import Code, SigningKey, Verdict
from luxrelay.bus import constants as c
from luxrelay.bus.verdict import ignore, reject
from luxrelay.errors import TopicError
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlockAnnouncement,
    MessageType,
    PeerId,
    RelayMessage,
    TopicKind,
    Validate,
    global_topic,
    judge_block,
    judge_hint,
    parse_topic,
    peer_id_of,
)
from luxrelay.gossip.announcements import PROVIDERS_MAX, for_headers_global
from luxrelay.gossip.envelope import CARRIED
from luxrelay.node.block_board import BlockBoard
from luxrelay.node.carried import CarriedNamespaces
from luxrelay.node.hint_book import HintBook
from luxrelay.node.stages.verify import Candidate

CLAIMS: Final = frozenset({MessageType.BLOB_HINT, MessageType.BLOCK})
"""Types of which this module gives the verdict."""
_PROVIDERS_AT: Final = c.HASH_BYTES + 4
"""Where a hint says how many providers it names, as u16 (LP-6420 §3.2)."""
HINT_LIFE_MS: Final = 300_000
"""How long a hint of ours lasts, milliseconds; within the ten minutes of G10."""


def keys_of(message: RelayMessage) -> int:
    """Return how many keys its signature may have to be tried with before it is judged.

    Sixteen providers make a hint as dear as sixteen messages, so a peer pays for as many.
    """
    if message.type is not MessageType.BLOB_HINT:
        return 1
    count = int.from_bytes(message.payload[_PROVIDERS_AT : _PROVIDERS_AT + 2])
    return min(max(count, 1), PROVIDERS_MAX)


class GlobalTopics:
    """What a node does on the four global topics; any thread may call it."""

    def __init__(
        self,
        *,
        network: str,
        identity: SigningKey,
        carried: CarriedNamespaces,
        announced: Container[str] = frozenset(),
        proposers: frozenset[bytes] = frozenset(),
        operators: Sequence[PeerId] = (),
        hinted: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        """Take who is believed.

        Args:
            network: Name of the network.
            identity: Our key, by which our hints are signed.
            carried: Whose headers are taken from ``headers/global``.
            announced: Topics on which we announce what is published here.
            proposers: Peer ids whose block announcements are taken; everybody's when empty.
            operators: Peer ids whose hints may name others.
            hinted: Told the commitment of each accepted hint.

        """
        self.blocks = BlockBoard()
        self.hints = HintBook()
        self.parent_of = carried.parent_of
        self._identity = identity
        self._own_id = peer_id_of(identity.public_field[1:])
        self._headers_topic = global_topic(network, TopicKind.HEADERS_GLOBAL)
        self._hints_topic = global_topic(network, TopicKind.BLOBS_AVAILABLE)
        self._announces_headers = self._headers_topic in announced
        self._announces_blobs = self._hints_topic in announced
        self.announces = self._announces_headers or self._announces_blobs
        """Whether anything that is published here goes to a global topic."""
        self._proposers = proposers
        self._operators = tuple(operators)
        self._hinted = hinted

    def claim(self, item: Validate, now_ms: int) -> Verdict | None:
        """Return the verdict on a hint or a block announcement; None on other types."""
        message = item.message
        if message.type not in CLAIMS:
            return None
        if message.topic != item.topic:
            return reject(Code.WRONG_TOPIC, "envelope and transport name different topics (G6)")
        try:
            kind = parse_topic(message.topic).kind
        except TopicError as error:
            return reject(Code.WRONG_TOPIC, str(error))
        if message.type not in CARRIED[kind]:
            return reject(Code.WRONG_TOPIC, f"{kind} carries no {message.type.name} (20-08)")
        if message.type is MessageType.BLOB_HINT:
            return self._hint(message, now_ms)
        return self._block(message, kind, now_ms)

    def _hint(self, message: RelayMessage, now_ms: int) -> Verdict:
        verdict = judge_hint(message, now_ms, operators=self._operators)
        if verdict.accepted:
            hint = BlobAvailabilityHint.decode(message.payload)
            self.hints.take(hint)
            self._hinted(hint.commitment)
        return verdict

    def _block(self, message: RelayMessage, kind: TopicKind, now_ms: int) -> Verdict:
        verdict = judge_block(message, now_ms)
        if not verdict.accepted:
            return verdict
        block = BlockAnnouncement.decode(message.payload)
        if self._proposers and block.proposer not in self._proposers:
            return ignore(Code.POLICY_VIOLATION, "the proposer is none of block_proposers (G12)")
        self.blocks.post(block, kind, now_ms)
        return verdict

    def announcements(
        self, candidate: Candidate, message: RelayMessage, *, now_ms: int
    ) -> list[tuple[str, bytes]]:
        """Return what goes to the global topics when a message is published here.

        Args:
            candidate: The message, stored.
            message: Its announcement on the namespace's topic, maybe with its blob.
            now_ms: Unix milliseconds.

        """
        found = []
        if self._announces_headers:
            copy = for_headers_global(message, parse_topic(message.topic))
            found.append((self._headers_topic, copy.encode()))
        inline = message.type is MessageType.HEADER_WITH_BLOB
        header = candidate.header
        if candidate.blob and not inline:
            found += self.own_hint(header.blob_commitment, header.blob_len, now_ms)
        return found

    def own_hint(self, commitment: bytes, blob_len: int, now_ms: int) -> list[tuple[str, bytes]]:
        """Return our signed hint that we have a blob; nothing when we announce none."""
        if not self._announces_blobs or not 0 < blob_len <= c.MAX_BLOB_BYTES:
            return []
        hint = BlobAvailabilityHint(
            commitment=commitment,
            blob_len=blob_len,
            providers=(self._own_id,),
            expires_at_ms=now_ms + HINT_LIFE_MS,
        )
        message = RelayMessage(
            type=MessageType.BLOB_HINT, topic=self._hints_topic, payload=hint.encode()
        )
        return [(self._hints_topic, message.signed_by(self._identity).encode())]
