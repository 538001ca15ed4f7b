"""Two people talk over a network that loses a third of everything.

Run it: `python examples/chat.py`. The tutorial `docs/tutorial/chat.md` goes through it.
"""

from __future__ import annotations

import anyio

from luxrelay.channel import (
    MessageReceived,
    MessageSendError,
    MessageSent,
    RepairConfig,
    SdsConfig,
    create_reliable_channel,
)
from luxrelay.testing.wire import Wire

LINES = {
    "alice": ["Are you there?", "The line is bad today."],
    "bob": ["Here!", "And still I hear every word."],
}
QUICK = SdsConfig(
    acknowledgement_timeout_ms=400,
    acknowledge_after_ms=100,
    sync_interval_ms=500,
    sync_interval_max_ms=1_000,
    repair=RepairConfig(t_min_ms=50, t_max_ms=300),
)
"""Short times for a short talk; the defaults are made for a wide network."""


async def take_part(wire: Wire, name: str, told: dict[str, int], done: anyio.Event) -> None:
    """Say our lines and print what we are told, until everybody has been told everything."""
    async with (
        create_reliable_channel(
            wire.messaging(), "friends", "/1/chat", name, sds_config=QUICK
        ) as channel,
        anyio.create_task_group() as tasks,
    ):
        said = {await channel.send(line.encode()): line for line in LINES[name]}

        async def listen() -> None:
            async for event in channel.events():
                if isinstance(event, MessageReceived):
                    print(f"{name} hears {event.sender_id}: {event.message.decode()}")
                elif isinstance(event, MessageSent):
                    print(f'{name}: "{said[event.request_id]}" has arrived')
                elif isinstance(event, MessageSendError):
                    print(f'{name}: "{said[event.request_id]}": {event.error}')
                else:
                    continue
                told[name] += 1
                if all(count >= 4 for count in told.values()):
                    done.set()

        tasks.start_soon(listen)
        await done.wait()
        tasks.cancel_scope.cancel()


async def main() -> None:
    """Let them talk."""
    told = dict.fromkeys(LINES, 0)
    done = anyio.Event()
    async with Wire(loss=0.33, delay_s=(0.01, 0.1)) as wire, anyio.create_task_group() as tasks:
        for name in LINES:
            tasks.start_soon(take_part, wire, name, told, done)


if __name__ == "__main__":
    anyio.run(main)
