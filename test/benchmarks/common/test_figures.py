"""Which figures of a report are compared, and that older reports have them as well."""

import json
from pathlib import Path

import pytest

from benchmarks.common.figures import CHOICES, Better, Figure, figures_of, read_figures

RESULTS = Path(__file__).parents[3] / "docs" / "results"
PIPELINE = [
    {"what": "saturation", "rival": "pipeline", "frames_per_s": 50.0, "cpu_busy": 0.5, "peak_mb": 900.0},
    {"what": "saturation", "rival": "naive", "frames_per_s": 20.0, "cpu_busy": 0.9, "peak_mb": 800.0},
    {"what": "latency", "rival": "pipeline", "latency_p50_ms": 8.0, "cpu_busy": 0.1, "peak_mb": 900.0},
]


def test_figures_are_this_packages_and_say_what_is_better():
    assert figures_of("pipeline", PIPELINE, cores=2) == [
        Figure("pipeline, saturation: frames", 50.0, "1/s", Better.HIGHER),
        # half of two cores for a fiftieth of a second
        Figure("pipeline, saturation: processor time a frame", 20.0, "ms", Better.LOWER),
        Figure("pipeline: peak memory", 900.0, "MB", Better.LOWER),
        Figure("pipeline, latency: latency p50", 8.0, "ms", Better.LOWER),
    ]


def test_ratios_to_rivals_are_no_figures():
    step = {"what": "step", "rival": "merge and fuse", "load": 3.0, "per_second": 1.2}
    served = {"what": "poisson", "rival": "merge and fuse", "load": 3.0, "per_second": 90.0}
    (figure,) = figures_of("multi_tenant", [step, served], cores=2)
    assert figure == Figure("merge and fuse, poisson, 3 times capacity: requests", 90.0, "1/s", Better.HIGHER)


@pytest.mark.parametrize("value", [None, 0.0, -1.0, float("nan"), "8"])
def test_what_has_no_ratio_is_left_out(value):
    assert figures_of("detector", [{"what": "latency", "rival": "pipeline", "latency_p50_ms": value}], cores=2) == []


def test_a_report_says_its_figures_itself():
    figures = figures_of("pipeline", PIPELINE, cores=2)
    content = {"bench": "anything", "figures": [figure.as_json() for figure in figures]}
    assert read_figures(json.loads(json.dumps(content))) == figures


@pytest.mark.parametrize("bench", CHOICES)
def test_committed_reports_have_figures(bench):
    """They are older than the list of figures, so the rows are read."""
    paths = sorted(RESULTS.glob(f"{bench}_*.json"))
    assert paths
    for path in paths:
        figures = read_figures(json.loads(path.read_text()))
        assert {figure.better for figure in figures} == {Better.HIGHER, Better.LOWER}
        assert len({figure.name for figure in figures}) == len(figures) >= 4


@pytest.mark.parametrize("content", [{}, [], {"figures": [{}]}, {"bench": "pipeline", "rows": 3, "machine": {}}])
def test_what_is_no_report_is_refused(content):
    with pytest.raises(ValueError, match="no report"):
        read_figures(content)
