"""Makes a model compute in int8, judges the result, and keeps it for `precision: int8`.

Half of the images, 300 at most, are used for calibration. On the others, the results are compared with those of
float32. For a classifier, these are the best classes. For a detector, it is the mAP (IoU 0.5 to 0.95), with the
detections of float32 as the truth. A model that agrees by less than 0.97, or loses more than 0.01 of its accuracy or
mAP, is not kept.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from split_infer_ros.cli.command import CommandParser, command, model_spec_of
from split_infer_ros.models.detections import Limits
from split_infer_ros.quantisation.calibrate import check_packages
from split_infer_ros.quantisation.quantise import best_of, quantise
from split_infer_ros.quantisation.samples import open_samples
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.split.load import load_model
from split_infer_ros.split.quantised_file import LOSS, keep_quantised, quantised_path


def make_parser() -> CommandParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser.of("quantise", __doc__)
    parser.add_model()
    parser.add_argument(
        "--images", type=Path, required=True, metavar="FOLDER", help="50 or more images like those of your cameras"
    )
    parser.add_argument("--weights", default="default", help="like the parameter of this name; default: %(default)s")
    parser.add_argument(
        "--annotations",
        type=Path,
        metavar="FOLDER",
        help="what is in the images, in YOLO format: NAME.txt for NAME.jpg, with a line for each object: class, centre "
        "x and y, width and height as fractions of the image; for a classifier the class alone",
    )
    parser.add_argument(
        "--score-threshold",
        type=float,
        default=Limits().score_threshold,
        metavar="SCORE",
        help="detections of float32 with this score or more count as objects; default: %(default)s",
    )
    parser.add_argument("--accept-loss", action="store_true", help="keep the model even if it lost too much")
    parser.add_model_options()
    return parser


@command(make_parser)
def main(chosen: Namespace) -> int:
    """Quantises the model. Returns the exit code: 1 at an error or if the model lost too much to be kept, else 0."""
    prepare_process()
    begin = time.monotonic()
    check_packages()
    model = load_model(model_spec_of(chosen, weights=chosen.weights))
    quantised_path(model.network)  # refuses early what cannot be quantised
    calibration, test = open_samples(model.entry, chosen.images)
    candidates = quantise(
        model, calibration, test, annotations=chosen.annotations, score_threshold=chosen.score_threshold, progress=_bar
    )
    best = best_of(candidates)
    quality = best.quality
    print(
        f"Calibrated on {len(calibration)} images, compared on {quality.num_images} others; "
        f"{best.scope.value} in int8.\n{quality.measure} of int8 against float32: {quality.agreement:.3f}"
    )
    if quality.float32 is not None and quality.int8 is not None:
        print(f"{quality.measure} against annotations: float32 {quality.float32:.3f}, int8 {quality.int8:.3f}")
    if quality.loss and not chosen.accept_loss:
        print(f"Not kept: {quality.loss} With --accept-loss it is kept all the same.", file=sys.stderr)
        return 1
    if quality.loss:
        entry = best.proto.metadata_props.add()
        entry.key, entry.value = LOSS, f"{model.entry.name} was quantised in spite of a loss: {quality.loss}"
    path = keep_quantised(model.network, best.proto)
    print(f"Kept for precision int8, after {time.monotonic() - begin:.0f} s: {path}")
    return 0


@contextmanager
def _bar(name: str, length: int) -> Iterator[Callable[[], object]]:
    with tqdm(total=length, desc=name, unit="image", file=sys.stderr) as bar:
        yield bar.update
