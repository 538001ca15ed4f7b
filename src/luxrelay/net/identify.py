"""Identify: who we are, where we listen and what we speak, told to whoever asks.

The library would say that it is the library; we say the program and its version. What peers push
about themselves is not taken: nothing here would use it, and a stranger could fill the peer store.

Source: LP-6420 §1.1; decisions G29.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from libp2p.abc import INetStream
from libp2p.crypto.keys import PublicKey
from libp2p.exceptions import BaseLibp2pError
from libp2p.identity.identify.pb.identify_pb2 import Identify
from multiaddr import Multiaddr

from luxrelay.net.streams import encode_frame

IDENTIFY: Final = "/ipfs/id/1.0.0"
IDENTIFY_PUSH: Final = "/ipfs/id/push/1.0.0"
_PROTOCOL_VERSION: Final = "ipfs/0.1.0"
"""What every libp2p host says here."""


def answer(
    *,
    key: PublicKey,
    agent: str,
    addresses: Sequence[str],
    protocols: Sequence[str],
    record: bytes,
    observed: tuple[str, int] | None,
) -> bytes:
    """The message, with its length in front.

    Args:
        key: Our public key.
        agent: Program and version.
        addresses: Multiaddresses that we listen on, without peer id.
        protocols: What a stream may be opened for.
        record: Our signed peer record; empty when there is none.
        observed: Host and port that the peer connects from.

    """
    message = Identify(
        protocol_version=_PROTOCOL_VERSION,
        agent_version=agent,
        public_key=key.serialize(),
        listen_addrs=[Multiaddr(text).to_bytes() for text in addresses],
        observed_addr=_observed(observed),
        protocols=protocols,
        signedPeerRecord=record,
    )
    return encode_frame(message.SerializeToString())


def _observed(remote: tuple[str, int] | None) -> bytes:
    if remote is None:
        return b""
    host = ip_address(remote[0].partition("%")[0])
    mapped = getattr(host, "ipv4_mapped", None)
    host = host if mapped is None else mapped
    return bytes(Multiaddr(f"/ip{host.version}/{host}/tcp/{remote[1]}").to_bytes())


async def send(stream: INetStream, message: bytes) -> None:
    """The peer has been told, or is gone."""
    with contextlib.suppress(BaseLibp2pError):
        await stream.write(message)
        await stream.close()
