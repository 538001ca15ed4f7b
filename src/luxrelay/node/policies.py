"""Policy files: signed policy documents as text, and the registry a node makes of them.

A file holds one document a line, in hex with or without 0x, the first version first; empty lines
and lines that begin with # are skipped. `luxrelay policy sign` appends to such a file.

Source: LP-6410 §2; decisions H19, H20, H21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.bus.registry import PoliciesInForce, PolicyRegistry, RegistryConfig
from luxrelay.bus.signed_policy import MAX_DOCUMENT_BYTES, SignedPolicy
from luxrelay.errors import ConfigError, PolicyError
from luxrelay.files import read_bounded
from luxrelay.node.carried import (
    DOCUMENTS_MAX,
    FOLLOWED_FILE,
    CarriedNamespace,
    CarriedNamespaces,
    add_documents,
)
from luxrelay.node.config import NodeConfig
from luxrelay.wire import from_hex

FILE_BYTES_MAX: Final = DOCUMENTS_MAX * (2 * MAX_DOCUMENT_BYTES + 4)
"""Largest policy file that is read, bytes."""


def read_policy_file(path: Path) -> list[SignedPolicy]:
    """Return the documents of a policy file, in its order; signatures are not checked.

    Raises:
        ConfigError: the file cannot be read or a line is no document; says which line.

    """
    try:
        lines = read_bounded(path, FILE_BYTES_MAX).decode("ascii").splitlines()
    except OSError as error:
        raise ConfigError(
            f"cannot read the policy file: {error.strerror}",
            where=str(path),
            hint="give the path of a file that `luxrelay policy sign` made",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("the policy file is not ASCII", where=str(path)) from error
    documents = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            documents.append(SignedPolicy.decode(from_hex(text)))
        except ValueError as error:
            raise ConfigError("not hex digits in pairs", where=f"{path}:{number}") from error
        except PolicyError as error:
            raise ConfigError(error.what, where=f"{path}:{number}", hint=error.where) from error
        if len(documents) > DOCUMENTS_MAX:
            raise ConfigError(f"more than {DOCUMENTS_MAX} documents", where=f"{path}:{number}")
    if not documents:
        raise ConfigError("the policy file holds no document", where=str(path))
    return documents


def read_policies(config: NodeConfig) -> dict[NamespaceId, list[SignedPolicy]]:
    """Return the documents of every policy file that a configuration names; not yet checked.

    Raises:
        ConfigError: a file cannot be read.

    """
    return {
        entry.namespace_id: read_policy_file(entry.policy_file)
        for entry in config.namespaces
        if entry.policy_file is not None
    }


def load_registry(
    config: NodeConfig, documents: Mapping[NamespaceId, Sequence[SignedPolicy]] | None = None
) -> PolicyRegistry:
    """Return a registry with the policies of every namespace that names a policy file.

    Args:
        config: The configuration.
        documents: What `read_policies` gave; the files are read when None.

    Raises:
        ConfigError: a file cannot be read, or a document in it does not check.

    """
    registry = PolicyRegistry(RegistryConfig(network=config.network))
    known = read_policies(config) if documents is None else documents
    for entry in config.namespaces:
        for index, document in enumerate(known.get(entry.namespace_id, ())):
            where = f"{entry.policy_file}, document {index + 1}"
            _check_namespace(document, entry.namespace_id, where)
            try:
                if index:
                    registry.update(document)
                else:
                    # The operator lists the namespace by hand: its range is the operator's choice.
                    registry.register(document, reserved=True)
            except PolicyError as error:
                raise ConfigError(error.what, where=where, hint=error.hint) from error
    return registry


def _check_namespace(document: SignedPolicy, expected: NamespaceId, where: str) -> None:
    if document.namespace_id != expected:
        raise ConfigError(
            f"the document is for namespace {document.namespace_id.hex()}",
            where=where,
            hint=f"this table is for {expected.hex()}",
        )


def carried_of(
    config: NodeConfig,
    parent_held: Callable[[NamespaceId], NamespaceId | None] = lambda _: None,
    clock_ms: Callable[[], int] = lambda: 0,
) -> CarriedNamespaces:
    """Return what a node carries: the namespaces of its configuration and those of its folder.

    Args:
        config: The configuration.
        parent_held: The parent under which its store holds a namespace; None for an unknown.
        clock_ms: Milliseconds of a clock that nobody sets.

    """
    following = config.following
    return CarriedNamespaces(
        (
            CarriedNamespace(
                namespace_id=entry.namespace_id,
                content_topic=entry.content_topic,
                policy_hash=entry.policy_hash,
            )
            for entry in config.namespaces
        ),
        network=config.network,
        everything=following.carry == "open",
        followed_max=following.followed_max,
        demands_per_minute=following.follow_demands_per_minute,
        path=config.data_dir / FOLLOWED_FILE,
        clock_ms=clock_ms,
        parent_held=parent_held,
    )


class CurrentPolicies(PoliciesInForce):
    """The policies in force, which a reload replaces whole; any thread may ask."""

    def __init__(self, config: NodeConfig) -> None:
        """Read the policies that a configuration names.

        Raises:
            ConfigError: a policy file cannot be read, or a document in it does not check.

        """
        self._documents = read_policies(config)
        super().__init__(*_policies_of(config, self._documents))
        self._config = config
        self._carried = CarriedNamespaces()

    def attach(self, carried: CarriedNamespaces) -> None:
        """Judge what the node follows at run time as well, and all others when it is open."""
        self._carried = carried
        self.derived = carried.default_hashes if carried.everything else None
        self.followed()

    def followed(self) -> None:
        """Take over what the node follows now; its documents have been checked.

        The files are not read: a change of theirs counts from the next reload on, as ever.
        """
        self.replace(*_policies_of(self._config, self._documents, self._carried))

    def reload(self, config: NodeConfig) -> None:
        """Read them again; nothing changes when one cannot be read.

        Raises:
            ConfigError: a policy file cannot be read, or a document in it does not check.

        """
        documents = read_policies(config)
        self.replace(*_policies_of(config, documents, self._carried))
        self._config, self._documents = config, documents


def _policies_of(
    config: NodeConfig,
    documents: Mapping[NamespaceId, Sequence[SignedPolicy]],
    carried: CarriedNamespaces | None = None,
) -> tuple[dict[NamespaceId, frozenset[bytes]], PolicyRegistry]:
    registry = load_registry(config, documents)
    entries = {entry.namespace_id: entry.policy_hash for entry in config.namespaces}
    for followed in () if carried is None else carried.entries():
        if followed.namespace_id not in entries:
            entries[followed.namespace_id] = followed.policy_hash
            add_documents(registry, followed)
    hashes = {name: frozenset({each} if each else ()) for name, each in entries.items()}
    return hashes, registry
