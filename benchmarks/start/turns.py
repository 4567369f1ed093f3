"""The turns of the benchmark ``start``: it starts each rival, and watches it until its first detection and beyond."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from vision_msgs.msg import Detection2DArray

from benchmarks.common.turns import rotated
from benchmarks.rivals.usual import ARGUMENTS, OPENVINO_AS_IT_COMPILES, OPENVINO_FP32, command, without_twin
from benchmarks.rivals.usual import ONNXRUNTIME as USUAL_ONNXRUNTIME
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import START_S, Observer
from benchmarks.ros.processes import Processes
from benchmarks.start.usage import family_of, memory_mb, processor_seconds

ENGINES = OPENVINO, ONNXRUNTIME = "openvino", "onnxruntime"
FIRST, TWO_PROCESSES, SHAPES = "pipeline_first_start", "backbone_and_head", "pipeline_shapes_on_torch"
LAUNCHED = "pipeline_by_ros2_launch"
START_FIGURES = START, PROCESSOR, RESIDENT, ANONYMOUS, BUSY = (
    "start_s",
    "processor_s",
    "resident_mb",
    "anonymous_mb",
    "busy_anonymous_mb",
)
OURS = ("-m", "split_infer_ros")  # how the executables start
CAMERA_HZ = 30.0  # too fast for the network on a few cores
CALM_HZ = 5.0
QUIET_S = 0.3  # time until the camera has paused and the last image is processed
POLL_S = 0.002


def ours(engine: str) -> str:
    """Returns the name of the pipeline with an engine."""
    return f"pipeline_{engine}"


def usual(engine: str) -> str:
    """Returns the name of the usual node around an engine, in fp32."""
    return {OPENVINO: OPENVINO_FP32, ONNXRUNTIME: USUAL_ONNXRUNTIME}[engine]


def quick_rivals(default: str) -> tuple[str, ...]:
    """Returns the names of a quick run's rivals: two pipelines and the usual nodes around OpenVINO.

    Args:
        default: the precision in which OpenVINO compiles here if none is named.
    """
    return without_twin((ours(OPENVINO), FIRST, OPENVINO_FP32, OPENVINO_AS_IT_COMPILES), default)


def all_rivals(default: str) -> tuple[str, ...]:
    """Returns the names of all rivals that this machine can start.

    Args:
        default: the precision in which OpenVINO compiles here if none is named.
    """
    launched = [LAUNCHED] if shutil.which("ros2") else []
    nodes = OPENVINO_FP32, OPENVINO_AS_IT_COMPILES, USUAL_ONNXRUNTIME
    return without_twin((*map(ours, ENGINES), FIRST, TWO_PROCESSES, SHAPES, *launched, *nodes), default)


class Starts:
    """Starts the rivals one after another. A camera sends images to the rival that starts.

    Args:
        rivals: the names of the rivals.
        observer: receives the detections.
        feed: sends the images.
        model: the ONNX file.
        cache: the cache folder of all rivals but FIRST, which has an empty folder at each start.
        settle_s: for how many seconds images come slowly before memory is measured. Then they come fast for as long
            before memory is measured again.
    """

    def __init__(
        self, rivals: Sequence[str], observer: Observer, feed: Feed, *, model: Path, cache: Path, settle_s: float
    ) -> None:
        self.rivals = rivals
        self._feed = feed
        self._model = str(model)
        self._cache = cache
        self._settle_s = settle_s
        self._detected: dict[str, float] = {}  # the time of each rival's first detection in its current start
        for rival in rivals:
            observer.subscribe(Detection2DArray, f"/{rival}/detections", partial(self._receive, rival), raw=True)

    def warm_up(self) -> None:
        """Starts each rival once, so that files are in the system's cache and models in the package's."""
        for rival in self.rivals:
            self._measure(rival)

    def turn(self, number: int) -> dict[str, float]:
        """Starts each rival once. Returns its figures, named in ``START_FIGURES``, under the names ``RIVAL FIGURE``."""
        found = {}
        for rival in rotated(self.rivals, number):
            found |= {f"{rival} {name}": value for name, value in self._measure(rival).items()}
        return found

    def _measure(self, rival: str) -> Mapping[str, float]:
        """Starts a rival, waits for its first detection, measures it and ends it.

        Raises:
            RuntimeError: the rival does not detect anything.
        """
        with tempfile.TemporaryDirectory() as empty, Processes() as processes:
            self._feed.rate(f"/{rival}/image", CAMERA_HZ)
            self._detected.pop(rival, None)
            begin = time.monotonic()
            started = self._start(rival, processes, Path(empty) if rival == FIRST else self._cache)
            while rival not in self._detected:
                if time.monotonic() > begin + START_S:
                    raise RuntimeError(f"{rival} has published nothing {START_S:g} s after its start.")
                time.sleep(POLL_S)
            processor_s = processor_seconds(family_of(started))
            self._feed.rate(f"/{rival}/image", CALM_HZ)
            time.sleep(self._settle_s)
            resident, anonymous = memory_mb(family_of(started))
            self._feed.rate(f"/{rival}/image", CAMERA_HZ)
            time.sleep(self._settle_s)
            _, busy = memory_mb(family_of(started))
            self._feed.rate(f"/{rival}/image", 0.0)
            time.sleep(QUIET_S)
        figures = self._detected[rival] - begin, processor_s, resident, anonymous, busy
        return dict(zip(START_FIGURES, figures, strict=True))

    def _start(self, rival: str, processes: Processes, cache: Path) -> list[int]:
        """Starts the processes of a rival; returns their ids."""
        run = partial(processes.start, namespace=rival, environment={"XDG_CACHE_HOME": str(cache)})
        model, objective = {"model": self._model, "precision": "fp32"}, {"objective": "throughput"}
        if rival in ARGUMENTS:
            return [run(command(rival, self._model), name=rival)]
        if rival == TWO_PROCESSES:
            transport = {"transport": "shared_memory"}
            head = run([*OURS, "head"], **model, **transport)
            return [head, run([*OURS, "backbone"], **model, **transport, **objective, engine=OPENVINO)]
        if rival == LAUNCHED:
            words = {**model, "engine": OPENVINO, "source": "none", "namespace": rival, "log_level": "warn"}
            arguments = [f"{name}:={word}" for name, word in words.items()]
            launch = ["ros2", "launch", "split_infer_ros", "pipeline.launch.py", *arguments]
            return [processes.run(launch, {"XDG_CACHE_HOME": str(cache)})]
        if rival == SHAPES:
            model |= {"model": "shapes", "engine": "torch"}
        elif rival != FIRST:
            model["engine"] = ONNXRUNTIME if rival == ours(ONNXRUNTIME) else OPENVINO
        return [run([*OURS, "pipeline"], **model, **objective, source="none")]

    def _receive(self, rival: str, _: bytes) -> None:
        self._detected.setdefault(rival, time.monotonic())
