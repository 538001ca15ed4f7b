"""One dialler a peer, the newest connection of an identity, and streams that are reset."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any
from urllib.request import urlopen

import pytest
import trio
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID

from luxrelay.errors import AddressError, NetError
from luxrelay.net import RelayHost, RelayStream
from luxrelay.net.addresses import parse_peer_address
from luxrelay.net.config import MESHSUB
from luxrelay.net.hello import HELLO

pytestmark = pytest.mark.trial
ABSENT = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.fixture
def closed_port() -> int:
    """A port of 127.0.0.1 where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port of 127.0.0.1 that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def spellings(port: int, peer: str) -> list[str]:
    """One peer under four addresses."""
    hosts = ("/ip4/127.0.0.1", "/dns4/localhost", "/ip6/::1", "/ip4/127.0.0.2")
    return [f"{host}/tcp/{port}/p2p/{peer}" for host in hosts]


@pytest.mark.slow
def test_a_node_whose_file_names_an_absent_peer_thrice_stays(
    new_node: Callable[[str], Any], eventually: Callable[..., Any], closed_port: int
) -> None:
    """Four addresses of one absent peer, as peers and bootstrap: the node dials and goes on."""
    node = new_node("three")
    texts = spellings(closed_port, ABSENT)
    node.sections["gossip"] |= {"peers": texts, "bootstrap": texts[1:]}
    node.start()

    def tried() -> bool:
        assert node.process.poll() is None, (node.folder / "log").read_text()
        return (node.folder / "log").read_text().count("peer cannot be reached") >= 1

    eventually(tried)
    log = (node.folder / "log").read_text()
    assert "a module failed" not in log
    assert "failure contained" not in log
    assert node.stop() == 0


async def test_all_who_dial_an_absent_peer_get_the_same_answer(
    world: Any, closed_port: int
) -> None:
    """Dials at once, by several addresses and each twice: each ends in a NetError."""
    async with trio.open_nursery() as nursery:
        host: RelayHost = await world.host(nursery, "host")
        answers: list[str] = []

        async def dial(address: str) -> None:
            with pytest.raises(NetError) as refused:
                await host.dial(address)
            answers.append(refused.value.what)

        async with trio.open_nursery() as dials:
            for address in 2 * spellings(closed_port, ABSENT):
                dials.start_soon(dial, address)
        assert answers == ["The peer cannot be reached"] * 8
        assert host.outbound_count() == 0
        nursery.cancel_scope.cancel()


async def test_an_address_that_answers_serves_all_who_dial_the_peer(
    world: Any, closed_port: int
) -> None:
    """Of several addresses one is right: all who wait are connected, over one connection."""
    async with trio.open_nursery() as nursery:
        server: RelayHost = await world.host(nursery, "server")
        host: RelayHost = await world.host(nursery, "host")
        wrong = spellings(closed_port, server.peer_text)
        found = []

        async def dial(address: str) -> None:
            found.append(await host.dial(address, chosen=address != wrong[0]))

        async with trio.open_nursery() as dials:
            for address in (*wrong, server.addresses[0], *wrong):
                dials.start_soon(dial, address)
        assert found == [server.peer_id] * 9
        assert len(host.connections(server.peer_id)) == 1
        nursery.cancel_scope.cancel()


async def test_a_dial_that_is_cancelled_takes_nothing_from_the_others(world: Any) -> None:
    """The first who dialled gives up; the second is connected by the same dial."""
    async with trio.open_nursery() as nursery:
        server: RelayHost = await world.host(nursery, "server")
        proxy = await world.proxy(nursery, server.addresses[0])
        host: RelayHost = await world.host(nursery, "host")
        proxy.freeze()
        first = trio.CancelScope()
        found = []

        async def give_up() -> None:
            with first:
                await host.dial(proxy.address)

        async def stay() -> None:
            found.append(
                await host.dial(server.addresses[0].replace("ip4/127.0.0.1", "dns4/localhost"))
            )

        async with trio.open_nursery() as dials:
            dials.start_soon(give_up)
            await world.until(lambda: len(host._dialler) == 1)
            dials.start_soon(stay)
            await trio.sleep(0.05)
            first.cancel()
            proxy.thaw()
        assert found == [server.peer_id]
        assert len(host._dialler) == 0
        nursery.cancel_scope.cancel()


