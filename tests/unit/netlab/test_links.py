"""What becomes of a packet between two nodes of the lab: faults, order, rates, checksums."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable

import pytest

from netlab.links import PacketSchedule, ones_complement, repair_checksum

ONE, TWO = "10.77.0.1", "10.77.0.2"
Arrivals = list[tuple[float, bytes]]


def packet(payload: bytes = b"", source: str = ONE, target: str = TWO) -> bytes:
    """Return an IPv4 packet with a TCP segment whose checksum is right."""
    total = 40 + len(payload)
    head = struct.pack(">BBHHHBBH", 0x45, 0, total, 0, 0, 64, 6, 0)
    head += socket.inet_aton(source) + socket.inet_aton(target)
    segment = struct.pack(">HHIIBBHHH", 1000, 2000, 1, 1, 5 << 4, 16, 4096, 0, 0)
    whole = bytearray(head + segment + payload)
    repair_checksum(whole)
    return bytes(whole)


def checked(data: bytes) -> bool:
    """Return True when the TCP checksum is right, as a receiver computes it."""
    segment = data[20:]
    pseudo = data[12:20] + struct.pack(">BBH", 0, 6, len(segment))
    return ones_complement(pseudo + segment) == 0


@pytest.fixture
def schedule() -> PacketSchedule:
    """Two nodes, a and b, with nothing between them."""
    made = PacketSchedule(random.Random(7))
    made.add_node("a", ONE)
    made.add_node("b", TWO)
    return made


@pytest.fixture
def arrivals(schedule: PacketSchedule) -> Callable[[], Arrivals]:
    """Tells when which packet arrives, of all that have been sent."""

    def run() -> Arrivals:
        found: Arrivals = []
        while (at := schedule.next_due()) is not None:
            found += [(at, data) for _, data in schedule.due(at)]
        return found

    return run


def test_a_packet_takes_the_links_delay(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """Each direction has its own."""
    schedule.set_links(["a"], ["b"], {"delay_ms": 50})
    schedule.take("a", packet(), 10.0)
    schedule.take("b", packet(source=TWO, target=ONE), 10.0)

    assert [at for at, _ in arrivals()] == [10.0, pytest.approx(10.05)]


def test_jitter_stays_in_its_bounds_and_keeps_the_order(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """Packets of one direction arrive as they were sent, whatever each one's jitter is."""
    schedule.set_links(["a"], ["b"], {"delay_ms": 50, "jitter_ms": 10})
    sent = [packet(bytes([number])) for number in range(200)]
    for number, each in enumerate(sent):
        schedule.take("a", each, number / 1000)

    came = arrivals()
    delays = [at - number / 1000 for number, (at, _) in enumerate(came)]
    assert [data for _, data in came] == sent
    assert 0.04 <= min(delays) < 0.045
    assert max(delays) <= 0.0601


@pytest.mark.parametrize(("field", "copies"), [("loss", 0.8), ("duplicate", 1.2)])
def test_loss_and_duplication_have_their_share(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals], field: str, copies: float
) -> None:
    """A fifth of 2,000 packets, within a few hundredths."""
    schedule.set_links(["a"], ["b"], {field: 0.2})
    for _ in range(2000):
        schedule.take("a", packet(), 0.0)

    count, came = schedule.counts()["a>b"], len(arrivals())
    assert came / 2000 == pytest.approx(copies, abs=0.04)
    assert count.packets == 2000
    assert count.octets == 2000 * 40
    assert count.lost == max(0, 2000 - came)


