"""A trained detector that lies beside the project and is not committed, and photographs for it."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import skimage.data

MODEL = Path("shared", "models", "yolox_nano.onnx")
PHOTOGRAPHS = ("astronaut", "coffee", "chelsea")
MORE = ("camera", "coins", "clock", "cell", "text")  # of scikit-image, in which YOLOX-Nano finds things of COCO


def trained_detector() -> Path:
    """Returns the path of YOLOX-Nano, trained on COCO. Skips the test if the file is missing."""
    for folder in Path(__file__).resolve().parents:
        if (folder / MODEL).is_file():
            return folder / MODEL
    pytest.skip(f"{MODEL} is not beside the project")


def photograph(name: str) -> np.ndarray:
    """Returns a photograph of scikit-image, uint8 (height, width, 3) in BGR."""
    image = getattr(skimage.data, name)()
    if image.dtype == np.bool_:
        image = image.astype(np.uint8) * 255
    colours = image[..., None].repeat(3, 2) if image.ndim == 2 else image[..., :3]
    return np.ascontiguousarray(colours[..., ::-1])


def write_crops(folder: Path, names: tuple[str, ...], count: int, seed: int) -> list[Path]:
    """Writes ``count`` random crops of each photograph, every other one mirrored, and returns the files.

    A crop has half to all of the photograph's height and width.
    """
    random, files = np.random.default_rng(seed), []
    for name in names:
        image = photograph(name)
        for index in range(count):
            height, width = (int(side * random.uniform(0.5, 1.0)) for side in image.shape[:2])
            top, left = (int(random.integers(0, free + 1)) for free in np.subtract(image.shape[:2], (height, width)))
            crop = image[top : top + height, left : left + width]
            files.append(folder / f"{name}_{index:02}.png")
            cv2.imwrite(str(files[-1]), crop[:, ::-1] if index % 2 else crop)
    return files
