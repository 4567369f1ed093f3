"""The images on which a model is calibrated or its results are compared, and a user's annotations of these images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.errors import SourceError
from split_infer_ros.images.encodings import BGR, Pixels
from split_infer_ros.models.average_precision import Truth
from split_infer_ros.models.decoders.encodings import corners_of_centres
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.runtime.user_files import is_folder, read_regular
from split_infer_ros.sources.folder import image_files

MIN_CALIBRATION, MAX_CALIBRATION = 16, 300  # images; more would hardly change the scales
MIN_TEST = 34  # images; with fewer, one image with a wrong class would be over 3 %

MAX_ANNOTATION_BYTES = 2**20


class Samples:
    """Images of a folder as a model's inputs. Each image is read when it is needed.

    Args:
        entry: the model's entry. It says how images become inputs.
        files: the images' files.
    """

    def __init__(self, entry: ModelEntry, files: Sequence[Path]) -> None:
        self.entry, self.files = entry, files

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Floats]:
        """Yields inputs, float32 (1, 3, h, w).

        Raises:
            SourceError: a file cannot be read.
        """
        preprocess = self.entry.preprocess
        for file in self.files:
            gathered = preprocess.gather([_read(file)], preprocess.staging(1))
            yield preprocess.normalise(gathered, channels_last=False)

    def size(self, index: int) -> tuple[int, int]:
        """Returns height and width of an image in pixels."""
        height, width = _read(self.files[index]).data.shape[:2]
        return height, width

    def annotation(self, index: int, folder: Path) -> Truth:
        """Reads an image's annotation from a folder: a file with the image's name and the suffix ``.txt``.

        Each line of the file begins with the number of a class, from 0. For a detector, centre x, centre y, width and
        height of the object's box follow, as shares of the image's width and height. This is YOLO's format.

        Args:
            index: the place of the image in ``files``.
            folder: the folder with the annotations.

        Returns:
            The boxes, float32 (n, 4) in pixels of the image, and their classes, int64 (n,), for n lines. The box of a
            line without a box is the whole image.

        Raises:
            SourceError: the file is missing, or a line has another form.
        """
        path = folder / f"{self.files[index].stem}.txt"
        height, width = self.size(index)
        try:
            text = read_regular(path, MAX_ANNOTATION_BYTES).decode()
            rows = [[float(word) for word in line.split()] for line in text.splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read as an annotation ({error}).") from error
        for row in rows:
            if len(row) not in (1, 5) or not 0 <= row[0] < len(self.entry.labels) or row[0] % 1:
                raise SourceError(
                    f"{path} has the line '{' '.join(f'{value:g}' for value in row)}'; each line takes a class from 0 "
                    f"to {len(self.entry.labels) - 1}, and of a detector also centre x, centre y, width and height."
                )
        shapes = np.array([row[1:] or [0.5, 0.5, 1.0, 1.0] for row in rows], np.float32).reshape(-1, 4)
        labels = np.array([int(row[0]) for row in rows], np.int64)
        return corners_of_centres(shapes) * np.array([width, height, width, height], np.float32), labels


def open_samples(entry: ModelEntry, folder: Path) -> tuple[Samples, Samples]:
    """Divides the images of a folder into images to calibrate a model and images on which its results are compared.

    Both sets are spread over the folder, so that they have the same kinds of images. Subfolders are not entered.

    Returns:
        The images for calibration, at most ``MAX_CALIBRATION`` of them, and all other images.

    Raises:
        SourceError: there is no such folder, it cannot be read, or it holds too few images.
    """
    if not is_folder(folder):
        raise SourceError(f"There is no folder {folder}; --images takes a folder of images.")
    files = image_files(folder)
    if len(files) < MIN_CALIBRATION + MIN_TEST:
        raise SourceError(
            f"{folder} holds {len(files)} images, and {MIN_CALIBRATION + MIN_TEST} are needed: {MIN_CALIBRATION} to "
            f"calibrate, and {MIN_TEST} others to judge the result, of which one is then less than 3 %."
        )
    count = min(MAX_CALIBRATION, len(files) // 2, len(files) - MIN_TEST)
    chosen = {index * len(files) // count for index in range(count)}
    calibration = [file for index, file in enumerate(files) if index in chosen]
    return Samples(entry, calibration), Samples(entry, [file for file in files if file not in set(calibration)])


def _read(file: Path) -> Pixels:
    image = cv2.imread(str(file), cv2.IMREAD_COLOR)
    if image is None:
        raise SourceError(f"{file} cannot be read as an image.")
    return Pixels(np.asarray(image, np.uint8), BGR)
