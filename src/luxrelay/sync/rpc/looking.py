"""`MethodPool`: descriptors for reflection that are also found by the name of a method.

gRPC's reflection asks a pool for the file that contains a symbol. The pool of protobuf knows
services and messages, and says of a method (``lux.relay.v1.RelaySync.Reconcile``) that there is
none, so that tools which describe a method fail.

Source: the gRPC server reflection protocol, ``file_containing_symbol``.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool


class MethodPool:
    """Answers as the default pool does, and finds methods beside."""

    def __init__(self) -> None:
        self._pool: Any = descriptor_pool.Default()

    def FindFileContainingSymbol(self, name: str) -> Any:  # noqa: N802 - protobuf's name
        """Return the file of a symbol; a method's is its service's.

        Raises:
            KeyError: there is no such symbol.

        """
        try:
            return self._pool.FindFileContainingSymbol(name)
        except KeyError:
            service, _, method = name.rpartition(".")
            if not service:
                raise
            found = self._pool.FindServiceByName(service)
            if method not in found.methods_by_name:
                raise
            return found.file

    def __getattr__(self, name: str) -> Any:
        """Return whatever else a pool can do."""
        return getattr(self._pool, name)