async def test_the_last_who_gives_up_ends_the_dial(world: Any) -> None:
    """A dial that nobody waits for is over, and the next one does not wait for it."""
    async with trio.open_nursery() as nursery:
        server: RelayHost = await world.host(nursery, "server")
        proxy = await world.proxy(nursery, server.addresses[0])
        host: RelayHost = await world.host(nursery, "host")
        proxy.freeze()
        with trio.move_on_after(0.1):
            await host.dial(proxy.address)

        assert len(host._dialler) == 0
        assert await host.dial(server.addresses[0]) == server.peer_id
        nursery.cancel_scope.cancel()


async def test_a_peer_that_comes_while_it_is_dialled_is_there_for_all(
    world: Any, silent_port: int
) -> None:
    """The address is wrong, but the peer dials us meanwhile: who waits is connected."""
    async with trio.open_nursery() as nursery:
        host: RelayHost = await world.host(nursery, "host", dial_timeout_s=1.0)
        other: RelayHost = await world.host(nursery, "other")
        found = []

        async def dial() -> None:
            found.append(await host.dial(f"/ip4/127.0.0.1/tcp/{silent_port}/p2p/{other.peer_text}"))

        async with trio.open_nursery() as dials:
            dials.start_soon(dial)
            await world.until(lambda: len(host._dialler) == 1)
            await other.dial(host.addresses[0])
        assert found == [other.peer_id]
        nursery.cancel_scope.cancel()


async def test_dials_that_cannot_be_are_refused_one_by_one(world: Any) -> None:
    """No id, our own id, our own place under another id, a name that nobody can resolve."""
    async with trio.open_nursery() as nursery:
        host: RelayHost = await world.host(nursery, "host")
        port = host.addresses[0].split("/")[4]
        refused: dict[str, type[Exception]] = {
            f"/ip4/127.0.0.1/tcp/{port}": AddressError,
            host.addresses[0]: AddressError,
            f"/ip4/127.0.0.1/tcp/{port}/p2p/{ABSENT}": NetError,
            f"/dns4/relay.invalid/tcp/1/p2p/{ABSENT}": NetError,
            f"/dns4/{'a' * 64}.example/tcp/1/p2p/{ABSENT}": AddressError,
            f"/dns4/relay..example/tcp/1/p2p/{ABSENT}": AddressError,
            f"/dnsaddr/relay.invalid/p2p/{ABSENT}": AddressError,
            f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{ABSENT}": AddressError,
            f"/ip4/127.0.0.1/tcp/1/ws/p2p/{ABSENT}": AddressError,
        }
        for address, error in refused.items():
            with pytest.raises(error):
                await host.dial(address)
        with pytest.raises(AddressError, match="another peer"):
            await host.dial(f"/ip4/127.0.0.1/tcp/1/p2p/{ABSENT}", host.addresses[0])
        assert host.faults.counts() == {}
        nursery.cancel_scope.cancel()


async def test_a_host_that_does_not_run_says_so(world: Any) -> None:
    """Before and after its life a host refuses to dial."""
    async with trio.open_nursery() as nursery:
        host = await world.host(nursery, "host")
        nursery.cancel_scope.cancel()
    with pytest.raises(NetError, match="not running"):
        await host.dial(f"/ip4/127.0.0.1/tcp/1/p2p/{ABSENT}")


