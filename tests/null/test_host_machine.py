"""The host's promises under anything that may happen, in few examples; and the plain turn's."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.null.host_machine import HostMachine
from tests.null.hosting import Rig, job

FEW = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = FEW


def plain_turns(jobs: list[tuple[int, int]], lanes: int, chunk_rows: int) -> list[str]:
    """The plain turn by its words: admitted prompts whole, at most `lanes`, then one round."""
    trace: list[str] = []
    queue = list(enumerate(jobs, 1))
    left: dict[int, int] = {}
    while queue or left:
        steps = 0
        while queue and len(left) < lanes and steps < lanes:
            stream, (rows, most) = queue.pop(0)
            trace += [f"P{stream}"] * -(-rows // chunk_rows)
            steps += 1
            if most > 1:
                left[stream] = most - 1
        if left:
            trace.append("R")
            left = {stream: most - 1 for stream, most in left.items() if most > 1}
    return trace


@settings(FEW, max_examples=40)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 6)), min_size=1, max_size=12),
    lanes=st.integers(1, 5),
    passes=st.sampled_from([0, 1]),
)
def test_unset_settings_give_exactly_the_plain_turn(
    jobs: list[tuple[int, int]], lanes: int, passes: int
) -> None:
    rig = Rig(lanes=lanes, passes=passes, chunk_rows=32)
    rig.submit(*(job(stream, rows, most) for stream, (rows, most) in enumerate(jobs, 1)))
    rig.run()
    rig.check()
    assert rig.fills() == plain_turns(jobs, lanes, 32)
