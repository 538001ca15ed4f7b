"""A second implementation of the vectors, of nothing but struct and hashlib.

Written from the documents, not from the package, which it does not import: it reproduces header
hash, digest, message id, content id, namespace ids, policy and sidecar hashes, and says which
headers are well-formed and which rule the others break. It speaks the line protocol of
vectors/README.md and leaves out what needs cryptography.

    luxrelay vectors check --against "python tests/oracle/header.py"
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys

from payloads import envelope, fee

Answer = dict[str, object]

# LP-6411 §2.7: sigType to (senderPubKey bytes with the sigType byte, signature bytes, flag bits).
SCHEMES = {
    1: (33, 64, 0x00),
    2: (34, 64, 0x00),
    3: (1953, 3309, 0x04),
    4: (2593, 4627, 0x04),
    5: (1985, 3373, 0x0C),
}
SHA3_OF_NOTHING = hashlib.sha3_256(b"").digest()


def sha3(*parts: bytes) -> bytes:
    """Return SHA3-256 over the parts, joined."""
    return hashlib.sha3_256(b"".join(parts)).digest()


def text(value: bytes) -> str:
    """Return 0x and hex digits."""
    return "0x" + value.hex()


def raw(value: object) -> bytes:
    """Return the bytes of 0x and hex digits."""
    return bytes.fromhex(str(value)[2:])


def fixed_code(data: bytes) -> int:
    """Return the code of the first rule on the fixed part that is broken, 0 for none."""
    if len(data) > 8192:
        return 1101
    if len(data) < 112:
        return 1102
    version, flags, namespace, seq, _, commitment, blob_len, _ = struct.unpack(
        ">BB20sQQ32sI32s", data[:106]
    )
    rules = (
        (version != 1, 1103),
        (flags & 0xF0 != 0, 1104),
        (flags & 0x0C == 0x08, 1105),
        (namespace == bytes(20), 1106),
        (seq == 0, 1107),
        (blob_len > 2 * 1024 * 1024, 1108),
        (blob_len == 0 and commitment not in (bytes(32), SHA3_OF_NOTHING), 1109),
        (blob_len > 0 and commitment == bytes(32), 1110),
    )
    return next((code for broken, code in rules if broken), 0)


def take(data: bytes, limit: int, too_long: int) -> tuple[bytes, bytes, int]:
    """Return the field behind a u16 length, what follows it, and the code of what is wrong."""
    if len(data) < 2:
        return b"", b"", 1111
    length = int.from_bytes(data[:2], "big")
    if length > limit:
        return b"", b"", too_long
    return data[2 : 2 + length], data[2 + length :], 1111 if len(data) < 2 + length else 0


def parse(data: bytes) -> tuple[int, dict[str, bytes]]:
    """Return the code of the first broken rule, or 0 and the variable fields."""
    code = fixed_code(data)
    if code:
        return code, {}
    fields = {}
    rest = data[106:]
    for name, limit, too_long in (
        ("key", 4096, 1112),
        ("signature", 8192, 1113),
        ("fee", 1024, 1114),
    ):
        fields[name], rest, code = take(rest, limit, too_long)
        if code:
            return code, {}
    return variable_code(data[1], fields, rest), fields | {"rest": rest}


def variable_code(flags: int, fields: dict[str, bytes], rest: bytes) -> int:
    """Return the code of the first rule on the variable parts that is broken, 0 for none."""
    key, fee = fields["key"], fields["fee"]
    if not key or key[0] not in SCHEMES:
        return 1115
    key_bytes, signature_bytes, scheme_flags = SCHEMES[key[0]]
    if len(key) != key_bytes:
        return 1116
    if flags & 0x0C != scheme_flags:
        return 1118
    if len(fields["signature"]) != signature_bytes:
        return 1117
    if not fee:
        return 1119
    if fee[0] == 0 and len(fee) > 1:
        return 1120
    wanted = 40 if flags & 1 else 0
    if len(rest) != wanted:
        return 1111 if len(rest) < wanted else 1121
    return 0


def header(given: Answer) -> Answer:
    """Answer a header, but for its signature and its sender's address."""
    data = raw(given["header"])
    code, fields = parse(data)
    if code:
        return {"wellFormed": False, "code": code}
    version, flags, namespace, seq, timestamp, commitment, blob_len, policy = struct.unpack(
        ">BB20sQQ32sI32s", data[:106]
    )
    sidecar = None
    if fields["rest"]:
        reference, epoch = struct.unpack(">32sQ", fields["rest"])
        sidecar = {"commitment": text(reference), "epoch": epoch}
    signed = sha3(data[:106])
    return {
        "wellFormed": True,
        "headerHash": text(signed),
        "digest": text(sha3(data)),
        "messageId": text(sha3(namespace, struct.pack(">Q", seq))),
        "contentId": text(sha3(signed, fields["key"])),
        "json": {
            "version": version,
            "flags": flags,
            "namespaceId": text(namespace),
            "seq": seq,
            "timestamp": timestamp,
            "blobCommitment": text(commitment),
            "blobLen": blob_len,
            "policyHash": text(policy),
            "senderPubKey": text(fields["key"]),
            "signature": text(fields["signature"]),
            "feeProof": text(fields["fee"]),
            "tfheSidecar": sidecar,
        },
    }


