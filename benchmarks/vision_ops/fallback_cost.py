"""Measures what falling back to the CPU costs (section 3.1.2 of paper 004).

A placed model runs each operator on the processor that the package's list of operators names, with copies in between.
It takes turns with the model on one device. Without a GPU, both devices are the CPU. The copies then move nothing to
another device, and only the cost of the copy operators is measured. Such a simulation says nothing about falling back
on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, estimate
from benchmarks.common.rows import in_ms, measured, of_estimate
from benchmarks.common.turns import Contest, rotated
from benchmarks.common.usage import Usage
from benchmarks.vision_ops.detector_latency import PAPERS_NAMES
from split_infer_ros.models.detections import Limits
from split_infer_ros.operator_placement.operator_graph import read_operators, with_decode
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.placed_graph import apply_plan, copy_to
from split_infer_ros.operator_placement.plan import Tag, make_plan
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import torch_network

CPU = torch.device("cpu")
PLACED, COPIES, ONE_DEVICE = "placed", "copies", "on one device"
GOAL = 0.5  # %, the bound that the paper gives
WARM_UP = 2  # convolutions are laid out for speed at the second call


class FallbackContest:
    """Compares a placed model with the model on one device; without a GPU, with the copy operators alone.

    Without a GPU, the two models would differ only by the copy operators. That difference is far smaller than the noise
    of the times. So the copy operators are timed by themselves.

    Args:
        name: the model's name in the catalogue.

    Attributes:
        is_simulated: whether there is no GPU, so that both devices are the CPU.
        contest: the contest of the two.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._usage = Usage()
        gpu = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
        self.is_simulated = gpu == CPU
        devices = {Tag.GPU: gpu, Tag.CPU: CPU}
        model = load_model(ModelSpec(name, "none", "cpu"))
        graph = with_decode(torch_network(model, "Placing operators", "leave it out.").graph.module, model.entry)
        operators = read_operators(graph, model.entry.image_shape)
        self._plan = make_plan(operators, OperatorList.read())
        placed = apply_plan(graph, self._plan, devices)
        images = torch.zeros((1, *model.entry.image_shape)).contiguous(memory_format=torch.channels_last).to(gpu)
        rivals: dict[str, Callable[[], object]] = {PLACED: lambda: placed(images, Limits())}
        if self.is_simulated:
            copies = Copies(placed)
            with torch.inference_mode():
                copies.run(images, Limits())
            rivals[COPIES] = copies.again
        else:
            on_one = apply_plan(graph, make_plan(operators, lambda _: Tag.GPU), devices)
            rivals[ONE_DEVICE] = lambda: copy_to(on_one(images, Limits()), CPU)
        self._rivals = rivals
        for _ in range(WARM_UP):
            self._times(list(rivals))
        what = "simulated fallback" if self.is_simulated else "fallback"
        self.contest = Contest(f"{PAPERS_NAMES[name]}, {what}", self._turn, lambda _: self.claims())

    def _turn(self, number: int) -> dict[str, float]:
        return self._times(rotated(list(self._rivals), number))

    def _times(self, order: list[str]) -> dict[str, float]:
        taken = {}
        for name in order:
            with torch.inference_mode(), self._usage.of(name):
                begin = time.perf_counter()
                self._rivals[name]()
                if not self.is_simulated:
                    torch.cuda.synchronize()
                taken[name] = time.perf_counter() - begin
        return taken

    def overhead(self) -> Estimate:
        """Returns by how many percent the placed model takes longer than the model on one device.

        In a simulation, the time on one device is the placed model's time without the copies.
        """
        figures = self.contest.figures
        if self.is_simulated:
            alone = estimate(
                lambda placed, copies: np.median(copies / (placed - copies), axis=-1), figures[PLACED], figures[COPIES]
            )
            return alone.times(100.0)
        return estimate(
            lambda placed, one: np.median(placed / one, axis=-1), figures[PLACED], figures[ONE_DEVICE]
        ).times(100.0, plus=-100.0)

    def claims(self) -> list[Claim]:
        """Returns the claim about the cost of falling back on a GPU. A simulation claims nothing."""
        if self.is_simulated:
            return []
        name = f"{PAPERS_NAMES[self._name]}, placed, takes more than all on one device, of the latter's time"
        paper = "0.49 %" if self._name == "ssd_resnet50" else ""
        return [
            Claim(
                name,
                self.overhead(),
                "%",
                GOAL,
                Direction.AT_MOST,
                floor=-100.0,
                turn_s=self.contest.turn_s,
                paper=paper,
            )
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each rival in milliseconds, and a row for the overhead in percent."""
        what = {
            "what": "simulated fallback: both devices are the CPU" if self.is_simulated else "fallback",
            "model": self._name,
            "copies": len(self._plan.copies),
            "copied_bytes": self._plan.copied_bytes,
        }
        times = [
            {**what, "rival": name, **measured(ms=in_ms(found)), **self._usage.row(name)}
            for name, found in self.contest.figures.items()
        ]
        return [*times, {**what, "rival": "overhead", **of_estimate(self.overhead(), "percent")}]


class Copies(fx.Interpreter):
    """Runs a placed graph and records the arguments of its copy operators, so that they can run alone.

    Attributes:
        given: the arguments of each copy operator, in order.
    """

    def __init__(self, placed: fx.GraphModule) -> None:
        super().__init__(placed)
        self.given: list[tuple[Any, ...]] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a function of the graph. If it is a copy operator, records its arguments."""
        if target is copy_to:
            self.given.append(args)
        return super().call_function(target, args, kwargs)

    def again(self) -> None:
        """Runs all recorded copy operators once more, and nothing else."""
        for args in self.given:
            copy_to(*args)
