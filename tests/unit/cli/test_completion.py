"""completion: what a shell completes is what the command understands."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from luxrelay.cli.completion import SHELLS
from luxrelay.cli.main import build_parser, main


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_completed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script names every command."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    (commands,) = (a for a in build_parser()._actions if a.dest == "command")
    assert isinstance(commands.choices, dict)
    assert all(name in script for name in commands.choices)


def test_bash_completes_commands_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Bash itself, given the script, completes commands and their actions."""
    bash = shutil.which("bash")
    assert bash is not None
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = (
        'complete_for() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=();'
        " $(complete -p luxrelay | sed 's/.*-F \\([^ ]*\\) .*/\\1/') luxrelay \"${!#}\" ;"
        ' echo "${COMPREPLY[*]}"; }\n'
        'complete_for luxrelay st; complete_for luxrelay node ch; complete_for luxrelay header "";'
    )
    done = subprocess.run(
        [bash], input=script + "\n" + ask, capture_output=True, text=True, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert first == "store"
    assert second == "check"
    assert {"encode", "decode", "verify"} <= set(third.split())


def test_an_unknown_shell_is_wrong_usage() -> None:
    """Exit code 2, as for any wrong usage."""
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "nushell"])
    assert stopped.value.code == 2
