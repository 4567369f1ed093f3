"""Joins models of one architecture with different weights into one network.

An example is a network that was fine-tuned for each camera.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx
from torch.nn import functional

from split_infer_ros.buffers.host_arrays import FLOAT32, torch_dtype
from split_infer_ros.engines.allowed_difference import allowed_difference
from split_infer_ros.engines.compute import Backbone
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler
from split_infer_ros.engines.result_difference import (
    MAX_DIFFERENCE,
    MAX_LOW_PRECISION_DIFFERENCE,
    MAX_ROUNDING,
    difference,
)
from split_infer_ros.engines.traced_part import OperatorOverride, make_traced_part
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.streams import Stream, work_apart
from split_infer_ros.split.export import copy_to_device
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.split.stacked_graph import stack_graphs
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.vision_ops.implementations import ImplementationChoice

CHECK_SIZE = 2  # images of each model on which the network is compared with the models


class StackedModel:
    """The backbones of several models as one network, on the models' device and in their execution config.

    The network has a copy of all weights. It computes the same sums as the models, maybe in another order. When it is
    made, its results are compared with those of the models, on random images.

    Args:
        members: at least two models of one architecture, by name.
        split_point: the name of the split point up to which the network computes.

    Attributes:
        name: the names of all members.
        members: as given.
        split_point: as given.
        backbone: maps images (n, m * C, H, W) to the features at the split point, (n, m, ...). There are m members, and
            n images for each.
        device, dtype, execution_config: those of the models.
        image_shape: (m * C, H, W).
        fingerprint: a text that identifies the operations and the number of models.

    Raises:
        ConfigurationError: the models differ in more than their weights, or run on another engine than torch. It is
            also raised if an operation cannot compute several models, or if the network has other results.
    """

    def __init__(self, members: Mapping[str, SplitModel], split_point: str) -> None:
        self.name = " + ".join(members)
        self.members = dict(members)
        self.split_point = split_point
        first = next(iter(members.values()))
        self._check_members(first)
        self.device, self.dtype, self.execution_config = first.device, first.dtype, first.execution_config
        channels, height, width = first.image_shape
        self.image_shape = (len(members) * channels, height, width)
        self.fingerprint = f"{len(members)} of {first.network.fingerprint} stacked"
        with work_apart(self.device, "stack"):
            self.backbone = self._make_backbone(first)
        self._check_results()

    def blank_images(self, batch_size: int) -> Tensor:
        """Returns black images (batch_size, m * C, H, W) of all m members."""
        return self.execution_config.blank_images((batch_size, *self.image_shape), self.device)

    def run(self, images: Mapping[str, Tensor], backbone: Backbone | None = None) -> dict[str, tuple[Tensor, ...]]:
        """Computes the batches of members at once. Returns the features of each member that has images.

        Args:
            images: the images of members, as ``join`` takes them.
            backbone: runs the network in place of the attribute ``backbone``; None for that attribute.
        """
        run: Partition = backbone or self.backbone
        return self.divide(run(self.join(images)), {name: len(given) for name, given in images.items()})

    def join(self, images: Mapping[str, Tensor]) -> Tensor:
        """Joins the images of members to the network's input (n, m * C, H, W).

        n is the largest number of images that a member has. Blank images stand for missing ones.

        Args:
            images: by name of the member, its images (number, C, H, W) on the device. At least one member has images.
        """
        size = max(map(len, images.values()))
        some = next(iter(images.values()))
        blank = some.new_zeros((size, *some.shape[1:])) if len(images) < len(self.members) else some
        padded = [
            functional.pad(images[name], (0,) * 7 + (size - len(images[name]),)) if name in images else blank
            for name in self.members
        ]
        return torch.cat(padded, dim=1)

    def divide(self, features: Sequence[Tensor], counts: Mapping[str, int]) -> dict[str, tuple[Tensor, ...]]:
        """Divides the network's features among the members. Returns views: the features of a member's images.

        Args:
            features: what ``backbone`` returned, (n, m, ...).
            counts: the number of images of each member that had any.
        """
        places = {name: place for place, name in enumerate(self.members)}
        return {name: tuple(tensor[:count, places[name]] for tensor in features) for name, count in counts.items()}

    def _check_members(self, first: SplitModel) -> None:
        if len(self.members) < 2:
            raise ConfigurationError(f"A stack takes at least two models, and was given {len(self.members)}.")
        config = first.execution_config
        if any(
            model.execution_config != config or str(model.device) != str(first.device)
            for model in self.members.values()
        ):
            raise ConfigurationError(f"{self.name} run on different devices or in different ways: let each run alone.")
        architecture = first.network.fingerprint, first.image_shape
        if any((model.network.fingerprint, model.image_shape) != architecture for model in self.members.values()):
            raise ConfigurationError(f"{self.name} differ in more than their weights: let each run alone.")
        if config.engine is not Engine.TORCH:
            raise ConfigurationError(
                f"{self.name} run on engine {config.engine_text}, and only torch computes several models at once: "
                "take engine torch, or let each run alone."
            )
        if config.segments or config.compiler is not Compiler.NONE:
            raise ConfigurationError(
                f"{self.name} are compiled or tuned by segment, each for itself: let each run alone."
            )

    def _make_backbone(self, first: SplitModel) -> Partition:
        parts = [self._part_of(model) for model in self.members.values()]
        network = stack_graphs(parts, first.image_shape)
        if self.device.type != "cpu" or self.dtype != FLOAT32:
            network = copy_to_device(network, self.device, torch_dtype(self.dtype))
        config = self.execution_config
        backbone = make_traced_part(network, config, device=self.device, name=self.name)
        if config.operators is ImplementationChoice.MEASURED:
            return backbone
        return OperatorOverride(backbone, config.operators)

    def _check_results(self) -> None:
        """Compares the network's results with the models' results.

        Raises:
            ConfigurationError: they differ by more than rounding, or the network cannot run.
        """
        stream, random = Stream(self.device), torch.Generator().manual_seed(0)
        images, expected = {}, {}
        with torch.inference_mode(), stream.work("check"):
            for name, model in self.members.items():
                drawn = torch.randn((CHECK_SIZE, *model.image_shape), generator=random).to(
                    self.device, torch_dtype(self.dtype)
                )
                images[name] = drawn.contiguous(memory_format=torch.channels_last)
                expected[name] = tuple(model.backbone(self.split_point)(images[name]))
            try:
                found = self.run(images)
            except Exception as error:  # an operation that vmap does not take may raise anything
                raise ConfigurationError(
                    f"{self.name} cannot run as one network: let each run alone ({error})."
                ) from error
            stream.fence().wait()
            for name, model in self.members.items():
                differs = difference(found[name], expected[name])
                if differs <= MAX_DIFFERENCE:
                    continue
                allowed = self._allowed(model, images[name], expected[name])
                if not differs <= allowed:
                    raise ConfigurationError(
                        f"As one network with others, {name} gives results that differ by {differs:.2g} of the "
                        f"largest; {allowed:.2g} is allowed: let each model run alone."
                    )

    def _allowed(self, model: SplitModel, images: Tensor, results: Sequence[Tensor]) -> float:
        """Returns how far the network's results may be from the model's, as a share of the largest value."""
        if self.dtype != FLOAT32:
            return 2 * MAX_LOW_PRECISION_DIFFERENCE  # both round
        if self.device.type != "cpu":
            return MAX_ROUNDING  # a GPU may round the factors of convolutions to 10 bits, in one of the two only
        return allowed_difference(self._part_of(model), [images], results)

    def _part_of(self, model: SplitModel) -> fx.GraphModule:
        """Returns a member's partition as a graph on the CPU."""
        assert isinstance(model.network, TorchNetwork), f"{model.entry.name} cannot be stacked"
        return backbone_of(model.network.graph.whole(), model.split_point(self.split_point))
