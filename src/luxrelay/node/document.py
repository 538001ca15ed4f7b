"""A configuration file as sections of checked values, with every mistake found and its line.

A value comes from the environment, else from the file, else from the profile, else from the key's
default. `Document` checks all it is asked for and goes on with the default where something does not
fit, so that one reading finds every mistake; `settle` raises the first of them.

    LUXRELAY_STORE_TTL_MS=60000        [store] ttl_ms
    LUXRELAY_GOSSIP_PEERS=a,b          a list, its entries between commas

A variable that names no key of a section, or is nearly a key's, is a mistake; another one that
looks like ours is told in a line; those of our tools and of an orchestrator are left alone.

Source: decisions J10; LP-6490.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from luxrelay.errors import ConfigError
from luxrelay.node.checks import Key
from luxrelay.node.settings import KEYS, PROFILES

ENVIRONMENT_PREFIX: Final = "LUXRELAY_"
"""What names of variables begin with; then section and key in capitals."""
PROBLEMS_MAX: Final = 100
"""Most mistakes that one reading reports."""


_NEAR: Final = 0.9
"""How alike a variable's name and a key's are when the one is the other, mistyped."""
_TOOLS: Final = re.compile(
    r"LUXRELAY_(?:TOKEN|KEY_PASSPHRASE|JARS|FILE_BYTES|KILLS|KILL_ROUNDS|RESTARTS|SCREENSHOTS"
    r"|TEST_CLOCK|CHANNEL_(?:CHUNKS|KILLS|MESSAGES)|(?:ADVERSARY|API|ARCHIVE|BENCH|CHAOS|DAMAGE|HOSTILE|INTEROP|NET|SIM|SOAK)_[A-Z0-9_]+)"
)
"""Variables of commands, tests and measurements; none is a key's."""
_ORCHESTRATOR: Final = re.compile(
    r"LUXRELAY_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT\w*|PORT(?:_\d+_(?:TCP|UDP)\w*)?)"
)
"""What Kubernetes gives every container for a service that is called luxrelay."""


