"""Which candidate is taken: all layers in int8 if that loses little, else fewer of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from split_infer_ros.models.agreement import MAP
from split_infer_ros.quantisation.quality import MIN_AGREEMENT, Quality
from split_infer_ros.quantisation.quantise import Quantised, best_of
from split_infer_ros.quantisation.scope import Scope, useful_scopes

pytestmark = pytest.mark.numeric

GOOD, POOR, POORER = MIN_AGREEMENT + 0.01, MIN_AGREEMENT - 0.01, MIN_AGREEMENT - 0.02


def candidates(*agreements: float) -> Iterator[Quantised]:
    """Models of which each is made when it is asked for; no more than these may be."""
    proto: Any = None
    for scope, agreement in zip(Scope, agreements, strict=False):
        yield Quantised(proto, scope, Quality(MAP, 50, agreement))
    if len(agreements) < len(Scope):
        pytest.fail("another candidate was made")


def test_all_layers_are_quantised_if_that_loses_little() -> None:
    assert best_of(candidates(GOOD)).scope is Scope.ALL_LAYERS


def test_last_layers_stay_in_float32_if_all_lose_too_much() -> None:
    assert best_of(candidates(POOR, GOOD)).scope is Scope.ALL_BUT_LAST


def test_first_layers_stay_in_float32_as_well_if_that_was_too_little() -> None:
    assert best_of(candidates(POOR, POOR, GOOD)).scope is Scope.ALL_BUT_ENDS
    assert best_of(candidates(POOR, POOR, POOR, GOOD)).scope is Scope.DENSE


@pytest.mark.parametrize(
    ("agreements", "scope"),
    [((POOR, *3 * [POORER]), Scope.ALL_LAYERS), ((POORER, POOR, POORER, POORER), Scope.ALL_BUT_LAST)],
)
def test_the_best_one_is_taken_if_all_lose_too_much(agreements: tuple[float, ...], scope: Scope) -> None:
    best = best_of(candidates(*agreements))
    assert best.scope is scope
    assert best.quality.loss


def test_scopes_that_quantise_nothing_or_the_same_are_left_out() -> None:
    helper = pytest.importorskip("onnx").helper
    numpy_helper = pytest.importorskip("onnx").numpy_helper

    def chain(count: int) -> Any:
        nodes = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(count)]
        weights = [numpy_helper.from_array(np.full((2, 2), 0.5, np.float32), f"w{i}") for i in range(count)]
        return helper.make_graph(nodes, "chain", [], [], weights)

    assert useful_scopes(chain(1)) == [Scope.ALL_LAYERS]
    assert useful_scopes(chain(3)) == [Scope.ALL_LAYERS, Scope.ALL_BUT_LAST]
    assert useful_scopes(chain(5)) == [Scope.ALL_LAYERS, Scope.ALL_BUT_LAST, Scope.ALL_BUT_ENDS], "none is depthwise"
