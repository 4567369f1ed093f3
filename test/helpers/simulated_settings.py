"""Settings of Hypothesis for tests that try several schedules (orders of work) of the simulated GPU."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, Phase, settings
from simulated_gpu import Gpu


def drawn(count: int) -> settings:
    """Returns settings with which a test tries ``count`` examples, the same ones in each run.

    A failing example is not made smaller, because that would take minutes.
    """
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def gpu_of(seed: int, *case: object) -> Gpu:
    """Returns a simulated GPU whose order of work depends on a drawn number, and on the parameters of the test.

    So each case of a test tries other orders, although all cases draw the same numbers.
    """
    return Gpu(Random(f"{seed} {case}").randrange)
