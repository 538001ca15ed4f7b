"""Who is let in, who is found, who is let go: real hosts on loopback."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from luxrelay.errors import NetError
from luxrelay.net.bans import BanList
from luxrelay.net.exchange import PEERS
from luxrelay.net.hello import HELLO, Hello
from luxrelay.net.host import RelayHost
from luxrelay.net.records import seal
from luxrelay.net.streams import encode_frame, read_frame

pytestmark = pytest.mark.slow


async def hold(_stream: Any) -> None:
    """Take a stream and never say anything."""
    await trio.sleep_forever()


async def test_refuse_peer_of_another_network(world: Any) -> None:
    """Two relays of different networks part, whoever dialled, and each says why (20-55, G32)."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one", network="testnet")
        two = await world.relay(nursery, "two", network="mainnet")

        await one.driver.connect(two.address)
        await world.until(lambda: not one.host.connected() and not two.host.connected())

        foreign = [relay.driver.stats().greeting.foreign for relay in (one, two)]
        assert sum(foreign) >= 1
        assert one.router.stats().peers == {}
        assert two.router.stats().peers == {}
        refuser = one if foreign[0] else two
        (ban,) = refuser.driver.stats().bans.values()
        assert "network" in ban.reason
        nursery.cancel_scope.cancel()


async def test_hello_tells_roles_and_limits(world: Any) -> None:
    """Each side knows the other's network, roles and limits; a light node is in no mesh (G26)."""
    async with trio.open_nursery() as nursery:
        one = await world.relay(nursery, "one")
        two = await world.relay(nursery, "two", roles=("light",), inline_blob_max=777)

        await one.driver.connect(two.address)
        await world.until(lambda: two.host.peer_id in one.router.stats().peers)
        await world.until(lambda: one.host.peer_id in two.router.stats().peers)

        hello = one.driver._links[two.host.peer_id].hello
        assert hello.roles == ("light",)
        assert hello.inline_blob_max == 777
        assert one.router._peers.get(two.host.peer_id).light
        assert not two.router._peers.get(one.host.peer_id).light
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("required", [False, True])
async def test_peer_without_hello(world: Any, required: bool) -> None:
    """A plain libp2p peer stays, unless hello is required; then it is let go (20-55, G32)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", require_hello=required)
        plain = await world.host(nursery, "plain")
        for protocol in ("/meshsub/1.2.0", "/meshsub/1.1.0"):
            plain.handle(protocol, hold)

        await plain.dial(relay.address)
        if required:
            await world.until(lambda: not plain.connected())
            assert relay.router.stats().peers == {}
        else:
            await world.until(lambda: plain.peer_id in relay.router.stats().peers)
        assert relay.driver.stats().greeting.silent == 1
        nursery.cancel_scope.cancel()


async def test_a_peer_that_takes_no_gossip_gives_its_place_back(world: Any) -> None:
    """It is disconnected after `idle_s`, not banned: its next connection may do better (20-58)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", idle_s=0.05, stream_attempts_max=1)
        idle = await world.host(nursery, "idle")

        await idle.dial(relay.address)
        await world.until(lambda: not idle.connected())
        await world.until(lambda: relay.host.stats().inbound == 0)

        assert relay.driver.stats().bans == {}
        for protocol in ("/meshsub/1.2.0", "/meshsub/1.1.0"):
            idle.handle(protocol, hold)
        await idle.dial(relay.address)
        await world.until(lambda: idle.peer_id in relay.router.stats().peers)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "misconduct"),
    [
        (b"", False),
        (b"\x85", False),
        (b"\x20{", False),
        (b"\x05hello", True),
        (b"\xff\xff\xff\x7f", True),
        (b"\x02{}", True),
    ],
    ids=["nothing", "cut in its length", "cut", "no JSON", "too long", "empty"],
)
async def test_let_peer_with_broken_hello_go(world: Any, answer: bytes, misconduct: bool) -> None:
    """Only a hello that is whole and none is refused for a while; one that was cut is not (G38)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        rogue = await world.host(nursery, "rogue")

        async def babble(stream: Any) -> None:
            await stream.send_all(answer)
            await stream.send_eof()
            await trio.sleep_forever()

        rogue.handle(HELLO, babble)
        await rogue.dial(relay.address)
        await world.until(lambda: not relay.host.connected())

        greeting = relay.driver.stats().greeting
        assert (greeting.errors, greeting.late) == (int(misconduct), int(not misconduct))
        assert bool(relay.driver.stats().bans) is misconduct
        assert relay.host.stats().swarm.handler_errors == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at", ["in the negotiation", "in the hello"])
async def test_a_hello_that_is_cut_bans_nobody_even_when_it_is_required(
    world: Any, at: str
) -> None:
    """A slow link that cuts each stream of hello costs the connection and nothing else (G38)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", require_hello=True)
        slow = await world.host(nursery, "slow")

        async def cut(stream: Any) -> None:
            await stream.reset()

        if at == "in the hello":
            slow.handle(HELLO, cut)
        else:
            slow._host.serve_stream = cut
            slow._swarm.set_stream_handler(slow._swarm.guard_handler(cut))

        await slow.dial(relay.address)
        await world.until(lambda: relay.driver.stats().greeting.late == 1)
        await world.until(lambda: not relay.host.connected())

        assert relay.driver.stats().bans == {}
        nursery.cancel_scope.cancel()


