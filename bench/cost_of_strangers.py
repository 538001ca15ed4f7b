"""What an address without a token costs a node at its most, beside what it costs its sender.

Attacks a node of its own at one door after another, from one address, for ``--seconds`` each, and
prints a line of Markdown a kind: CPU time of the node as a share of one core (from /proc, so that
it holds on a loaded machine) at rest, that is with an honest publisher and the probe, and what the
attack adds to it; that of the sender's process, the ratio of the two, and the latency of an honest
probe (``/healthz`` on the port of the pages) at rest and meanwhile. Sender, publisher and probe
have addresses of their own, and the sender, where there are two or more, a core of its own: a
stranger's machine is another one, and a probe that shares the sender's cores waits for it whatever
the node does. ``--elsewhere`` shows that: the attack goes to a second node, and what the probe of
the first sees is the machine's. The node is started anew for each kind, so that the sender begins
with all that an address may cost at once.

With ``--judge`` it ends with exit code 1 when a kind costs the node more than a tenth of a core, or
the probe's 99th percentile is above three times that at rest.

usage: python bench/cost_of_strangers.py [--seconds 60] [--only KIND]... [--judge] [--list]
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from stranger_kinds import GAP_KEY, KEY, NETWORK, TOPIC, item, kinds

from luxrelay.node.folder import Runtime, read_runtime
from luxrelay.sync import RelaySyncClient

SHARE_MAX: Final = 0.10
"""Of one core: what one address may cost."""
LATENCY_MAX: Final = 3.0
"""The probe's 99th percentile beside that at rest."""
PROBE_S: Final = 0.05
REST_S: Final = 10.0
"""How long the probe looks at a node at rest, seconds."""
LOADING_S: Final = 60.0
"""How long the sender may take to load its libraries, seconds."""
PROBER: Final = "127.77.0.9"
"""Where the probe comes from: another address than the attack, of another /16."""
TELLER: Final = "127.78.0.9"
"""Where an honest publisher comes from."""
TOLD_EVERY_S: Final = 0.1
"""How often an honest publisher adds a message behind the gap."""
PLAIN: Final = "plain.toml"
SECURE: Final = "secure.toml"
"""The node's configurations; the second has TLS at the gateway."""
CORES: Final = sorted(os.sched_getaffinity(0))
OURS: Final = CORES[:-1] or CORES
"""Where node, publisher and probe run."""
STRANGERS: Final = CORES[-1:]
"""Where the sender runs."""
SENDERS: Final = 4
STORED: Final = 2_000
BEHIND_GAP: Final = 256


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one kind cost."""

    kind: str
    idle: float
    """Of the node before the attack, of one core."""
    node: float
    """What the attack adds, of one core."""
    sender: float
    rest: Sequence[float]
    under: Sequence[float]

    def wrong(self) -> str:
        """Return what is above its bound; empty when nothing is."""
        found = []
        if self.node > SHARE_MAX:
            found.append(f"{100 * self.node:.1f} % of a core")
        if tail(self.under) > LATENCY_MAX * tail(self.rest):
            found.append(f"p99 {tail(self.under):.1f} ms, {tail(self.rest):.1f} at rest")
        return ", ".join(found)

    def __str__(self) -> str:
        """Return the line of the table."""
        rest = f"{middle(self.rest):.1f} / {tail(self.rest):.1f}"
        under = f"{middle(self.under):.1f} / {tail(self.under):.1f}"
        ratio = self.node / max(self.sender, 0.001)
        shares = (
            f"{100 * self.idle:.1f} % | {100 * self.node:.1f} % | {100 * self.sender:.1f} % | "
            f"{ratio:.2f}"
        )
        return f"| {self.kind} | {shares} | {rest} | {under} |"


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return sorted(values)[len(values) // 2]


def tail(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, seconds."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / float(os.sysconf("SC_CLK_TCK"))


def probe(place: Runtime) -> float:
    """Return how long the node takes to say that it is well, milliseconds."""
    began = time.monotonic()
    line = http.client.HTTPConnection(place.http, timeout=60, source_address=(PROBER, 0))
    with suppress(OSError, http.client.HTTPException):
        line.request("GET", "/healthz")
        line.getresponse().read()
    line.close()
    return (time.monotonic() - began) * 1_000


def attack(place: Runtime, kind: str, seconds: float, ready: Event) -> None:
    """Do what strangers do, in a process of its own, once it has loaded what it needs."""
    ready.set()
    until = time.monotonic() + seconds
    work = kinds(place)[kind]
    threads = [threading.Thread(target=work, args=(until,), daemon=True) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + 1 - time.monotonic()))
    os._exit(0)  # a call that hangs keeps no measurement


def measure(place: Runtime, target: Runtime, kind: str, seconds: float) -> Row:
    """Return what a kind costs a running node when it is done to ``target``, mostly the same."""
    rest, began, before = [], time.monotonic(), cpu_s(place.pid)
    while time.monotonic() - began < min(REST_S, seconds):
        rest.append(probe(place))
        time.sleep(PROBE_S)
    idle = (cpu_s(place.pid) - before) / (time.monotonic() - began)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    sender = context.Process(target=attack, args=(target, kind, seconds, ready))
    sender.start()
    assert sender.pid is not None
    with suppress(ProcessLookupError):
        os.sched_setaffinity(sender.pid, STRANGERS)
    ready.wait(LOADING_S)
    loaded = theirs = cpu_s(sender.pid)
    began, before, under = time.monotonic(), cpu_s(place.pid), []
    while sender.is_alive():
        under.append(probe(place))
        with suppress(OSError):
            theirs = cpu_s(sender.pid)
        time.sleep(PROBE_S)
    theirs -= loaded
    took, ours = time.monotonic() - began, cpu_s(place.pid) - before
    added = max(0.0, ours / took - idle)
    return Row(kind=kind, idle=idle, node=added, sender=theirs / took, rest=rest, under=under)


@contextmanager
def passed_on(address: str) -> Iterator[str]:
    """Pass one connection after the other on to an address, from an address of its own."""
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def take() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(port)), 30, source_address=(TELLER, 0))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=take, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@contextmanager
def telling(place: Runtime, first: int) -> Iterator[None]:
    """Have an honest client add messages behind the gap, so that there is something to read."""
    over = threading.Event()

    def tell() -> None:
        with passed_on(place.sync) as address, RelaySyncClient(address) as client:
            seq = first
            while not over.wait(TOLD_EVERY_S):
                with suppress(Exception):
                    list(client.publish([item(GAP_KEY, seq)]))
                seq += 1

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def node(folder: Path, config: str = PLAIN) -> Iterator[Runtime]:
    """Run a node in a folder, by one of the configurations there."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "luxrelay", "node", "run", "--config", str(folder / config)],
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + 120
        while (place := read_runtime(folder / "data")) is None or place.pid != process.pid:
            if time.monotonic() > until or process.poll() is not None:
                sys.exit((folder / "log").read_text())
            time.sleep(0.1)
        yield place
    finally:
        process.terminate()
        process.wait(30)


