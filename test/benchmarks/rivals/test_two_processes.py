"""A backbone and a head in two processes, without ROS."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from multiprocessing import active_children

import pytest
import torch

from benchmarks.common.images import draw_images
from benchmarks.rivals.finish import TOP_1
from benchmarks.rivals.head_process import HeadProcess, Work
from benchmarks.rivals.image_feed import ImageFeed
from benchmarks.rivals.pipelines import SplitPipeline
from split_infer_ros.errors import SplitInferError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

CPU = torch.device("cpu")
ENTRY = find_model("shapes")


@pytest.mark.slow
def test_two_processes_find_what_one_finds_and_a_killed_head_is_noticed() -> None:
    """Both run the same kernels on the same batches with as many threads, so their best classes are the same."""
    images = draw_images(ENTRY, 6)
    preprocess = ENTRY.preprocess
    gathered = preprocess.gather(images, preprocess.staging(len(images)))
    inputs = torch.from_numpy(preprocess.normalise(gathered))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = randomise(ENTRY.build(), inputs)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = SplitModel(TorchNetwork(ENTRY, module))
    labels = []
    others = set(active_children())
    for head_weights in (None, weights):
        feed = ImageFeed(images, 2)
        rival = SplitPipeline(model, split_point="default", feed=feed, limits=TOP_1, ahead=1, weights=head_weights)
        figures = rival.take_turn(4, nullcontext())
        busy = [figures.pop(stage) for stage in ("backbone_busy", "head_busy")]
        assert min(figures.values()) > 0
        # A stage may finish the timed batches before the clock starts: results wait until a thread takes them.
        assert 0 <= min(busy) <= max(busy) < 1.001  # sums of floats may round up
        labels.append(feed.labels)
        if head_weights is not None:
            (head,) = set(active_children()) - others
            (results,) = (thread for thread in threading.enumerate() if thread.name == "results")
            head.kill()
            results.join(10)  # it ends with the pipe
            with pytest.raises(SplitInferError, match="ended by itself"):
                rival.take_turn(1, nullcontext())
        rival.close()
    assert len(labels[0]) == 12
    assert labels[1] == labels[0]


def test_a_process_that_does_not_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.rivals.head_process.START_S", 0.01)
    work = Work("shapes", TOP_1, num_threads=1, split_point="default", batch_size=1)
    with pytest.raises(SplitInferError, match="took more than"):
        HeadProcess(work, {}, lambda *_: None, lambda error: None)
