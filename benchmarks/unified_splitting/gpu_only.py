"""Rivals of split inference: the whole model on the GPU, prepared and optimised (§6.1). ``Baseline`` is the third one.

All three rivals decode a detector's objects on the GPU. From a classifier, only the logits come to the CPU. Without a
GPU, all three run on the CPU with the same code.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.rivals.finish import Finish
from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import torch_dtype
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.engines.cuda.cuda_graphs import SizedGraphs
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.preprocessing.loaded_batch import BatchForm
from split_infer_ros.preprocessing.preprocessor import make_preprocessor
from split_infer_ros.runtime.captures import Capture, capture
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.split.model import SplitModel

IN_FLIGHT = 3  # batches at a time: one is gathered, one computed, one decoded

Batches = Iterator[Sequence[Pixels]]
Deliver = Callable[[Sequence[Detections]], None]
Forward = Callable[[Tensor], Sequence[Tensor]]


class Prepared:
    """Runs the whole model one batch after another on one thread, with the preparation of a split model's backbone.

    Batch norms are folded, convolutions are channels-last with packed weights, and on a GPU the model is recorded as a
    CUDA graph. Images are pre-processed as for the backbone of a split model. Nothing overlaps.

    Args:
        model: the prepared model, on its device.
        batch_size: the size of every batch. All batches are full.
        limits: the limits that decide which detections are kept.
    """

    def __init__(self, model: SplitModel, batch_size: int, limits: Limits) -> None:
        device, preprocess = model.device, model.entry.preprocess
        self._preprocessor = make_preprocessor(
            preprocess, BatchForm(model.dtype), batch_size=batch_size, place=Place(Policy.DEVICE, device)
        )
        self._stream = Stream(device)
        self._finish = Finish(model.entry, device, limits)
        self._forward: Forward = model.backbone("output")
        self._in_order = model.head("output")
        self._graphs: SizedGraphs[Sequence[Tensor]] | None = None
        if self._stream.is_asynchronous:
            with torch.inference_mode():
                example = torch.zeros(
                    (batch_size, *model.entry.image_shape), device=device, dtype=torch_dtype(model.dtype)
                )
                self._graphs = SizedGraphs.record(
                    self._forward,
                    GraphInput(example.contiguous(memory_format=torch.channels_last)),
                    sizes=[batch_size],
                    stream=Stream(device),
                )

    @torch.inference_mode()
    def run(self, batches: Batches, deliver: Deliver) -> None:
        """Runs all batches. Calls ``deliver`` with the detections of each batch."""
        for pictures in batches:
            loaded = self._preprocessor.load(pictures, None if self._graphs is None else self._graphs.input)
            self._stream.wait_for(loaded.ready)
            with self._stream.work("prepared"):
                outputs = self._forward(loaded.images) if self._graphs is None else self._graphs.launch(len(pictures))
                found = self._finish(self._in_order(*outputs), pictures)
            deliver(found)


class Optimised:
    """Runs the prepared model with page-locked memory and a loader ahead of it. Everything is asynchronous.

    A thread gathers batches and uploads them on a stream of its own. The model, folded and channels-last, is one CUDA
    graph. The results of a batch are decoded while the GPU computes the next batch. A detector decodes on a third
    stream.

    Args:
        model: the prepared model, on its device.
        batch_size: the size of every batch.
        limits: the limits that decide which detections are kept.
    """

    def __init__(self, model: SplitModel, batch_size: int, limits: Limits) -> None:
        self._model = model
        self._finish = Finish(model.entry, model.device, limits)
        self._cuda = model.device.type == "cuda"
        self._upload = torch.cuda.Stream(model.device) if self._cuda else None
        self._compute = torch.cuda.Stream(model.device) if self._cuda else None
        self._decode = torch.cuda.Stream(model.device) if self._cuda else None
        with torch.inference_mode():
            to_host, recording = not self._finish.on_device, Stream(model.device)
            self._slots = [_Slot(model, batch_size, recording, to_host) for _ in range(IN_FLIGHT)]

    @torch.inference_mode()
    def run(self, batches: Batches, deliver: Deliver) -> None:
        """Runs all batches, which must be full. Calls ``deliver`` with the detections of each batch."""
        free: queue.SimpleQueue[_Slot | None] = queue.SimpleQueue()
        loaded: queue.SimpleQueue[tuple[_Slot, Sequence[Pixels]] | None] = queue.SimpleQueue()
        for slot in self._slots:
            free.put(slot)

        @torch.inference_mode()
        def load() -> None:
            use_one_thread()
            try:
                for pictures in batches:
                    slot = free.get()
                    if slot is None:
                        break
                    self._model.entry.preprocess.gather(pictures, slot.staging.numpy())
                    slot.upload(self._upload)
                    loaded.put((slot, pictures))
            finally:
                loaded.put(None)

        def finish_oldest() -> None:
            slot, pictures = running.popleft()
            with torch.cuda.stream(self._decode):  # without a GPU, this does nothing
                deliver(self._finish(slot.results(), pictures))
            free.put(slot)

        running: deque[tuple[_Slot, Sequence[Pixels]]] = deque()
        with ThreadPoolExecutor(1) as executor:
            loader = executor.submit(load)
            try:
                while (work := loaded.get()) is not None:
                    work[0].compute(self._compute)
                    running.append(work)
                    if not self._cuda or len(running) == IN_FLIGHT - 1:  # on a CPU, the batch is already computed
                        finish_oldest()
                while running:
                    finish_oldest()
            finally:
                free.put(None)  # ends the loader, also after an error
            loader.result()


class _Slot:
    """The memory of one batch, and on a GPU its events and its CUDA graph.

    Args:
        model: the prepared model, on its device.
        batch_size: the size of every batch.
        recording: the stream on which the graphs of all slots are recorded. They never run concurrently.
        to_host: whether outputs are copied to the CPU.
    """

    def __init__(self, model: SplitModel, batch_size: int, recording: Stream, to_host: bool) -> None:
        preprocess = model.entry.preprocess
        self._forward, self._in_order = model.backbone("output"), model.head("output")
        staging = torch.from_numpy(preprocess.staging(batch_size))
        self.staging = staging.pin_memory() if recording.is_asynchronous else staging
        self._scale = torch.tensor([1 / (255 * s) for s in preprocess.std], device=model.device)
        means = zip(preprocess.mean, preprocess.std, strict=True)
        self._offset = torch.tensor([-m / s for m, s in means], device=model.device)
        self._graph: Capture[tuple[Tensor, ...]] | None = None
        if not recording.is_asynchronous:
            self._input = self.staging
            return
        self._input = torch.empty_like(self.staging, device=model.device, pin_memory=False)
        self._uploaded, self._done = torch.cuda.Event(), torch.cuda.Event()
        self._graph = capture(self._run, recording)
        outputs = self._graph.results
        self._host = tuple(torch.empty(o.shape, dtype=o.dtype, pin_memory=True) for o in outputs if to_host)
        self._results = self._host or outputs

    def _run(self) -> tuple[Tensor, ...]:
        images = torch.addcmul(self._offset, self._input.float(), self._scale).permute(0, 3, 1, 2)
        outputs: tuple[Tensor, ...] = self._forward(images)
        return outputs

    def upload(self, stream: torch.cuda.Stream | None) -> None:
        """Starts to copy the gathered images to the GPU."""
        if stream is not None:
            with torch.cuda.stream(stream):
                self._input.copy_(self.staging, non_blocking=True)
                self._uploaded.record(stream)

    def compute(self, stream: torch.cuda.Stream | None) -> None:
        """Starts to run the model and to copy its outputs back. On a CPU, runs it at once."""
        if stream is None or self._graph is None:
            self._results = self._run()
            return
        with torch.cuda.stream(stream):
            stream.wait_event(self._uploaded)
            self._graph.launch()
            for place, output in zip(self._host, self._graph.results, strict=False):  # _host may be empty
                place.copy_(output, non_blocking=True)
            self._done.record(stream)

    def results(self) -> tuple[Tensor, ...]:
        """Waits for the model's outputs and returns them."""
        if self._graph is not None:
            self._done.synchronize()
        results: tuple[Tensor, ...] = self._in_order(*self._results)
        return results
