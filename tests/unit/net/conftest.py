"""Async tests of this folder run under trio, with virtual time and a deadline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio
import trio.testing

DEADLINE_S = 60.0
"""Virtual seconds a test may take; time jumps ahead whenever every task waits."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test under trio."""
    test: Callable[..., Coroutine[Any, Any, None]] = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def main() -> None:
        with trio.fail_after(DEADLINE_S):
            await test(**arguments)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return True