def namespace(given: Answer) -> Answer:
    """Answer a derivation."""
    preimage = _preimage(given)
    if preimage is None:
        return {"wellFormed": False}
    found = sha3(preimage)[:20]
    return {
        "wellFormed": True,
        "namespaceId": text(found),
        "reserved": found[0] in (0x00, 0x01, 0xFF),
    }


def _preimage(given: Answer) -> bytes | None:
    kind = given["derive"]
    parts = {name: raw(value) for name, value in given.items() if str(value).startswith("0x")}
    tag = {"spec": b"lux.ns.", "chat": b"lux."}.get(str(given.get("naming")), b"")
    if "parent" in parts and len(parts["parent"]) != 20:
        return None
    if kind == "standard":
        return _standard(given["block"], parts["owner"], parts["salt"])
    if kind in ("derived", "lane"):
        path = parts["path" if kind == "derived" else "senderPubKey"]
        return b"lux.ns.derived.v1" + parts["parent"] + path if 0 < len(path) <= 4096 else None
    if kind == "topic":
        topic = str(given["topic"]).encode()
        return b"lux.topic.v1" + topic if topic else None
    if kind == "direct":
        first, second = sorted((parts["first"], parts["second"]))
        return tag + b"dm.v1" + first + second if len(first) == len(second) else None
    if kind == "group":
        fits = given["naming"] == "spec" or len(parts["group"]) == 32
        return tag + b"group.v1" + parts["group"] if fits else None
    if kind == "dkg":
        if given["naming"] == "spec" and "parent" not in parts:
            return None
        return tag + b"dkg.v1" + parts.get("parent", b"")
    name = "keydir" if kind == "keyDirectory" else f"intent.{given['intent']}"
    return f"lux.{name}.v1".encode()


def _standard(block: object, owner: bytes, salt: bytes) -> bytes | None:
    if not isinstance(block, int) or not 0 <= block < 2**64:
        return None
    fits = len(owner) == 20 and len(salt) == 32
    return b"lux.ns.v1" + owner + salt + struct.pack(">Q", block) if fits else None


class Cursor:
    """Takes bytes off the front; IndexError when they run out."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > len(self.data):
            raise IndexError
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, count: int) -> int:
        """Return the next bytes as a number."""
        return int.from_bytes(self.take(count), "big")


def identity(cursor: Cursor) -> bytes:
    """Return an identity's encoding; IndexError when it is none."""
    kind, length = cursor.number(1), cursor.number(2)
    value = cursor.take(length)
    fits = 0 < length <= 4096 and (kind != 1 or length == 20)
    if kind == 0x80 and fits:
        fits = value[0] in SCHEMES and SCHEMES[value[0]][0] == length
    if kind not in (1, 2, 3, 4, 5, 6, 0x80) or not fits:
        raise IndexError
    return bytes([kind]) + length.to_bytes(2, "big") + value


