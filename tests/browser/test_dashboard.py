"""The dashboard as a person sees it: in Chromium, with a real node behind it."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import LaneSigner, RelayClient
from luxrelay.node.gateway.tokens import TokenFile

from .conftest import SHOTS, Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TOPICS = ("/chat/1/room", "/weather/1/stations")
LINES = (
    "Is the north station up again?", "Yes, since ten past four.", "wind 14 m/s from WNW, gusting",
    "Pressure falling: 996 hPa", "I am on the ferry, back at six.", "Grüße aus Kiel, alles gut.",
    "temperature 3.4 °C", "Merci, bien reçu.", "Anyone for lunch at the harbour?", "rain 0.2 mm",
)  # fmt: skip


class Traffic:
    """Senders that publish through one relay until they are stopped."""

    def __init__(self, address: str, token: str, rate: float) -> None:
        """Begin."""
        self._stop = threading.Event()
        self._client = RelayClient(address, token=token)
        self._signers = [
            LaneSigner(SigningKey.generate(), topic_namespace(TOPICS[number % 2]))
            for number in range(7)
        ]
        self._rate = rate
        self._rng = random.Random(7)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._rng.uniform(0.5, 1.5) / self._rate):
            signer = self._rng.choice(self._signers)
            text = self._rng.choice(LINES).encode()
            self._client.publish([signer.sign(text, time.time_ns() // 1_000_000)])

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()
        self._client.close()


@pytest.fixture
def node(new_node: Callable[[str], Any]) -> Any:
    """A node with a gateway whose port stays the same over a restart."""
    made = new_node("harbour")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made.topics = list(TOPICS)
    made.sections["gateway"] = {"listen": f"127.0.0.1:{port}", "admin_listen": ""}
    return made


def token_of(node: Any, *scopes: str) -> str:
    """Return a new token of a node."""
    text, _ = TokenFile(node.folder / "data", 10).new("test", scopes, 1_700_000_000_000)
    return text


def publish(node: Any, runtime: Any, text: bytes, token: str, signer: LaneSigner) -> None:
    """Publish one message over HTTP."""
    with RelayClient(runtime.gateway, token=token) as client:
        (receipt,) = client.publish([signer.sign(text, time.time_ns() // 1_000_000)])
    assert receipt.stored, (node, receipt)


def shows(text: str) -> str:
    """Return a script that is true when the live view shows a text."""
    return f"document.getElementById('messages').textContent.includes({json.dumps(text)})"


READY = "document.getElementById('health').dataset.state === 'good'"


def test_a_published_message_shows_within_a_second(node: Any, browser: Browser) -> None:
    """What is published is seen within a second; the page asks this node only."""
    runtime = node.start()
    token = token_of(node, "publish")
    signer = LaneSigner(SigningKey.generate(), topic_namespace(TOPICS[0]))
    browser.open(f"http://{runtime.gateway}/", dark=False)
    browser.until(READY)
    publish(node, runtime, b"warm-up", token, signer)
    browser.until(shows("warm-up"))

    began = time.monotonic()
    publish(node, runtime, b"the <b>harbour</b> is open", token, signer)
    browser.until(shows("the <b>harbour</b> is open"), seconds=5)
    took_s = time.monotonic() - began

    assert took_s < 1.0
    assert browser.evaluate("document.querySelector('#messages b')") is None
    browser.until("document.getElementById('stored').textContent === '2'")
    assert browser.evaluate("document.querySelector('.space strong').textContent") == TOPICS[0]
    hosts = {each.split("/")[2] for each in browser.requests if not each.startswith("data:")}
    assert hosts == {runtime.gateway}
    assert browser.errors == []
    assert browser.network_errors == []


def test_it_survives_a_restart_of_the_node(node: Any, browser: Browser) -> None:
    """While the node is away the page says so; afterwards it goes on by itself."""
    runtime = node.start()
    browser.open(f"http://{runtime.gateway}/", dark=True)
    browser.until(READY)

    assert node.stop() == 0
    browser.until("document.getElementById('health-text').textContent === 'Reconnecting'")
    runtime = node.start()
    browser.until(READY, seconds=30)
    signer = LaneSigner(SigningKey.generate(), topic_namespace(TOPICS[0]))
    publish(node, runtime, b"back again", token_of(node, "publish"), signer)
    browser.until(shows("back again"))

    assert browser.errors == []


def test_a_locked_node_asks_for_a_token(node: Any, browser: Browser) -> None:
    """Without a token the page asks for one, takes it and keeps it out of the address."""
    node.sections["gateway"]["anonymous"] = "nobody"
    runtime = node.start()
    token = token_of(node, "read")
    browser.open(f"http://{runtime.gateway}/", dark=False)
    browser.until("!document.getElementById('door').hidden")
    assert browser.evaluate("document.activeElement.id") == "token"

    browser.command("Input.insertText", text=token)
    browser.evaluate("document.getElementById('door').requestSubmit()")
    browser.until(READY)

    assert browser.evaluate("document.getElementById('door').hidden")
    assert not any(token in each for each in browser.requests)
    assert browser.errors == []


def test_what_needs_a_look_is_said_first(node: Any, browser: Browser) -> None:
    """A hole in a lane has a line on top of the page until it is filled."""
    runtime = node.start()
    token = token_of(node, "read", "publish")
    signer = LaneSigner(SigningKey.generate(), topic_namespace(TOPICS[0]))
    first, later = (signer.sign(text, time.time_ns() // 1_000_000) for text in (b"one", b"two"))
    shown = (
        "!document.getElementById('alarm').hidden"
        " && document.getElementById('alarm-list').textContent.includes('1 message is missing')"
    )
    with RelayClient(runtime.gateway, token=token) as client:
        client.publish([later])
        browser.open(f"http://{runtime.gateway}/", dark=False)
        browser.until(READY)
        browser.until(shown)

        client.publish([first])

        browser.until("!document.getElementById('alarm-list').textContent.includes('missing')")
    assert browser.errors == []


def test_what_others_say_stays_words(node: Any, browser: Browser) -> None:
    """Names and messages with markup, odd directions and no end do nothing and break no layout."""
    markup = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    topic = f"/chat/1/{markup}"
    node.topics = [*TOPICS, topic]
    node.sections["gateway"]["publish_items_max"] = 1000
    runtime = node.start()
    token = token_of(node, "publish")
    now_ms = time.time_ns() // 1_000_000
    said = [
        markup.encode(),
        b"javascript:window.hacked=1",
        "\u202egnp.exe \u2066\u200b\u0000\x1b[31m".encode(),
        b"\xff\xfe" * 50,
        b"x" * 40_000,
        "\U0001f9d1\u200d\U0001f680".encode() * 500,
    ]
    signer = LaneSigner(SigningKey.generate(), topic_namespace(topic))
    crowd = [LaneSigner(SigningKey.generate(), topic_namespace(TOPICS[0])) for _ in range(1000)]

    browser.open(f"http://{runtime.gateway}/", dark=False)
    browser.until(READY)
    with RelayClient(runtime.gateway, token=token) as client:
        assert all(each.stored for each in client.publish([c.sign(b"hi", now_ms) for c in crowd]))
        assert all(each.stored for each in client.publish([signer.sign(s, now_ms) for s in said]))
        client.publish([signer.sign(b"the last one", now_ms)])
    browser.until(shows("the last one"))
    browser.until(f"document.body.textContent.includes({json.dumps(markup)})")
    for width in (1440, 390):
        browser.shape(width, 800, dark=True)
        browser.until("document.documentElement.scrollWidth <= window.innerWidth")
        browser.picture(f"hostile-{width}")

    assert browser.evaluate("window.hacked === undefined")
    assert (
        browser.evaluate("document.querySelectorAll('#messages script, #messages img').length") == 0
    )
    assert browser.evaluate("document.querySelectorAll('*').length") < 20_000
    assert all(runtime.gateway in each for each in browser.requests), browser.requests
    assert browser.errors == []


def test_keyboard_and_filter(node: Any, browser: Browser) -> None:
    """Everything is reached with Tab; the filter and the pause button do what they say."""
    runtime = node.start()
    token = token_of(node, "publish")
    signer = LaneSigner(SigningKey.generate(), topic_namespace(TOPICS[0]))
    browser.open(f"http://{runtime.gateway}/", dark=False)
    browser.until(READY)
    for text in (b"wind", b"rain"):
        publish(node, runtime, text, token, signer)
    browser.until(shows("rain"))
    reached = []
    for _ in range(12):
        browser.press("Tab")
        reached.append(
            browser.evaluate("document.activeElement.id || document.activeElement.className")
        )

    assert {"skip", "theme", "filter", "pause", "messages", "wide"} <= set(reached)
    browser.evaluate("document.getElementById('filter').focus()")
    browser.command("Input.insertText", text="WIN")
    browser.until(f"{shows('wind')} && !{shows('rain')}")
    browser.evaluate(
        "document.getElementById('filter').value = ''; document.getElementById('pause').click()"
    )
    publish(node, runtime, b"while paused", token, signer)
    browser.until("document.getElementById('stored').textContent === '3'")
    assert not browser.evaluate(shows("while paused"))
    browser.evaluate("document.getElementById('pause').click()")
    browser.until(shows("while paused"))
    assert browser.errors == []


def busy_pair(node: Any, new_node: Callable[[str], Any]) -> Iterator[Any]:
    """Yield the runtime of a node that has peers and traffic."""
    runtime = node.start()
    others = []
    for name in ("lighthouse", "ferry"):
        other = new_node(name)
        other.topics = list(TOPICS)
        other.sections["gossip"]["peers"] = list(runtime.gossip)
        other.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
        others.append(other)
    runtimes = [other.start() for other in others]
    sources = [(node, runtime, 6.0), (others[0], runtimes[0], 9.0), (others[1], runtimes[1], 3.0)]
    traffic = [Traffic(r.gateway, token_of(n, "publish"), rate) for n, r, rate in sources]
    try:
        yield runtime
    finally:
        for each in traffic:
            each.stop()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_serious_for_the_accessibility_checker(
    node: Any, new_node: Callable[[str], Any], browser: Browser, axe: str, *, dark: bool
) -> None:
    """With peers and traffic axe-core finds nothing serious, wide and narrow; makes pictures."""
    scheme = "dark" if dark else "light"
    for runtime in busy_pair(node, new_node):
        browser.open(f"http://{runtime.gateway}/", dark=dark)
        browser.until("document.querySelectorAll('#peer-rows tr').length === 2", seconds=60)
        browser.until("document.querySelectorAll('#messages li').length >= 12", seconds=60)
        moments = 75 if SHOTS.name else 5
        busy = "rates().filter(each => each.all > 0).length"
        browser.until(f"{busy} > {moments}", seconds=200)
        for width, height, name in ((1440, 1000, "dashboard"), (390, 844, "dashboard-phone")):
            browser.shape(width, height, dark=dark)
            browser.until(f"{READY} && document.querySelectorAll('#messages li').length >= 12")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
            browser.picture(f"{name}-{scheme}")
            browser.evaluate(axe + "; null")
            found = browser.evaluate(
                "axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify("
                "r.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html).slice(0, 3)])))"
            )
            serious = [each for each in json.loads(found) if each[0] in {"serious", "critical"}]
            assert serious == []
    assert browser.errors == []
