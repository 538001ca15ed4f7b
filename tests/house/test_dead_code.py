"""What no module of the product uses is not there, or has a reason.

A public name is a function, class or value at the top of a module, or a method. It is used when
another expression of src names it: as a name, an attribute, an import, an argument, or as a string
that something is looked up by. The names of a package's ``__init__`` use nothing. What the
simulator and the vectors (``sim/``, ``testing/``) use counts for what stands in them alone: a rule
that only they apply is a half whose other half is missing.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.trial
SRC = Path(__file__).resolve().parents[2] / "src"
ROOMS_OF_TESTS = ("testing", "sim")
REASONS = {
    "bus/fee_verifiers.py:OnChainVerifier": "a chain's receipts: for who has the chain (S7)",
    "bus/fee_verifiers.py:StakeVerifier": "a chain's stake: for who has the chain (S7)",
    "bus/fee_verifiers.py:StateChannelVerifier": "channels with a relay: for who settles them (S7)",
    "bus/fee_verifiers.py:stake_allowance": "what a stake buys: of `StakeVerifier`'s user",
    "bus/kzg.py:kzg_commit": "public: docs/reference/keys.md tells applications to call it",
    "bus/kzg.py:load_kzg_setup": "public: docs/reference/keys.md tells applications to call it",
    "bus/kzg.py:polynomials_to_blob": "the way back, by which the tests check the way there",
    "bus/limits.py:RateLimiter.tracked": "lets a test see that the tables stay within their bound",
    "bus/namespace.py:RESERVED_FIRST_BYTES_6495": "a registry's choice of ranges (S2)",
    "bus/registry.py:DefaultPolicies": "the open policy of a namespace that nobody lists (H20)",
    "bus/registry.py:MappingShelf": "keeps policies that came over the bus",
    "bus/registry.py:PolicyRegistry.pin": "pins a policy against what an owner signs later",
    "bus/semantics.py:VALIDATOR_RULES": "docs/reference/verdicts.md is made from it",
    "bus/structure.py:validate_structure": "public: a header as its sender checks it",
    "bus/structure_batch.py:decode_buffer": "headers of one buffer, measured by bench/bus.py",
    "channel/encryption.py:SealedBoxEncryption": "public: an application hands it to a channel",
    "channel/sds.py:Sds.unacknowledged": "lets a test see when everything is acknowledged",
    "client/stream.py:NO_RETRY": "public: a publish that gives up at once",
    "client/stream.py:PublishStream": "public: publishing without an answer a message",
    "client/values.py:Receipt.retry_after": "public: seconds, as Python's sleep takes them",
    "errors.py:RecordingError": "of the simulator; all errors stand in one module",
    "errors.py:ScenarioError": "of the simulator; all errors stand in one module",
    "errors.py:SimulationError": "of the simulator; all errors stand in one module",
    "gossip/router.py:GossipRouter.mesh_peers": "lets the simulator's checks see the mesh",
    "gossip/score_params.py:ScoreParams.watching_headers": "parameters of the documents (G18)",
    "net/finder.py:_LookupHost.get_addrs": "py-libp2p's look-up calls it on its host",
    "net/finder.py:_LookupHost.get_connected_peers": "py-libp2p's look-up calls it on its host",
    "net/finder.py:_LookupHost.get_peerstore": "py-libp2p's look-up calls it on its host",
    "net/finder.py:_LookupHost.get_private_key": "py-libp2p's look-up calls it on its host",
    "net/raw_peer.py:RawPubsubPeer.send_raw": "of the peer that lies, for tests and simulator",
    "net/raw_peer.py:RawPubsubPeer.wait_ended": "of the peer that lies, for tests",
    "net/raw_peer.py:RawPubsubPeer.wait_received": "of the peer that lies, for tests",
    "node/metrics.py:NodeCollector.describe": "prometheus_client calls it where it is there",
    "node/rates.py:LAYERS": "docs/reference/tables.md is made from it",
    "pages.py:_Handler.do_GET": "http.server calls it by the method's name",
    "sim/measures.py:MEANINGS": "docs/reference/scenario.md is made from it",
    "store/merkle.py:differing_buckets": "the walk down a tree, for who asks a relay's (J5)",
    "store/merkle.py:differing_nodes": "the walk down a tree, for who asks a relay's (J5)",
    "sync/rpc/node_calls.py:NodeCalls.get_receipts": "public: docs/reference/relay-sync.md",
    "sync/rpc/service.py:MethodPool.FindFileContainingSymbol": "grpc's reflection calls it",
    "sync/rpc/patience.py:stuck_threads": "lets a test see that no thread stays behind",
    "testing/certificates.py:TestAuthority": "makes the certificates of tests over TLS",
    "testing/strategies.py:signed_headers": "random headers, for applications' tests",
}
"""What src does not use, each with the reason why it stands there."""


def _name(node: ast.AST) -> str | None:
    """Return the name that a node uses."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
            return name
        case ast.alias(name=name):
            return name
        case ast.keyword(arg=name):
            return name
        case ast.Constant(value=str(name)) if name.isidentifier():
            return name
    return None


def _uses(tree: ast.AST) -> Counter[str]:
    found = (_name(node) for node in ast.walk(tree))
    return Counter(name for name in found if name is not None)


def _targets(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for each in targets if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return what a module defines, ``name`` or ``Class.method``, without private names."""
    found = {}
    for node in tree.body:
        found |= dict.fromkeys(_targets(node), node)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}": inner
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return {name: node for name, node in found.items() if not name.split(".")[-1].startswith("_")}


def _answers_a_library(path: Path, name: str) -> bool:
    """Return whether a method overrides one of a class that is not ours: the library calls it."""
    holder, _, method = name.partition(".")
    if not method:
        return False
    module = importlib.import_module(".".join(path.relative_to(SRC).with_suffix("").parts))
    return any(
        hasattr(base, method)
        for base in getattr(module, holder).__mro__
        if not base.__module__.startswith("luxrelay") or base.__module__.endswith("_pb2_grpc")
    )


@functools.cache
def unused() -> frozenset[str]:
    """Return ``room/file.py:name`` of what nothing in src uses."""
    paths = [path for path in sorted(SRC.rglob("*.py")) if "_pb2" not in path.name]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    uses = {path: _uses(tree) for path, tree in trees.items() if path.name != "__init__.py"}
    everywhere: Counter[str] = Counter()
    product: Counter[str] = Counter()
    for path, counted in uses.items():
        everywhere += counted
        if path.relative_to(SRC / "luxrelay").parts[0] not in ROOMS_OF_TESTS:
            product += counted
    found = set()
    for path in uses:
        ours = path.relative_to(SRC / "luxrelay")
        counted = everywhere if ours.parts[0] in ROOMS_OF_TESTS else product
        for name, node in _definitions(trees[path]).items():
            last = name.split(".")[-1]
            if counted[last] <= _uses(node)[last] and not _answers_a_library(path, name):
                found.add(f"{ours.as_posix()}:{name}")
    return frozenset(found)


def test_what_nothing_uses_has_a_reason() -> None:
    """A public name that no module of the product uses is removed, used, or in the table."""
    assert sorted(unused() - REASONS.keys()) == []


def test_no_reason_without_a_name() -> None:
    """What is used by now, or gone, needs no reason any more."""
    assert sorted(REASONS.keys() - unused()) == []
