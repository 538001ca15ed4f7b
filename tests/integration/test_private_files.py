"""Data folder, tokens and what a peer says, at real nodes and commands."""

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Eventually = Callable[..., Any]
NOBODY = 65534
HOLD = (
    "import fcntl, os, sys\n"
    "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    "file = open(sys.argv[1], 'r')\n"
    "fcntl.flock(file, fcntl.LOCK_EX)\n"
    "print('locked', flush=True)\n"
    "sys.stdin.read()\n"
)
READ = (
    "import os, sys\n"
    "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    "try:\n"
    "    open(sys.argv[1], 'rb').read(1)\n"
    "except PermissionError:\n"
    "    sys.exit(13)\n"
)


def luxrelay(*words: object, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command as users do; one that hangs fails the test."""
    return subprocess.run(
        [sys.executable, "-m", "luxrelay", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def gated(new_node: Callable[[str], Any], name: str) -> Any:
    """Return a node with a gateway, that nobody has started yet."""
    node = new_node(name)
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    node.write_config()
    return node


def open_to_others(folder: Path) -> list[str]:
    """Return what of a folder another user may open."""
    found = [folder, *folder.rglob("*")]
    return [str(each) for each in found if each.stat().st_mode & 0o077]


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A folder to which another user could get, were the modes in it not private."""
    let_in(tmp_path)
    return tmp_path


def let_in(folder: Path) -> None:
    """Let others pass on the way to a folder; another run of pytest closes its root again."""
    for each in (folder, *folder.parents):
        if each.owner() == folder.owner() and each != Path(each.anchor):
            each.chmod(each.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)


@pytest.mark.trial
@pytest.mark.slow
def test_a_nodes_files_are_its_users_only_and_old_folders_are_mended(
    new_node: Callable[[str], Any], reachable: Path
) -> None:
    """All that a node writes is 0700 or 0600; modes of an older version are mended and told."""
    node = gated(new_node, "relay-1")
    node.start()
    assert luxrelay("node", "token", "new", "--config", node.config, "--scope", "read", "x").stdout
    assert not open_to_others(node.folder / "data")
    assert node.stop() == 0
    assert not open_to_others(node.folder / "data")

    data = node.folder / "data"
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (data / "identity.pem").chmod(0o600)
    node.start()
    assert not open_to_others(data)
    (said,) = [
        json.loads(line)
        for line in (node.folder / "log").read_text().splitlines()
        if "others could open the data folder" in line
    ]
    assert said["first"][0] == "."
    assert said["files"] > 5
    if os.geteuid() == 0:
        assert reachable in data.parents
        for name in ("store/luxrelay-store", ".tokens.json.lock", "tokens.json"):
            assert (data / name).exists()
            done = subprocess.run([sys.executable, "-c", READ, str(data / name)], check=False)
            assert done.returncode == 13, name


@pytest.mark.trial
@pytest.mark.slow
def test_a_lock_in_other_hands_ends_no_command_and_no_start(
    new_node: Callable[[str], Any], reachable: Path
) -> None:
    """Who locked a file while it was open to all is named after the wait; the node starts."""
    node = gated(new_node, "relay-1")
    node.sections["gateway"]["token_lock_ms"] = 300
    node.write_config()
    assert luxrelay("node", "token", "new", "--config", node.config, "--scope", "read", "x").stdout
    data = node.folder / "data"
    assert reachable in data.parents
    data.chmod(0o755)
    lock = data / ".tokens.json.lock"
    lock.chmod(0o644)
    let_in(reachable)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        done = luxrelay("node", "token", "new", "--config", node.config, "--scope", "read", "y")
        assert done.returncode == 1
        assert f"process {process.pid} has locked it for 0.3 s" in done.stderr
        assert luxrelay("node", "token", "list", "--config", node.config).returncode == 0
        node.start()
        assert node.stop() == 0
        assert process.stdin is not None
        process.stdin.close()
    done = luxrelay("node", "token", "new", "--config", node.config, "--scope", "read", "y")
    assert done.returncode == 0


@pytest.mark.trial
@pytest.mark.slow
def test_a_folder_of_another_user_is_refused(new_node: Callable[[str], Any]) -> None:
    """With the reason; only root can make one, so for others it is the system's own folder."""
    node = gated(new_node, "relay-1")
    assert luxrelay("node", "token", "list", "--config", node.config).returncode == 0
    if os.geteuid() == 0:
        os.chown(node.folder / "data" / "identity.pem", NOBODY, NOBODY)
        code, said = node.run_to_end()
        assert (code, "it belongs to user 65534" in said) == (1, True)
    else:
        shutil.rmtree(node.folder / "data")
        (node.folder / "data").symlink_to("/")
        assert node.run_to_end()[0] == 1


def answer(address: str, path: str, token: str) -> int:
    """Return the status that a token gets."""
    asked = urllib.request.Request(
        f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as found:  # noqa: S310
            return int(found.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"version": 9, "tokens": []}', None],
    ids=["empty", "cut", "list", "bytes", "version", "pipe"],
)
def test_a_broken_token_file_ends_the_start_with_the_reason(
    new_node: Callable[[str], Any], content: bytes | None
) -> None:
    """One line names the file and the remedy; nothing waits."""
    node = gated(new_node, "relay-1")
    assert luxrelay("node", "token", "new", "--config", node.config, "--scope", "read", "x").stdout
    path = node.folder / "data" / "tokens.json"
    path.unlink()
    if content is None:
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes(content)

    code, said = node.run_to_end()

    assert code == 1
    assert str(path) in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("used", [True, False], ids=["after a use", "before any use"])
def test_a_token_file_that_breaks_beside_a_node_changes_nothing_and_is_told(
    new_node: Callable[[str], Any], eventually: Eventually, *, used: bool
) -> None:
    """Old tokens stay, log and health say why; a revoked one is not believed after a restart."""
    node = gated(new_node, "relay-1")
    kept, gone = (
        luxrelay("node", "token", "new", "--config", node.config, "--scope", "read", name).stdout
        for name in ("kept", "gone")
    )
    runtime = node.start()
    path = node.folder / "data" / "tokens.json"
    good = path.read_bytes()
    if used:
        assert answer(runtime.gateway, "/v1/status", kept.strip()) == 200

    path.write_bytes(b'{"version": 1, "tok')

    def told() -> str:
        with urllib.request.urlopen(f"http://{runtime.http}/healthz", timeout=20) as found:
            return str(json.loads(found.read()).get("tokens", ""))

    assert "the token file is broken" in eventually(told)
    assert "the changed token file is not believed" in (node.folder / "log").read_text()
    assert {answer(runtime.gateway, "/v1/status", kept.strip()) for _ in range(3)} == {200}
    path.write_bytes(good)
    done = luxrelay("node", "token", "revoke", "--config", node.config, gone.split("_")[1])
    assert done.returncode == 0
    assert node.stop() == 0
    runtime = node.start()
    assert answer(runtime.gateway, "/v1/status", gone.strip()) == 401
    assert answer(runtime.gateway, "/v1/status", kept.strip()) == 200


@pytest.mark.trial
@pytest.mark.slow
def test_a_token_is_written_privately_and_read_only_so(
    new_node: Callable[[str], Any], tmp_path: Path
) -> None:
    """`--out` makes a new file of mode 0600 and replaces none; others' eyes are refused."""
    node = gated(new_node, "relay-1")
    out = tmp_path / "phone.token"
    make = ("node", "token", "new", "--config", node.config, "--scope", "read", "--out", out, "x")
    done = luxrelay(*make)
    assert (done.returncode, done.stdout.strip()) == (0, str(out))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    again = luxrelay(*make)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    nowhere = luxrelay(*make[:-2], tmp_path / "no" / "folder", "x")
    assert nowhere.returncode == 1
    shown = luxrelay("node", "token", "list", "--config", node.config, "--json")
    assert [each["name"] for each in json.loads(shown.stdout)] == ["x"]

    runtime = node.start()
    read = ("subscribe", "--gateway", runtime.gateway, "--topic", "/chat/1/room", "--count", "1")
    out.chmod(0o644)
    done = luxrelay(*read, "--token-file", out)
    assert done.returncode == 1
    assert "mode 0644" in done.stderr
    assert "chmod 600" in done.stderr


ODD = {
    "UTF-16": "[node]\n".encode("utf-16"),
    "zero bytes": b"[node]\0\n",
    "a lone surrogate": b'[node]\nname = "\\ud800"\n',
    "not UTF-8": b'[node]\nname = "\xff"\n',
    "a number of 5,000 digits": b"[store]\nttl_ms = " + b"9" * 5000 + b"\n",
    "arrays without end": b"[node]\nname = " + b"[" * 100_000 + b"\n",
}


@pytest.mark.trial
@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_an_odd_configuration_is_an_error_in_one_line(tmp_path: Path, content: bytes) -> None:
    """It names the file."""
    path = tmp_path / "relay.toml"
    path.write_bytes(content)
    for action in ("check", "run"):
        done = luxrelay("node", action, "--config", path)
        assert done.returncode == 1
        assert str(path) in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("name", ["identity.pem", "bans.json", "tokens.json", "runtime.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_ends_no_start_in_a_wait(
    new_node: Callable[[str], Any], name: str, kind: str
) -> None:
    """A pipe, a folder or a link to a device in place of a file: an error in one line."""
    node = gated(new_node, "relay-1")
    assert luxrelay("node", "token", "list", "--config", node.config).returncode == 0
    path = node.folder / "data" / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(mode=0o700)
    else:
        path.symlink_to("/dev/zero")

    if name == "runtime.json" and kind == "pipe":
        node.start()  # written, never read: replaced
        return
    code, said = node.run_to_end()

    assert code == 1
    assert name in said.splitlines()[-1]
    assert "Traceback" not in said


def certified(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for this machine that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, private


def shaken(address: str, suites: str, newest: ssl.TLSVersion) -> str:
    """Return the suite of a handshake that offers these; empty when it is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = newest
    context.set_ciphers(suites)
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=20) as raw,
            context.wrap_socket(raw) as stream,
        ):
            return (stream.cipher() or ("",))[0]
    except (ssl.SSLError, ConnectionError):
        return ""


@pytest.mark.trial
@pytest.mark.slow
def test_no_port_shakes_hands_on_a_suite_with_cbc(
    new_node: Callable[[str], Any], tmp_path: Path
) -> None:
    """Nor on one without forward secrecy; GCM of TLS 1.2 and all of 1.3 work."""
    certificate, key = certified(tmp_path)
    node = gated(new_node, "relay-1")
    files = {"tls_certificate": str(certificate), "tls_key": str(key)}
    node.sections["gateway"] |= files
    node.sections["sync"] |= files
    runtime = node.start()
    for address in (runtime.gateway, runtime.sync):
        for suites in ("ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "AES128-GCM-SHA256"):
            assert not shaken(address, suites, ssl.TLSVersion.TLSv1_2), (address, suites)
        good = shaken(address, "ECDHE-ECDSA-AES128-GCM-SHA256", ssl.TLSVersion.TLSv1_2)
        assert good == "ECDHE-ECDSA-AES128-GCM-SHA256"
        assert shaken(address, "DEFAULT", ssl.TLSVersion.TLSv1_3).startswith("TLS_")


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"header": {"networkId": "\\ud800"}}]}',
        b'{"messages": [{"header": "\\udc80"}]}',
        b'{"\\ud800": 1}',
        b'{"messages": [], "messages": []}',
        b'{"messages": NaN}',
        b'{"messages": "\xed\xa0\x80"}',
        b"[" * 100_000,
    ],
)
def test_the_json_door_refuses_what_readers_take_differently(gateway: Any, body: bytes) -> None:
    """400 with the reason; the node goes on."""
    runtime, token = gateway
    asked = urllib.request.Request(
        f"http://{runtime.gateway}/v1/messages",
        data=body,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=20)  # noqa: S310
    assert caught.value.code == 400
    assert "not JSON" in caught.value.read().decode()
    assert answer(runtime.gateway, "/v1/status", token) == 200


@pytest.fixture
def gateway(new_node: Callable[[str], Any]) -> tuple[Any, str]:
    """A running node with a gateway, and a token for reading and publishing."""
    node = gated(new_node, "relay-1")
    make = (
        "node",
        "token",
        "new",
        "--config",
        node.config,
        "--scope",
        "read",
        "--scope",
        "publish",
    )
    token = luxrelay(*make, "x").stdout.strip()
    return node.start(), token
