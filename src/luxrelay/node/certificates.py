"""TLS files of a node's listeners and of its calls to peers, read at its start.

Source: LP-6490; docs/how-to/secure.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from luxrelay.errors import ConfigError, LuxRelayError, SyncArgumentError
from luxrelay.node.tls import server_context
from luxrelay.sync import ClientTls, ServerTls

if TYPE_CHECKING:
    from luxrelay.node.config import NodeConfig, SyncLimits
    from luxrelay.node.gateway.config import GatewayConfig


@contextmanager
def _naming(*files: Path | str | None) -> Iterator[None]:
    """Name the files where an error speaks of what they hold."""
    names = [str(file) for file in files if file]
    try:
        yield
    except SyncArgumentError as error:
        if any(name in error.where for name in names):
            raise
        where = ", ".join(names)
        raise SyncArgumentError(error.what, where=where, hint=error.hint) from error


def server_tls_of(limits: SyncLimits) -> ServerTls | None:
    """Return what the sync port shows and whom it lets in; None in the clear.

    Raises:
        SyncArgumentError: a file cannot be read or is not what it should be; names it.

    """
    if limits.tls_certificate is None or limits.tls_key is None:
        return None
    with _naming(limits.tls_certificate, limits.tls_key, limits.tls_client_ca):
        return ServerTls.from_files(limits.tls_certificate, limits.tls_key, limits.tls_client_ca)


def client_tls_of(limits: SyncLimits) -> ClientTls | None:
    """Return whom to believe and what to show when sync peers are dialled; None in the clear.

    Raises:
        SyncArgumentError: a file cannot be read or is not what it should be; names it.

    """
    if limits.tls_peer_ca is None:
        return None
    with _naming(limits.tls_peer_ca, limits.tls_certificate, limits.tls_key):
        return ClientTls.from_files(
            limits.tls_peer_ca,
            limits.tls_certificate,
            limits.tls_key,
            validator_proof=limits.validator_proof,
        )


def gateway_tls_of(config: GatewayConfig) -> ServerTls | None:
    """Return what the ports of the gateway over gRPC show; None in the clear.

    Raises:
        SyncArgumentError: a file cannot be read or is not what it should be; names it.

    """
    if not config.tls_certificate:
        return None
    with _naming(config.tls_certificate, config.tls_key):
        return ServerTls.from_files(Path(config.tls_certificate), Path(config.tls_key))


def certificate_problems(config: NodeConfig) -> list[ConfigError]:
    """Return what keeps a listener or a call from beginning with its TLS files; names the keys."""
    limits, gateway = config.sync_limits, config.gateway
    begins: list[tuple[str, Callable[[], object]]] = [
        ("[sync] tls_certificate, tls_key, tls_client_ca", lambda: server_tls_of(limits)),
        ("[sync] tls_peer_ca", lambda: client_tls_of(limits)),
    ]
    if gateway.listen and gateway.tls_certificate:
        keys = "[gateway] tls_certificate, tls_key"
        begins.append((keys, lambda: server_context(gateway.tls_certificate, gateway.tls_key)))
        if gateway.grpc_listen or gateway.grpc_admin_listen:
            begins.append((keys, lambda: gateway_tls_of(gateway)))
    found: list[ConfigError] = []
    for keys, begin in begins:
        try:
            begin()
        except LuxRelayError as error:
            if all(keys not in known.where for known in found):
                where = f"{error.where}, {keys}"
                found.append(ConfigError(error.what, where=where, hint=error.hint))
    return found
