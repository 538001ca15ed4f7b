"""Multiaddresses and peer ids: text to checked values and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from libp2p.peer.id import ID
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from luxrelay.errors import AddressError
from luxrelay.gossip import PeerId

_IP: Final = ("ip4", "ip6")
_NAMES: Final = ("dns", "dns4", "dns6")
_TRANSPORT_PARTS: Final = frozenset((*_IP, *_NAMES, "tcp", "p2p"))
_LENGTH_MAX: Final = 512
"""Characters of a multiaddress we look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpAddress:
    """A multiaddress taken apart."""

    text: str
    """The address as it was given."""
    host: str
    """IP address or name to connect to or bind."""
    port: int
    """TCP port; 0 only makes sense for listening."""
    peer: PeerId | None
    """Peer id after ``/p2p/``, when there is one."""

    def multiaddr(self) -> Multiaddr:
        """The address as the library wants it."""
        return Multiaddr(self.text)


def parse_address(text: str) -> TcpAddress:
    """The host, port and peer id of a TCP multiaddress.

    Raises:
        AddressError: The text is no multiaddress of ours; nothing else is raised.

    """
    if len(text) > _LENGTH_MAX:
        raise AddressError("The address is too long", where=text[:64])
    try:
        address = Multiaddr(text)
        names = [protocol.name for protocol in address.protocols()]
    except (MultiaddrError, ValueError, LookupError, TypeError, UnicodeError) as error:
        raise AddressError("The address cannot be parsed", where=text) from error
    shape = ["tcp"] if len(names) == 2 else ["tcp", "p2p"]
    if not names or names[0] not in (*_IP, *_NAMES) or names[1:] != shape:
        raise AddressError("The address is not plain TCP", where=text)
    peer = address.value_for_protocol("p2p") if "p2p" in names else None
    return TcpAddress(
        text=text,
        host=str(address.value_for_protocol(names[0])),
        port=int(str(address.value_for_protocol("tcp"))),
        peer=None if peer is None else peer_id_from_text(str(peer)),
    )


def parse_peer_address(text: str) -> tuple[TcpAddress, PeerId]:
    """The address of a peer to dial, with the peer id it must have.

    Raises:
        AddressError: It does not end in ``/p2p/<peer id>``, or has port 0.

    """
    address = parse_address(text)
    if address.peer is None or address.port == 0:
        raise AddressError(
            "The address names no peer that can be dialled",
            where=text,
            hint="append /p2p/<peer id>; the other node prints its full address when it starts",
        )
    return address, address.peer


def parse_listen_address(text: str) -> TcpAddress:
    """The address to listen on.

    Raises:
        AddressError: It names a host that is no IP address, or a peer.

    """
    address = parse_address(text)
    if address.peer is not None or text.split("/")[1] not in _IP:
        raise AddressError("The address cannot be listened on", where=text)
    return address


PEER_CHARS_MAX: Final = 128
"""Characters of a peer id in text at most; those in use have 46 to 60."""


def peer_id_from_text(text: str) -> PeerId:
    """The bytes of a peer id in base58 or multibase.

    Raises:
        AddressError: The text is no peer id.

    """
    if len(text) > PEER_CHARS_MAX:  # the library's base58 takes the square of the length
        raise AddressError(f"A peer id of {len(text)} characters", where=text[:64])
    try:
        found = PeerId(ID.from_string(text).to_bytes())
    except Exception as error:  # the library raises half a dozen unrelated types here
        raise AddressError("The peer id cannot be parsed", where=text[:64]) from error
    if not found:  # the library takes no text for an id of no bytes
        raise AddressError("The peer id is empty", where="peer id")
    return found


def peer_text(peer: bytes) -> str:
    """The base58 form every libp2p tool prints (G7)."""
    return ID(peer).to_base58()