class Document:
    """The sections of one file and the mistakes in it."""

    def __init__(self, text: str, source: str, environ: Mapping[str, str] | None = None) -> None:
        """Read the text.

        Args:
            text: TOML.
            source: Name of the file, for messages.
            environ: Variables that override the file.

        Raises:
            ConfigError: it is not TOML.

        """
        self._text = text.splitlines()
        self._source = source
        self.problems: list[ConfigError] = []
        """Every mistake found so far, `PROBLEMS_MAX` at most."""
        try:
            self._tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not TOML: {error}", where=source) from error
        except RecursionError as error:
            raise ConfigError("not TOML of ours: nested too deeply", where=source) from error
        except ValueError as error:  # Python reads no number of over 4,300 digits, no 30 February
            raise ConfigError(f"not TOML of ours: {error}"[:200], where=source) from error
        self.unknown: list[str] = []
        """What is said of variables that look like ours and name nothing."""
        self._refuse_unknown()
        self._overrides = self._from_environment(environ or {})
        self._profile = self._chosen_profile()

    def settle(self) -> None:
        """Raise the first mistake, if there is one.

        Raises:
            ConfigError: the first; its hint says how many more there are.

        """
        if not self.problems:
            return
        first, others = self.problems[0], len(self.problems) - 1
        if not others:
            raise first
        more = f"{others} more; `luxrelay node check` lists them"
        hint = f"{first.hint}; {more}" if first.hint else more
        raise ConfigError(first.what, where=first.where, hint=hint) from first

    def report(self, problem: ConfigError) -> None:
        """Note a mistake."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def section(self, section: str) -> dict[str, Any]:
        """Return the checked values of a section by key."""
        table = self._tables.get(section, {})
        if not isinstance(table, dict):
            self.report(
                ConfigError(
                    f"{section} must be a table",
                    where=self.top(section),
                    hint=f"write [{section}]",
                )
            )
            table = {}
        return self._checked(section, table)

    def tables(self, section: str, maximum: int) -> list[dict[str, Any]]:
        """Return the checked values of each of a section's tables, ``maximum`` at most."""
        found = self._tables.get(section, [])
        if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
            problem = f"{section} must be a list of tables"
            hint = f"write [[{section}]] once for each"
            self.report(ConfigError(problem, where=self.top(section), hint=hint))
            return []
        if len(found) > maximum:
            problem = f"more than {maximum} {section}s"
            self.report(ConfigError(problem, where=self.top(section)))
            return []
        return [self._checked(section, table, index) for index, table in enumerate(found)]

    def where(self, section: str, name: str = "", occurrence: int = 0) -> str:
        """Return ``source:line [section] name``; the variable where one overrides the file."""
        if (section, name) in self._overrides:
            return f"the environment, {variable(section, name)}"
        current, seen = "", -1
        label = f"[{section}] {name}".rstrip()
        for number, line in enumerate(self._text, start=1):
            header = re.match(r"\s*(\[+)\s*([A-Za-z0-9_.-]+)\s*\]+", line)
            if header is not None:
                current = header[2]
                if current == section:
                    seen += 1
                if current == section and not name and seen == occurrence:
                    return f"{self._source}:{number} {label}"
            elif current == section and seen == occurrence:
                key = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
                if key is not None and key[1] == name:
                    return f"{self._source}:{number} {label}"
        return f"{self._source} {label}"

    def top(self, name: str) -> str:
        """Return where a top-level name stands."""
        for number, line in enumerate(self._text, start=1):
            if re.match(rf"\s*(\[+\s*)?{re.escape(name)}\b", line):
                return f"{self._source}:{number}"
        return self._source

    def _checked(
        self, section: str, table: Mapping[str, Any], occurrence: int = 0
    ) -> dict[str, Any]:
        keys = {key.name: key for key in KEYS if key.section == section}
        for name in table:
            if name not in keys:
                where = self.where(section, name, occurrence)
                self.report(
                    ConfigError(f"unknown key {name!r}", where=where, hint=_nearest(name, keys))
                )
        return {
            name: self._value(key, table, self.where(section, name, occurrence))
            for name, key in keys.items()
        }

    def _value(self, key: Key, table: Mapping[str, Any], where: str) -> Any:
        place = (key.section, key.name)
        default = self._profile.get(place, key.default)
        value = self._overrides.get(place, table.get(key.name, default))
        if value is None:
            self.report(ConfigError(f"{key.name} is missing", where=where, hint=key.sentence))
            return ""
        expected = key.check(value)
        if expected is None:
            return value
        problem = f"{key.name} = {value!r} does not fit"
        self.report(ConfigError(problem, where=where, hint=f"expected {expected}"))
        return "" if default is None else default

    def _chosen_profile(self) -> Mapping[tuple[str, str], Any]:
        node = self._tables.get("node", {})
        named = node.get("profile", "") if isinstance(node, dict) else ""
        chosen = self._overrides.get(("node", "profile"), named)
        return PROFILES.get(chosen, {}) if isinstance(chosen, str) else {}

    def _refuse_unknown(self) -> None:
        sections = {key.section for key in KEYS}
        for name in self._tables:
            if name not in sections:
                problem = f"unknown section {name!r}"
                hint = _nearest(name, sorted(sections))
                self.report(ConfigError(problem, where=self.top(name), hint=hint))

    def _from_environment(self, environ: Mapping[str, str]) -> dict[tuple[str, str], Any]:
        keys = {variable(key.section, key.name): key for key in KEYS if key.section != "namespace"}
        prefixes = tuple(f"{ENVIRONMENT_PREFIX}{key.section.upper()}_" for key in keys.values())
        values = {}
        for name, text in environ.items():
            near = get_close_matches(name, keys, n=1, cutoff=_NEAR)
            if name in keys:
                key = keys[name]
                values[key.section, key.name] = _typed(text, key.default)
            elif _not_ours(name):
                continue
            elif name.startswith(prefixes) or near:
                problem = f"no key is called {name}"
                hint = "variables are LUXRELAY_ with section and key, such as LUXRELAY_STORE_TTL_MS"
                hint = f"did you mean {near[0]}?" if near else hint
                self.report(ConfigError(problem, where="the environment", hint=hint))
            else:
                self.unknown.append(f"no key and no tool of ours is called {name}; it says nothing")
        return values


def variable(section: str, name: str) -> str:
    """Return the variable of the environment that overrides a key."""
    return f"{ENVIRONMENT_PREFIX}{section.upper()}_{name.upper()}"


def _not_ours(name: str) -> bool:
    """Return whether a variable is none that could have been meant for a key."""
    if not name.startswith(ENVIRONMENT_PREFIX) or _ORCHESTRATOR.fullmatch(name):
        return True
    return _TOOLS.fullmatch(name) is not None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return what is to be said of variables that look like ours and name nothing."""
    return Document("", "", environ).unknown


def _typed(text: str, default: Any) -> Any:
    """Return a variable's value in the type of its key; what does not fit is checked later."""
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(default, int):
        return int(text) if re.fullmatch(r"[+-]?[0-9_]+", text) else text
    if isinstance(default, list):
        return [entry.strip() for entry in text.split(",") if entry.strip()]
    return text


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return what a mistyped name may have meant, else all that there is."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else "known are: " + ", ".join(names)