def test_what_is_reordered_overtakes(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """It leaves without delay; the others keep theirs."""
    schedule.set_links(["a"], ["b"], {"delay_ms": 50, "reorder": 0.5})
    for _ in range(100):
        schedule.take("a", packet(), 0.0)

    times = [at for at, _ in arrivals()]
    assert set(times) == {0.0, 0.05}
    assert 30 < times.count(0.0) < 70


def test_corruption_is_seen_by_the_checksum(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """One bit differs, and the addresses do not."""
    schedule.set_links(["a"], ["b"], {"corrupt": 1})
    whole = packet(b"x" * 200)
    schedule.take("a", whole, 0.0)

    ((_, spoilt),) = arrivals()
    assert not checked(spoilt)
    assert spoilt[:20] == whole[:20]
    assert sum((x ^ y).bit_count() for x, y in zip(spoilt, whole, strict=True)) == 1


def test_a_forged_packet_has_a_right_checksum_and_another_payload(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """Short packets, which carry acknowledgements alone, stay as they are."""
    schedule.set_links(["a"], ["b"], {"forge": 1})
    whole, short = packet(b"x" * 201), packet(b"x")
    schedule.take("a", whole, 0.0)
    schedule.take("a", short, 0.0)

    (_, forged), (_, other) = arrivals()
    assert checked(forged)
    assert forged[:36] == whole[:36]
    assert forged[40:] != whole[40:]
    assert other == short


def test_a_cut_takes_one_direction_while_it_lasts(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """What was under way arrives; what is sent meanwhile is lost."""
    schedule.set_links(["a"], ["b"], {"delay_ms": 50})
    schedule.take("a", packet(b"before"), 0.0)
    schedule.set_links(["a"], ["b"], {"drop": True})
    schedule.take("a", packet(b"during"), 0.01)
    schedule.take("b", packet(b"back", TWO, ONE), 0.01)
    schedule.set_links(["a"], ["b"], {"drop": False})
    schedule.take("a", packet(b"after"), 0.02)

    assert [data[40:] for _, data in arrivals()] == [b"back", b"before", b"after"]
    assert schedule.counts()["a>b"].lost == 1


@pytest.mark.parametrize("side", ["up", "down"])
def test_a_rate_spreads_packets(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals], side: str
) -> None:
    """Ten packets of 1,000 bytes at 1 Mbit/s take 8 ms each, on either side."""
    schedule.set_rates("a" if side == "up" else "b", {f"{side}_bits_s": 1e6})
    for _ in range(10):
        schedule.take("a", packet(b"x" * 960), 0.0)

    times = [at for at, _ in arrivals()]
    assert times == pytest.approx([0.008 * number for number in range(1, 11)])


def test_a_late_look_costs_no_rate(schedule: PacketSchedule) -> None:
    """The downlink counts from when a packet came, not from when somebody asked."""
    schedule.set_rates("b", {"down_bits_s": 1e6})
    for _ in range(10):
        schedule.take("a", packet(b"x" * 960), 0.0)

    assert len(schedule.due(0.0801)) == 10


@pytest.mark.parametrize("side", ["up", "down"])
def test_a_full_queue_drops_at_its_tail(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals], side: str
) -> None:
    """Its bound is in bytes, and what does not fit is counted."""
    name = "a" if side == "up" else "b"
    schedule.set_rates(name, {f"{side}_bits_s": 1e6, "queue_bytes": 5000})
    for _ in range(10):
        schedule.take("a", packet(b"x" * 960), 0.0)

    came = arrivals()
    assert len(came) == 6  # five that wait and the one that is sent
    assert schedule.tail_drops()[name] == 4


def test_a_changed_address_makes_the_old_one_a_stray(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """To the old address, and from it, nothing passes any more."""
    schedule.set_address("b", "10.77.0.102")
    schedule.take("a", packet(), 0.0)
    schedule.take("b", packet(source=TWO, target=ONE), 0.0)
    schedule.take("a", packet(b"new", target="10.77.0.102"), 0.0)

    assert [data[40:] for _, data in arrivals()] == [b"new"]
    assert schedule.strays == 2


def test_what_is_no_ipv4_is_dropped(
    schedule: PacketSchedule, arrivals: Callable[[], Arrivals]
) -> None:
    """A kernel sends router solicitations of IPv6 by itself."""
    schedule.take("a", b"\x60" + bytes(60), 0.0)
    schedule.take("a", b"\x45", 0.0)

    assert arrivals() == []


def test_the_same_seed_gives_the_same_faults() -> None:
    """All chance comes from the generator that is handed in."""

    def run() -> list[tuple[str, bytes]]:
        made = PacketSchedule(random.Random(3))
        made.add_node("a", ONE)
        made.add_node("b", TWO)
        values = {"loss": 0.3, "duplicate": 0.2, "corrupt": 0.2, "reorder": 0.2, "jitter_ms": 9.0}
        made.set_links(["a"], ["b"], values)
        for number in range(200):
            made.take("a", packet(bytes(130)), number / 1000)
        return made.due(10.0)

    assert run() == run()


def test_a_checksum_of_another_protocol_stays() -> None:
    """Only TCP is repaired; odd lengths are padded (RFC 1071)."""
    udp = bytearray(packet(b"abc"))
    udp[9] = 17
    udp[36:38] = b"\x12\x34"
    repair_checksum(udp)

    assert udp[36:38] == b"\x12\x34"
    assert ones_complement(b"\x00\x01\xf2\x03\xf4\xf5\xf6\xf7") == 0x220D
    assert ones_complement(b"\x01") == 0xFEFF


def test_unknown_fields_are_refused(schedule: PacketSchedule) -> None:
    """A scenario with a slip of the pen does not run as if it were calm."""
    with pytest.raises(ValueError, match="unknown 'los'"):
        schedule.set_links(["a"], ["b"], {"los": 0.1})
    with pytest.raises(ValueError, match="unknown 'rate'"):
        schedule.set_rates("a", {"rate": 1e6})
