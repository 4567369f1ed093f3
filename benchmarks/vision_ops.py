"""Vision-specific operators: each against torchvision's or torch's own, and against the naive form.

- What a detector's head gives for a batch, 3,234 boxes x 91 classes an image: batched suppression of all classes
  against torchvision's loop over images and classes. Boxes are spread over the picture, or nearly all of them lie on
  top of each other. A batch has 16 images, and 4 in a quick run.
- Each operator from 10 to 100,000 boxes an image and 1 to 64 images: is it ever slower than the library's own? The
  rivals take turns on the same values. Here box_nms has 20 classes, and its rival is batched_nms, image by image.
- Detectors end to end, one image, with these operators and with torchvision's loop (the paper's Table 4 in form). A
  quick run has two of the three.
- What falling back to the CPU costs a detector (section 3.1.2), on a GPU. Without one both devices are the CPU: a row
  then says what the copies cost in such a simulation, and nothing is claimed. A quick run leaves the simulation out.

On the CPU, and on a CUDA GPU where there is one. Needs torch and torchvision only: from the source tree,
`PYTHONPATH=. python benchmarks/vision_ops.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.vision_ops`
from _detector_latency import DetectorContest
from _fallback_cost import FallbackContest
from _operator_forms import HEAD, HEAVY
from _operator_times import CPU, FULL, GPU, QUICK, Extent, OperatorContest, Question, cases, claim, questions_of

from split_infer_ros.telemetry.claim import Claim
from split_infer_ros.telemetry.report import Panel, Report, arguments, deliver, seconds_for_turns, show
from split_infer_ros.telemetry.turns import take_turns

DETECTORS = ("ssdlite320", "ssd_resnet50", "yolov3")
QUICK_DETECTORS = ("ssdlite320", "yolov3")
PLACED = ("ssdlite320", "ssd_resnet50")  # the paper tells of SSD with ResNet
FULL_S = 1200.0


class Contests:
    """All contests of a run.

    Args:
        devices: on which operators run.
        extent: of the operators' sizes.
        detectors: models that run end to end.
        placed: models whose placement is timed.
    """

    def __init__(
        self, devices: Sequence[torch.device], extent: Extent, detectors: Sequence[str], placed: Sequence[str]
    ) -> None:
        self.questions = {device: questions_of(device, extent) for device in devices}
        self.operators = {
            device: [OperatorContest(case, device, asked) for case in cases(device, extent)]
            for device, asked in self.questions.items()
        }
        self.detectors = [DetectorContest(name) for name in detectors]
        self.fallbacks = [FallbackContest(name) for name in placed]

    def take_turns(self, seconds: float) -> None:
        """All contests, for so long."""
        operators = [each.contest for its in self.operators.values() for each in its]
        others = [each.contest for each in (*self.detectors, *self.fallbacks)]
        take_turns([*operators, *others], seconds)

    def report(self) -> Report:
        """What was found."""
        claims = [
            *(claim for device, asked in self.questions.items() for claim in answers(asked, self.operators[device])),
            *(claim for each in (*self.detectors, *self.fallbacks) for claim in each.claims()),
        ]
        contests = [*(each for its in self.operators.values() for each in its), *self.detectors, *self.fallbacks]
        return Report("vision_ops", claims, [row for each in contests for row in each.rows()], self.panels())

    def panels(self) -> list[Panel]:
        """Heads, and detectors end to end."""
        heads = [
            Panel(each.contest.name, "ms", {name: in_ms(found) for name, found in each.contest.figures.items()})
            for its in self.operators.values()
            for each in its
            if each.case.operator in (HEAD, HEAVY)
        ]
        return heads + [Panel(each.contest.name, "ms", each.totals_ms()) for each in self.detectors]


def answers(questions: Sequence[Question], contests: Sequence[OperatorContest]) -> list[Claim]:
    """A claim for each question that concerns at least one contest."""
    found = []
    for question in questions:
        concerned = [each for each in contests if question.concerns(each.case)]
        if concerned:
            found.append(claim(question, concerned))
    return found


def in_ms(seconds: Sequence[float]) -> list[float]:
    """Milliseconds."""
    return [1e3 * value for value in seconds]


def run(chosen: argparse.Namespace) -> Report:
    """Measure all operators on all devices that there are, and detectors."""
    on_gpu = torch.cuda.is_available()
    devices = [torch.device(CPU), *([torch.device(GPU, 0)] if on_gpu else [])]
    detectors = QUICK_DETECTORS if chosen.quick else DETECTORS
    placed = PLACED if on_gpu or not chosen.quick else ()  # a quick run has no time for a simulation without a claim
    contests = Contests(devices, QUICK if chosen.quick else FULL, detectors, placed)
    contests.take_turns(seconds_for_turns(chosen, FULL_S))
    report = contests.report()
    for row in report.rows:
        show(row)
    return report


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(chosen), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
