"""The wire: a process that carries packets between TUN devices as `PacketSchedule` says.

Each node has a TUN device, made here and moved into the node's namespace; this process holds the
other end. The kernel computes and checks every TCP checksum (TUN without offloads), so a packet
that is spoilt on the way is dropped by its receiver as on a real wire.

Commands are JSON lines on standard input, one answer a line on standard output; the process ends
with its input:

    {"op": "node", "name": "r0", "device": "lx1t0", "ip": "10.77.0.1"}
    {"op": "address", "name": "r0", "ip": "10.77.0.101"}
    {"op": "rates", "name": "r0", "values": {"down_bits_s": 1e6}}
    {"op": "links", "from": ["r0"], "to": ["r1"], "values": {"drop": true}}
    {"op": "counts"}
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from netlab.links import PacketSchedule

TUN: Final = "/dev/net/tun"
"""Where devices are made."""
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_PACKETS_AT_ONCE: Final = 64
_PACKET_BYTES: Final = 2_048
_COMMAND_BYTES: Final = 65_536


class Wire:
    """The process's devices and its loop.

    Args:
        seed: Of all chance.

    """

    def __init__(self, seed: int) -> None:
        self._schedule = PacketSchedule(random.Random(seed))
        self._devices: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._poll = select.epoll()
        self._poll.register(0, select.EPOLLIN)
        self._typed = b""
        self._late_s = 0.0

    def run(self) -> None:
        """Carry packets and obey commands until there are no more commands."""
        while True:
            due = self._schedule.next_due()
            wait = -1.0 if due is None else max(0.0, due - time.monotonic())
            for device, _ in self._poll.poll(wait):
                if device == 0:
                    if not self._obey():
                        return
                else:
                    self._read(device)
            now = time.monotonic()
            if due is not None and now > due:
                self._late_s = max(self._late_s, now - due)
            for name, packet in self._schedule.due(now):
                # A device whose node has ended takes nothing: the packet is lost, as it would be.
                with suppress(OSError):
                    os.write(self._devices[name], packet)

    def answer(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Return what a command comes to."""
        schedule = self._schedule
        match ask["op"]:
            case "node":
                self._open(ask["name"], ask["device"])
                schedule.add_node(ask["name"], ask["ip"])
            case "address":
                schedule.set_address(ask["name"], ask["ip"])
            case "rates":
                schedule.set_rates(ask["name"], ask["values"])
            case "links":
                schedule.set_links(ask["from"], ask["to"], ask["values"])
            case "counts":
                late_ms, self._late_s = self._late_s * 1000, 0.0
                return {
                    "links": {name: asdict(each) for name, each in schedule.counts().items()},
                    "tail_drops": schedule.tail_drops(),
                    "strays": schedule.strays,
                    "late_ms": late_ms,
                }
            case other:
                return {"error": f"unknown command {other!r}"}
        return {}

    def _open(self, name: str, device: str) -> None:
        end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN_NO_PI))
        self._devices[name] = end
        self._names[end] = name
        self._poll.register(end, select.EPOLLIN)

    def _read(self, device: int) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(device, _PACKET_BYTES)
            except OSError:
                return
            self._schedule.take(self._names[device], packet, time.monotonic())

    def _obey(self) -> bool:
        """Answer the commands that have come; False when there will be none any more."""
        data = os.read(0, _COMMAND_BYTES)
        self._typed += data
        while b"\n" in self._typed:
            line, self._typed = self._typed.split(b"\n", 1)
            try:
                answer = self.answer(json.loads(line))
            except (OSError, ValueError, KeyError, TypeError) as error:
                answer = {"error": repr(error)}
            os.write(1, json.dumps(answer).encode() + b"\n")
        return bool(data)


if __name__ == "__main__":
    Wire(int(sys.argv[1])).run()
