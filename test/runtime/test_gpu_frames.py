"""Frames whose scores the CPU says: it resizes them to the very pixels that a GPU makes of them."""

from __future__ import annotations

import pytest
import torch
from gpu_frames import cpu_model, picture
from simulated_gpu import GPU, Gpu

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.preprocessing.device_preprocessor import DevicePreprocessor
from split_infer_ros.preprocessing.host_preprocessor import HostPreprocessor
from split_infer_ros.preprocessing.loaded_batch import BatchForm


@pytest.mark.parametrize("size", [(240, 320), (540, 960)])
def test_frames_are_resized_as_on_a_gpu(size: tuple[int, int], gpu: Gpu) -> None:
    frame, usual = picture(0, size), find_model("shapes").preprocess
    on_gpu = DevicePreprocessor(usual, BatchForm(FLOAT32), batch_size=1, place=Place(Policy.DEVICE, GPU))
    loaded = on_gpu.load([frame])
    loaded.ready.wait()
    on_cpu = [
        HostPreprocessor(preprocess, BatchForm(FLOAT32), batch_size=1).load([frame]).images
        for preprocess in (cpu_model().entry.preprocess, usual)
    ]
    assert torch.equal(loaded.images.cpu(), on_cpu[0])
    assert not torch.equal(on_cpu[0], on_cpu[1]), "a CPU usually has other weights"
