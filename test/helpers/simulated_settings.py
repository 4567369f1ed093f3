"""Settings of Hypothesis for tests that try several schedules (orders of work) of the simulated GPU."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


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
