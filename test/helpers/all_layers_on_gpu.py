"""Puts the model of ``all_layers_model`` on a simulated GPU, and streams its weights there."""

from __future__ import annotations

from dataclasses import replace

import torch
from all_layers_model import ENTRY, Odd
from simulated_gpu import GPU

from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.streaming import stream_backbone


def odd_on_gpu() -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Odd().eval()
    return SplitModel(TorchNetwork(ENTRY, module)).placed(GPU)


def streamed(model: SplitModel, residency: Residency) -> StreamedPartition:
    settings = replace(StageSettings(split_point="output"), weights_residency=residency)
    partition = stream_backbone(model, model.split_point("output"), settings, batch_size=settings.batch_size)
    assert partition is not None
    assert partition.note == ""
    return partition
