"""What an answer means that is none of a call's own."""

from __future__ import annotations

import json

from luxrelay.client.calls import Answer, refused


def test_a_reason_of_the_gateway_is_passed_on() -> None:
    """Its code, its words and what it advises."""
    body = json.dumps({"code": "gateway.scope", "detail": "no", "hint": "ask"}).encode()

    said = refused(Answer(403, {}, body))

    assert (str(said), said.status) == ("gateway.scope: no; ask", 403)


def test_an_answer_without_a_reason_is_of_another_service() -> None:
    """Whoever dialled a port of metrics, or a proxy, is sent to look at the address."""
    for body in (b"", b"<html>Bad Gateway</html>", b"[]"):
        said = refused(Answer(404, {}, body))

        assert said.status == 404
        assert "status 404" in str(said)
        assert "Check the address and the port" in str(said)
