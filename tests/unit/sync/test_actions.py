"""What a catch-up asks of its driver."""

from __future__ import annotations

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.actions import AskHeads, Finished, SkipTo


def test_actions_are_values() -> None:
    """Equal actions are equal, so that a recorded run can be compared."""
    namespace_id = NamespaceId(bytes(20))

    assert Finished() == Finished()
    assert AskHeads(request=1, peer="a", parent=None) == AskHeads(request=1, peer="a", parent=None)
    assert SkipTo(namespace_id=namespace_id, parent=namespace_id, seq=1) != SkipTo(
        namespace_id=namespace_id, parent=namespace_id, seq=2
    )
