"""The proxies of docs/how-to/secure.md: what they send is answered as their page says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from .conftest import Stand

pytestmark = [pytest.mark.slow, pytest.mark.trial]
PAGE: Final = (Path(__file__).resolve().parents[3] / "docs/how-to/secure.md").read_text()
NAME: Final = "relay.example.org"
Maker = Callable[..., Stand]


def block(kind: str) -> str:
    """Return the last block of a kind on the page."""
    found: str = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[-1]
    return found


def configured() -> dict[str, Any]:
    """Return the keys of the page for the gateway, without the ports."""
    keys: dict[str, Any] = tomllib.loads(block("toml"))["gateway"]
    lists = {name: tuple(value) for name, value in keys.items() if isinstance(value, list)}
    return keys | lists | {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}


def nginx(head: dict[str, str], client: str) -> dict[str, str]:
    """Return what nginx makes of the headers of a client, by the page's `proxy_set_header`."""
    values = {
        "$http_host": head["Host"],
        "$remote_addr": client,
        "$http_upgrade": head.get("Upgrade", ""),
        "$connection_upgrade": "upgrade" if "Upgrade" in head else "",
        '""': "",
    }
    told = re.findall(r"proxy_set_header (\S+) (\S+);", block("nginx"))
    assert len(told) == 5
    found = head | {name: values[value] for name, value in told}
    return {name: value for name, value in found.items() if value}


def caddy(head: dict[str, str], client: str) -> dict[str, str]:
    """Return what Caddy does: it writes the client, keeps the name, drops what it is told."""
    found = head | {"X-Forwarded-For": client}
    for name in re.findall(r"header_up -(\S+)", block("caddyfile")):
        found.pop(name, None)
    return found


def asked(stand: Stand, head: dict[str, str], path: str = "/v1/limits") -> bytes:
    """Return the answer to a request with these headers, on a connection of its own."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return stand.raw(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())


@pytest.mark.parametrize("proxy", [nginx, caddy])
def test_what_the_proxies_of_the_page_send_is_taken(
    stand_with: Maker, proxy: Callable[[dict[str, str], str], dict[str, str]]
) -> None:
    """Names, pages of the site, WebSockets and tokens pass; clients are told apart."""
    stand = stand_with(**configured(), requests_per_s=3)
    own = {"Host": NAME, "Origin": f"https://{NAME}"}
    socket = own | {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": f"luxrelay.v1, luxrelay.token.{stand.token('read')}",
    }

    assert b" 200 " in asked(stand, proxy(own, "192.0.2.1"))[:13]
    assert b" 101 " in asked(stand, proxy(socket, "192.0.2.1"), "/v1/stream")[:13]
    assert b" 401 " in asked(stand, proxy(own, "192.0.2.1"), "/v1/status")[:13]
    for wrong in ({"Host": "evil.example"}, {"Host": NAME, "Origin": "https://evil.example"}):
        assert b" 403 " in asked(stand, proxy(wrong, "192.0.2.2"))[:13]

    def liar(number: int) -> dict[str, str]:
        """A client that writes itself what proxies write."""
        other = f"198.51.100.{number}"
        return {"Host": NAME, "X-Forwarded-For": other, "Forwarded": f"for={other}"}

    for client in ("192.0.2.3", "127.0.0.1"):  # also one whose address is the proxy's
        answers = [asked(stand, proxy(liar(n), client))[:13] for n in range(30)]
        assert any(b" 429 " in answer for answer in answers)
    assert b" 200 " in asked(stand, proxy(own, "192.0.2.4"))[:13]
