"""A relay whose address changes is followed by its newer signed record (G40)."""

from __future__ import annotations

from typing import Any

import trio

from luxrelay.net.address_news import MOVED
from luxrelay.net.addresses import parse_address
from luxrelay.net.records import check, seal
from luxrelay.net.streams import encode_frame


def news(relay: Any) -> Any:
    """What a relay counted of new addresses."""
    return relay.driver.stats().news


async def test_a_kept_peer_is_dialled_where_its_newer_record_says(world: Any) -> None:
    """Who learns it from another peer dials there at once, however long it would still wait."""
    async with trio.open_nursery() as nursery:
        teller = await world.relay(nursery, "teller")
        async with trio.open_nursery() as first_life:
            mover = await world.relay(first_life, "mover", peers=(teller.address,))
            follower = await world.relay(
                nursery,
                "follower",
                peers=(mover.address, teller.address),
                redial_min_s=3_000.0,
                redial_max_s=6_000.0,
            )
            await world.meshed(teller, mover, follower)
            book = teller.driver._connector.book
            await world.until(lambda: mover.host.peer_id in book)
            await world.until(lambda: len(follower.driver._greeted()) == 2)
            old = mover.address
            first_life.cancel_scope.cancel()
        await world.until(lambda: len(follower.host.connected()) == 1)

        mover = await world.relay(nursery, "mover", peers=(teller.address,))
        assert mover.address != old
        await world.until(lambda: follower.host.is_connected(mover.host.peer_id))

        assert news(teller).followed == 1
        assert news(follower).followed == 1
        await world.until(lambda: follower.driver.counters.dials == 3)  # counted once it is up
        kept = follower.driver._connector.book.addresses(mover.host.peer_id)
        assert kept == (mover.address, old)
        nursery.cancel_scope.cancel()


async def test_a_relay_tells_its_peers_that_its_own_address_changed(world: Any) -> None:
    """It notices by itself, and a peer that knows it has the new address first (20-03)."""
    async with trio.open_nursery() as nursery:
        other = await world.relay(nursery, "other")
        mover = await world.relay(nursery, "mover", peers=(other.address,), upkeep_interval_s=0.05)
        await world.meshed(other, mover)
        book, peer = other.driver._connector.book, mover.host.peer_id
        await world.until(lambda: peer in book)
        (old,) = book.addresses(peer)
        assert mover.host.own_record() == mover.host.own_record()

        new = old.replace("127.0.0.1", "127.0.0.2")
        mover.host.addresses = (new,)

        await world.until(lambda: book.addresses(peer) == (new, old))
        await world.until(lambda: news(mover).told == 1)
        assert news(mover).own == 1
        assert other.host.is_connected(peer)  # it answers where it is: not hung up on
        nursery.cancel_scope.cancel()


async def test_a_record_that_says_where_a_peer_is_asks_it_nothing(world: Any) -> None:
    """A sign of life is asked of one that is connected from elsewhere, and of no other (G40)."""
    async with trio.open_nursery() as nursery:
        asked: list[Any] = []
        peer = await world.relay(nursery, "peer")
        keeper = await world.relay(nursery, "keeper", peers=(peer.address,))
        await world.meshed(peer, keeper)

        async def close_if_silent(who: Any, _seconds: float) -> None:
            asked.append(who)

        keeper.host.close_if_silent = close_if_silent
        who = peer.host.peer_id
        for text in (peer.address, peer.address.replace("127.0.0.1", "127.0.0.9")):
            keeper.driver._news.learnt(who, [text])
            await trio.testing.wait_all_tasks_blocked()
        assert asked == [who]
        nursery.cancel_scope.cancel()


async def test_connections_from_an_address_that_is_gone_are_given_up(world: Any) -> None:
    """Nothing comes over them any more; the peer is dialled again from what is left."""
    async with trio.open_nursery() as nursery:
        other = await world.relay(nursery, "other")
        mover = await world.relay(
            nursery, "mover", peers=(other.address,), upkeep_interval_s=0.05, redial_min_s=0.05
        )
        await world.meshed(other, mover)
        (before,) = mover.host.connections(other.host.peer_id)

        mover.host.here = lambda _host: False
        await world.until(lambda: not mover.host.connected())
        mover.host.here = lambda _host: True

        await world.meshed(other, mover)
        assert before not in mover.host.connections(other.host.peer_id)
        nursery.cancel_scope.cancel()


async def test_news_is_believed_as_far_as_its_signature_goes(world: Any) -> None:
    """Forged, old, unknown and too many records change nothing and are counted."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", exchange_records_max=4)
        known = await world.relay(nursery, "known", peers=(relay.address,))
        await world.meshed(relay, known)
        book, peer = relay.driver._connector.book, known.host.peer_id
        await world.until(lambda: peer in book)
        before = book.addresses(peer)
        bringer = await world.host(nursery, "bringer")
        await bringer.dial(relay.address)
        seq = check(known.host.own_record()).seq
        there = ["/ip4/127.0.0.9/tcp/9"]

        async def bring(record: bytes) -> None:
            stream = await bringer.open_stream(relay.host.peer_id, MOVED)
            await stream.send_all(encode_frame(record))
            await stream.send_eof()
            await stream.receive_some(1)
            await stream.reset()

        good = seal(world.seed("known"), there, seq + 1)
        forged = good[:-1] + bytes([good[-1] ^ 1])
        stranger = seal(world.seed("stranger"), there, seq + 1)
        old = seal(world.seed("known"), there, seq - 1)
        for count, record in enumerate((forged, stranger, old), start=1):
            await bring(record)
            await world.until(lambda count=count: news(relay).refused == count)
        assert book.addresses(peer) == before

        await bring(good)
        await world.until(lambda: news(relay).followed == 1)
        assert parse_address(book.addresses(peer)[0].partition("/p2p/")[0]).host == "127.0.0.9"
        await bring(seal(world.seed("known"), ["/ip4/127.0.0.8/tcp/9"], seq + 2))
        await world.until(lambda: news(relay).refused == 4)
        assert relay.driver.stats().bans == {}
        nursery.cancel_scope.cancel()


async def test_a_peer_of_an_earlier_version_is_told_nothing_and_kept(world: Any) -> None:
    """Who does not speak the protocol hears of it by the next hello."""
    async with trio.open_nursery() as nursery:
        older = await world.relay(nursery, "older")
        older.host.unhandle(MOVED)
        mover = await world.relay(nursery, "mover", peers=(older.address,), upkeep_interval_s=0.05)
        await world.meshed(older, mover)

        mover.host.addresses = (mover.address.replace("127.0.0.1", "127.0.0.2"),)

        await world.until(lambda: news(mover).own == 1)
        await world.until(lambda: news(mover).untold == 1)
        assert news(mover).told == 0
        assert mover.host.is_connected(older.host.peer_id)
        nursery.cancel_scope.cancel()
