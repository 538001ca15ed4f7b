"""Exceptions of LuxRelay, in one tree by the party at fault.

    LuxRelayError
      LocalError        the caller broke a rule: fix the call
      RemoteError       a peer or a file broke a rule: drop it, count it
      ResourceError     the machine is in the way: disk, port, key file, Java, jar

Each leaf belongs to one room and carries a stable ``code`` from ``CATALOGUE``; its text is one
line: what was wrong; where; what to do. A verdict on a message is a value
(`luxrelay.bus.Verdict`), not an exception.

Source: decisions J10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One row of the error catalogue."""

    code: str
    """Stable identifier, ``room.topic.fault``; programs may rely on it."""
    meaning: str
    """What happened, in one sentence."""
    remedy: str
    """What the reader can do about it."""


_ENTRIES: Final = (
    ErrorEntry(
        "bus.argument",
        "A value handed to the bus is out of range or of the wrong length.",
        "Check the argument against the docstring of the call.",
    ),
    ErrorEntry(
        "bus.header",
        "The bytes or JSON are not a valid LP-6411 header.",
        "Drop the message; `luxrelay header decode` names the field.",
    ),
    ErrorEntry(
        "bus.policy",
        "The bytes are not a canonical policy, or the document may not take effect.",
        "Re-encode the policy; one policy has one encoding, and its version must rise.",
    ),
    ErrorEntry(
        "bus.fee",
        "The bytes are not a fee proof of a known kind and version.",
        "Drop the message; docs/reference/fees-and-policies.md gives the layout.",
    ),
    ErrorEntry(
        "bus.quota",
        "No prepaid quota at hand pays the message; a node would refuse it with code 1007.",
        "Ask an issuer for a quota; `luxrelay fees show` says what one pays and what is left.",
    ),
    ErrorEntry(
        "bus.sidecar",
        "The bytes are not a TFHESidecarV1 container.",
        "Drop the sidecar and count it against the peer.",
    ),
    ErrorEntry(
        "bus.finality",
        "The bytes are not a finality statement of a signer we trust.",
        "Check the file, its signer and its number.",
    ),
    ErrorEntry(
        "bus.commitment",
        "The bytes are no container of KZG commitments, or no polynomials of a payload.",
        "Drop the message; its sender must build it again.",
    ),
    ErrorEntry(
        "bus.key",
        "The key bytes do not fit the signature scheme.",
        "Check the scheme byte and the key length.",
    ),
    ErrorEntry(
        "bus.kzg",
        "KZG commitments cannot be made or checked here.",
        "Install the extra: pip install 'luxrelay[kzg]'.",
    ),
    ErrorEntry(
        "gossip.argument",
        "A gossip parameter or call is out of its bounds.",
        "See the bounds in the docstring of GossipParams.",
    ),
    ErrorEntry(
        "gossip.topic",
        "The text is not a LuxRelay topic.",
        "Topics read /lux/<network>/relay/<type>/<identifier>.",
    ),
    ErrorEntry(
        "gossip.envelope",
        "The bytes are not a RelayMessageV1 envelope or its payload.",
        "Drop the message and count it against the peer.",
    ),
    ErrorEntry(
        "gossip.rpc",
        "The bytes are not a libp2p pubsub RPC within our limits.",
        "Drop the frame and count it against the peer.",
    ),
    ErrorEntry(
        "store.argument",
        "A query or configuration value of the store is out of range.",
        "See the bounds in the docstring of the call.",
    ),
    ErrorEntry(
        "store.closed",
        "The store is closed.",
        "Open it again with RelayStore.open.",
    ),
    ErrorEntry(
        "store.locked",
        "Another process has the data folder open.",
        "Stop the other node or give this one a folder of its own.",
    ),
    ErrorEntry(
        "store.foreign",
        "The folder holds something that is not a LuxRelay store.",
        "Choose an empty folder; nothing was changed in this one.",
    ),
    ErrorEntry(
        "store.version",
        "The store was written by a newer LuxRelay.",
        "Upgrade this node; an older one must not touch the data.",
    ),
    ErrorEntry(
        "store.corrupt",
        "The database failed its checks.",
        "Run `luxrelay store repair FOLDER --out NEW`, or remove it and catch up from peers.",
    ),
    ErrorEntry(
        "store.io",
        "The disk refused a read or a write.",
        "Check free space, permissions and the health of the disk.",
    ),
    ErrorEntry(
        "store.full",
        "The store, or the quota of a namespace, is full.",
        "Wait until messages expire; the operator can raise the limit or shorten the time to live.",
    ),
    ErrorEntry(
        "sync.argument",
        "A sync call was given values out of range.",
        "See the bounds in the docstring of the call.",
    ),
    ErrorEntry(
        "sync.reconcile",
        "A peer's reconciliation message cannot be used.",
        "Reconcile with another peer; this one is counted.",
    ),
    ErrorEntry(
        "sync.remote",
        "A relay answered a sync call with something we cannot use.",
        "Ask another relay; this one is counted.",
    ),
    ErrorEntry(
        "sync.protocol",
        "A relay's answer breaks the protocol, as none of an honest relay does.",
        "Ask another relay; this one loses standing and score.",
    ),
    ErrorEntry(
        "sync.unreachable",
        "A relay cannot be reached or did not answer in time.",
        "Check the address, the port and that the node runs.",
    ),
    ErrorEntry(
        "sync.port",
        "The sync port cannot be opened.",
        "Choose a free port or stop the process that holds it.",
    ),
    ErrorEntry(
        "channel.argument",
        "A reliable channel was configured or called with values that do not fit.",
        "See the bounds in the docstring of the call.",
    ),
    ErrorEntry(
        "channel.wire",
        "The bytes are not a message of a reliable channel within our limits.",
        "Drop it; nothing needs to be done.",
    ),
    ErrorEntry(
        "channel.segment",
        "The bytes are not a segment of the configured revision.",
        "Drop it; all participants of a channel must use the same revision.",
    ),
    ErrorEntry(
        "channel.cipher",
        "A message does not decrypt with the channel's key.",
        "Drop it; check that all participants hold the same key.",
    ),
    ErrorEntry(
        "channel.closed",
        "The channel is closed.",
        "Open it again with create_reliable_channel.",
    ),
    ErrorEntry(
        "channel.full",
        "The channel holds as much unacknowledged content as it may.",
        "Wait for acknowledgements, or raise the bound in SdsConfig.",
    ),
    ErrorEntry(
        "channel.locked",
        "The state of this sender in this channel is in use elsewhere.",
        "Give each participant a sender id and a state file of its own.",
    ),
    ErrorEntry(
        "channel.state",
        "The saved state of the channel cannot be read or written.",
        "Check the disk and the key; a newer version may have written it.",
    ),
    ErrorEntry(
        "channel.messaging",
        "The layer below the channel did not take a message.",
        "Check that the node runs; the channel tries again by itself.",
    ),
    ErrorEntry(
        "channel.refused",
        "The layer below the channel will never take this message.",
        "Read the reason; sending the same again is of no use.",
    ),
    ErrorEntry(
        "net.address",
        "A network address cannot be parsed.",
        "Use a multiaddress such as /ip4/127.0.0.1/tcp/9640.",
    ),
    ErrorEntry(
        "net.port",
        "The gossip port cannot be opened.",
        "Choose a free port or stop the process that holds it.",
    ),
    ErrorEntry(
        "net.frame",
        "A peer sent a frame that is broken or larger than the limit.",
        "The stream is reset; nothing needs to be done.",
    ),
    ErrorEntry(
        "net.hello",
        "A peer's hello cannot be read.",
        "The peer is disconnected; update the older of the two nodes.",
    ),
    ErrorEntry(
        "net.record",
        "The bytes are not a peer record signed by the peer that it is about.",
        "The record is dropped; nothing needs to be done.",
    ),
    ErrorEntry(
        "net.bans",
        "The file of banned peers cannot be read or written.",
        "Check the rights of the data folder and its disk; the bans in memory stay in force.",
    ),
    ErrorEntry(
        "net.dial",
        "A peer cannot be reached.",
        "Check its address; the node tries again by itself.",
    ),
    ErrorEntry(
        "node.config",
        "The configuration cannot be used.",
        "Correct the named line; docs/reference/config.md lists every key.",
    ),
    ErrorEntry(
        "node.key",
        "A key file cannot be read or must not be used.",
        "See `luxrelay keys new --help`.",
    ),
    ErrorEntry(
        "node.port",
        "The HTTP port cannot be opened.",
        "Choose a free port or stop the process that holds it.",
    ),
    ErrorEntry(
        "gateway.request",
        "The request is not one that the gateway understands.",
        "Correct the named part; /openapi.json describes every call.",
    ),
    ErrorEntry(
        "gateway.token",
        "The call needs a token that this node knows.",
        "Send `Authorization: Bearer TOKEN`; `luxrelay node token new` makes one.",
    ),
    ErrorEntry(
        "gateway.scope",
        "The token does not allow this call.",
        "Use a token with the scope that the text names.",
    ),
    ErrorEntry(
        "gateway.origin",
        "The page or host name that sent the request is not allowed.",
        "Add it to `gateway.cors_origins` or `gateway.hosts`.",
    ),
    ErrorEntry(
        "gateway.absent",
        "There is no such path, or nothing is held under it.",
        "Check the path and the id; the message may have expired.",
    ),
    ErrorEntry(
        "gateway.method",
        "The path does not take this method.",
        "Use one of the methods in the Allow header.",
    ),
    ErrorEntry(
        "gateway.timeout",
        "The client was too slow to send its request.",
        "Send the request at once.",
    ),
    ErrorEntry(
        "gateway.size",
        "The request is larger than the gateway allows.",
        "Send less at once; /v1/limits names the bounds.",
    ),
    ErrorEntry(
        "gateway.media",
        "The body is of a type that the call does not take.",
        "Send one of the content types that /openapi.json lists.",
    ),
    ErrorEntry(
        "gateway.range",
        "The range asked for lies outside the blob.",
        "Ask for bytes below the length in Content-Range.",
    ),
    ErrorEntry(
        "gateway.refused",
        "The node did not take the message.",
        "Read the receipt: its code and reason say why.",
    ),
    ErrorEntry(
        "gateway.conflict",
        "Another message holds the slot.",
        "Sign the sequence that the receipt names.",
    ),
    ErrorEntry(
        "gateway.rate",
        "The caller sends more than its rate allows.",
        "Wait as long as Retry-After says.",
    ),
    ErrorEntry(
        "gateway.busy",
        "The node has no room for the request now.",
        "Try again after a second.",
    ),
    ErrorEntry(
        "gateway.slow",
        "The subscriber does not take what it asked for.",
        "Read faster; subscribe again after the last position.",
    ),
    ErrorEntry(
        "gateway.fault",
        "The node failed to answer.",
        "Look into the node's log.",
    ),
    ErrorEntry(
        "gateway.tokens",
        "The token file cannot be used.",
        "Correct or remove the named file, then make new tokens.",
    ),
    ErrorEntry(
        "client.argument",
        "A call of the client was given values out of range.",
        "See the bounds in the docstring of the call.",
    ),
    ErrorEntry(
        "client.unreachable",
        "The node's gateway cannot be reached or did not answer in time.",
        "Check the address, the port, TLS, and that the node runs with a gateway.",
    ),
    ErrorEntry(
        "client.remote",
        "The node answered with something that cannot be used.",
        "Ask another node; this one is broken or no LuxRelay gateway.",
    ),
    ErrorEntry(
        "client.refused",
        "The node refused the call.",
        "The text names the node's own code; docs/reference/errors.md explains it.",
    ),
    ErrorEntry(
        "archive.argument",
        "An option of the archive is missing or out of range.",
        "See docs/how-to/archive.md.",
    ),
    ErrorEntry(
        "archive.setup",
        "Spark cannot start here.",
        "Run `luxrelay doctor`; it names the missing part.",
    ),
    ErrorEntry(
        "archive.foreign",
        "The folder holds something that is not a LuxRelay archive.",
        "Choose an empty folder; nothing was changed in this one.",
    ),
    ErrorEntry(
        "archive.data_loss",
        "A relay has forgotten messages the archive has not read.",
        "Read another relay, or set failOnDataLoss=false to record the gap and go on.",
    ),
    ErrorEntry(
        "archive.segment",
        "A segment file, or the folder of them, cannot be read.",
        "Move it out of the folder, or replace it by a whole one.",
    ),
    ErrorEntry(
        "archive.busy",
        "Another process writes the archive.",
        "Wait for it to end; one writer at a time keeps every message once.",
    ),
    ErrorEntry(
        "archive.failed",
        "Spark ended with an error, or a table or the folder of the archive cannot be used.",
        "Run it again: what was written stays and is not written twice.",
    ),
    ErrorEntry(
        "testing.foreign",
        "The program under test cannot be run, or does not speak the line protocol.",
        "vectors/README.md describes it: one JSON object a line in, one a line out.",
    ),
    ErrorEntry(
        "sim.scenario",
        "The scenario of a simulation is not well-formed.",
        "Compare the file with docs/reference/scenario.md.",
    ),
    ErrorEntry(
        "sim.recording",
        "The file is no recording of a core, or it was made by another version.",
        "Record anew with `luxrelay sim run --record`.",
    ),
    ErrorEntry(
        "sim.run",
        "A simulation needs more than it may take.",
        "Simulate fewer nodes, fewer messages or less time.",
    ),
    ErrorEntry(
        "sim.plots",
        "Plots cannot be drawn here.",
        "Install the extra: pip install 'luxrelay[plots]'.",
    ),
    ErrorEntry(
        "cli.usage",
        "The command was called with values that do not fit.",
        "See --help of the command.",
    ),
    ErrorEntry(
        "cli.input",
        "An input file cannot be used.",
        "Check the path, and the line where one is named.",
    ),
    ErrorEntry(
        "cli.demo",
        "The demonstration could not run to its end.",
        "Read the named log; run `luxrelay doctor`.",
    ),
)

