"""Images on which two executions of a model are compared: drawn scenes, in which detectors find something."""

from __future__ import annotations

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.sources.scenes import draw_scene

SEED = 0
NUM_SAMPLES = 8  # scenes; a detector of COCO finds ten things in them


def sample_images(entry: ModelEntry, count: int = NUM_SAMPLES) -> Floats:
    """Returns drawn scenes as a model's input: float32 (count, 3, height, width). Equal calls give equal images.

    A trained detector finds nothing in noise. Scenes have light, texture, and things that look like balls and kites.
    """
    preprocess = entry.preprocess
    scenes = [Pixels(draw_scene(SEED, index).image, RGB) for index in range(count)]
    gathered = preprocess.gather(scenes, preprocess.staging(count))
    return preprocess.normalise(gathered, channels_last=False)
