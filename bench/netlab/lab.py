"""Nodes in network namespaces: made, started, asked and ended; and what of the machine that needs.

The names of a run's namespaces and devices have the process id of the run, so runs stand beside
each other. All of it is removed at the end, also after an exception or a signal; what a run that
was killed left is removed by the next one.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from luxrelay.bus import topic_namespace
from luxrelay.client import Query, RelayClient
from luxrelay.errors import LuxRelayError
from luxrelay.net import NetConfig, RelayHost
from luxrelay.node.folder import DataFolder
from netlab.measures import Key
from netlab.scenario import LabScenario, NetworkPlan, RelayPlan

TOPIC: Final = "/chat/1/netlab"
PARENT: Final = topic_namespace(TOPIC)
BENCH: Final = Path(__file__).resolve().parents[1]
CLOCK_SOURCE: Final = BENCH.parent / "tests" / "integration" / "wall_clock.c"
"""The clock of a node that a file moves."""
NAMES: Final = "luxlab"
READY_S: Final = 180.0
"""Longest start of all nodes, seconds."""
STOP_S: Final = 60.0
"""Longest orderly end of a node; then it is killed."""
_NET: Final = "10.77.0"
_CLONE_NEWNET: Final = 0x40000000
_BIN: Final = Path(sys.executable).parent
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SYNC, _GOSSIP, _HTTP, _GATEWAY, _ADMIN = 9641, 9640, 9642, 9643, 9644
_BESIDE: Final = 100
"""What is added to the ports of a relay that runs beside another one."""


class LabError(Exception):
    """The lab cannot go on; says why."""


class LabNotPermittedError(LabError):
    """This machine permits no lab; says what is lacking."""


def ip(*words: str, check: bool = True) -> str:
    """Run ``ip`` of iproute2 and return what it says.

    Raises:
        LabError: it failed.

    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)  # noqa: S607
    if check and done.returncode:
        raise LabError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def require_permission() -> None:
    """Find out whether namespaces and TUN devices may be made here.

    Raises:
        LabNotPermittedError: says what is lacking.

    """
    if os.geteuid():
        raise LabNotPermittedError("network namespaces need root")
    if shutil.which("ip") is None:
        raise LabNotPermittedError("there is no ip command (Debian: iproute2)")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        raise LabNotPermittedError(f"/dev/net/tun: {error.strerror}") from error
    name = f"{NAMES}{os.getpid()}-try"
    try:
        ip("netns", "add", name)
    except LabError as error:
        raise LabNotPermittedError(f"no network namespace can be made: {error}") from error
    ip("netns", "del", name, check=False)


def remove_leftovers() -> list[str]:
    """Remove the namespaces of runs that are no more, and end what runs in them."""
    removed = []
    for line in ip("netns", "list", check=False).splitlines():
        found = re.match(rf"({NAMES}(\d+)-\w+)", line)
        if found is None or Path(f"/proc/{found[2]}").exists():
            continue
        for pid in ip("netns", "pids", found[1], check=False).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ip("netns", "del", found[1], check=False)
        removed.append(found[1])
    return removed


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread is in a namespace; sockets that it makes stay there."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if _LIBC.setns(other, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        _LIBC.setns(own, _CLONE_NEWNET)
        os.close(own)
        os.close(other)


