"""How long a node is waited for: a time of its own for each step, longer with each byte that moves.

Theory of operation
-------------------
*Decides* when a wait has lasted too long. *Does not know* sockets; the clock is handed in.
A step (the connection, an answer, a whole frame of a stream) has ``timeout_s`` seconds, and one
second more for each ``BYTES_PER_S`` bytes that came or went: a large answer over a slow line has
its time, and one that drips has not. Only waiting counts, so a caller may take its time between
two frames. *Bounds*: no step has more than `PAID_BYTES_MAX` bytes that pay; ``LOOKUPS_MAX`` name
lookups hang at once in the process.

Source: architecture, rule 4.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

from luxrelay.errors import ClientUnreachableError

BYTES_PER_S: Final = 16 * 1024
"""Bytes that pay for one further second."""
PAID_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one step that pay."""
LOOKUPS_MAX: Final = 16
"""Lookups of names that may hang at once; while there are that many, no further one is begun."""
_HINT: Final = (
    "is it the gateway's address (gateway.listen), https:// for one with TLS? A longer wait: "
    "timeout_s of the client, --timeout-s of a command"
)

_lookups = threading.BoundedSemaphore(LOOKUPS_MAX)


class Patience:
    """What one step of a conversation may still take.

    Args:
        timeout_s: Seconds of waiting that each step has.
        where: The node, for errors.
        clock: Monotonic seconds.

    """

    def __init__(
        self, timeout_s: float, where: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s = self._step_s = min(timeout_s or 86_400.0, 86_400.0)
        self._where = where
        self._clock = clock
        self._what = "the connection"
        self._waited_s = 0.0
        self._moved = 0
        self._since = 0.0

    def begin(self, what: str, least_s: float = 0.0) -> None:
        """Begin a step; ``least_s`` seconds it has at least."""
        self._what = what
        self._step_s = max(self._timeout_s, least_s)
        self._waited_s, self._moved = 0.0, 0

    def waits(self, to_send: int = 0) -> float:
        """Begin to wait; return how long, seconds, beside what ``to_send`` bytes pay for.

        Raises:
            ClientUnreachableError: the step has had its time.

        """
        left = self._allowed_s() - self._waited_s
        if left <= 0:
            raise self.late()
        self._since = self._clock()
        return left + to_send / BYTES_PER_S

    def moved(self, count: int) -> None:
        """Note the end of a wait, and how many bytes came or went."""
        self._waited_s += self._clock() - self._since
        self._moved = min(self._moved + count, PAID_BYTES_MAX)

    def late(self) -> ClientUnreachableError:
        """Return the error of a step that has had its time."""
        return ClientUnreachableError(
            f"no answer in time: {self._what} was waited for {round(self._allowed_s(), 1):g} s",
            where=self._where,
            hint=_HINT,
        )

    def _allowed_s(self) -> float:
        return self._step_s + self._moved / BYTES_PER_S


def addresses_of(
    host: str,
    port: int,
    timeout_s: float,
    look_up: Callable[..., list[Any]] = socket.getaddrinfo,
) -> list[tuple[Any, ...]]:
    """Return what a name stands for, as `socket.getaddrinfo` does, in time.

    The system's resolver cannot be interrupted, so a thread of its own waits for it.

    Args:
        host: The name, or an address.
        port: Its port.
        timeout_s: Seconds that the lookup of a name has.
        look_up: The resolver.

    Raises:
        TimeoutError: there is no answer in time.
        OSError: there is no such name, or too many lookups hang.

    """
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        return look_up(host, port, type=socket.SOCK_STREAM)
    if not _lookups.acquire(blocking=False):
        raise OSError(f"{LOOKUPS_MAX} lookups of names hang")
    found: list[Any] = []
    ended = threading.Event()

    def look() -> None:
        try:
            found.append(look_up(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)
        finally:
            _lookups.release()
            ended.set()

    threading.Thread(target=look, name="luxrelay-lookup", daemon=True).start()
    if not ended.wait(timeout_s):
        raise TimeoutError
    if isinstance(found[0], UnicodeError):
        raise OSError("it is no name of a host") from found[0]
    if isinstance(found[0], OSError):
        raise found[0]
    addresses: list[tuple[Any, ...]] = found[0]
    return addresses
