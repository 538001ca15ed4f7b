"""Bound signatures: for a closed network, a signature over everything that a header carries.

LP-6411 signs the 106 bytes before the first length field. Key, fee proof and sidecar reference are
outside, and so is the network, so a header can be altered in transit and replayed elsewhere. A
network whose nodes all agree on it may sign this hash instead:

    SHA3-256(tag ‖ u8 length ‖ network ‖ preimage ‖ u16 length ‖ senderPubKey ‖ SHA3-256(feeProof)
             ‖ sidecarCommitment ‖ u64 sidecarEpoch, if flagged)

The mode belongs to a network and is never guessed from a header, which would let an attacker choose
the weaker one. headerHash, digest and the ids stay those of LP-6411.

Source: decisions H3(e), H4.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from struct import Struct
from typing import Final

from luxrelay.bus.header import MsgHeader
from luxrelay.bus.keys import SigningKey, VerifyKey
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS
from luxrelay.errors import BusArgumentError, KeyFormatError

TAG: Final = b"lux.header.bound.v1"
_NETWORK: Final = re.compile(r"[a-z0-9-]{1,32}")
_U16: Final = Struct(">H")
_U64: Final = Struct(">Q")


def bound_hash(header: MsgHeader, network: str) -> bytes:
    """Return the 32 bytes that a bound signature signs.

    Args:
        header: Complete but for its signature.
        network: Name of the network, 1 to 32 of a-z 0-9 -.

    Raises:
        BusArgumentError: the network's name has another form.

    """
    if not _NETWORK.fullmatch(network):
        raise BusArgumentError("a network has 1 to 32 of a-z 0-9 -", where="bound_hash")
    sidecar = header.tfhe_sidecar
    parts = [
        TAG,
        bytes([len(network)]),
        network.encode(),
        header.preimage,
        _U16.pack(len(header.sender_pub_key)),
        header.sender_pub_key,
        hashlib.sha3_256(header.fee_proof).digest(),
    ]
    if sidecar is not None:
        parts += [sidecar.commitment, _U64.pack(sidecar.epoch)]
    return hashlib.sha3_256(b"".join(parts)).digest()


def sign_header_bound(key: SigningKey, header: MsgHeader, network: str) -> MsgHeader:
    """Return ``header`` with the key, its flags and its signature over `bound_hash`."""
    flags = (header.flags & ~SIGNATURE_FLAGS) | SCHEMES[key.scheme].flags
    unsigned = replace(header, flags=flags, sender_pub_key=key.public_field, signature=b"")
    return replace(unsigned, signature=key.sign(bound_hash(unsigned, network)))


def verify_header_bound(header: MsgHeader, network: str) -> bool:
    """Return True when the signature over `bound_hash` holds; a literal one does not."""
    try:
        key = VerifyKey.from_field(header.sender_pub_key)
    except KeyFormatError:
        return False
    return key.verify(bound_hash(header, network), header.signature)
