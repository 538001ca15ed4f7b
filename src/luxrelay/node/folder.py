"""The data folder of a node: its identity, its store, and where it listens now.

Source: decisions J10: a foreign folder is refused, unchanged.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from luxrelay.bus import SigningKey
from luxrelay.errors import CATALOGUE, KeyFileError, NodeError
from luxrelay.files import make_folder, make_private, read_bounded, write_whole
from luxrelay.node.keyfile import read_or_create
from luxrelay.store.durability.folder import holds_no_store
from luxrelay.text import parse_json

IDENTITY_FILE: Final = "identity.pem"
STORE_FOLDER: Final = "store"
RUNTIME_FILE: Final = "runtime.json"
TOKENS_FILE: Final = "tokens.json"
_NEW_IDENTITY: Final = (
    f"go on with store and tokens under a new peer id: luxrelay keys new FOLDER/{IDENTITY_FILE}"
)
"""What to do when the key is lost for good; docs/how-to/operate.md has it at length."""
_RUNTIME_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Where a running node is to be found."""

    pid: int
    """Its process."""
    peer_id: str
    """Its libp2p identity, base58."""
    gossip: tuple[str, ...]
    """Multiaddresses with the peer id."""
    sync: str
    """``host:port`` of RelaySync."""
    http: str
    """``host:port`` of the observation pages."""
    gateway: str = ""
    """``host:port`` of the gateway; empty when it is off."""
    admin: str = ""
    """``host:port`` of the admin calls; empty when they are off."""
    grpc: str = ""
    """``host:port`` of the gateway over gRPC; empty when it is off."""
    grpc_admin: str = ""
    """``host:port`` of the admin calls over gRPC; empty when they are off."""


class DataFolder:
    """Opens a data folder, or refuses one that is not ours."""

    def __init__(self, path: Path) -> None:
        """Make the folder, or take one that holds a node's identity, or an empty one.

        Raises:
            NodeError: it holds something else, cannot be made, or cannot be made private
                (``store.foreign``, ``store.io``).

        """
        self.path = path
        self.mended: list[str]
        """What others could open, and no longer can; the folder itself is ``.``."""
        try:
            if path.exists() and not path.is_dir():
                raise NodeError("the data folder is a file", where=str(path), code="store.foreign")
            names = {entry.name for entry in path.iterdir()} if path.exists() else set()
            # A first start that was killed leaves the unfinished identity behind, and nothing else.
            names -= {name for name in names if name.startswith(f".{IDENTITY_FILE}.")}
            if names and IDENTITY_FILE not in names:
                raise _without_identity(path, names)
            make_folder(path)
            # A folder in the store's place that is none of ours is refused later, and unchanged.
            apart = [self.store] if holds_no_store(self.store) else []
            self.mended = make_private(path, apart=apart)
        except OSError as error:
            raise NodeError(
                f"cannot use the data folder: {error.strerror}",
                where=str(error.filename or path),
                code="store.io",
            ) from error

    @property
    def store(self) -> Path:
        """Where the relay store lies."""
        return self.path / STORE_FOLDER

    def identity(self) -> SigningKey:
        """Return the node's identity key, made on the first start."""
        try:
            return read_or_create(self.path / IDENTITY_FILE)
        except KeyFileError as error:
            # What keeps the right file from being read has its own remedy; this is none of a key's.
            if error.hint != CATALOGUE[error.code].remedy:
                raise
            hint = f"put back a copy of it (mode 0600), or {_NEW_IDENTITY}"
            raise KeyFileError(error.what, where=error.where, hint=hint, code=error.code) from error

    def announce(self, runtime: Runtime) -> None:
        """Write where the node listens, whole or not at all.

        Raises:
            NodeError: the disk refuses it (``store.io``).

        """
        place = self.path / RUNTIME_FILE
        try:
            write_whole(place, json.dumps(asdict(runtime), indent=1).encode() + b"\n")
        except OSError as error:
            raise NodeError(
                f"cannot write the data folder: {error.strerror}",
                where=str(place),
                code="store.io",
            ) from error

    def withdraw(self) -> None:
        """Remove what `announce` wrote, if it is still ours and the disk lets us."""
        runtime = read_runtime(self.path)
        if runtime is not None and runtime.pid == os.getpid():
            with suppress(OSError):  # its process id tells a stale file anyway
                (self.path / RUNTIME_FILE).unlink(missing_ok=True)


def _without_identity(path: Path, names: set[str]) -> NodeError:
    """Return why a folder is refused: a node's that has lost its key, or somebody else's."""
    if names & {STORE_FOLDER, TOKENS_FILE}:
        return NodeError(
            f"the data folder of a node has lost its key, {IDENTITY_FILE}",
            where=str(path),
            hint=f"put back a copy of it (mode 0600), or {_NEW_IDENTITY}",
            code="store.foreign",
        )
    return NodeError(
        f"the data folder holds {min(names)!r} and no identity of a node",
        where=str(path),
        code="store.foreign",
    )


def read_runtime(data_dir: Path) -> Runtime | None:
    """Return where the node of ``data_dir`` listens, or None when it says nothing."""
    try:
        loaded = parse_json(read_bounded(data_dir / RUNTIME_FILE, _RUNTIME_BYTES_MAX))
        return Runtime(
            pid=int(loaded["pid"]),
            peer_id=str(loaded["peer_id"]),
            gossip=tuple(map(str, loaded["gossip"])),
            sync=str(loaded["sync"]),
            http=str(loaded["http"]),
            gateway=str(loaded.get("gateway", "")),
            admin=str(loaded.get("admin", "")),
            grpc=str(loaded.get("grpc", "")),
            grpc_admin=str(loaded.get("grpc_admin", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