async def test_silent_hello_times_out(world: Any) -> None:
    """A peer that takes our hello and never answers is let go after `hello_timeout_s`."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", hello_timeout_s=0.2)
        rogue = await world.host(nursery, "rogue")
        rogue.handle(HELLO, hold)

        await rogue.dial(relay.address)
        await world.until(lambda: not relay.host.connected())

        assert relay.driver.stats().greeting.late == 1
        assert relay.driver.stats().bans == {}
        nursery.cancel_scope.cancel()


async def test_answer_hello_of_a_stranger(world: Any) -> None:
    """Any program that opens the stream and sends a frame of JSON is answered in kind."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", network="testnet")
        plain = await world.host(nursery, "plain")
        await plain.dial(relay.address)

        stream = await plain.open_stream(relay.host.peer_id, HELLO)
        await stream.send_all(encode_frame(b'{"version":1,"network":"testnet"}'))
        theirs = Hello.decode(await read_frame(stream, 16_384))

        assert theirs.network == "testnet"
        assert theirs.record
        nursery.cancel_scope.cancel()


async def test_banned_peer_stays_out_after_a_restart(world: Any, tmp_path: Path) -> None:
    """A ban closes the connection, refuses the next one both ways, and survives in the file."""
    path = tmp_path / "bans.json"
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", bans_path=path, bans_save_s=0.02)
        other = await world.relay(nursery, "other")
        await other.driver.connect(relay.address)
        await world.meshed(relay, other)

        await relay.driver.ban(other.host.peer_id, 600.0, "spam")
        await world.until(lambda: not relay.host.connected() and not other.host.connected())
        await world.until(path.exists)
        with pytest.raises(NetError, match="banned"):
            await relay.driver.connect(other.address)
        with suppress(NetError):  # it connects and is hung up on, before or after connect looks
            await other.driver.connect(relay.address)
        await world.until(lambda: relay.host.stats().swarm.banned_refused == 1)
        await world.until(lambda: not other.host.connected())
        nursery.cancel_scope.cancel()

    (row,) = json.loads(path.read_text())["bans"]
    assert row["reason"] == "spam"
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay", bans_path=path, bans_save_s=0.02)
        other = await world.relay(nursery, "other")
        with suppress(NetError):
            await other.driver.connect(relay.address)
        await world.until(lambda: relay.host.stats().swarm.banned_refused == 1)

        assert relay.driver.lift_ban(other.host.peer_id)
        await world.until(lambda: not other.host.connected())
        await other.driver.connect(relay.address)
        await world.meshed(relay, other)
        nursery.cancel_scope.cancel()


