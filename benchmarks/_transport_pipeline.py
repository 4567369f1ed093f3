"""One transport's pipeline in the benchmark of transports: how long its features are on their way, and frames/s."""

from __future__ import annotations

import time
from collections.abc import Sequence

from _feed import Feed
from _ros import Observer, Processes
from _trace import Batch, Trace

FULL_BATCHES_MS = 5000.0  # long enough that no batch goes before it is full
DEPTH = 64  # images that wait for the pipeline, so that none of a burst is lost
PATIENCE_S = 20.0


class TransportPipeline:
    """Backbone and head on either side of a transport, quiet until it gets images.

    Args:
        name: of the transport, and the pipeline's namespace.
    """

    def __init__(self, name: str, observer: Observer, feed: Feed, trace: Trace) -> None:
        self.name = name
        self._observer = observer
        self._feed = feed
        self._trace = trace
        self._work = ("", 0)

    def set(self, split_point: str, batch: int) -> None:
        """Cut there and take so many frames at once; the first batch with that is not measured."""
        if self._work != (split_point, batch):
            self._observer.set(f"/{self.name}/backbone", split_point=split_point, batch_size=batch)
            self._work = (split_point, batch)
            self.one_by_one(1)

    def one_by_one(self, batches: int) -> list[Batch]:
        """Send so many batches, each when the last one is done."""
        return [self.burst(1)[0] for _ in range(batches)]

    def burst(self, batches: int) -> Sequence[Batch]:
        """Send the images of so many batches at once, and wait until all are done."""
        before = self._trace.read()
        self._feed.burst(image_topic(self.name), batches * self._work[1])
        self._trace.wait_for(before + batches, PATIENCE_S)
        return self._trace.batches[before:]


def start(processes: Processes, name: str, trace: str) -> list[int]:
    """Start the nodes of a transport; returns the numbers of their processes."""
    model = {"model": "shapes", "weights": "none"}
    images = {
        "image_reliability": "reliable",
        "image_depth": DEPTH,
        "batch_timeout_ms": FULL_BATCHES_MS,
        "drop_policy": "block",
        "trace": trace,
    }
    if name == "intra_process":
        return [processes.start(["-m", "split_infer_ros.nodes.pipeline"], name, **model, **images, source="none")]
    return [
        processes.start(["-m", "split_infer_ros.nodes.head"], name, **model, transport=name),
        processes.start(["-m", "split_infer_ros.nodes.backbone"], name, **model, **images, transport=name),
    ]


def wait_for(observer: Observer, name: str) -> None:
    """Return once the nodes of a transport hear each other."""
    topics = {"shared_memory": ("features", "features/release"), "network": ("features/data", "features/release")}
    # network: the head subscribes once the backbone has chosen it
    observer.wait_for_nodes(image_topic(name), *(f"/{name}/{topic}" for topic in topics.get(name, ())))
    time.sleep(0.1)  # the backbone hears of the head when we do, more or less


def image_topic(name: str) -> str:
    """Where a transport's images go."""
    return f"/{name}/image"
