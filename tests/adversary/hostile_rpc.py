"""Hostile sequences for the gRPC listeners: HTTP/2 frames by hand, and protobuf inside them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence as Several
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from hostile_bytes import EOF, RST, STALL, Sequence, dice, odd_proto, spoiled, steps_of

from luxrelay.client import Outgoing
from luxrelay.sync.rpc import relay_gateway_pb2, relay_node_pb2, relay_sync_pb2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)


def methods(*, streams: bool = True) -> list[tuple[str, Any]]:
    """Every method of our services, or every one without streams, with its request's class."""
    found = []
    for module in (relay_sync_pb2, relay_node_pb2, relay_gateway_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if not streams and (method.client_streaming or method.server_streaming):
                    continue
                path = f"/{service.full_name}/{method.name}"
                found.append((path, GetMessageClass(method.input_type)))
    return found


METHODS = methods()
CALLS = 0.15
"""Part of the sequences that gRPC's own client plays."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that is not indexed (RFC 7541 §6.2.2); lengths below 127."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class RpcAttack:
    """Makes sequences for the gRPC listeners."""

    def __init__(self, seed: int, token: str, messages: Several[Outgoing]) -> None:
        self._seed = seed
        self._token = token.encode()
        self._messages = messages

    def _valid(self, rng: random.Random, made: Any) -> Any:
        """A request of the class that gets past the first checks."""
        request = made()
        held = rng.choice(self._messages)
        for field in made.DESCRIPTOR.fields:
            if field.name in {"namespace_id", "parent_id"}:
                setattr(request, field.name, held.parent)
            elif field.name in {"commitment", "cursor"} and rng.random() < 0.5:
                setattr(request, field.name, rng.randbytes(32))
            elif field.name in {"ids", "content_ids", "digests"}:
                getattr(request, field.name).append(rng.randbytes(32))
            elif field.name == "namespaces":
                request.namespaces.append(held.parent)
            elif field.name == "method":
                request.method = rng.choice((1, 2))
            elif field.name == "payload":
                request.payload = rng.choice((b"\x61", b"\x61\x00\x00\x02\x00", rng.randbytes(40)))
            elif field.name == "items":
                request.items.add(header=held.header, blob=held.blob, parent_id=held.parent)
            elif field.name == "lanes" and rng.random() < 0.3:
                request.lanes.add(namespace_id=held.parent)
        return request

    def message(self, rng: random.Random) -> tuple[str, bytes]:
        """A path and the bytes of a request, spoiled more or less."""
        path, made = rng.choice(METHODS)
        request = self._valid(rng, made)
        for _ in range(rng.choice((0, 1, 1, 3))):
            odd_proto(rng, request)
        data = request.SerializeToString()
        return path, spoiled(rng, data) if rng.random() < 0.2 else data

    def _head(self, rng: random.Random, path: bytes) -> bytes:
        fields = [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path),
            (b":authority", b"127.0.0.1"), (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]  # fmt: skip
        if rng.random() < 0.8:
            fields.append((b"authorization", (b"Bearer " + self._token)[:126]))
        if rng.random() < 0.2:
            fields.append((b"grpc-timeout", rng.choice((b"1n", b"99999999H", b"-1S", b"1S", b""))))
        if rng.random() < 0.1:
            place = rng.randrange(len(fields))
            name, value = fields[place]
            fields[place] = rng.choice(((name.upper(), value), (name, b"\xff\x00"), (b"", value)))
        if rng.random() < 0.05:
            rng.shuffle(fields)
        if rng.random() < 0.02:
            fields += [(b"x-%d" % n, b"y" * 100) for n in range(120)]
        return b"".join(literal(name, value) for name, value in fields)

    def _call(self, rng: random.Random, stream: int) -> list[bytes]:
        frames = []
        path, data = self.message(rng)
        head = self._head(rng, path.encode()[:126])
        cut = rng.randrange(1, len(head)) if rng.random() < 0.1 or len(head) > 16_000 else 0
        if cut:
            frames.append(frame(HEADERS, 0, stream, head[:cut][:16_000]))
            if rng.random() < 0.2:
                frames.append(frame(PING, 0, 0, bytes(8)))
            frames.append(frame(CONTINUATION, 4, stream, head[cut:][:16_000]))
        else:
            frames.append(frame(HEADERS, 4, stream, head))
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            size = len(data) + rng.choice((0,) * 12 + (1, -1, 2**31))
            body = struct.pack(">BI", rng.choice((0,) * 12 + (1, 2, 255)), max(0, size)) + data
            flags = rng.choice((0, 1, 1, 1))
            parts = [body[start : start + 16_000] for start in range(0, len(body), 16_000)]
            frames += [frame(DATA, flags, stream, part) for part in parts]
        if rng.random() < 0.15:
            frames.append(frame(RESET, 0, stream, struct.pack(">I", rng.choice((0, 8, 2**32 - 1)))))
        if rng.random() < 0.5:
            frames.append(frame(WINDOW, 0, stream, struct.pack(">I", 1_000_000)))
        return frames

    def _oddity(self, rng: random.Random, stream: int) -> list[bytes]:
        number = struct.pack(">I", rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)))
        head = literal(b":method", b"GET")
        one = rng.choice(
            (
                frame(
                    SETTINGS, 0, 0, struct.pack(">HI", rng.randrange(8), rng.choice((0, 1, 2**31)))
                ),
                frame(SETTINGS, 1, 0, b"x"),
                frame(PING, 0, 0, bytes(8)),
                frame(PING, 1, 0, bytes(8)),
                frame(WINDOW, 0, rng.choice((0, stream)), number),
                frame(GOAWAY, 0, 0, number + number),
                frame(PRIORITY, 0, stream, number + b"\x10"),
                frame(PUSH, 4, stream, number + head),
                frame(RESET, 0, rng.choice((0, stream, stream + 2)), number),
                frame(CONTINUATION, 4, stream, head),
                frame(rng.randrange(256), rng.randrange(256), stream, rng.randbytes(12)),
                frame(HEADERS, 5, rng.choice((0, 2, stream)), rng.randbytes(30)),
            )
        )
        return [one] * rng.choice((1, 1, 1, 60))

    def _of_client(self, rng: random.Random, where: str, number: int) -> Sequence:
        """A call of gRPC's own client: too many messages, none, spoiled, or another method's."""
        path, data = self.message(rng)
        messages = [data] * rng.choice((0, 1, 1, 1, 1, 2, 30 if len(data) < 1000 else 2))
        if rng.random() < 0.2:
            messages.append(self.message(rng)[1])
        if rng.random() < 0.03:
            path = rng.choice(("/x", "", "/luxrelay.v1.RelaySync/", path.upper(), path + "/"))
        how = rng.choices((EOF, RST, STALL), (6, 3, 1))[0]
        return Sequence("grpc", "client-" + where, number, (path, how, *messages))

    def rpc(self, number: int, stream: int = 1) -> Sequence:
        """One to three calls, with what does not belong between them.

        Args:
            number: Of the sequence.
            stream: Number of its first stream; 1 on a new connection.

        """
        rng = dice(self._seed, "grpc", number)
        where = rng.choices(("sync", "grpc", "grpc_admin"), (5, 4, 1))[0]
        if rng.random() < CALLS:
            return self._of_client(rng, where, number)
        frames: list[bytes] = []
        for place in range(rng.choice((1, 1, 2, 3))):
            frames += self._call(rng, stream + 2 * place)
            if rng.random() < 0.12:
                frames += self._oddity(rng, stream + 2 * place)
        return Sequence("grpc", where, number, steps_of(rng, frames))


def _opening(place: int, path: str) -> bytes:
    fields = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()),
        (b":authority", b"127.0.0.1"), (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )  # fmt: skip
    head = b"".join(literal(name, value) for name, value in fields)
    return frame(HEADERS, 4, 1 + 2 * place, head)


def half_open(rank: int) -> bytes:
    """What a connection says to begin calls of one message each and never send it."""
    several = methods(streams=False)
    paths = (several[(place + rank) % len(several)][0] for place in range(150))
    return PREFACE + b"".join(_opening(place, path) for place, path in enumerate(paths))


def one_call_each() -> bytes:
    """What a connection says to call a method of each service with an empty message."""
    calls = {path.split("/")[1]: path for path, _ in methods(streams=False)}
    return PREFACE + b"".join(
        _opening(place, path) + frame(DATA, 1, 1 + 2 * place, bytes(5))
        for place, path in enumerate(calls.values())
    )
