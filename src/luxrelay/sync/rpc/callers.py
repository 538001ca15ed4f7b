"""`Caller`: the identity of a call, as far as it is proven.

A client certificate proves a key, and the key is the peer; otherwise the address is. Ports are left
out, so that many connections of one address share one share; on the loopback, where every program
of the machine has one address, a connection is a peer.

Source: decisions P33, P34; 21-41.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Container
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import grpc
from cryptography import x509

from luxrelay.bus.vouching import TAG_TLS, TLS_PROOF_MAX, vouches, who_vouches
from luxrelay.sync.cost import Payer
from luxrelay.sync.rpc.entrance import place_of
from luxrelay.sync.rpc.tls import PROOF_METADATA, key_fingerprint

CHECKED_MAX: Final = 1_024
"""Proofs of validators whose outcome is remembered."""
_UNKNOWN: Final = "unknown"
PASS_KEY: ContextVar[str] = ContextVar("luxrelay_pass_key", default="")
"""What the call that runs is counted under where tokens are shown; empty elsewhere."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    name: str
    """One name a peer: ``key:…``, an address, or address and port on the loopback."""
    key: str
    """SHA-256 of its proven public key, hex; empty without a client certificate."""
    local: bool
    """It is a program of this machine."""
    host: str = field(default="", compare=False)
    """Its address without the port; empty when gRPC does not say."""
    share: str = field(default="", compare=False)
    """What its lasting streams are counted under: its token, its key, or where it comes from
    (IPv6: /64; address and port on the loopback)."""
    payer: Payer = field(default=Payer("?"), compare=False)
    """What its work is charged to."""
    proof: bytes = field(default=b"", compare=False)
    """What it shows as a validator's word for its key; `ProvenValidators` checks it."""


def caller_of(context: grpc.ServicerContext) -> Caller:
    """Return who calls."""
    host, port = _place_of(context)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    key = _proven_key(context)
    name = f"{host}:{port}" if local else host or _UNKNOWN
    name = f"key:{key}" if key else name
    share = PASS_KEY.get() or (name if key or local else network_of(host))
    payer = _payer_of(context, host, key)
    proof = _shown_proof(context) if key else b""
    return Caller(name=name, key=key, local=local, host=host, share=share, payer=payer, proof=proof)


def _payer_of(context: grpc.ServicerContext, host: str, key: str) -> Payer:
    """Return what pays: a token, a certificate, or the address, behind a peer identity as well."""
    token = PASS_KEY.get()
    if token.startswith("token:"):
        return Payer(token, known=True)
    if key:
        return Payer(f"key:{key}", known=True)
    return Payer.at(getattr(context, "remote_host", "") or host)


def host_of(context: grpc.ServicerContext) -> str:
    """Return the address that a call comes from, without the port."""
    return _place_of(context)[0]


def network_of(host: str) -> str:
    """Return what an address is counted under: itself, or the /64 of an IPv6 one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host or _UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))


def _place_of(context: grpc.ServicerContext) -> tuple[str, str]:
    peer = unquote(context.peer())
    if peer.startswith("unix:"):
        return place_of(peer.rpartition("/")[2])
    address, _, port = peer.partition(":")[2].rpartition(":")
    return address.strip("[]").partition("%")[0], port


def _proven_key(context: grpc.ServicerContext) -> str:
    """Return the fingerprint of the certificate that gRPC has verified, if there is one."""
    certificates = context.auth_context().get("x509_pem_cert")
    if not certificates:
        return ""
    return key_fingerprint(x509.load_pem_x509_certificate(bytes(certificates[0])))


def _shown_proof(context: grpc.ServicerContext) -> bytes:
    """Return what a validator is said to have signed for the caller's key; nothing is checked."""
    for name, value in context.invocation_metadata() or ():
        if name == PROOF_METADATA:
            return value if isinstance(value, bytes) and len(value) <= TLS_PROOF_MAX else b""
    return b""


class ProvenValidators:
    """Who calls as a validator: by a listed TLS key, or by a listed key that vouches for it (P33).

    A proof is checked once for each caller that shows it; `CHECKED_MAX` outcomes are remembered.
    """

    def __init__(self, fingerprints: Container[str], keys: Container[bytes]) -> None:
        """Believe these TLS keys, and those that the holders of ``keys`` vouch for."""
        self._fingerprints = fingerprints
        self._keys = keys
        self._checked: OrderedDict[tuple[str, bytes], bool] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, caller: Caller) -> bool:
        """Return True for a proven validator."""
        if not caller.key:
            return False
        if caller.key in self._fingerprints:
            return True
        if not caller.proof or who_vouches(caller.proof) not in self._keys:
            return False
        shown = caller.key, caller.proof
        with self._lock:
            if shown not in self._checked:
                subject = bytes.fromhex(caller.key)
                self._checked[shown] = vouches(caller.proof, TAG_TLS, subject, self._keys)
                while len(self._checked) > CHECKED_MAX:
                    self._checked.popitem(last=False)
            return self._checked[shown]
