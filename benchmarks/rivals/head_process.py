"""Runs a head in a process of its own that reads slots in shared memory: the second worker of paper 000 (§4.2, 4.3).

A pipe takes the place of the queue in the paper. It carries handles to the head and detections back. Features stay
where the backbone wrote them.
"""

from __future__ import annotations

import os
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.buffers.layout import Layout, Strides, strides_of
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.buffers.shared_reader import SharedBatchReader, SharedSlotReader
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import SplitInferError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.server.frame import Handle, Origin
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.transport import OwnedPool, Released
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

START_S = 120.0  # how long a process may take to load torch and the model
STOP_S = 10.0
LEASE_S = 60.0  # long, because a slow head is not gone; the pipe tells when it is gone

Weights = dict[str, Tensor]
Deliver = Callable[[Origin, Detections], None]


@dataclass(frozen=True)
class Work:
    """What a head process runs.

    Attributes:
        name: the model's name in the catalogue.
        limits: the limits that decide which detections are kept.
        num_threads: how many threads the head's operations use.
        split_point: where the model is split.
        batch_size: the most images in a batch.
    """

    name: str
    limits: Limits
    num_threads: int
    split_point: str
    batch_size: int


@dataclass(frozen=True)
class SentBatch:
    """What crosses the pipe for one batch: the parts of its handle, and the strides of its features.

    Attributes:
        lease: the lease of the slot with the features.
        segment: the name of the shared memory with the slot.
        strides: the strides of each feature tensor.
        origins: header, source and size of each frame, without pixels.
    """

    lease: Lease
    segment: str
    strides: tuple[Strides, ...]
    origins: tuple[Origin, ...]


class HeadProcess:
    """Starts a head process. This object is also the transport with which the backbone sends batches there.

    Args:
        work: what the process runs.
        weights: the model's weights by name.
        deliver: called with each frame's origin and detections, on a thread of this object.
        on_error: called with the error if the process ends although nobody has called ``close``.
    """

    shared = True

    def __init__(self, work: Work, weights: Weights, deliver: Deliver, on_error: Callable[[Exception], None]) -> None:
        self._deliver = deliver
        self._on_error = on_error
        self._collect: Callable[[], None] = lambda: None
        ours, theirs = get_context("spawn").Pipe()
        self._pipe = ours
        with TemporaryDirectory() as folder:
            path = Path(folder) / "weights"
            torch.save(weights, path)
            self._process = get_context("spawn").Process(target=serve, args=(theirs, work, path), daemon=True)
            self._process.start()
            theirs.close()
            if not ours.poll(START_S):
                self._process.kill()
                raise SplitInferError(f"The head process took more than {START_S:g} s to start.")
            ours.recv()  # the process has read the weights
        self._thread = Thread(target=self._receive, name="results", daemon=True)
        self._thread.start()

    def connect(self, released: Released, collect: Callable[[], None]) -> HeadProcess:
        """Registers ``collect``, which is called after the results of a batch; see ``Transport.connect``.

        ``released`` is not used, because the slots in shared memory hold the outcomes.
        """
        self._collect = collect
        return self

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SharedSlotPool:
        """Allocates a pool of slots in shared memory."""
        return SharedSlotPool.allocate(layout, slots, place, lease_s=LEASE_S)

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Does nothing: the head's process prepares its partition when it starts."""

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Sends a handle to the head's process. Returns 1, the number of heads."""
        features = pool.views(handle.lease, len(handle.origins))
        strides = tuple(map(strides_of, features))
        origins = tuple(Origin(each.header, each.source, each.height, each.width) for each in handle.origins)
        self._pipe.send(SentBatch(handle.lease, handle.segment, strides, origins))
        return 1

    def disconnect(self) -> None:
        """Does nothing: the process runs until ``close``."""

    def start(self) -> None:
        """Does nothing: the process runs from the beginning."""

    def stop(self) -> None:
        """Does nothing: the process runs until ``close``."""

    def close(self) -> None:
        """Ends the process."""
        if self._process.is_alive():
            self._pipe.send(None)
        self._thread.join(STOP_S)
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _receive(self) -> None:
        try:
            while (results := self._pipe.recv()) is not None:
                for origin, found in results:
                    self._deliver(origin, Detections(*found))
                self._collect()
        except (EOFError, OSError) as error:
            self._on_error(SplitInferError(f"The head process ended by itself ({error})."))


def serve(pipe: Any, work: Work, weights: Path) -> None:
    """Runs in the head process: receives batches from the pipe until None comes, and sends their results back.

    Args:
        pipe: the pipe to the backbone's process.
        work: the model and how it runs.
        weights: the file with the model's weights.
    """
    prepare_process()
    entry = find_model(work.name)
    module = entry.build()
    module.load_state_dict(torch.load(weights, weights_only=True))
    model = SplitModel(TorchNetwork(entry, module))
    results: defaultdict[Lease, list[tuple[Origin, Sequence[Any]]]] = defaultdict(list)
    readers: dict[str, SharedSlotReader] = {}

    def deliver(handle: Handle, index: int, found: Detections) -> None:
        results[handle.lease].append((handle.origins[index], (found.boxes, found.scores, found.labels)))

    def fail(error: Exception) -> None:
        traceback.print_exception(error)
        os._exit(1)  # the backbone's process sees that the pipe has ended

    stage = HeadStage.open(
        model,
        work.limits,
        deliver=deliver,
        on_error=fail,
        num_threads=work.num_threads,
        batch_size=work.batch_size,
        split_point=work.split_point,
    )
    layout = Layout(model.split_point(work.split_point).tensors, work.batch_size)

    def send_results(lease: Lease, _: Outcome) -> None:
        pipe.send(results.pop(lease))

    stage.start()
    pipe.send("ready")
    while (batch := pipe.recv()) is not None:
        if batch.segment not in readers:
            readers[batch.segment] = SharedSlotReader.attach(batch.segment, layout)
        handle = Handle(batch.lease, entry.name, work.split_point, work.batch_size, batch.segment, batch.origins)
        reader = SharedBatchReader(
            readers[batch.segment], batch.strides, lambda lease, _: pipe.send(results.pop(lease))
        )
        stage.submit(handle, reader)
    stage.stop()
    pipe.send(None)