class WireProcess:
    """The process of `netlab.wire`, asked from any thread.

    Args:
        seed: Of its chance.

    """

    def __init__(self, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "netlab.wire", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=BENCH,
        )
        if os.nice(0) == 0:
            # A wire that waits for the processor is a slow network; nodes come after it.
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, -10)
        self._lock = threading.Lock()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Return the answer to a command.

        Raises:
            LabError: the wire refuses it, or has ended.

        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()
                answer: dict[str, Any] = json.loads(self._process.stdout.readline())
            except (OSError, ValueError) as error:
                raise LabError(f"the wire has ended: {error}") from error
        if "error" in answer:
            raise LabError(f"the wire: {answer['error']}")
        return answer

    def close(self) -> None:
        """End it; its devices go with it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlace:
    """Where a relay is."""

    index: int
    namespace: str
    device: str
    host: str
    """Address by which others reach it."""
    shift: int
    """What is added to its ports."""
    folder: Path

    @property
    def name(self) -> str:
        """As on the wire and in reports."""
        return f"r{self.index}"


class LabRelay:
    """One node: configuration, process, and what it tells.

    Args:
        place: Where it is.
        clock: A library that moves its wall clock; None for a right clock.

    """

    def __init__(self, place: RelayPlace, clock: Path | None) -> None:
        self.place = place
        self.clock_s = 0
        """How far its clock is ahead, seconds."""
        place.folder.mkdir(parents=True, exist_ok=True)
        seed = DataFolder(place.folder / "data").identity().seed
        host = RelayHost(seed, NetConfig(listen=("/ip4/127.0.0.1/tcp/0",)))
        self.address = f"/ip4/{place.host}/tcp/{_GOSSIP + place.shift}/p2p/{host.peer_text}"
        self.sync = f"{place.host}:{_SYNC + place.shift}"
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._frozen = False

    @property
    def running(self) -> bool:
        """Whether it runs and answers: a frozen one does not."""
        return self._process is not None and self._process.poll() is None and not self._frozen

    @property
    def log(self) -> Path:
        """What it says, a JSON object a line."""
        return self.place.folder / "log.jsonl"

    def configure(
        self, plan: NetworkPlan, peers: Iterable[str], bootstrap: Iterable[str], sync: Iterable[str]
    ) -> None:
        """Write its configuration."""
        place, shift = self.place, self.place.shift
        sections: dict[str, dict[str, Any]] = {
            "node": {"name": place.name, "data_dir": "data"},
            "gossip": {
                "listen": [f"/ip4/0.0.0.0/tcp/{_GOSSIP + shift}"],
                "announce": [f"/ip4/{place.host}/tcp/{_GOSSIP + shift}"],
                "peers": list(peers),
                "bootstrap": list(bootstrap),
            },
            "store": {"ttl_ms": 3_600_000},
            "sync": {"listen": f"0.0.0.0:{_SYNC + shift}", "peers": list(sync)},
            "http": {"listen": f"127.0.0.1:{_HTTP + shift}"},
            "gateway": {
                "listen": f"127.0.0.1:{_GATEWAY + shift}",
                "admin_listen": f"127.0.0.1:{_ADMIN + shift}",
                "requests_per_s": 2_000,
            },
            "limits": {
                "sender_messages_per_s": plan.publishes_per_s,
                "namespace_messages_per_s": 5 * plan.publishes_per_s,
            },
        }
        lines = []
        for section, values in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        lines += ["[[namespace]]", f'content_topic = "{TOPIC}"', ""]
        (place.folder / "relay.toml").write_text("\n".join(lines))

    def set_clock(self, ahead_s: int) -> None:
        """Its wall clock is ahead by so many seconds from now on."""
        self.clock_s = ahead_s
        draft = self.place.folder / "clock.new"
        draft.write_text(str(ahead_s))
        draft.replace(self.place.folder / "clock")

    def start(self) -> None:
        """Start it; `wait_ready` waits."""
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        if self._clock is not None:
            environ |= {
                "LD_PRELOAD": str(self._clock),
                "LUXRELAY_TEST_CLOCK": str(self.place.folder / "clock"),
            }
        in_namespace = ("ip", "netns", "exec", self.place.namespace)
        self._log = self.log.open("ab")
        self._process = subprocess.Popen(
            [*in_namespace, str(_BIN / "luxrelay"), "node", "run", "--config", "relay.toml"],
            cwd=self.place.folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environ,
        )

    def wait_ready(self, seconds: float) -> None:
        """Wait until it answers on its observation port, ready or not.

        Raises:
            LabError: it ended, or did not answer in time.

        """
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if self._process is None or self._process.poll() is not None:
                raise LabError(f"{self.place.name} ended: {self.log.read_text()[-800:]}")
            with suppress(OSError, HTTPException):
                self.get("/healthz")
                return
            time.sleep(0.2)
        raise LabError(f"{self.place.name} did not answer within {seconds:.0f} s")

    def freeze(self) -> None:
        """It stands still (SIGSTOP)."""
        if self._process is not None:
            self._frozen = True
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on (SIGCONT)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._frozen = False

    def stop(self) -> float:
        """End it in order; return the seconds that took, `STOP_S` when it had to be killed."""
        if self._process is None or self._process.poll() is not None:
            return 0.0
        began = time.monotonic()
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        return min(STOP_S, time.monotonic() - began)

    def kill(self) -> None:
        """End it without asking, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._log is not None:
            self._log.close()

    def get(self, path: str, timeout_s: float = 2.0) -> tuple[int, str]:
        """Return status and body of a page of its observation port."""
        with inside(self.place.namespace):
            line = HTTPConnection("127.0.0.1", _HTTP + self.place.shift, timeout=timeout_s)
            try:
                line.request("GET", path)
                answer = line.getresponse()
                return answer.status, answer.read().decode()
            finally:
                line.close()

    def metrics(self) -> dict[str, float]:
        """Return every sample that it shows; labelled ones also summed under their bare name."""
        found: dict[str, float] = {}
        for line in self.get("/metrics")[1].splitlines():
            if not line or line[0] == "#":
                continue
            name, _, text = line.rpartition(" ")
            with suppress(ValueError):
                found[name] = float(text)
                bare = name.partition("{")[0]
                if bare != name:
                    found[bare] = found.get(bare, 0.0) + float(text)
        return found

    def client(self, token: str = "", timeout_s: float = 15.0) -> RelayClient:
        """Return a client of its gateway; to be used `inside` its namespace."""
        port = _GATEWAY + self.place.shift
        return RelayClient(f"127.0.0.1:{port}", token=token, timeout_s=timeout_s)

    def holds(self, wanted: Mapping[bytes, int]) -> bool:
        """Return whether its store has so many messages of each lane, each with its payload."""
        with suppress(LuxRelayError, OSError, HTTPException):
            with inside(self.place.namespace), self.client() as client:
                counts = {bytes(h.namespace_id): h.messages for h in client.heads(PARENT)}
            if all(counts.get(lane, 0) >= count for lane, count in wanted.items()):
                return self.metrics().get("luxrelay_blobs_wanted", 1) == 0
        return False

    def held(self, token: str) -> set[Key]:
        """Return the messages of its store that have their payload, read page by page.

        With a token, for a stranger may not cost a node what reading hundreds of lanes costs.
        """
        found: set[Key] = set()
        with inside(self.place.namespace), self.client(token, timeout_s=60) as client:
            for head in list(client.heads(PARENT)):
                if not head.messages:
                    continue
                for message in client.messages(Query(namespace_id=head.namespace_id)):
                    if message.blob is not None:
                        found.add((bytes(message.header.namespace_id), message.header.seq))
        return found


