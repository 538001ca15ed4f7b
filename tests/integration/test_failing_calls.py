"""An exception that nobody expected ends one gRPC call, and nothing else."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from luxrelay.bus import topic_namespace
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub

PARENT = topic_namespace("/chat/1/room")
BROKEN = bytes(range(20))
"""The namespace that the store of this node cannot bear."""
HIDDEN = "of another caller"
FAULT = f"""
import sys
if "run" in sys.argv or sys.argv[0] == "-m":
    from luxrelay.store.relay_store import RelayStore

    def broken(name):
        whole = getattr(RelayStore, name)

        def call(self, first, *rest, **named):
            if {BROKEN!r} in (first, getattr(first, "namespace_id", b"")):
                raise ZeroDivisionError({HIDDEN!r})
            return whole(self, first, *rest, **named)

        setattr(RelayStore, name, call)

    for name in ("head", "heads", "query"):
        broken(name)
"""
"""Runs in the node before anything else, and puts a fault into its store."""
CALLS: dict[str, Callable[[grpc.Channel, bytes], Any]] = {
    "GetNamespaceHead": lambda channel, name: RelaySyncStub(channel).GetNamespaceHead(
        pb.NamespaceHeadRequest(namespace_id=name), timeout=60
    ),
    "ListHeads": lambda channel, name: list(
        RelaySyncStub(channel).ListHeads(pb.ListHeadsRequest(parent_id=name), timeout=60)
    ),
    "SyncNamespace": lambda channel, name: list(
        RelaySyncStub(channel).SyncNamespace(pb.SyncRequest(namespace_id=name), timeout=60)
    ),
    "Subscribe": lambda channel, name: next(
        RelayNodeStub(channel).Subscribe(node_pb.SubscribeRequest(namespaces=[name]), timeout=60)
    ),
}


@pytest.mark.trial
@pytest.mark.slow
def test_a_call_that_fails_ends_alone_with_a_number(
    new_node: Callable[[str], Any], tmp_path: Path
) -> None:
    """INTERNAL, counted by call and class, one line a minute and kind; other calls go on."""
    place = tmp_path / "fault"
    place.mkdir()
    (place / "sitecustomize.py").write_text(FAULT)
    node = new_node("relay")
    node.source = place
    runtime = node.start()

    with grpc.insecure_channel(runtime.sync) as channel:
        for name, call in CALLS.items():
            for _ in range(5):
                with pytest.raises(grpc.RpcError) as caught:
                    call(channel, BROKEN)
                assert caught.value.code() is grpc.StatusCode.INTERNAL, name
                said = caught.value.details()
                assert "number" in said
                assert HIDDEN not in said
                assert "Zero" not in said
            call(channel, PARENT)

    with urllib.request.urlopen(f"http://{runtime.http}/metrics", timeout=30) as answer:
        shown = answer.read().decode()
    for name in CALLS:
        assert (
            f'luxrelay_sync_mishaps_total{{call="{name}",exception="ZeroDivisionError"}} 5.0'
            in shown
        )
    lines = [json.loads(line) for line in (node.folder / "log").read_text().splitlines()]
    told = [line for line in lines if "a call failed" in json.dumps(line)]
    assert len(told) == len(CALLS)
    assert node.stop() == 0