@pytest.mark.slow
async def test_a_peer_that_lost_power_is_heard_again_each_time(world: Any) -> None:
    """Its old connections stay open and silent; each new life is heard within seconds."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        held = []
        for life in range(4):
            proxy = await world.proxy(nursery, relay.address)
            scope = trio.CancelScope()

            async def live(
                proxy: Any = proxy, scope: trio.CancelScope = scope, *, task_status: Any
            ) -> None:
                with scope:
                    async with trio.open_nursery() as inner:
                        task_status.started(
                            await world.relay(inner, "peer", peers=(proxy.address,))
                        )

            peer = await nursery.start(live)
            delivered = len(relay.delivered)

            async def heard(peer: Any = peer, life: int = life, delivered: int = delivered) -> None:
                seq = 1000 * life
                while len(relay.delivered) == delivered or not peer.delivered:
                    seq += 2
                    await peer.driver.publish([(world.topic, world.envelope(seq))])
                    await relay.driver.publish([(world.topic, world.envelope(seq + 1))])
                    await trio.sleep(0.1)

            with trio.fail_after(30):  # the keepalive would need 45 seconds
                await heard()
            held.append(len(relay.host.connections(peer.host.peer_id)))
            proxy.freeze()
            scope.cancel()
        assert relay.host.mux_counters.keepalive_timeouts == 0
        assert max(held) <= 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_silent_connection_gives_its_place_to_the_newest(world: Any) -> None:
    """With one place for a peer, the newest takes it from a frozen one and not from a live one."""
    async with trio.open_nursery() as nursery:
        server: RelayHost = await world.host(
            nursery, "server", peer_connections_max=1, probe_timeout_s=0.5, handshake_timeout_s=1.0
        )
        proxy = await world.proxy(nursery, server.addresses[0])
        twins: list[RelayHost] = [await world.host(nursery, "twin") for _ in range(3)]
        await twins[0].dial(proxy.address)
        await world.until(lambda: server.stats().inbound == 1)

        with suppress(NetError):
            await twins[1].dial(server.addresses[0])
        await world.until(lambda: server.stats().swarm.duplicates_refused == 1)
        assert server.stats().swarm.replaced == 0
        assert twins[0].is_connected(server.peer_id)

        proxy.freeze()
        await twins[2].dial(server.addresses[0])
        await world.until(lambda: server.stats().swarm.replaced == 1)
        await world.until(lambda: server.stats().inbound == 1)
        assert server.stats().swarm.duplicates_refused == 1
        assert twins[2].is_connected(server.peer_id)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_nobody_takes_the_connection_of_another_identity(world: Any) -> None:
    """A stranger from the same place leaves a peer's connection alone, frozen as it may be."""
    async with trio.open_nursery() as nursery:
        server: RelayHost = await world.host(
            nursery, "server", peer_connections_max=1, probe_timeout_s=0.1
        )
        peer: RelayHost = await world.host(nursery, "peer")
        stranger: RelayHost = await world.host(nursery, "stranger")
        proxy = await world.proxy(nursery, server.addresses[0])
        await peer.dial(proxy.address)
        proxy.freeze()

        for _ in range(3):
            await stranger.dial(server.addresses[0])
            await stranger.disconnect(server.peer_id)
        await world.until(lambda: server.stats().peers == 1)
        assert server.is_connected(peer.peer_id)
        assert server.stats().swarm.replaced == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("places", [1, 2])
async def test_two_that_dial_each_other_at_once_stay_connected(world: Any, places: int) -> None:
    """Both sides dial at the same moment, ten times: a connection is left each time."""
    async with trio.open_nursery() as nursery:
        bounds = {"peer_connections_max": places, "probe_timeout_s": 0.5}
        one: RelayHost = await world.host(nursery, "one", **bounds)
        two: RelayHost = await world.host(nursery, "two", **bounds)

        async def dial(host: RelayHost, other: RelayHost) -> None:
            with suppress(NetError):  # its connection was not the one that both keep
                await host.dial(other.addresses[0])

        for _ in range(10):
            async with trio.open_nursery() as dials:
                dials.start_soon(dial, one, two)
                dials.start_soon(dial, two, one)
            await world.until(
                lambda: (
                    one.is_connected(two.peer_id)
                    and two.is_connected(one.peer_id)
                    and len(one.connections(two.peer_id)) <= places
                )
            )
            await one.disconnect(two.peer_id)
            await world.until(lambda: not one.connected() and not two.connected())
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["lower", "higher"])
async def test_of_two_that_dial_each_other_the_lower_ids_connection_is_kept(
    world: Any, first: str
) -> None:
    """Whichever is there first, both ends keep the connection that the lower id dialled."""
    async with trio.open_nursery() as nursery:
        bounds = {"peer_connections_max": 1, "handshake_timeout_s": 20.0}  # young for so long
        hosts: list[RelayHost] = [await world.host(nursery, name, **bounds) for name in "ab"]
        lower, higher = sorted(hosts, key=lambda host: host.peer_id)

        async def cross(host: RelayHost, other: RelayHost) -> None:
            address = parse_peer_address(other.addresses[0])[0]
            with suppress(SwarmException):  # as the dialler does that had begun before
                await host._swarm.dial_addr(address.multiaddr(), ID(other.peer_id))

        order = [(lower, higher), (higher, lower)]
        for host, other in order if first == "lower" else order[::-1]:
            await cross(host, other)
            await world.until(lambda: len(lower.connections(higher.peer_id)) == 1)
            await world.until(lambda: len(higher.connections(lower.peer_id)) == 1)

        await world.until(lambda: lower.dialled(higher.peer_id))
        await world.until(lambda: not higher.dialled(lower.peer_id))
        assert [len(host.connected()) for host in hosts] == [1, 1]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("heard", [False, True], ids=["at once", "after a frame"])
