"""Who holds the connections of an HTTP listener, and who gives way for a newcomer."""

import pytest

from luxrelay.node.gateway.bounds import Seat, Seats


class Room:
    """Seats, and the names of those who lost theirs."""

    def __init__(self, connections: int = 8, per_address: int = 8, newcomers: int = 4) -> None:
        self.seats = Seats(connections, per_address, newcomers)
        self.gone: list[str] = []

    def enter(self, host: str, name: str, *, proxy: bool = False) -> Seat | None:
        """A connection from an address, by its name."""
        return self.seats.enter(host, lambda: self.gone.append(name), proxy=proxy)

    def seated(self, host: str, name: str, *, proxy: bool = False) -> Seat:
        """A connection that has a seat."""
        seat = self.enter(host, name, proxy=proxy)
        assert seat is not None
        return seat


def asking(seat: Seat, *, known: bool = False) -> Seat:
    """The head of a request is there."""
    seat.spoke()
    seat.asked()
    if known:
        seat.proved()
    return seat


@pytest.mark.trial
@pytest.mark.parametrize(
    ("net", "share"),
    [("198.51.{}.1", 8), ("2001:db8:{}::1", 8), ("10.51.{}.1", 16), ("127.0.{}.1", 16)],
)
def test_newcomers_of_one_network_have_a_share(net: str, share: int) -> None:
    """A quarter for a /16 or /32, half for a private one; the oldest goes."""
    room = Room(connections=64, newcomers=32)
    for number in range(share + 3):
        room.seated(net.format(number), f"{number}")

    assert room.gone == ["0", "1", "2"]
    assert len(room.seats) == share
    assert room.seats.crowded == 3


@pytest.mark.trial
def test_idle_connections_give_way_first() -> None:
    """Answered ones without a token, before newcomers, before slow readers, before tokens."""
    room = Room(connections=4, newcomers=4)
    token = asking(room.seated("198.51.0.1", "token at rest"), known=True)
    token.rests()
    asking(room.seated("198.52.0.1", "reads slowly"))
    room.seated("198.53.0.1", "newcomer")
    asking(room.seated("198.54.0.1", "idle")).rests()

    for number in range(4):
        asking(room.seated(f"203.0.{number}.1", f"{number}"), known=True)

    assert room.gone == ["idle", "newcomer", "reads slowly", "token at rest"]


@pytest.mark.trial
def test_who_brings_a_token_or_is_a_websocket_stays() -> None:
    """Then a newcomer is refused."""
    room = Room(connections=3, newcomers=4)
    asking(room.seated("198.51.0.1", "token"), known=True)
    asking(room.seated("198.52.0.1", "socket")).stays()
    asking(room.seated("198.53.0.1", "socket of a token"), known=True).stays()

    assert room.enter("203.0.113.1", "late") is None
    assert room.gone == []
    assert len(room.seats) == 3


def test_an_address_makes_room_for_itself() -> None:
    """At its share a further connection takes the place of its own, and of no other address."""
    room = Room(connections=16, per_address=2)
    asking(room.seated("198.51.0.2", "other")).rests()
    asking(room.seated("198.51.0.1", "first")).rests()
    asking(room.seated("198.51.0.1", "second"), known=True)
    room.seated("198.51.0.1", "third")

    assert room.gone == ["first"]
    assert len(room.seats) == 3


def test_addresses_of_one_ipv6_customer_count_as_one() -> None:
    """A /64 is one host, and a mapped address is the IPv4 one."""
    room = Room(connections=16, per_address=1, newcomers=16)
    room.seated("2001:db8::1", "one")
    room.seated("2001:db8::2", "two")
    room.seated("192.0.2.1", "three")
    room.seated("::ffff:192.0.2.1", "four")

    assert room.gone == ["one", "three"]


def test_a_trusted_proxy_has_no_share() -> None:
    """Its connections are those of many."""
    room = Room(connections=16, per_address=2, newcomers=8)
    for number in range(8):
        room.seated("198.51.0.1", f"{number}", proxy=True)

    assert room.gone == []


def test_a_request_after_the_answer_is_busy_again() -> None:
    """A place is counted once, in whatever order it is told; leaving twice is leaving."""
    room = Room(connections=2)
    seat = room.seated("198.51.0.1", "one")
    for _ in range(3):
        asking(seat, known=True).rests()
        asking(seat).rests()
    assert len(room.seats) == 1
    assert len(room.seats.idle) == 1
    seat.leave()
    seat.leave()
    assert len(room.seats) == 0

    lost = room.seated("198.51.0.1", "lost")
    asking(room.seated("198.51.0.1", "socket")).stays()
    room.seated("198.51.0.2", "next")
    assert room.gone == ["lost"]
    asking(lost).rests()
    lost.leave()
    assert len(room.seats) == 2


@pytest.mark.trial
def test_want_of_descriptors_ends_whoever_may_give_way() -> None:
    """In the same order; a request of a token holder goes on."""
    room = Room()
    asking(room.seated("198.51.0.1", "token"), known=True)
    room.seated("198.52.0.1", "newcomer")

    assert room.seats.turn_out_one()
    assert not room.seats.turn_out_one()
    assert room.gone == ["newcomer"]
