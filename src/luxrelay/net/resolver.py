"""Names of peers are looked up in a few threads of their own, and so many addresses of each.

A resolver that does not answer keeps its thread for half a minute, whoever gives up meanwhile. In
the threads that a node does its work in, some dozens of such names would leave none for the store.
A name may also stand for hundreds of addresses, each of which would be tried.

Source: LP-6420 §1.3; decisions G21.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import trio


class NameResolver(trio.abc.HostnameResolver):
    """Looks names up for one trio run.

    Args:
        lookups_max: Lookups at one time; a further one waits.
        addresses_max: Addresses of a name that are used.
        look_up: Does it, in a thread; as `socket.getaddrinfo`.

    """

    def __init__(
        self,
        lookups_max: int,
        addresses_max: int,
        look_up: Callable[..., list[Any]] = socket.getaddrinfo,
    ) -> None:
        self._threads = trio.CapacityLimiter(lookups_max)
        self._addresses_max = addresses_max
        self._look_up = look_up

    async def getaddrinfo(  # noqa: PLR0917 - trio's own order
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 - trio's own name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """The first addresses of the name.

        Raises:
            OSError: There is none, or the resolver cannot be reached.

        """
        look_up = partial(self._look_up, host, port, family, type, proto, flags)
        found: list[Any] = await self._in_thread(look_up)
        return found[: self._addresses_max]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """The name of an address."""
        found: tuple[str, str] = await self._in_thread(partial(socket.getnameinfo, sockaddr, flags))
        return found

    async def _in_thread(self, look_up: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(  # type: ignore[call-arg]  # the stubs are older
            look_up, abandon_on_cancel=True, limiter=self._threads
        )
