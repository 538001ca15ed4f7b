"""JSON Schemas of the gateway's requests and answers, for the OpenAPI document.

Source: LP-6411 §4.2; docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_U64: Final = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
_COUNT: Final = {"type": "integer", "minimum": 0}
_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}


def bytes_in_hex(length: int | None = None) -> Schema:
    """Return the schema of 0x and hex digits."""
    times = f"{{{2 * length}}}" if length is not None else "*"
    return {"type": "string", "pattern": f"^0x[0-9a-f]{times}$"}


def _object(properties: Mapping[str, Schema], *optional: str) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def list_of(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


_BASE64: Final = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}

_HEADER: Final = {
    "version": _COUNT,
    "flags": _COUNT,
    "namespaceId": bytes_in_hex(20),
    "seq": _U64,
    "timestamp": _U64,
    "blobCommitment": bytes_in_hex(32),
    "blobLen": _COUNT,
    "policyHash": bytes_in_hex(32),
    "senderPubKey": bytes_in_hex(),
    "signature": bytes_in_hex(),
    "feeProof": bytes_in_hex(),
    "tfheSidecar": {
        "anyOf": [
            {"type": "null"},
            _object({"commitment": bytes_in_hex(32), "epoch": _U64}),
        ]
    },
}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Header": _object(_HEADER),
    "Message": _object(
        {
            "header": ref("Header"),
            "parentId": bytes_in_hex(20),
            "messageId": bytes_in_hex(32),
            "contentId": bytes_in_hex(32),
            "sender": bytes_in_hex(20),
            "epoch": _U64,
            "blob": {"type": ["string", "null"], "contentEncoding": "base64"},
            "receivedAt": _U64,
            "expiresAt": _U64,
            "finality": {"enum": ["pending", "preconfirmed", "finalized", "rejected", "reorged"]},
            "regressed": _FLAG,
            "late": _FLAG,
            "completes": _FLAG,
            "sidecarHeld": _FLAG,
        },
        "sidecarHeld",
        "regressed",
        "late",
        "completes",
    ),
    "Gap": _object({"first": _U64, "last": _U64}),
    "Page": _object(
        {
            "messages": list_of(ref("Message")),
            "complete": _FLAG,
            "hasMore": _FLAG,
            "nextCursor": _TEXT,
            "earliestSeq": _U64,
            "lastSeq": _U64,
            "gaps": list_of(ref("Gap")),
        },
        "earliestSeq",
        "lastSeq",
        "gaps",
    ),
    "Found": _object({"messages": list_of(ref("Message")), "missing": list_of(bytes_in_hex(32))}),
    "Head": _object(
        {
            "namespaceId": bytes_in_hex(20),
            "parentId": bytes_in_hex(20),
            "earliestSeq": _U64,
            "contiguousSeq": _U64,
            "latestSeq": _U64,
            "finalizedSeq": _U64,
            "latestHeaderHash": bytes_in_hex(32),
            "latestTimestamp": _U64,
            "messages": _COUNT,
            "sizeBytes": _COUNT,
            "floorSeq": _U64,
        }
    ),
    "Heads": _object({"heads": list_of(ref("Head")), "nextCursor": _TEXT}),
    "Gaps": _object({"gaps": list_of(ref("Gap")), "contiguousSeq": _U64, "latestSeq": _U64}),
    "PublishItem": _object(
        {
            "header": {
                "anyOf": [
                    ref("HeaderIn"),
                    {"type": "string", "pattern": "^(0x)?([0-9a-fA-F]{2})*$"},
                ]
            },
            "blob": _BASE64,
            "sidecar": _BASE64,
            "parentId": {
                "anyOf": [{"type": "null"}, {"type": "string", "pattern": "^(0x)?[0-9a-fA-F]{40}$"}]
            },
        },
        "blob",
        "sidecar",
        "parentId",
    ),
    "HeaderIn": {
        "type": "object",
        "description": "As Header; integers may also be decimal strings.",
        "required": [name for name in _HEADER if name != "tfheSidecar"],
    },
    "Publish": _object({"messages": {**list_of(ref("PublishItem")), "minItems": 1}}),
    "Receipt": _object(
        {
            "verdict": {"enum": ["accept", "ignore", "reject"]},
            "code": _COUNT,
            "codeName": _TEXT,
            "reason": _TEXT,
            "stored": _FLAG,
            "peersSent": _COUNT,
            "messageId": {"anyOf": [{"type": "null"}, bytes_in_hex(32)]},
            "expectedSeq": _U64,
            "digest": {"anyOf": [{"type": "null"}, bytes_in_hex(32)]},
            "seenBack": _COUNT,
            "retryAfterMs": _COUNT,
        }
    ),
    "Quota": _object(
        {
            "account": bytes_in_hex(32),
            "charged": _FLAG,
            "messagesLimit": _U64,
            "bytesLimit": _U64,
            "messagesUsed": _U64,
            "bytesUsed": _U64,
            "expiresMs": _U64,
        }
    ),
    "Receipts": _object({"receipts": list_of(ref("Receipt"))}),
    "Problem": {
        "type": "object",
        "properties": {
            "type": _TEXT,
            "title": _TEXT,
            "status": _COUNT,
            "detail": _TEXT,
            "code": _TEXT,
            "where": _TEXT,
            "hint": _TEXT,
            "retryAfterMs": _COUNT,
            "receipts": list_of(ref("Receipt")),
        },
        "required": ["type", "title", "status", "detail", "code", "where", "hint"],
    },
    "Peer": {
        "type": "object",
        "properties": {"peerId": _TEXT},
        "required": ["peerId"],
        "additionalProperties": True,
    },
    "Peers": _object(
        {
            "peers": list_of(ref("Peer")),
            "mesh": {"type": "object"},
            "clock": _object(
                {
                    "known": {"type": "boolean"},
                    "offsetMs": {"type": "integer"},
                    "spreadMs": _U64,
                    "peers": _U64,
                }
            ),
        }
    ),
    "Policy": _object(
        {
            "namespaceId": bytes_in_hex(20),
            "contentTopic": _TEXT,
            "policyHashes": list_of(bytes_in_hex(32)),
            "policies": list_of({"type": "object"}),
        }
    ),
    "Policies": _object({"policies": list_of(ref("Policy"))}),
    "Namespace": _object({"namespaceId": bytes_in_hex(20), "contentTopic": _TEXT}),
    "Status": {"type": "object"},
    "Limits": {
        "type": "object",
        "additionalProperties": {"type": ["integer", "boolean", "string", "array"]},
    },
    "Token": _object(
        {
            "id": _TEXT,
            "name": _TEXT,
            "scopes": list_of({"enum": ["read", "publish", "admin"]}),
            "createdMs": _U64,
            "expiresMs": _U64,
            "requestsPerS": _U64,
            "publishBytesPerS": _U64,
            "token": _TEXT,
        },
        "token",
    ),
    "Bans": _object(
        {"bans": list_of(_object({"peerId": _TEXT, "untilMs": _U64, "reason": _TEXT}))}
    ),
    "NewBan": _object(
        {
            "peerId": {"type": "string", "minLength": 1},
            "seconds": {"type": "integer", "minimum": 1, "maximum": 315_360_000},
            "reason": {"type": "string", "minLength": 1, "maxLength": 200},
        }
    ),
    "FollowedNamespaces": _object(
        {
            "carry": {"enum": ["listed", "open"]},
            "followedMax": _U64,
            "namespaces": list_of(ref("FollowedNamespace")),
        }
    ),
    "FollowedNamespace": _object(
        {
            "namespaceId": bytes_in_hex(20),
            "contentTopic": _TEXT,
            "origin": {"enum": ["file", "call", "demand"]},
            "documents": _U64,
        }
    ),
    "NewFollowed": _object(
        {
            "namespaceId": bytes_in_hex(20),
            "contentTopic": {"type": "string", "minLength": 1, "maxLength": 256},
            "documents": {**list_of({"type": "string"}), "maxItems": 64},
        },
        "namespaceId",
        "contentTopic",
        "documents",
    ),
    "Tokens": _object({"tokens": list_of(ref("Token"))}),
    "NewToken": _object(
        {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9._@ -]{1,64}$"},
            "scopes": {**list_of({"enum": ["read", "publish", "admin"]}), "minItems": 1},
            "days": {"type": "integer", "minimum": 0, "maximum": 3650},
            "requestsPerS": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
            "publishBytesPerS": {"type": "integer", "minimum": 0, "maximum": 2**40},
        },
        "days",
        "requestsPerS",
        "publishBytesPerS",
    ),
}
"""Every schema by name."""
