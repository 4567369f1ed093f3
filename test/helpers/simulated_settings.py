"""How many schedules of the simulated GPU a test tries."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def drawn(count: int) -> settings:
    """So many, the same ones each time; what fails is not made smaller, which would take minutes."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