CATALOGUE: Final[dict[str, ErrorEntry]] = {entry.code: entry for entry in _ENTRIES}
"""Every error code with its meaning and remedy; docs/reference/errors.md is made from it."""


class LuxRelayError(Exception):
    """Base of all errors; catch one of the three branches below instead.

    Args:
        what: What was wrong, as the beginning of a sentence.
        where: The file, line, field, peer or address concerned; may be empty.
        hint: What to do; the remedy of the catalogue when not given.
        code: A code of ``CATALOGUE``; the class's own when not given.

    """

    default_code: str = ""

    def __init__(
        self, what: str, *, where: str = "", hint: str | None = None, code: str | None = None
    ) -> None:
        """Compose the one-line text from its three parts."""
        self.code = code or self.default_code
        self.what = what
        self.where = where
        self.hint = CATALOGUE[self.code].remedy if hint is None else hint
        super().__init__(what, where, self.hint, self.code)

    def __str__(self) -> str:
        """What was wrong; where; what to do."""
        return "; ".join(part.rstrip(".") for part in (self.what, self.where, self.hint) if part)

    def __reduce__(self) -> tuple[object, ...]:
        """Survive a trip through pickle, as errors on Spark executors must."""
        return (_rebuild, (type(self), self.what, self.where, self.hint, self.code))


