"""The backbone's partition on a GPU: the same results as on the CPU, by streams, events and graphs."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import torch
from gpu_frames import SETTINGS, check_scores, picture, running
from real_gpu import GPU, need

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.compute import backbone_for
from split_infer_ros.engines.cuda.cuda_graphs import GraphedBackbone
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.preprocessing.device_preprocessor import DevicePreprocessor
from split_infer_ros.preprocessing.host_preprocessor import HostPreprocessor
from split_infer_ros.preprocessing.loaded_batch import BatchForm
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

LONG_S = 60.0
# Of scores between 0 and 1: sums in another order, and mantissas of 10 and 7 bits.
TOLERANCE = {Precision.FP32: 2e-3, Precision.FP16: 2e-2, Precision.BF16: 1e-1}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(224, 224, shorter_side=256),
        Preprocess(320, 320, antialias=False),
        Recipe.parse("letterbox").preprocess(320, 320),
        Recipe.parse("yolox").preprocess(320, 320),
        Recipe.parse("letterbox_corner,bgr,0..255,fill=0").preprocess(320, 320),
        Recipe.parse("letterbox,smooth,bgr,imagenet,fill=mean").preprocess(320, 320),
        Recipe.parse("stretch,bicubic,-1..1").preprocess(320, 320),
    ],
    ids=["crop", "float", "letterbox", "yolox", "corner", "smooth", "bicubic"],
)
def test_pictures_resized_on_the_gpu_are_the_same_to_one_grey_level(preprocess: Preprocess, policy: Policy) -> None:
    images = [picture(number) for number in range(7)]
    on_cpu = HostPreprocessor(preprocess, BatchForm(FLOAT32), batch_size=7).load(images).images
    preprocessor = DevicePreprocessor(preprocess, BatchForm(FLOAT32), batch_size=7, place=Place(policy, GPU))
    for _ in range(4):
        loaded = preprocessor.load(images)
        loaded.ready.wait()
        differences = (loaded.images.cpu() - on_cpu).abs() * torch.tensor(preprocess.std).view(3, 1, 1)
        assert differences.amax().item() * 255 <= 1.01


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_a_recorded_backbone_writes_what_it_was_recorded_from(count: int, policy: Policy) -> None:
    need(policy)
    model = load_model(ModelSpec("shapes", "default", "cuda"))
    slots = SlotMemory.allocate(Layout(model.split_point("default").tensors, 6), 2, Place(policy, GPU))
    backbone, queue = backbone_for(slots, model.backbone("default")), Stream(GPU)
    images = torch.randn(6, *model.entry.image_shape, device=GPU)
    with torch.inference_mode(), queue.work("test"):
        example = images.contiguous(memory_format=torch.channels_last)
        recorded = GraphedBackbone.record(backbone, slots, 2, example)
        for shift in range(3):
            slot, batch = shift % 2, images[:count] + shift
            expected = [each.cpu() for each in backbone(batch)]
            recorded.input_of(slot).images[:count] = batch
            recorded.run_into_slot(slot, count)
            if slots.needs_copy:
                slots.fetch(slot, count)
            queue.fence().wait()
            for one, other in zip(slots.views(slot, count), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("policy", ["device", "managed", "pinned"])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("precision", TOLERANCE)
def test_a_stream_of_frames_is_detected_as_on_the_cpu_while_settings_change(
    precision: Precision, graphs: bool, policy: str
) -> None:
    settings = replace(SETTINGS, cuda_graphs=graphs, memory_policy=policy)
    model = load_model(ModelSpec("shapes", device=str(GPU), execution_config=ExecutionConfig(precision=precision)))
    with running(settings, model=model) as (pipeline, scores):
        stage = pipeline.backbone
        for number in range(40):
            if number % 10 == 9:
                stage.configure(replace(settings, batch_size=1 + number // 10, pool_slots=1 + number % 3))
            if number % 10 == 4:  # each policy gives way to each other one
                stage.configure(replace(stage.settings, memory_policy=POLICIES[number // 10 % 3].value))
            pipeline.feed([picture(number)])
        pipeline.finish()
    assert stage.ledger.counts().published == 40
    assert sorted(scores) == list(range(40))
    check_scores(scores, tolerance=TOLERANCE[precision])


def test_scores_in_tf32_are_the_cpus_to_ten_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as torch has it by default
    with running(SETTINGS) as (pipeline, scores):
        pipeline.feed(map(picture, range(8)))
        pipeline.finish()
    check_scores(scores, tolerance=TOLERANCE[Precision.FP16])  # as many bits


def test_nothing_in_the_loop_waits_for_the_whole_device() -> None:
    """While another stream is kept busy, batches come out."""
    model = load_model(ModelSpec("shapes", "default", "cuda"))
    seen = threading.Event()
    errors: list[Exception] = []
    head = HeadStage.open(
        load_model(ModelSpec("shapes", "default", "cpu")),
        Limits(),
        deliver=lambda *_: seen.set(),
        on_error=errors.append,
    )
    stage = BackboneStage(model, StageSettings(), LocalTransport(head), errors.append)
    head.start()
    stage.start()
    busy = torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(20_000_000_000)  # cycles: some ten seconds
    image = picture(0)
    stage.intake.submit(image, Origin(0, "camera", image.height, image.width), time.monotonic())
    came = seen.wait(LONG_S)
    still_busy = not busy.query()
    stage.stop(LONG_S)
    head.stop()
    assert came
    assert still_busy
    assert errors == []
