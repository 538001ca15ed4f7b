"""Says whether what is installed is what `constraints.txt` names, and nothing else.

    python tools/check_dependencies.py

Four questions, none of which needs the network: is every installed package pinned, and at its
version; did each come from an index, not from an address; are its files the ones that its maker
recorded (hashes of the wheel's RECORD); may we use it by its licence. Whether a pinned version has
a known weakness only an advisory service can say: `make audit` asks one.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
OURS: Final = "luxrelay"
UNPINNED: Final = frozenset({OURS, "pip", "setuptools", "wheel"})
"""What an environment brings by itself."""
ALLOWED: Final = re.compile(
    r"MIT|Apache|BSD|PSF|Python Software Foundation|MPL|Mozilla|CC0|ISC|Public Domain|Zlib|CNRI|CMU"
)
EXCEPTIONS: Final = {
    "atheris": "Apache-2.0 in its repository, its metadata says nothing; fuzzing only",
    "codespell": "GPL-2.0, a tool of development that nothing of ours loads or ships",
    "zeroconf": "LGPL-2.1, a dependency of libp2p, loaded and not changed",
}
"""Packages whose licence is another one, and why they are here."""


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the pinned versions by name, and what is wrong with the file."""
    found: dict[str, str] = {}
    faults = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)", line)
        if match is None:
            faults.append(f"constraints.txt:{number}: {line!r} is no name==version")
        elif canonical(match[1]) in found:
            faults.append(f"constraints.txt:{number}: {match[1]} is pinned twice")
        else:
            found[canonical(match[1])] = match[2]
    return found, faults


def licence_of(package: Distribution) -> str:
    """Return what a package says of its licence, in one line."""
    about = package.metadata
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in about.get_all("Classifier") or []
        if each.startswith("License :: ")
    ]
    words = [about.get("License-Expression") or "", *classifiers, about.get("License") or ""]
    return next((" ".join(word.split())[:100] for word in words if word.strip()), "")


def changed_files(package: Distribution) -> Iterator[str]:
    """Yield the files that are not as the wheel recorded them."""
    for file in package.files or ():
        if file.hash is None or file.hash.mode != "sha256" or file.parts[0] in {"..", "docs"}:
            continue  # scripts that name this interpreter; pages that several put in one place
        path = Path(str(file.locate()))
        if not path.is_file():
            yield f"{file} is missing"
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
        if digest.rstrip(b"=").decode() != file.hash.value:
            yield f"{file} was changed"


def faults_of(package: Distribution, pinned: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with an installed package."""
    name = canonical(package.metadata["Name"])
    if name == OURS:
        return
    if name not in UNPINNED and pinned.get(name) != package.version:
        yield f"{name} {package.version}: constraints.txt says {pinned.get(name, 'nothing')}"
    if package.read_text("direct_url.json"):
        yield f"{name} {package.version}: not from an index"
    licence = licence_of(package)
    if name not in EXCEPTIONS and (not ALLOWED.search(licence) or "GPL" in licence):
        yield f"{name} {package.version}: licence {licence or 'unknown'}"
    for fault in list(changed_files(package))[:5]:
        yield f"{name} {package.version}: {fault}"


def main() -> int:
    """Print each fault on a line; 0 without one."""
    pinned, faults = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    found = list(distributions())
    for package in found:
        faults += faults_of(package, pinned)
    for fault in sorted(set(faults)):
        print(fault)
    print(f"{len(found)} packages looked at, {len(set(faults))} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