@pytest.mark.parametrize("resets", [1, 5, 9])
async def test_streams_that_are_reset_are_opened_anew(
    world: Any, resets: int, *, heard: bool
) -> None:
    """A peer resets our gossip stream again and again; on a live connection it is opened again."""
    async with trio.open_nursery() as nursery:
        other: RelayHost = await world.host(nursery, "other")
        opened: list[float] = []
        held = trio.Event()

        async def reset(stream: RelayStream) -> None:
            opened.append(trio.current_time())
            if len(opened) <= resets:
                if heard:
                    await stream.receive_some(1)
                return  # the host resets the stream when the handler returns
            held.set()
            while await stream.receive_some(65_536):
                pass

        for protocol in MESHSUB:
            other.handle(protocol, reset)
        relay = await world.relay(
            nursery, "relay", peers=(other.addresses[0],), stream_pause_max_s=1.0, steady_s=3600.0
        )
        with trio.fail_after(60):
            await held.wait()
        assert other.stats().swarm.inbound_accepted == 1
        if heard:
            assert relay.driver.stats().driver.streams_lost == resets
        pauses = [after - before for before, after in pairwise(opened)]
        for pause, least in zip(pauses, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=False):
            assert pause >= 0.9 * least
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_streams_that_we_reset_by_a_fault_of_ours_are_opened_anew(world: Any) -> None:
    """An exception in our own handling of a stream resets it; the peer's gossip goes on."""
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")
        other = await world.relay(nursery, "other", peers=(relay.address,))
        await world.meshed(relay, other)
        failures = []
        received = relay.router.received

        def fail(*arguments: Any) -> None:
            if len(failures) < 5:
                failures.append(1)
                raise KeyError("a fault of ours")
            received(*arguments)

        relay.router.received = fail
        seq = 0
        with trio.fail_after(60):
            while not relay.delivered:
                seq += 1
                await other.driver.publish([(world.topic, world.envelope(seq))])
                await trio.sleep(0.05)
        assert len(failures) == 5
        assert relay.host.faults.counts() == {"stream": 5}
        assert len(relay.host.connected()) == 1
        nursery.cancel_scope.cancel()


async def test_a_hello_that_breaks_off_is_asked_again_and_bans_nobody(world: Any) -> None:
    """A peer resets the stream of hello twice; it is greeted all the same."""
    async with trio.open_nursery() as nursery:
        other = await world.relay(nursery, "other")
        answer, asked = other.driver._greeter.answer, []

        async def break_off(stream: RelayStream) -> None:
            asked.append(stream)
            if len(asked) > 2:
                await answer(stream)

        other.host.handle(HELLO, break_off)
        relay = await world.relay(nursery, "relay", peers=(other.address,))
        await world.meshed(relay, other)
        assert relay.driver.stats().greeting.accepted == 1
        assert relay.host.banned() == {}
        assert other.host.stats().swarm.inbound_accepted == 1  # it was not hung up on either
        nursery.cancel_scope.cancel()


async def test_a_task_of_the_library_that_fails_ends_no_other(world: Any) -> None:
    """What one half of a connection raises stays there: the host serves and dials on."""
    async with trio.open_nursery() as nursery:
        server: RelayHost = await world.host(nursery, "server")
        peer: RelayHost = await world.host(nursery, "peer")
        other: RelayHost = await world.host(nursery, "other")
        await peer.dial(server.addresses[0])

        async def fail() -> None:
            await trio.lowlevel.checkpoint()
            raise KeyError("what the library did not expect")

        server._swarm.manager.run_task(fail)
        await world.until(lambda: server.faults.counts() == {"connection": 1})
        assert server.is_connected(peer.peer_id)
        await other.dial(server.addresses[0])
        await server.dial(other.addresses[0])
        nursery.cancel_scope.cancel()


@pytest.mark.slow
def test_a_name_that_nobody_resolves_is_dialled_again_and_ends_nothing(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """A node with names that do not resolve runs, says so, and tries again."""
    node = new_node("names")
    node.sections["gossip"] |= {
        "peers": [f"/dns4/relay.invalid/tcp/1/p2p/{ABSENT}"],
        "bootstrap": [f"/dns6/xn--mnchen-3ya.invalid/tcp/1/p2p/{ABSENT}"],
    }
    runtime = node.start()

    def failed() -> bool:
        assert node.process.poll() is None, (node.folder / "log").read_text()
        with urlopen(f"http://{runtime.http}/metrics") as answer:
            text = answer.read().decode()
        found = re.search(r"^luxrelay_net_dials_failed_total (\S+)", text, re.MULTILINE)
        return found is not None and float(found[1]) >= 2

    eventually(failed)
    assert "a module failed" not in (node.folder / "log").read_text()
    assert node.stop() == 0