async def test_low_score_is_a_ban(world: Any) -> None:
    """A peer that the router shows the door is banned for as long as the router says."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        async with world.raw_peer(relay.address, b"\x05" * 32, topics=[world.topic]) as rogue:
            await world.until(lambda: rogue.host.peer_id in relay.router.stats().peers)
            relay.router.app_score(rogue.host.peer_id, -10_000.0, trio.current_time())
            relay.driver._act()
            await world.until(lambda: not relay.host.connected())

            (ban,) = relay.driver.stats().bans.values()
            assert "score" in ban.reason
        nursery.cancel_scope.cancel()


async def test_limit_connections_of_one_address(world: Any) -> None:
    """The ninth connection from one address is closed before its handshake (LP-6422 §6, G23)."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(
            nursery, "relay", loopback_exempt=False, private_address_connections_max=3
        )
        hosts = [await world.host(nursery, f"h{number}") for number in range(4)]
        for host in hosts[:3]:
            await host.dial(relay.address)
        with pytest.raises(NetError):
            await hosts[3].dial(relay.address)
        assert relay.host.stats().swarm.address_refused == 1

        await hosts[0].disconnect(relay.host.peer_id)
        await world.until(lambda: relay.host.stats().inbound == 2)
        await hosts[3].dial(relay.address)
        await world.until(lambda: relay.host.stats().inbound == 3)
        nursery.cancel_scope.cancel()


async def test_discover_peers_through_one_seed(world: Any) -> None:
    """Ten nodes that know one seed find enough others by signed records to reach MinPeers (20-02).

    No node is told of another; what they know is in records that their owners signed.
    """
    bounds = {
        "peers_min": 4,
        "outbound_target": 2,
        "upkeep_interval_s": 0.2,
        "exchange_interval_s": 1.0,
    }
    async with trio.open_nursery() as nursery:
        first = await world.relay(nursery, "seed", **bounds)
        nodes = [
            await world.relay(nursery, f"node{n}", bootstrap=(first.address,), **bounds)
            for n in range(10)
        ]

        for node in nodes:
            await world.until(lambda node=node: len(node.host.connected()) >= 4, seconds=60)

        stats = [node.driver.stats() for node in nodes]
        assert sum(s.exchange.taken for s in stats) > 0
        assert sum(s.exchange.refused for s in stats) == 0
        nursery.cancel_scope.cancel()


async def test_lost_peers_are_replaced(world: Any) -> None:
    """A node that drops below its outbound target dials others that it knows (20-05, 20-06)."""
    async with trio.open_nursery() as nursery:
        others = [await world.relay(nursery, f"o{n}", outbound_target=0) for n in range(4)]
        node = await world.relay(
            nursery,
            "node",
            bootstrap=tuple(other.address for other in others),
            outbound_target=2,
            peers_min=0,
            upkeep_interval_s=0.05,
        )
        await world.until(lambda: len(node.host.connected()) == 2)

        lost = node.host.connected()
        for peer in lost:
            node.driver._connector.let_go(peer)
            await node.host.disconnect(peer)
        await world.until(lambda: len(set(node.host.connected()) - set(lost)) == 2)
        nursery.cancel_scope.cancel()


async def test_rotation_dials_one_more(world: Any) -> None:
    """`Discover` of the router brings a new peer above the target, once (G22)."""
    async with trio.open_nursery() as nursery:
        others = [await world.relay(nursery, f"o{n}", outbound_target=0) for n in range(4)]
        node = await world.relay(
            nursery,
            "node",
            bootstrap=tuple(other.address for other in others),
            outbound_target=1,
            peers_min=0,
            upkeep_interval_s=0.05,
        )
        await world.until(lambda: len(node.host.connected()) == 1)

        node.driver._connector.discover(1)
        await world.until(lambda: len(node.host.connected()) == 2)
        nursery.cancel_scope.cancel()


