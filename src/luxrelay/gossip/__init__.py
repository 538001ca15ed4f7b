"""How a message spreads: a router without I/O, its envelope and its topics. Pure."""

from luxrelay.gossip.actions import (
    Action,
    Deliver,
    Dial,
    Disconnect,
    Discover,
    Echo,
    Send,
    Validate,
)
from luxrelay.gossip.announcements import (
    INLINE_BLOB_MAX,
    BlobAvailabilityHint,
    BlockAnnouncement,
    ClaimParams,
    HeaderAnnouncement,
    decode_header_with_blob,
    encode_header_with_blob,
    judge_block,
    judge_hint,
)
from luxrelay.gossip.diversity import DiversityParams
from luxrelay.gossip.envelope import (
    ENVELOPE_MAX,
    PAYLOAD_MAX,
    MessageType,
    PeerId,
    RelayMessage,
    Topic,
    TopicKind,
    global_topic,
    parse_topic,
    peer_id_of,
    relay_message_id,
    topic_for_namespace,
    verify_by_peer,
)
from luxrelay.gossip.location import Location, PeerLocation, PlaceResolver, PlaceTable, locate
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.roles import NodeRole, role_topics, validator_proof
from luxrelay.gossip.router import GossipRouter
from luxrelay.gossip.rpc import PROTOCOLS
from luxrelay.gossip.score import ScoreTerms, TopicTerms
from luxrelay.gossip.score_params import ScoreParams, TopicScoreParams
from luxrelay.gossip.stats import GossipStats, PeerStats

__all__ = [
    "ENVELOPE_MAX",
    "INLINE_BLOB_MAX",
    "PAYLOAD_MAX",
    "PROTOCOLS",
    "Action",
    "BlobAvailabilityHint",
    "BlockAnnouncement",
    "ClaimParams",
    "Deliver",
    "Dial",
    "Disconnect",
    "Discover",
    "DiversityParams",
    "Echo",
    "GossipParams",
    "GossipRouter",
    "GossipStats",
    "HeaderAnnouncement",
    "Location",
    "MessageType",
    "NodeRole",
    "PeerId",
    "PeerLocation",
    "PeerStats",
    "PlaceResolver",
    "PlaceTable",
    "RelayMessage",
    "ScoreParams",
    "ScoreTerms",
    "Send",
    "Topic",
    "TopicKind",
    "TopicScoreParams",
    "TopicTerms",
    "Validate",
    "decode_header_with_blob",
    "encode_header_with_blob",
    "global_topic",
    "judge_block",
    "judge_hint",
    "locate",
    "parse_topic",
    "peer_id_of",
    "relay_message_id",
    "role_topics",
    "topic_for_namespace",
    "validator_proof",
    "verify_by_peer",
]
