"""A pipeline with one transport, for the benchmark ``transports``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.processes import Processes
from benchmarks.ros.trace import Batch, Trace

FULL_BATCHES_MS = 5000.0  # long enough that no batch is sent before it is full
DEPTH = 64  # the most images that wait for the pipeline, so that none of a burst is lost
BATCH_TIMEOUT_S = 20.0


class TransportPipeline:
    """A backbone and a head with a transport between them. They are idle until images come.

    Args:
        name: the name of the transport. It is also the pipeline's namespace.
        observer: sets the backbone's parameters.
        feed: sends the images.
        trace: the backbone's trace.
    """

    def __init__(self, name: str, observer: Observer, feed: Feed, trace: Trace) -> None:
        self.name = name
        self._observer = observer
        self._feed = feed
        self._trace = trace
        self._setting = ("", 0)

    def set(self, split_point: str, batch_size: int) -> None:
        """Sets the split point and the batch size. The first batch with them is not measured."""
        if self._setting != (split_point, batch_size):
            self._observer.set(f"/{self.name}/backbone", split_point=split_point, batch_size=batch_size)
            self._setting = (split_point, batch_size)
            self.one_by_one(1)

    def one_by_one(self, batches: int) -> list[Batch]:
        """Sends batches one by one, each when the batch before is done. Returns them as they are in the trace."""
        return [self.burst(1)[0] for _ in range(batches)]

    def burst(self, batches: int) -> Sequence[Batch]:
        """Sends the images of several batches at once, and waits until all batches are done.

        Returns the batches as they are in the trace.
        """
        before = self._trace.read()
        self._feed.burst(image_topic(self.name), batches * self._setting[1])
        self._trace.wait_for(before + batches, BATCH_TIMEOUT_S)
        return self._trace.batches[before:]


def start(processes: Processes, name: str, trace: str) -> list[int]:
    """Starts a pipeline with a transport: one process, or one for the head and one for the backbone.

    Args:
        processes: starts the nodes.
        name: the name of the transport.
        trace: the file to which the backbone writes its trace.

    Returns:
        The process ids.
    """
    model = {"model": "shapes", "weights": "none", "precision": "fp32"}
    images = {
        "improve": "before_start",
        "objective": "throughput",
        "image_reliability": "reliable",
        "image_depth": DEPTH,
        "batch_timeout_ms": FULL_BATCHES_MS,
        "drop_policy": "block",
        "trace": trace,
    }
    if name == "intra_process":
        return [processes.start(["-m", "split_infer_ros", "pipeline"], name, **model, **images, source="none")]
    return [
        processes.start(["-m", "split_infer_ros", "head"], name, **model, transport=name),
        processes.start(["-m", "split_infer_ros", "backbone"], name, **model, **images, transport=name),
    ]


def wait_for(observer: Observer, name: str) -> None:
    """Waits until the nodes of the pipeline with transport ``name`` are connected."""
    topics = {"shared_memory": ("features", "features/release"), "network": ("features/data", "features/release")}
    # with network, the head subscribes once the backbone has chosen it
    observer.wait_for_nodes(image_topic(name), *(f"/{name}/{topic}" for topic in topics.get(name, ())))
    time.sleep(0.1)  # the backbone discovers the head at about the same time as the observer


def image_topic(name: str) -> str:
    """Returns the image topic of the pipeline with a transport."""
    return f"/{name}/image"