def policy_holds(data: bytes) -> bool:
    """Return True when the bytes are a canonical policy."""
    cursor = Cursor(data)
    version, _, mode = cursor.number(2), identity(cursor), cursor.number(1)
    writers = Cursor(cursor.take(cursor.number(4)))
    if mode == 1:
        listed = [identity(writers) for _ in range(writers.number(2))]
        if listed != sorted(set(listed)):
            return False
    elif mode == 2:
        kind, _, contract = writers.number(1), writers.number(8), writers.take(20)
        balance, flag, token = writers.number(32), writers.number(1), writers.number(32)
        if kind > 3 or not balance or flag > 1 or (token and not flag):
            return False
        if (contract == bytes(20)) != (kind == 0) or flag not in {2: (0, 1), 3: (1,)}.get(
            kind, (0,)
        ):
            return False
    cursor.take(16)
    encryption, tfhe, retention, quantum = cursor.take(4)
    custom = Cursor(cursor.take(cursor.number(2)))
    if custom.data and (not 0xA1 <= custom.data[0] <= 0xBB or not cbor(custom)):
        return False
    modes = version and mode <= 3 and encryption <= 3 and retention <= 3 and quantum <= 2
    sidecars = tfhe == 0 or (tfhe == 1 and encryption == 3)
    return bool(modes and sidecars and not (writers.data or cursor.data or custom.data))


def cbor(cursor: Cursor) -> bool:
    """Return True when a deterministic CBOR item begins here, and take it (RFC 8949 §4.2)."""
    major, value = cbor_head(cursor)
    if major == 7 or value < 0:
        return value in (20, 21, 22)
    if major in (2, 3):
        cursor.take(value)
    elif major == 4:
        return all(cbor(cursor) for _ in range(value))
    elif major == 5:
        keys = []
        for _ in range(value):
            before = cursor.data
            if not cbor(cursor):
                return False
            keys.append(before[: len(before) - len(cursor.data)])
            if not cbor(cursor):
                return False
        return keys == sorted(set(keys))
    return major != 6


def cbor_head(cursor: Cursor) -> tuple[int, int]:
    """Return major type and argument; an argument below 0 when it has a shorter form."""
    first = cursor.number(1)
    major, value = first >> 5, first & 31
    if value < 24 or major == 7:
        return major, value
    if value > 27:
        return major, -1
    size = 1 << (value - 24)
    value = cursor.number(size)
    return major, value if value >= (24 if size == 1 else 1 << 4 * size) else -1


def policy(given: Answer) -> Answer:
    """Answer the hash of a policy."""
    data = raw(given["policy"])
    try:
        holds = policy_holds(data)
    except IndexError:
        holds = False
    return {"wellFormed": True, "policyHash": text(sha3(data))} if holds else {"wellFormed": False}


def sidecar(given: Answer) -> Answer:
    """Answer a sidecar and whether it belongs to its header."""
    data, beside = raw(given["sidecar"]), raw(given["header"])
    try:
        version, epoch, kind, size = struct.unpack_from(">BQBI", data)
        cipher, binding, proof_len = struct.unpack_from(f">{size}s32sH", data, 14)
    except (struct.error, MemoryError):
        return {"wellFormed": False}
    proof = data[14 + size + 34 :]
    if version != 1 or not 1 <= kind <= 10 or not size or len(proof) != proof_len:
        return {"wellFormed": False}
    bound = sha3(beside[2:30], beside[38:70], struct.pack(">Q", epoch))
    commitment = sha3(data)
    refers = bool(beside[1] & 1) and beside[-40:] == commitment + struct.pack(">Q", epoch)
    return {
        "wellFormed": True,
        "epoch": epoch,
        "ciphertextType": kind,
        "ciphertext": text(cipher),
        "binding": text(binding),
        "proof": text(proof),
        "commitment": text(commitment),
        "headerBinding": text(bound),
        "belongs": refers and binding == bound,
    }


ANSWERS = {
    "envelope": envelope,
    "fee": fee,
    "header": header,
    "namespace": namespace,
    "policy": policy,
    "sidecar": sidecar,
}


def main() -> None:
    """Answer each line of standard input with a line."""
    for line in sys.stdin:
        question = json.loads(line)
        answer = ANSWERS.get(question["kind"])
        reply = answer(question["given"]) if answer else {"skip": True}
        print(json.dumps(reply))


if __name__ == "__main__":
    main()
