"""Listening sockets with a queue of their own for each group of source addresses, and their pace.

Theory of operation
-------------------
*Why*: who connects and leaves, as fast as a machine can, costs the listener an accept each time. A
pace bounds that; but with one queue everybody else waits behind the flood. So the port has
`QUEUES` sockets, and the system sorts connections into them by source address (IPv6: /64), by a
small program on the group (`SO_ATTACH_REUSEPORT_CBPF`) with numbers that are drawn anew each time.
Each queue has its `AcceptPace`: a flood from one address fills one queue.

*Descriptors*: each queue is one; a process that may open few has fewer (`queues`).

*Elsewhere*: a system that knows no such programs has one queue with the same pace.

*A port in use stays an error*: sockets of one group share it, so it is asked for alone first.

Source: architecture, rule 4.
"""

from __future__ import annotations

import ctypes
import random
import resource
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

QUEUES: Final = 64
"""Most queues of one port, a power of two; one address in so many shares its queue with a flood."""
_DESCRIPTORS_A_QUEUE: Final = 64
"""A process has so many descriptors for each queue of one port, so that six ports take a tenth."""
AT_ONCE: Final = 32
"""Connections that are taken from a queue at once before its pace counts."""
_ATTACH: Final = 51
"""``SO_ATTACH_REUSEPORT_CBPF`` of Linux."""
_NET: Final = 0xFFF0_0000
"""Where a program finds the IP header (``SKF_NET_OFF``)."""
_WORD: Final = 0xFFFF_FFFF
_DRAWN: Final = random.SystemRandom()
ROUNDS: Final = 3
"""Rounds of the sum over an address: after one, neighbours of a network met in four queues."""


class AcceptPace:
    """How fast connections are taken from one queue.

    Args:
        per_s: Connections a second.
        at_once: Those that are taken at once after a rest.
        slower: How many times as long this machine takes as the one of the prices; on a slower one
            fewer are taken, so that a flood costs the same share of a core.

    """

    __slots__ = ("_at_once_s", "_due", "_slower", "_step_s")

    def __init__(
        self,
        per_s: float,
        at_once: int = AT_ONCE,
        *,
        slower: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._step_s = 1.0 / per_s
        self._at_once_s = at_once * self._step_s
        self._slower = slower
        self._due = float("-inf")

    def took(self, now: float) -> None:
        """Count a connection that was taken at ``now``, monotonic seconds."""
        self._due = max(self._due, now - self._at_once_s) + self._step_s * max(1.0, self._slower())

    def pause(self, now: float, pause_s: float) -> None:
        """Take none for ``pause_s`` seconds."""
        self._due = max(self._due, now + pause_s)

    def wait_s(self, now: float) -> float:
        """Return in how many seconds the next one may be taken; 0 for now."""
        return max(0.0, self._due - now)


def queues() -> int:
    """Return how many queues a port has: fewer where the process may open few descriptors."""
    if sys.platform != "linux":
        return 1
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = QUEUES if soft == resource.RLIM_INFINITY else max(1, soft // _DESCRIPTORS_A_QUEUE)
    return min(QUEUES, 1 << (allowed.bit_length() - 1))


def listen_sorted(
    host: str, port: int, backlog: int, drawn: random.Random = _DRAWN
) -> list[socket.socket]:
    """Return the sockets of a port that listen; they do not block.

    Args:
        host: Name or address; a name may have several.
        port: TCP port; 0 lets the system choose one for all.
        backlog: Connections that wait in each queue.
        drawn: Where the numbers come from by which connections are sorted.

    Raises:
        OSError: the port cannot be had.
        OverflowError: there is no such port.

    """
    found = socket.getaddrinfo(
        host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in found:
            place = (address[0], port, *address[2:])
            if port:  # sockets that share a port would join another listener's
                _bound(family, kind, protocol, place, shared=False).close()
            group = _group(family, kind, protocol, place, backlog, drawn=drawn)
            opened += group
            port = int(group[0].getsockname()[1])
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


def _group(
    family: int,
    kind: int,
    protocol: int,
    place: tuple[object, ...],
    backlog: int,
    *,
    drawn: random.Random,
) -> list[socket.socket]:
    """Return the queues of one address, or the one that is to be had."""
    sockets: list[socket.socket] = []
    try:
        count = queues()
        if count > 1:
            with suppress(OSError):
                for _ in range(count):
                    sockets.append(_bound(family, kind, protocol, place, shared=True))
                    place = (place[0], sockets[0].getsockname()[1], *place[2:])
                    sockets[-1].listen(backlog)
                _sort(sockets[0], count, drawn)
                return sockets
        for each in sockets:
            each.close()
        sockets = [_bound(family, kind, protocol, place, shared=False)]
        sockets[0].listen(backlog)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


def _bound(
    family: int, kind: int, protocol: int, place: tuple[object, ...], *, shared: bool
) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(place)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _sort(first: socket.socket, count: int, drawn: random.Random) -> None:
    """Have the system choose the queue by source address; any socket of the group will do."""
    steps = (
        (0x30, 0, 0, _NET),  # the first byte of the IP header
        (0x74, 0, 0, 4),  # its version
        (0x15, 0, 5, 6),  # unless it is 6, go on at the address of IPv4
        (0x20, 0, 0, _NET + 8),  # the first half of the source's /64
        (0x07, 0, 0, 0),
        (0x20, 0, 0, _NET + 12),  # its second half
        (0xAC, 0, 0, 0),  # both, by XOR
        (0x05, 0, 0, 1),
        (0x20, 0, 0, _NET + 12),  # the source of IPv4
        (0xA4, 0, 0, drawn.getrandbits(32)),
        # A product carries upwards only: one alone would sort neighbours into few queues.
        *(step for _ in range(ROUNDS) for step in _spread(drawn.getrandbits(32) | 1)),
        (0x74, 0, 0, 32 - (count.bit_length() - 1)),  # the highest bits are the queue
        (0x16, 0, 0, 0),
    )
    code = b"".join(struct.pack("=HBBI", *step[:3], step[3] & _WORD) for step in steps)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(steps), ctypes.addressof(held))
    first.setsockopt(socket.SOL_SOCKET, _ATTACH, program)


def _spread(factor: int) -> Iterator[tuple[int, int, int, int]]:
    """Return the steps of one round: a product by an odd number, and its upper half below it."""
    yield 0x24, 0, 0, factor
    yield 0x07, 0, 0, 0
    yield 0x74, 0, 0, 15
    yield 0xAC, 0, 0, 0
