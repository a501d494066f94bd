"""A host under any arrivals, lengths, wishes, cancels, faults and settings keeps its promises.

Every stream ends once with the fake's own tokens, nothing leaks, nobody waits longer than the
bounds say, the order inside a class is kept. And the judge is no pushover: hosts that choose their
fills by wrong rules are caught.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tensorfold.core.lane_host.fills import NextFill
from tests.null.host_machine import HostMachine
from tests.null.test_fills_host import MUTANTS
from tests.properties.examples import CHOSEN

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("tensorfold").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("tensorfold").setLevel(logging.NOTSET)


def test_whatever_happens_a_host_keeps_its_promises() -> None:
    run_state_machine_as_test(HostMachine, settings=settings(CHOSEN, stateful_step_count=50))


def makers() -> list[Callable[[], NextFill]]:
    """Each mutant once; some keep a count, so a host gets one of its own."""
    return list(dict.fromkeys(maker for maker, _ in MUTANTS))


@pytest.mark.parametrize("make", makers())
def test_a_host_that_chooses_by_a_wrong_rule_is_caught(make: Callable[[], NextFill]) -> None:
    class Wrong(HostMachine):
        def __init__(self) -> None:
            super().__init__()
            self.choose = make()

    few = settings(
        CHOSEN,
        max_examples=2000,
        stateful_step_count=50,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Wrong, settings=few)