def _rebuild(
    kind: type[LuxRelayError], what: str, where: str, hint: str, code: str
) -> LuxRelayError:
    return kind(what, where=where, hint=hint, code=code)


class LocalError(LuxRelayError, ValueError):
    """The caller broke a rule: fix the call."""


class RemoteError(LuxRelayError):
    """A peer or a file broke a rule: drop it, count it, perhaps score the peer."""


class ResourceError(LuxRelayError):
    """The machine is in the way: disk, port, key file, Java, jar."""


class BusArgumentError(LocalError):
    """A value handed to `luxrelay.bus` is out of range."""

    default_code = "bus.argument"


class HeaderError(RemoteError):
    """Bytes or JSON that are no header; ``verdict_code`` is the `luxrelay.bus.Code` number."""

    default_code = "bus.header"
    verdict_code: int = 0


class PolicyError(RemoteError):
    """Bytes that are no canonical policy, or a document that may not replace another."""

    default_code = "bus.policy"


class FeeError(RemoteError):
    """Bytes that are no fee proof."""

    default_code = "bus.fee"


class QuotaError(LocalError):
    """No quota pays the message: spent, over, for another namespace, or somebody else's."""

    default_code = "bus.quota"


class SidecarError(RemoteError):
    """Bytes that are no TFHE sidecar."""

    default_code = "bus.sidecar"