def prepare(folder: Path) -> None:
    """Write a configuration, and fill the store: a lane, and one with a gap."""
    names = [x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]
    key, name, now = ec.generate_private_key(ec.SECP256R1()), x509.Name(names), datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    day = timedelta(days=1)
    made = builder.not_valid_before(now - day).not_valid_after(now + day)
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
    form, open_key = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, open_key))
    (folder / "key.pem").chmod(0o600)
    text = (
        f'[node]\nname = "cost"\nnetwork = "{NETWORK}"\ndata_dir = "data"\n'
        '[gossip]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n'
        '[sync]\nlisten = "127.0.0.1:0"\nallow_publish = true\n[http]\nlisten = "127.0.0.1:0"\n'
        '[gateway]\nlisten = "127.0.0.1:0"\nadmin_listen = ""\ngrpc_listen = "127.0.0.1:0"\n'
    )
    carried = f"[[namespace]]\ncontent_topic = {json.dumps(TOPIC)}\n"
    keys = 'tls_certificate = "cert.pem"\ntls_key = "key.pem"\n'
    (folder / PLAIN).write_text(text + carried)
    (folder / SECURE).write_text(text + keys + carried)
    with node(folder) as place, RelaySyncClient(place.sync) as client:
        list(client.publish([item(KEY, seq, bytes(200)) for seq in range(1, STORED + 1)]))
        behind = [item(GAP_KEY, seq, bytes(1_000)) for seq in range(3, BEHIND_GAP + 3)]
        list(client.publish([item(GAP_KEY, 1), *behind]))


def main() -> None:
    """Attack, measure, and judge when asked to."""
    parser = argparse.ArgumentParser(description="What strangers cost a node.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each kind")
    parser.add_argument("--only", action="append", default=[], metavar="KIND")
    parser.add_argument("--judge", action="store_true", help="exit 1 when a bound is passed")
    parser.add_argument("--elsewhere", action="store_true", help="attack another node")
    parser.add_argument("--list", action="store_true", help="name the kinds")
    options = parser.parse_args()
    nowhere = Runtime(pid=0, peer_id="", gossip=(), sync="", http="", gateway="")
    if options.list:
        print("\n".join(kinds(nowhere)))
        return
    unknown = set(options.only) - set(kinds(nowhere))
    if unknown:
        parser.error(f"no kind {min(unknown)!r}; --list names them")
    os.sched_setaffinity(0, OURS)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        print("| kind | idle | attack | sender | ratio | rest, p50 / p99 ms | under, p50 / p99 |")
        print("|---|---|---|---|---|---|---|", flush=True)
        told = 0
        for kind in options.only or kinds(nowhere):
            config = SECURE if kind.startswith("TLS") else PLAIN
            with ExitStack() as running:
                place = target = running.enter_context(node(folder, config))
                running.enter_context(telling(place, BEHIND_GAP + 3 + told))
                if options.elsewhere:
                    other = Path(running.enter_context(tempfile.TemporaryDirectory()))
                    prepare(other)
                    target = running.enter_context(node(other, config))
                row = measure(place, target, kind, options.seconds)
            told += int(options.seconds / TOLD_EVERY_S) + 1_000
            print(row, flush=True)
            if row.wrong():
                wrong.append(kind)
                print(f"above its bound: {kind}: {row.wrong()}", file=sys.stderr, flush=True)
    if wrong and options.judge:
        sys.exit(1)


if __name__ == "__main__":
    main()