class NetworkLab:
    """The network of one scenario; a context manager.

    Args:
        scenario: What it is to be like.
        folder: Where the nodes' folders are made; what was there goes.

    """

    def __init__(self, scenario: LabScenario, folder: Path) -> None:
        self.scenario = scenario
        self.folder = folder
        self.relays: list[LabRelay] = []
        self.token = ""
        self._wire: WireProcess | None = None
        self._namespaces: list[str] = []

    @property
    def wire(self) -> WireProcess:
        """The wire, while there is one."""
        assert self._wire is not None
        return self._wire

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        plan = self.scenario.network
        own = {each.relay: each for each in self.scenario.relays}
        clock = self._clock_library() if self._moves_clocks() else None
        self._wire = WireProcess(self.scenario.seed)
        for index in range(plan.relays):
            place = self._place(index, own.get(index, RelayPlan()).beside)
            self.relays.append(LabRelay(place, clock))
        self.set_links([], [], plan.links, one_way=False)
        for relay in self.relays:
            self.set_rates([relay.place.index], plan.rates)
            relay.set_clock(0)
        for relay in self.relays:
            self._configure(relay, own.get(relay.place.index, RelayPlan()))
        self._make_token()

    def _place(self, index: int, beside: int) -> RelayPlace:
        """Return a relay's place; its namespace and device are made unless it is beside another."""
        run = os.getpid()
        folder = self.folder / f"r{index}"
        if beside >= 0:
            host = self.relays[beside].place
            return RelayPlace(
                index=index,
                namespace=host.namespace,
                device=host.device,
                host="127.0.0.1",
                shift=_BESIDE,
                folder=folder,
            )
        place = RelayPlace(
            index=index,
            namespace=f"{NAMES}{run}-{index}",
            device=f"lx{run}t{index}",
            host=f"{_NET}.{index + 1}",
            shift=0,
            folder=folder,
        )
        self._namespaces.append(place.namespace)
        ip("netns", "add", place.namespace)
        self.wire.ask(op="node", name=place.name, device=place.device, ip=place.host)
        ip("link", "set", place.device, "netns", place.namespace)
        ip("-n", place.namespace, "link", "set", "lo", "up")
        ip("-n", place.namespace, "addr", "add", f"{place.host}/24", "dev", place.device)
        ip("-n", place.namespace, "link", "set", place.device, "up", "mtu", "1500")
        return place

    def _configure(self, relay: LabRelay, own: RelayPlan) -> None:
        plan, index, count = self.scenario.network, relay.place.index, len(self.relays)
        first = self.relays[0]
        known = [] if plan.bootstrap else [self.relays[(index + k) % count] for k in plan.chords]
        peers = [self.relays[k] for k in own.chords] or known
        sources = [self.relays[k] for k in own.sync]
        sources = sources or [self.relays[(index + k) % count] for k in plan.sync]
        if own.beside >= 0:
            peers, host = [], self.relays[own.beside]
            texts = [f"127.0.0.1:{host.sync.rpartition(':')[2]}"]
        else:
            reachable = [each for each in sources if not each.place.shift]
            texts = list(dict.fromkeys(each.sync for each in reachable if each is not relay))
        relay.configure(
            plan,
            dict.fromkeys(p.address for p in peers if p is not relay and not p.place.shift),
            [first.address] if plan.bootstrap and relay is not first else [],
            texts,
        )

    def _make_token(self) -> None:
        """Make a token for publishing, which every relay takes."""
        first = self.relays[0].place.folder
        command = [str(_BIN / "luxrelay"), "node", "token", "new", "--config", "relay.toml"]
        command += ["--scope", "read", "--scope", "publish", "--requests-per-s", "2000"]
        command += ["--publish-bytes-per-s", "50000000", "netlab"]
        made = subprocess.run(command, cwd=first, capture_output=True, text=True, check=False)
        if made.returncode:
            raise LabError(f"no token: {made.stderr.strip()}")
        self.token = next(word for word in made.stdout.split() if word.startswith("lrt_"))
        for relay in self.relays[1:]:
            copy = relay.place.folder / "data" / "tokens.json"
            shutil.copyfile(first / "data" / "tokens.json", copy)
            copy.chmod(0o600)

    def _moves_clocks(self) -> bool:
        steps = any(step.do == "clock" for step in self.scenario.steps)
        return steps or any(relay.clock_s for relay in self.scenario.relays)

    def _clock_library(self) -> Path:
        compiler = shutil.which("cc")
        if compiler is None:
            raise LabNotPermittedError("a clock that is wrong needs a C compiler")
        library = self.folder / "wall_clock.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK_SOURCE)]
        done = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"no clock: {done.stderr.strip()}")
        return library

    def _remove(self) -> None:
        for relay in self.relays:
            relay.kill()
        if self._wire is not None:
            self._wire.close()
        for namespace in self._namespaces:
            ip("netns", "del", namespace, check=False)
        self._namespaces.clear()

    def start(self, indexes: Sequence[int]) -> None:
        """Start some relays and wait until they answer.

        Raises:
            LabError: one ended or took too long.

        """
        for index in indexes:
            self.relays[index].start()
        for index in indexes:
            self.relays[index].wait_ready(READY_S)

    def wait_peers(self, indexes: Sequence[int], wanted: int, seconds: float) -> bool:
        """Wait until each of some relays has so many peers; False when that took too long."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with suppress(OSError, HTTPException):
                if all(
                    self.relays[index].metrics().get("relay_peer_count", 0) >= wanted
                    for index in indexes
                ):
                    return True
            time.sleep(0.5)
        return False

    def set_links(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        values: Mapping[str, float],
        *,
        one_way: bool,
    ) -> None:
        """Change links; all sources when empty, all others as targets when empty."""
        wired = [r.place.name for r in self.relays if not r.place.shift]
        begin = [f"r{index}" for index in sources] or wired
        end = [f"r{index}" for index in targets] or [n for n in wired if n not in begin] or wired
        self.wire.ask(**{"op": "links", "from": begin, "to": end, "values": dict(values)})
        if not one_way:
            self.wire.ask(**{"op": "links", "from": end, "to": begin, "values": dict(values)})

    def set_rates(self, indexes: Sequence[int], values: Mapping[str, float]) -> None:
        """Change access links; all when empty."""
        for relay in self.relays:
            wanted = not indexes or relay.place.index in indexes
            if wanted and values and not relay.place.shift:
                self.wire.ask(op="rates", name=relay.place.name, values=dict(values))

    def set_address(self, index: int, host: int) -> None:
        """The node's machine has another address from now on; the node itself goes on."""
        place = self.relays[index].place
        new = f"{_NET}.{host}"
        ip("-n", place.namespace, "addr", "flush", "dev", place.device)
        ip("-n", place.namespace, "addr", "add", f"{new}/24", "dev", place.device)
        self.wire.ask(op="address", name=place.name, ip=new)

    def octets(self) -> dict[tuple[int, int], int]:
        """Return the bytes that each relay has sent towards each other."""
        found = {}
        for name, count in self.wire.ask(op="counts")["links"].items():
            source, _, target = name.partition(">")
            found[int(source[1:]), int(target[1:])] = int(count["octets"])
        return found