class FinalityError(RemoteError):
    """Bytes that are no finality statement, or one that may not be applied."""

    default_code = "bus.finality"


class CommitmentError(RemoteError):
    """Bytes that are no KZG container and no polynomials."""

    default_code = "bus.commitment"


class KeyFormatError(RemoteError):
    """Key bytes that do not fit their scheme."""

    default_code = "bus.key"


class KzgUnavailableError(ResourceError):
    """The extra for KZG commitments is missing or its setup is not the ceremony's."""

    default_code = "bus.kzg"


class GossipArgumentError(LocalError):
    """A gossip parameter or call out of bounds."""

    default_code = "gossip.argument"


class TopicError(RemoteError):
    """Text that is no topic of ours."""

    default_code = "gossip.topic"


class EnvelopeError(RemoteError):
    """Bytes that are no envelope, announcement or hint."""

    default_code = "gossip.envelope"


class RpcError(RemoteError):
    """Bytes that are no pubsub RPC within our limits."""

    default_code = "gossip.rpc"


class StoreArgumentError(LocalError):
    """A query or configuration value of the store out of range."""

    default_code = "store.argument"


class StoreError(ResourceError):
    """The store cannot do what was asked; ``code`` says which way."""

    default_code = "store.io"


class SyncArgumentError(LocalError):
    """A sync call with values out of range."""

    default_code = "sync.argument"


