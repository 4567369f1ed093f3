"""Compares this package's vision-specific operators with those of torchvision or torch, and with naive ones.

- Suppression behind a detector's head: 3,234 boxes x 91 classes per image, 16 images, or 4 in a quick run. One call
  suppresses all classes of the batch; torchvision loops over images and classes. Boxes are spread over the
  picture, or nearly all of them lie on top of each other.
- Each operator from 10 to 100,000 boxes per image and 1 to 64 images: is it ever slower than the library's operator?
  The rivals take turns on equal values. Here box_nms has 20 classes, and its rival is batched_nms, image by image.
- On a GPU, the kernels with which box_nms sorts and sums, against torch's own sort and sum of equal values.
- Detectors end to end, one image, with these operators and with torchvision's loop, like Table 4 of paper 004. A quick
  run measures two of the three.
- What it costs a detector on a GPU if some operators fall back to the CPU (section 3.1.2). Without a GPU, both devices
  are the CPU. A row then states the cost of the copies in such a simulation, and nothing is claimed. A quick run
  without a GPU skips this part.

The benchmark runs on the CPU, and on a CUDA GPU if there is one. It needs only torch and torchvision. In the source
tree, `PYTHONPATH=. python benchmarks vision_ops` runs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from benchmarks.common.claim import Claim
from benchmarks.common.report import Panel, Report, arguments, deliver, seconds_for_turns, show
from benchmarks.common.turns import take_turns
from benchmarks.vision_ops.cases import HEAD, HEAVY
from benchmarks.vision_ops.contests import (
    CPU,
    FULL,
    GPU,
    QUICK,
    Extent,
    OperatorContest,
    Question,
    cases,
    claim,
    questions_of,
)
from benchmarks.vision_ops.detector_latency import DetectorContest
from benchmarks.vision_ops.fallback_cost import FallbackContest

DETECTORS = ("ssdlite320", "ssd_resnet50", "yolov3")
QUICK_DETECTORS = ("ssdlite320", "yolov3")
PLACED = ("ssdlite320", "ssd_resnet50")  # the paper measures SSD with ResNet
FULL_S = 1200.0


class Contests:
    """All contests of a run.

    Args:
        devices: the devices on which operators run.
        extent: how many sizes of operators are measured.
        detectors: models that run end to end.
        placed: models whose fallback to the CPU is timed.
    """

    def __init__(
        self, devices: Sequence[torch.device], extent: Extent, *, detectors: Sequence[str], placed: Sequence[str]
    ) -> None:
        self.questions = {device: questions_of(device, extent) for device in devices}
        self.operators = {
            device: [OperatorContest(case, device, questions) for case in cases(device, extent)]
            for device, questions in self.questions.items()
        }
        self.detectors = [DetectorContest(name) for name in detectors]
        self.fallbacks = [FallbackContest(name) for name in placed]

    def take_turns(self, seconds: float) -> None:
        """Runs turns of all contests for ``seconds`` seconds."""
        operators = [operator.contest for contests in self.operators.values() for operator in contests]
        others = [other.contest for other in (*self.detectors, *self.fallbacks)]
        take_turns([*operators, *others], seconds)

    def report(self) -> Report:
        """Returns the report of all turns so far."""
        claims = [
            *(
                claim
                for device, questions in self.questions.items()
                for claim in answers(questions, self.operators[device])
            ),
            *(claim for other in (*self.detectors, *self.fallbacks) for claim in other.claims()),
        ]
        operators = [operator for contests in self.operators.values() for operator in contests]
        contests = [*operators, *self.detectors, *self.fallbacks]
        rows = [row for contest in contests for row in contest.rows()]
        return Report("vision_ops", claims=claims, rows=rows, panels=self.panels())

    def panels(self) -> list[Panel]:
        """Returns a panel for each suppression behind a detector's head, and for each detector end to end."""
        heads = [
            Panel(
                operator.contest.name,
                "ms",
                {name: in_ms(seconds) for name, seconds in operator.contest.figures.items()},
            )
            for contests in self.operators.values()
            for operator in contests
            if operator.case.operator in (HEAD, HEAVY)
        ]
        return heads + [Panel(detector.contest.name, "ms", detector.totals_ms()) for detector in self.detectors]


def answers(questions: Sequence[Question], contests: Sequence[OperatorContest]) -> list[Claim]:
    """Returns a claim for each question that is about the case of at least one contest."""
    claims = []
    for question in questions:
        concerned = [contest for contest in contests if question.concerns(contest.case)]
        if concerned:
            claims.append(claim(question, concerned))
    return claims


def in_ms(seconds: Sequence[float]) -> list[float]:
    """Converts seconds to milliseconds."""
    return [1e3 * value for value in seconds]


def run(options: argparse.Namespace) -> Report:
    """Measures all operators on all devices of this machine, and detectors."""
    on_gpu = torch.cuda.is_available()
    devices = [torch.device(CPU), *([torch.device(GPU, 0)] if on_gpu else [])]
    detectors = QUICK_DETECTORS if options.quick else DETECTORS
    placed = PLACED if on_gpu or not options.quick else ()  # a quick run has no time for it
    extent = QUICK if options.quick else FULL
    contests = Contests(devices, extent, detectors=detectors, placed=placed)
    contests.take_turns(seconds_for_turns(options, FULL_S))
    report = contests.report()
    for row in report.rows:
        show(row)
    return report


def main() -> int:
    """Runs the benchmark."""
    options = arguments(__doc__).parse_args()
    deliver(run(options), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
