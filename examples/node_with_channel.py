"""A relay of one's own with a reliable channel in the same process: no gateway, no token.

Run it: `python examples/node_with_channel.py relay.toml room /chat/1/room alice`. It sends the
lines that it reads and prints what others send; `docs/how-to/use-a-channel.md` goes through it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from luxrelay.channel import (
    MessageReceived,
    MessageSendError,
    MessageSent,
    ReliableChannel,
    create_reliable_channel,
)
from luxrelay.node import load_config
from luxrelay.node.node import Node


async def listen(channel: ReliableChannel) -> None:
    """Print what others send, and what became of our own lines."""
    async for event in channel.events():
        match event:
            case MessageReceived():
                print(f"{event.sender_id}: {event.message.decode(errors='replace')}", flush=True)
            case MessageSent() | MessageSendError():
                segments = len(channel.requests_of(event.request_id))
                print(f"{event.name} {event.request_id} segments={segments}", flush=True)


async def main(config: str, name: str, topic: str, sender: str) -> None:
    """Run the relay until there are no more lines."""
    async with trio.open_nursery() as nursery:
        node = Node(load_config(Path(config)))
        await nursery.start(node.run)
        channel = await create_reliable_channel(node, name, topic, sender)
        print(f"in {name}, open requests: {len(channel.open_requests)}", flush=True)
        nursery.start_soon(listen, channel)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            await channel.send(line.strip().encode())
            print("taken", flush=True)
        await channel.close()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