class SyncRemoteError(RemoteError):
    """A relay's answer that cannot be used."""

    default_code = "sync.remote"
    unimplemented: bool = False
    """Whether the relay does not know the call: it is of an earlier version."""


class SyncProtocolError(SyncRemoteError):
    """A relay's answer that breaks the protocol, as none of an honest relay does."""

    default_code = "sync.protocol"


class ReconcileError(RemoteError):
    """A reconciliation message that breaks its protocol."""

    default_code = "sync.reconcile"


class SyncUnreachableError(ResourceError):
    """A relay that cannot be reached, or a sync port that cannot be opened."""

    default_code = "sync.unreachable"
    retry_after_ms: int = 0
    """Milliseconds after which a busy relay wants to be asked again; 0 when it did not say."""


class ChannelArgumentError(LocalError):
    """A reliable channel configured or called with values that do not fit."""

    default_code = "channel.argument"


class ChannelWireError(RemoteError):
    """Bytes that are no message of a reliable channel."""

    default_code = "channel.wire"


class SegmentError(RemoteError):
    """Bytes that are no segment of the configured revision."""

    default_code = "channel.segment"


class CipherError(RemoteError):
    """Bytes that do not decrypt with the channel's key."""

    default_code = "channel.cipher"


class ChannelError(ResourceError):
    """The channel cannot do what was asked; ``code`` says which way."""

    default_code = "channel.closed"


class MessagingError(ResourceError):
    """The layer below a channel did not take a message; ``channel.refused`` when it never will."""

    default_code = "channel.messaging"


class AddressError(LocalError):
    """A network address that cannot be parsed."""

    default_code = "net.address"


class NetError(ResourceError):
    """A port or a peer that cannot be had."""

    default_code = "net.dial"


class FrameError(RemoteError):
    """A frame that is broken or too large."""

    default_code = "net.frame"


class HelloError(RemoteError):
    """Bytes that are no hello."""

    default_code = "net.hello"


class RecordError(RemoteError):
    """Bytes that are no signed peer record, or one about somebody else."""

    default_code = "net.record"


class ConfigError(LocalError):
    """A configuration that cannot be used; ``where`` names file and line."""

    default_code = "node.config"


class KeyFileError(ResourceError):
    """A key file that cannot be read or must not be used."""

    default_code = "node.key"


class NodeError(ResourceError):
    """The node cannot start or go on."""

    default_code = "node.port"


class GatewayError(RemoteError):
    """A call of the gateway that cannot be answered; ``code`` says why."""

    default_code = "gateway.request"
    retry_after_ms: int = 0
    """Milliseconds after which trying again makes sense; 0 when that is not known."""


class TokenFileError(ResourceError):
    """A token file that cannot be read or written."""

    default_code = "gateway.tokens"


class ClientArgumentError(LocalError):
    """A call of `luxrelay.client` with values out of range."""

    default_code = "client.argument"


class ClientUnreachableError(ResourceError):
    """A gateway that cannot be reached."""

    default_code = "client.unreachable"
    came: bytes = b""
    """What had come of the answer's body."""


class ClientRemoteError(RemoteError):
    """A gateway's answer that cannot be used."""

    default_code = "client.remote"


class ClientRefusedError(RemoteError):
    """A gateway that refused; ``status`` is HTTP's, ``problem`` what it said."""

    default_code = "client.refused"
    status: int = 0
    problem: Mapping[str, object] = MappingProxyType({})
    retry_after: float | None = None
    """Seconds after which trying again makes sense; None when the node did not say."""


class ArchiveArgumentError(LocalError):
    """An option of the archive missing or out of range."""

    default_code = "archive.argument"


class ArchiveError(ResourceError):
    """Spark, its jars or a table folder is in the way."""

    default_code = "archive.setup"


class VectorError(ResourceError):
    """A program under test that cannot be run or does not speak the line protocol."""

    default_code = "testing.foreign"


class ScenarioError(LocalError):
    """The scenario of a simulation is not well-formed."""

    default_code = "sim.scenario"


class RecordingError(RemoteError):
    """A recording of a core cannot be read."""

    default_code = "sim.recording"


class SimulationError(ResourceError):
    """A simulation is beyond its bounds, or its results cannot be written or drawn."""

    default_code = "sim.run"


class UsageError(LocalError):
    """A command called with values that do not fit."""

    default_code = "cli.usage"


class InputError(RemoteError):
    """An input file with a line that cannot be used."""

    default_code = "cli.input"


class DemoError(ResourceError):
    """The demonstration could not run to its end."""

    default_code = "cli.demo"
