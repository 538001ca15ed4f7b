"""What a file changes of the router's numbers, and the networks it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from luxrelay.errors import ConfigError, GossipArgumentError
from luxrelay.gossip import GossipParams, PeerLocation, ScoreParams
from luxrelay.node import tuning
from luxrelay.node.tuning import read_places, tuned_mesh, tuned_scores


def test_changes_are_taken_together() -> None:
    """Two numbers that fit only together are changed together; the others stay (20-13)."""
    params = tuned_mesh(GossipParams(peers_max=77), ["d_lo=13", "d=14", "d_hi=20", "d_out=3"])

    assert (params.d_lo, params.d, params.d_hi, params.d_out) == (13, 14, 20, 3)
    assert params.peers_max == 77
    assert params.fanout_ttl_s == 60.0
    assert not tuned_mesh(params, ["flood_publish=false"]).flood_publish


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("d=13", "d_lo ≤ d ≤ d_hi"),
        ("d=six", "does not end in a value of kind int"),
        ("d=6.5", "kind int"),
        ("fanout_ttl_s=nan", "fanout_ttl_s is nan"),
        ("flood_publish=1", "kind bool"),
        ("degree=6", "'degree' is no number"),
        ("peers_max=6", "'peers_max' is no number"),
        ("light=true", "'light' is no number"),
        ("small=6", "'small' is no number"),
        ("__class__=6", "'__class__' is no number"),
        ("d.real=6", "'d.real' is no number"),
    ],
)
def test_refuse_a_change_that_does_not_fit(change: str, problem: str) -> None:
    """It is named with what is wrong, and what has a key of its own is not changed here (20-13)."""
    with pytest.raises(GossipArgumentError, match=problem):
        tuned_mesh(GossipParams(), [change])


def test_scores_and_those_of_a_topic_are_changed() -> None:
    """A weight, and mesh deliveries on headers/global, which the defaults leave off (G18)."""
    assert tuned_scores([]) == ScoreParams()

    scores = tuned_scores(
        [
            "behaviour_threshold=3",
            "headers_global.mesh_deliveries_weight=0.5",
            "headers_global.mesh_failures_weight=0.5",
        ]
    )

    assert scores.behaviour_threshold == 3.0
    assert scores.headers_global == ScoreParams.watching_headers().headers_global
    assert scores.blocks.mesh_deliveries_weight == 0.0
    for change in (
        "namespace=3",
        "namespace.params=1",
        "namespace.weight=-1",
        "graylist_threshold=1",
    ):
        with pytest.raises(GossipArgumentError):
            tuned_scores([change])


def test_places_of_a_file(tmp_path: Path) -> None:
    """A network a line; what is not known may be left out, and remarks are passed over (20-31)."""
    path = tmp_path / "places.csv"
    path.write_text(
        "# made by hand\n192.0.2.0/24,64500,EU\n2001:db8::/32, AS7\n\n10.0.0.0/8,0,US #\n"
    )

    table = read_places(path)

    assert table.place("192.0.2.9") == PeerLocation(asn=64500, region="EU")
    assert table.place("2001:db8::1") == PeerLocation(asn=7)
    assert table.place("10.1.1.1") == PeerLocation(region="US")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("192.0.2.0/24,many", ":1"), ("\n192.0.2.1/24,1", "no network"), ("not,1,EU", "no network")],
)
def test_refuse_a_file_of_something_else(tmp_path: Path, text: str, problem: str) -> None:
    """The error names the file and the line or what stands there."""
    path = tmp_path / "places.csv"
    path.write_text(text)

    with pytest.raises(ConfigError, match=problem):
        read_places(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_places(tmp_path / "absent.csv")


def test_places_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond PLACES_MAX lines or PLACES_BYTES_MAX bytes is refused, not half read."""
    path = tmp_path / "places.csv"
    path.write_text("192.0.2.0/24,1\n198.51.100.0/24,2\n")

    monkeypatch.setattr(tuning, "PLACES_MAX", 1)
    with pytest.raises(ConfigError, match=":2"):
        read_places(path)
    monkeypatch.setattr(tuning, "PLACES_BYTES_MAX", 10)
    with pytest.raises(ConfigError, match="more than 10 bytes"):
        read_places(path)
