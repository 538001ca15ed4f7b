"""Bounds of server and client."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.rpc.config import (
    FRAME_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    SyncClientConfig,
    SyncServerConfig,
    require,
)


@pytest.mark.parametrize("name", [each.name for each in fields(SyncServerConfig)])
def test_refuse_a_server_bound_out_of_range(name: str) -> None:
    """Every number of the server has bounds, and the error names the number."""
    if name in {"host", "fairness", "limit_local", "entrance", "validators", "validator_keys"}:
        return
    with pytest.raises(SyncArgumentError, match=name):
        SyncServerConfig(**{name: -1})


@pytest.mark.parametrize("name", [each.name for each in fields(SyncClientConfig)])
def test_refuse_a_client_bound_out_of_range(name: str) -> None:
    """Every number of the client has bounds, and the error names the number."""
    with pytest.raises(SyncArgumentError, match=name):
        SyncClientConfig(**{name: -1})


def test_leave_threads_for_short_calls() -> None:
    """Streams, publishers and subscribers together may not take every worker."""
    with pytest.raises(SyncArgumentError, match="publishers_max"):
        SyncServerConfig(workers=8, streams_max=4, publishers_max=4, subscribers_max=0)
    with pytest.raises(SyncArgumentError, match="subscribers_max"):
        SyncServerConfig(workers=8, streams_max=4, publishers_max=2, subscribers_max=2)
    SyncServerConfig(workers=8, streams_max=4, publishers_max=2, subscribers_max=1)


def test_require_takes_its_ends() -> None:
    """Both ends of a range are inside it."""
    require("x", 1, 1, 3)
    require("x", 3, 1, 3)
    with pytest.raises(SyncArgumentError):
        require("x", 3.5, 1, 3)


def test_configurations_travel_by_pickle() -> None:
    """Spark ships the client's configuration to its executors."""
    config = SyncClientConfig(page_s=3)
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes


def test_a_frame_holds_the_largest_message() -> None:
    """A full frame and one largest message more stay below every library's limit."""
    assert SyncServerConfig().frame_bytes + MESSAGE_BYTES_MAX < FRAME_BYTES_MAX
    assert SyncClientConfig().publish_bytes + MESSAGE_BYTES_MAX < FRAME_BYTES_MAX
