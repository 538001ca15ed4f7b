"""A node as an operator meets it: the command, its files, its ports, its signals."""

import io
import json
import os
import random
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import topic_namespace
from luxrelay.bus.constants import MAX_BLOB_BYTES
from luxrelay.cli.main import main
from luxrelay.sync import RelaySyncClient

pytestmark = pytest.mark.slow
TOPIC = "/chat/1/room"
HOSTILE = int(os.environ.get("LUXRELAY_HOSTILE_REQUESTS", "30"))
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def page(address: str, path: str) -> bytes:
    """Return a page of a running node."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        body: bytes = answer.read()
        return body


def test_publish_query_head_and_restart(
    new_node: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the publish command stored is found by query and head, also after a restart."""
    node = new_node("relay-1")
    sync = node.start().sync
    key = str(tmp_path / "alice.pem")
    assert main(["keys", "new", key]) == 0
    capsys.readouterr()

    arguments = ["--relay", sync, "--topic", TOPIC]
    assert main(["head", *arguments]) == 0
    assert "nothing here" in capsys.readouterr().err
    assert main(["publish", *arguments, "--key", key, "--json", "one", "two"]) == 0
    receipts = json.loads(capsys.readouterr().out)
    assert [(r["seq"], r["stored"]) for r in receipts] == [(1, True), (2, True)]
    assert node.stop() == 0

    arguments[1] = node.start().sync
    assert main(["publish", *arguments, "--key", key, "--json", "x\udce9"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["seq"] == 3
    assert main(["query", *arguments]) == 0
    assert "--lanes shows what senders wrote" in capsys.readouterr().err
    assert main(["query", *arguments, "--lanes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["messages"]
    assert [bytes.fromhex(m["blob"][2:]) for m in found] == [b"one", b"two", b"x\xe9"]
    last = str(found[-1]["header"]["timestamp"])
    assert main(["query", *arguments, "--lanes", "--json", "--from-ms", last]) == 0
    late = json.loads(capsys.readouterr().out)["messages"]
    assert late == found[-1:] or late == found[-2:]  # two of one millisecond
    assert main(["query", *arguments, "--lanes", "--json", "--to-ms", str(int(last) - 1)]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == found[: len(found) - len(late)]
    assert main(["head", *arguments, "--json"]) == 0
    (head,) = json.loads(capsys.readouterr().out)
    assert (head["contiguousHead"], head["latestSeq"], head["messages"]) == (3, 3, 3)
    assert main(["head", *arguments]) == 0
    assert "nothing here" not in capsys.readouterr().err


def test_receipts_are_told_although_the_rest_fails(
    new_node: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What was stored before a line that cannot be published is not kept back."""
    sync = new_node("relay-1").start().sync
    key = str(tmp_path / "alice.pem")
    main(["keys", "new", key])
    capsys.readouterr()
    lines = b"small\n" * 300 + b"x" * (MAX_BLOB_BYTES + 1) + b"\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))

    code = main(["publish", "--relay", sync, "--topic", TOPIC, "--key", key, "--json"])

    told = capsys.readouterr()
    assert code == 1
    assert told.err.count("\n") == 2  # the line to send again from, and the reason
    with RelaySyncClient(sync) as relay:
        (head,) = relay.list_heads(topic_namespace(TOPIC))
    assert [each["seq"] for each in json.loads(told.out)] == list(range(1, head.messages + 1))
    assert head.messages > 0


def test_pages_tell_the_truth(
    new_node: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics, status and health agree with what the node holds (21-46)."""
    runtime = new_node("relay-1").start()
    key = str(tmp_path / "alice.pem")
    main(["keys", "new", key])
    main(["publish", "--relay", runtime.sync, "--topic", TOPIC, "--key", key, "a", "b"])
    capsys.readouterr()

    metrics = page(runtime.http, "/metrics").decode()
    status = json.loads(page(runtime.http, "/status"))

    assert "relay_store_messages 2.0" in metrics
    assert 'luxrelay_verdicts_total{code="ok",door="publish",verdict="accept"} 2.0' in metrics
    assert "luxda_peer_count 0.0" in metrics
    assert "luxda_headers_processed_total 2.0" in metrics
    assert status["store"]["messages"] == 2
    health = json.loads(page(runtime.http, "/healthz"))
    rounds = health.pop("round_ended_s")
    network = {
        "clock": {"state": "unknown", "offset_ms": 0, "spread_ms": 0, "peers": 0},
        "quiet_s": None,
        "refused": [],
        "warnings": [],
    }
    assert health == {"ready": True, "fault": "", "down": [], "hanging": []} | network
    assert rounds.keys() == {
        "reconcile",
        "blobs",
        "retention",
    }  # it names no relay to catch up with


def test_runtime_file_goes_with_the_node(new_node: Callable[[str], Any]) -> None:
    """After an orderly stop nothing says that the node is there."""
    node = new_node("relay-1")
    node.start()

    assert (node.folder / "data" / "runtime.json").exists()
    assert node.stop() == 0
    assert not (node.folder / "data" / "runtime.json").exists()


@pytest.mark.parametrize("section", ["gossip", "sync", "http"])
def test_occupied_port_is_one_clear_line(new_node: Callable[[str], Any], section: str) -> None:
    """A port that is taken is named in one line, and the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = new_node("relay-1")
        address = f"/ip4/127.0.0.1/tcp/{port}" if section == "gossip" else f"127.0.0.1:{port}"
        node.sections[section]["listen"] = [address] if section == "gossip" else address
        node.write_config()

        code, said = node.run_to_end()

    assert code == 1
    assert said.count("\n") == 1
    assert said.startswith("luxrelay: ")
    assert str(port) in said


def test_locked_folder_is_one_clear_line(new_node: Callable[[str], Any]) -> None:
    """A data folder that another node has open is refused, and the other goes on."""
    first = new_node("relay-1")
    runtime = first.start()

    code, said = first.run_to_end()

    assert code == 1
    assert said.count("\n") == 1
    assert "data" in said
    assert json.loads(page(runtime.http, "/healthz"))["ready"]


@pytest.mark.parametrize("place", ["data", "store"])
def test_foreign_folder_is_refused_unchanged(new_node: Callable[[str], Any], place: str) -> None:
    """A data or store folder with other things in it is refused and stays as it was."""
    node = new_node("relay-1")
    node.write_config()
    if place == "store":
        node.start()
        node.stop()
        store = node.folder / "data" / "store"
        for path in sorted(store.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    else:
        store = node.folder / "data"
        store.mkdir()
    (store / "thesis.tex").write_text("precious")
    (store / "thesis.tex").chmod(0o644)

    code, said = node.run_to_end()

    assert code == 1
    assert said.count("\n") == 1
    assert "Traceback" not in said
    assert [path.name for path in store.iterdir()] == ["thesis.tex"]
    assert (store / "thesis.tex").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[node]\ndata_dir = 5\n", "relay.toml:2"),
        ("[nod]\n", "unknown section"),
        ("not toml at all", "not TOML"),
    ],
)
def test_broken_config_is_one_clear_line(
    new_node: Callable[[str], Any], text: str, word: str
) -> None:
    """A mistake in the file is answered with its line, and nothing is started."""
    node = new_node("relay-1")
    node.write_config()
    node.config.write_text(text)

    code, said = node.run_to_end()

    assert code == 1
    assert word in said
    assert said.count("\n") == 1


def test_garbage_on_every_port_leaves_it_alive(new_node: Callable[[str], Any]) -> None:
    """Any bytes on any port are dropped, and the node goes on serving."""
    runtime = new_node("relay-1").start()
    gossip_port = int(runtime.gossip[0].split("/tcp/")[1].split("/")[0])
    ports = [gossip_port, *(int(a.rpartition(":")[2]) for a in (runtime.sync, runtime.http))]
    rng = random.Random(20_261_128)
    begins = (b"", b"\x00" * 65_536, b"\x13/multistream/1.0.0\n", HTTP2, b"GET / HTTP/1.1\r\n")

    for port in ports:
        for number in range(HOSTILE):
            data = begins[number % len(begins)] + rng.randbytes(rng.randint(0, 500))
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                try:
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(65_536):
                        pass
                except OSError:
                    continue  # being cut off is an answer

    assert json.loads(page(runtime.http, "/healthz"))["ready"]
    with RelaySyncClient(runtime.sync) as client:
        assert client.get_head(bytes(20)).latest_seq == 0


def test_messages_go_when_their_time_is_past(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A node forgets on time, counts it, and the next sequence still follows the last (21-10)."""
    node = new_node("relay-1")
    node.sections["store"] |= {"ttl_ms": 1500, "expire_interval_ms": 100}
    runtime = node.start()
    key = str(tmp_path / "alice.pem")
    main(["keys", "new", key])
    arguments = ["--relay", runtime.sync, "--topic", TOPIC, "--key", key]
    assert main(["publish", *arguments, "one", "two"]) == 0

    eventually(lambda: json.loads(page(runtime.http, "/status"))["store"]["messages"] == 0)

    metrics = page(runtime.http, "/metrics").decode()
    assert "luxrelay_gc_messages_deleted_total 2.0" in metrics
    capsys.readouterr()
    assert main(["publish", *arguments, "--json", "three"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["seq"] == 3


def test_a_bound_network_takes_bound_signatures_only(
    new_node: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that signs bound refuses the literal mode and another network's name (H3, H4)."""
    node = new_node("relay-1")
    node.sections["node"] |= {"signing": "bound", "network": "closed"}
    runtime = node.start()
    key = str(tmp_path / "alice.pem")
    main(["keys", "new", key])
    publish = ["publish", "--relay", runtime.sync, "--topic", TOPIC, "--key", key]

    assert main([*publish, "hello"]) == 1
    assert main([*publish, "--bound", "devnet", "hello"]) == 1
    assert main([*publish, "--bound", "closed", "hello"]) == 0

    capsys.readouterr()
    assert json.loads(page(runtime.http, "/status"))["store"]["messages"] == 1
