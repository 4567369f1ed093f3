"""Compares a trained detector in int8 and bf16 with itself in fp32, on OpenVINO: mAP and images per second.

- Quality: the mAP of each precision, with an interval over the images. The detections of fp32 are the truth. The JSON
  file says how many boxes fp32 finds.
- Speed: the network at batch 1, in turns with changing order. int8 has a goal only on processors with VNNI.

You provide the model and the images. The model in int8 is made from the images of `--calibration`, as by the command
`quantise`. Every fourth image is held back from the calibration, to choose which layers are quantised. The images of
`--images` only judge the result, so they should show other things. The benchmark says which precisions the processor
does not have.

From the source tree: `PYTHONPATH=. python benchmarks precisions --model FILE.onnx --calibration FOLDER --images
FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import Estimate, estimate
from benchmarks.common.precision_contest import PrecisionRivals
from benchmarks.common.report import Panel, Report, arguments, deliver, seconds_for_turns, show
from benchmarks.common.turns import take_turns
from split_infer_ros.engines.precision import Precision
from split_infer_ros.models.agreement import MAP
from split_infer_ros.models.average_precision import Truth, mean_average_precision
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.quantisation.calibrate import check_packages
from split_infer_ros.quantisation.quality import detect
from split_infer_ros.quantisation.quantise import best_of, quantise
from split_infer_ros.quantisation.samples import Samples
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.sources.folder import image_files
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.quantised_network import QuantisedNetwork

MIN_MAP = 0.97
SPEED_GOALS = {Precision.BF16: 1.0, Precision.INT8: 1.6}
FULL_S = 60.0  # seconds of turns
RESAMPLES = 200
CONFIDENCE = 95  # per cent
HELD_BACK = 4  # one of so many calibration images helps to choose the layers


class Quality:
    """Compares a model's detections in some images with its detections in fp32.

    Args:
        samples: the images.
        reference: the model in fp32. Its detections above the score threshold are the truth.

    Attributes:
        num_boxes: the number of boxes of the truth.
    """

    def __init__(self, samples: Samples, reference: SplitModel) -> None:
        self._samples = samples
        threshold = Limits().score_threshold
        self._truth: list[Truth] = []
        for found in self._detect(reference):
            kept = found.scores >= threshold
            self._truth.append((found.boxes[kept], found.labels[kept]))
        self.num_boxes = sum(len(labels) for _, labels in self._truth)

    def of(self, model: SplitModel) -> Estimate:
        """Returns the mAP of a model with the detections of fp32 as the truth, with a 95 % interval over images."""
        found = self._detect(model)
        random = np.random.default_rng(0)
        values = [self._map(found, random.integers(0, len(found), len(found)).tolist()) for _ in range(RESAMPLES)]
        margin = (100 - CONFIDENCE) / 2
        low, high = np.percentile([value for value in values if value is not None], [margin, 100 - margin])
        value = self._map(found, range(len(found))) or 0.0
        return Estimate(value, min(float(low), value), max(float(high), value), turns=len(found), blocks=len(found))

    def _map(self, found: Sequence[Detections], chosen: Sequence[int]) -> float | None:
        return mean_average_precision([found[index] for index in chosen], [self._truth[index] for index in chosen])

    def _detect(self, model: SplitModel) -> list[Detections]:
        return detect(model, self._samples, MAP, lambda: None)


def in_int8(images: Samples, source: SplitModel) -> SplitModel:
    """Returns a model in int8.

    Args:
        images: most of them calibrate the model. Every fourth one helps to choose which layers are quantised.
        source: the model in fp32.

    Raises:
        ConfigurationError: the model cannot be quantised.
    """
    check_packages()
    choosing = images.files[HELD_BACK - 1 :: HELD_BACK]
    candidates = quantise(
        source,
        Samples(images.entry, [file for file in images.files if file not in choosing]),
        Samples(images.entry, choosing),
        annotations=None,
        score_threshold=Limits().score_threshold,
        progress=lambda name, length: nullcontext(lambda: None),
    )
    best = best_of(candidates)
    print(f"int8: {best.scope.value}. {best.quality.loss}", flush=True)
    return SplitModel(QuantisedNetwork(source.network, OnnxGraph(f"{source.entry.name} in int8", best.proto)))


def measure(
    model: SplitModel, calibration: Samples, test: Samples, seconds: float
) -> tuple[list[Claim], list[dict[str, Any]]]:
    """Measures a model in all precisions that this machine has. Returns the claims and the rows.

    Args:
        model: the model in fp32.
        calibration: the images with which the model is quantised.
        test: the images that judge the quality.
        seconds: how many seconds the turns last.
    """
    name, quantised = Path(model.entry.name).stem, partial(in_int8, calibration)
    rivals = PrecisionRivals(name, model, goals=SPEED_GOALS, quantise=quantised, group_s=0.3)
    for precision, reason in rivals.refused.items():
        print(f"{precision.value} is not available: {reason}", flush=True)
    take_turns(rivals.contests, seconds)
    quality, claims = Quality(test, model), []
    for precision in (each for each in rivals.models if each is not Precision.FP32):
        claims.append(Claim(f"{precision.value}: mAP against fp32", quality.of(rivals.models[precision]), "", MIN_MAP))
    rows = rivals.rows()
    for row in rows:
        row |= {"num_images": len(test), "num_boxes": quality.num_boxes}
        row["images_per_s"] = {
            name: _as_json(estimate(lambda values: 1 / np.median(values, axis=-1), values))
            for name, values in row["samples"].items()
        }
    return claims + rivals.claims(), rows


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True, metavar="FILE", help="a trained detector, as an ONNX file")
    parser.add_argument("--calibration", type=Path, required=True, metavar="FOLDER", help="int8 is made from them")
    parser.add_argument("--images", type=Path, required=True, metavar="FOLDER", help="other images, which judge")
    chosen = parser.parse_args()
    prepare_process()
    model = load_model(ModelSpec(chosen.model, device="cpu"))
    samples = [Samples(model.entry, image_files(folder)) for folder in (chosen.calibration, chosen.images)]
    claims, rows = measure(model, *samples, seconds=seconds_for_turns(chosen, FULL_S))
    for row in rows:
        show({name: value for name, value in row.items() if name != "samples"})
    panels = [Panel(row["what"], "", row["samples"]) for row in rows if row["samples"]]
    deliver(Report("precisions", claims, rows, panels), chosen)
    return 0


def _as_json(found: Estimate) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


if __name__ == "__main__":
    sys.exit(main())
