"""State of channels that a thief of the disk cannot read: a persistence around another one.

Rows are sealed with XChaCha20-Poly1305; a row's name becomes a keyed hash, and stands inside the
seal. What shows is how many rows there are, how long they are, and when they change.

Run it: `python examples/encrypted_state.py`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio

from luxrelay.channel import (
    ChannelScope,
    MessageReceived,
    Persistence,
    Row,
    RowStore,
    SdsConfig,
    SharedKeyEncryption,
    SqlitePersistence,
    StateTable,
    create_reliable_channel,
)
from luxrelay.errors import ChannelError, CipherError
from luxrelay.testing.wire import Wire


class EncryptedPersistence:
    """Rows of another persistence, sealed with a key of 32 bytes."""

    def __init__(self, inner: Persistence, key: bytes) -> None:
        """Wrap a persistence."""
        self._inner = inner
        self._key = key

    @property
    def blocking(self) -> bool:
        """As the inner one."""
        return self._inner.blocking

    def open(self, scope: ChannelScope) -> RowStore:
        """Open the scope of the inner one."""
        return EncryptedRows(self._inner.open(scope), self._key)

    def drop(self, scope: ChannelScope) -> None:
        """Forget the scope of the inner one."""
        self._inner.drop(scope)


class EncryptedRows:
    """The rows of one scope."""

    def __init__(self, inner: RowStore, key: bytes) -> None:
        """Wrap rows."""
        self._inner = inner
        self._cipher = SharedKeyEncryption(key, b"luxrelay channel rows")
        self._key = key

    def load(self) -> Iterable[Row]:
        """Return every row, opened, in order."""
        return sorted((self._opened(row) for row in self._inner.load()), key=self._place)

    def commit(self, rows: Sequence[Row]) -> None:
        """Seal and apply all rows."""
        self._inner.commit([self._sealed(row) for row in rows])

    def close(self) -> None:
        """Let go."""
        self._inner.close()

    def _sealed(self, row: Row) -> Row:
        name = hashlib.blake2b(bytes((row.table,)) + row.key, key=self._key, digest_size=32)
        if row.value is None:
            return Row(StateTable.META, name.digest(), None)
        clear = bytes((row.table,)) + len(row.key).to_bytes(2, "big") + row.key + row.value
        return Row(StateTable.META, name.digest(), self._cipher.encrypt(clear))

    def _opened(self, row: Row) -> Row:
        assert row.value is not None
        try:
            clear = self._cipher.decrypt(row.value)
        except CipherError as error:
            raise ChannelError(
                "the state does not open with this key", code="channel.state"
            ) from error
        end = 3 + int.from_bytes(clear[1:3], "big")
        return Row(StateTable(clear[0]), clear[3:end], clear[end:])

    @staticmethod
    def _place(row: Row) -> tuple[int, bytes]:
        return row.table, row.key


async def main(folder: Path) -> None:
    """Send a secret to somebody whose state is sealed."""
    config = SdsConfig(persistence=EncryptedPersistence(SqlitePersistence(folder), bytes(32)))
    async with Wire() as wire:
        messaging = wire.messaging()
        async with (
            create_reliable_channel(messaging, "diary", "/1/diary", "alice") as alice,
            create_reliable_channel(
                messaging, "diary", "/1/diary", "bob", sds_config=config
            ) as bob,
        ):
            await alice.send(b"a very secret line")
            async for event in bob.events():
                if isinstance(event, MessageReceived):
                    print(f"{event.sender_id}: {event.message.decode()}")
                    break


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        anyio.run(main, Path(name))
        found = any(b"secret" in path.read_bytes() for path in Path(name).iterdir())
        print(f"the disk {'tells' if found else 'keeps'} the secret")
