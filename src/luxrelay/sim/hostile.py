"""What hostile nodes do. Each runs a real router, so that it is taken for a peer, and then cheats.

All of them are mute: they take part in meshes and forward nothing. Flooders spare each other: they
are one attacker, and what it does to itself says nothing.

Source: LP-6420, Security; decisions G1, G14, G16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip import Validate
from luxrelay.gossip.rpc import RpcPacker, encode_graft, encode_ihave, encode_message
from luxrelay.sim.traffic import TOPIC, Forger, twisted

if TYPE_CHECKING:
    from luxrelay.sim.network import Network
    from luxrelay.sim.node import SimNode


class Conduct:
    """A mute peer: it joins meshes and forwards nothing."""

    def verdict(self, network: Network, node: SimNode, action: Validate) -> VerdictKind:
        """Return the verdict that it gives its own router."""
        del network, node, action
        return VerdictKind.IGNORE


class Censor(Conduct):
    """It sends a twisted copy of each message ahead of the true one (G1)."""

    def verdict(self, network: Network, node: SimNode, action: Validate) -> VerdictKind:
        """Send the twisted copy to every peer at once."""
        if network.judge.verdict(action.data) is VerdictKind.ACCEPT:
            frame = encode_message(TOPIC, twisted(action.data))
            for link, _ in list(node.links.values()):
                network.send_raw(link, frame)
        return VerdictKind.IGNORE


class Flooder(Conduct):
    """It sends honest peers forged messages, announcements of nothing and a GRAFT, each turn.

    Args:
        rate: Turns a second.
        until_s: When it stops, virtual seconds.
        messages: Fresh forged messages in a turn.
        ids: Ids in a turn's IHAVE that nobody has.

    """

    def __init__(self, *, rate: float, until_s: float, messages: int, ids: int) -> None:
        self._pause = 1 / rate
        self._until_s = until_s
        self._messages = messages
        self._ids = ids
        self._forger = Forger()

    def turn(self, network: Network, node: SimNode) -> None:
        """Send one turn and schedule the next."""
        now = network.clock.now
        if now >= self._until_s:
            return
        links = [link for link, _ in node.links.values() if not link.target.hostile]
        if node.alive and links:
            frames = self._frames(network, node)
            for link in links:
                for frame in frames:
                    network.send_raw(link, frame)
        network.call_at(now + self._pause, self.turn, network, node)

    def _frames(self, network: Network, node: SimNode) -> list[bytes]:
        packer = RpcPacker(network.params.rpc_max)
        for _ in range(self._messages):
            packer.add_fragment(encode_message(TOPIC, self._forger.next(node.rng)))
        network.forged += self._messages
        packer.add_control(encode_graft(TOPIC))
        if self._ids:
            ids = [MessageId(node.rng.randbytes(32)) for _ in range(self._ids)]
            for body in encode_ihave(TOPIC, ids, network.params.rpc_max):
                packer.add_control(body)
        return packer.finish()