async def test_say_that_a_dial_failed(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that cannot be reached is named in the log with the reason, and tried again."""
    caplog.set_level("INFO", logger="luxrelay.net")
    async with trio.open_nursery() as nursery:
        lost = await world.host(nursery, "lost")
        address = lost.addresses[0]
        port = int(address.split("/")[4])
        gone = address.replace(f"/tcp/{port}", "/tcp/1")
        node = await world.relay(
            nursery, "node", bootstrap=(gone,), redial_min_s=0.05, upkeep_interval_s=0.02
        )
        await world.until(lambda: node.driver.counters.dials_failed >= 3)
        nursery.cancel_scope.cancel()

    (record, *_) = [r for r in caplog.records if r.message == "dial failed"]
    assert record.fields["peer"] == lost.peer_text


async def test_give_only_records_of_peers_that_answer(world: Any) -> None:
    """A record whose address does not answer, is of another host, or is forged, is not given out.

    The asker gets the record of the one peer that answers where it says (20-03).
    """
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        honest = await world.relay(nursery, "honest")
        await honest.driver.connect(relay.address)
        liars = {
            "deaf": seal(world.seed("deaf"), ["/ip4/127.0.0.1/tcp/1"], 1),
            "aimed": seal(world.seed("aimed"), ["/ip4/192.0.2.1/tcp/9640"], 1),
            "forged": seal(world.seed("someone"), [relay.address.partition("/p2p/")[0]], 1),
            "garbage": b"\x00" * 100,
        }
        for name, record in liars.items():
            liar = await world.host(nursery, name)

            async def lie(stream: Any, record: bytes = record) -> None:
                await stream.send_all(encode_frame(Hello(network="devnet", record=record).encode()))
                await trio.sleep_forever()

            liar.handle(HELLO, lie)
            liar.handle("/meshsub/1.2.0", hold)
            await liar.dial(relay.address)
        await world.until(lambda: relay.driver.stats().greeting.accepted == 5)
        await world.until(lambda: len(relay.driver._exchange._records) == 1)
        await world.until(lambda: relay.driver.stats().exchange.refused == 2)
        asker = await world.relay(nursery, "asker", exchange=False)  # it asks when we say so
        await asker.driver.connect(relay.address)

        records = await asker.driver._exchange.ask(relay.host.peer_id)
        again = await asker.driver._exchange.ask(relay.host.peer_id)

        assert [record.peer for record in records] == [honest.host.peer_id]
        assert next(iter(relay.driver._exchange._records)) == honest.host.peer_id
        assert list(again) == []
        nursery.cancel_scope.cancel()


async def test_answer_hurried_askers_once(world: Any) -> None:
    """A peer that asks again and again is answered once in `exchange_interval_s`."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        other = await world.relay(nursery, "other")
        await other.driver.connect(relay.address)
        await world.until(lambda: len(relay.driver._exchange._records) == 1)
        asker = await world.host(nursery, "asker")
        await asker.dial(relay.address)

        answers = []
        for _ in range(3):
            stream = await asker.open_stream(relay.host.peer_id, PEERS)
            data = b""
            while chunk := await stream.receive_some(65_536):
                data += chunk
            answers.append(data)
            await stream.reset()

        assert answers[0]
        assert answers[1:] == [b"", b""]
        assert relay.driver.stats().exchange.hurried == 2
        nursery.cancel_scope.cancel()


def test_record_is_ours_only_when_it_can_be_dialled() -> None:
    """Without an address that others can dial there is no record; a configured one is enough."""
    from luxrelay.net.config import NetConfig

    silent = RelayHost(b"\x01" * 32, NetConfig(), bans=BanList(1))
    silent.addresses = (f"/ip4/0.0.0.0/tcp/9640/p2p/{silent.peer_text}",)
    named = RelayHost(b"\x01" * 32, NetConfig(announce=("/dns4/relay.example/tcp/9640",)))

    assert silent.own_record() == b""
    assert named.own_record()
