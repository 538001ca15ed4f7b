"""The header command."""

import io
import json
from pathlib import Path

import pytest

from luxrelay.cli.main import main

V1 = (
    "0x0100000000000000000000000000000000000000000100000000000000010000018cc251f400"
    + "00" * 32
    + "00000000abcd"
    + "00" * 28
    + "12340021"
    + "01d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    + "0040"
    + "7fcea78ed084f51cabc1c32ab75fd357c77ed70f8a3b2b2e434ad734c941d39e"
    + "03dbf1bcd9af43a046a6d871963631d5641efc5d16245c3b504838d4bf572b0f"
    + "000100"
)


def test_decode_and_encode_are_inverse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Decode of vector V1 prints its JSON, and encode of that prints V1 again."""
    assert main(["header", "decode", V1]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["timestamp"] == 1704067200000
    (tmp_path / "h.json").write_text(printed)

    assert main(["header", "encode", str(tmp_path / "h.json")]) == 0
    assert capsys.readouterr().out.strip() == V1


def test_verify_prints_the_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    """A header whose signature holds is shown with its hashes."""
    assert main(["header", "verify", V1]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["headerHash"].startswith("0xe9bb9fd3")
    assert shown["messageId"].startswith("0x5ec1bb17")


def test_verify_refuses_a_forged_header(capsys: pytest.CaptureFixture[str]) -> None:
    """A flipped signature bit is exit code 1 and one line."""
    assert main(["header", "verify", V1[:-8] + "0e000100"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_reads_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an argument the text comes from standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(V1[2:] + "\n"))
    assert main(["header", "decode"]) == 0
    assert '"seq": 1' in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["decode", "0x01"],
        ["decode", "0xzz"],
        ["decode", "nosuchfile"],
        ["encode", "{"],
        ["encode", "{}"],
        ["encode", "nosuchfile.json"],
        ["decode", "0x" + "00" * 100_000],
    ],
)
def test_bad_input_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Input that is no header is exit code 1 and one line on standard error."""
    assert main(["header", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("luxrelay: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("words", [["header", "decode"], ["policy", "decode"]])
def test_a_file_that_is_missing_is_named_once(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong, where, and what may be given, without the words of a programming language."""
    assert main([*words, "nofile"]) == 1

    said = capsys.readouterr().err
    assert "cannot read it: No such file or directory; nofile; give the text itself" in said
    assert "Errno" not in said
