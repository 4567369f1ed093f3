"""A model that is loaded, prepared, and cut where asked."""

from __future__ import annotations

import copy
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, fx, nn

from split_infer_ros.engines.execution_config import EAGER, Chain, Choosing, ExecutionConfig, in_form
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.split.export import place
from split_infer_ros.split.graph import fingerprint, prepare, put, put_apart, stand_in, state_of
from split_infer_ros.split.partitions import Partitions, backbone_of, extract, head_of, results_of
from split_infer_ros.split.segments import segments
from split_infer_ros.split.split_points import SplitPoint, choose_split_point, find_split_points, live_values
from split_infer_ros.vision_ops.implementations import ImplementationChoice

MAX_PARTITIONS = 4  # of each kind are kept: a split point that moves may come back

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

Fetch = Callable[[Collection[str]], Mapping[str, Tensor]]

_Made = OrderedDict[SplitPoint, nn.Module]


class SplitModel:
    """A prepared model and its split points. The backbone lies on ``device``, the head on the CPU in float32.

    Args:
        entry: the catalogue's.
        module: the model with its weights; it is taken over and changed.
        device: where the backbone runs.
        form: in which both partitions are run, as far as their device and precision allow.

    Attributes:
        dtype: in which the backbone computes and its features cross.
    """

    def __init__(
        self, entry: ModelEntry, module: nn.Module, device: torch.device, form: ExecutionConfig | None = None
    ) -> None:
        self.entry = entry
        self.device = device
        self.dtype = torch.float32
        self.form = form or ExecutionConfig()
        self._source: SplitModel | None = None
        self._graph = prepare(module, entry.image_shape, self.form.folding)
        self._absent: dict[str, Fetch] = {}  # whence what was released comes back
        self._lock = threading.Lock()  # with those who share the graph
        hollow = {name: stand_in(tensor) for name, tensor in state_of(self._graph).items() if tensor.is_meta}
        put(self._graph, hollow)
        self.split_points = find_split_points(self._graph, entry.image_shape)
        self._forget()

    def placed(self, device: torch.device, dtype: torch.dtype, form: ExecutionConfig | None = None) -> SplitModel:
        """The same model and, on the CPU, the same weights, its backbone elsewhere, or in another precision or form.

        A form's folding is as this one's: that is done before a model is split.
        """
        other = copy.copy(self)
        other._source = self  # whoever asks for that one meanwhile gets it, not another
        other.device, other.dtype = device, dtype
        other.form = replace(form, folding=self.form.folding) if form else self.form
        other.split_points = tuple(split_point.in_precision(dtype) for split_point in self.split_points)
        other._forget()
        return other

    def release(self, names: Collection[str], fetch: Fetch) -> bool:
        """Give weights' memory back; a partition that needs them gets them anew.

        Partitions that were made before and are in use keep theirs.

        Args:
            names: of parameters and buffers.
            fetch: reads them again; given some names, returns the tensors, or raises ConfigurationError.

        Returns:
            False if all of them had been given back before.
        """
        with self._lock:
            state = state_of(self._graph)
            were_here = any(name not in self._absent for name in names)
            put_apart(self._graph, {name: stand_in(state[name]) for name in names})
            self._absent |= dict.fromkeys(names, fetch)
            self._backbones.clear()
            self._heads.clear()
            return were_here

    def state(self) -> dict[str, Tensor]:
        """All weights by name; those that were released are read for this once.

        Raises:
            ConfigurationError: they cannot be read.
        """
        with self._lock:
            return state_of(self._graph) | self._fetched(self._absent)

    def split_point(self, name: str) -> SplitPoint:
        """The split point of that name; ``default`` is the entry's.

        Raises:
            UnknownSplitPointError: there is none.
        """
        default = self.entry.default_split_point or self.split_points[-2].name
        return choose_split_point(self.split_points, default if name == "default" else name, self.entry.name)

    def backbone(self, name: str) -> nn.Module:
        """The partition before the split point of that name: (N, C, H, W) of ``dtype`` on ``device`` to the split
        point's tensors.
        """
        return self._partition(self._backbones, self._make_backbone, name)

    def head(self, name: str) -> nn.Module:
        """The partition behind the split point of that name: the split point's tensors, in float32, to the model's
        outputs.
        """
        return self._partition(self._heads, self._make_head, name)

    def partitions(self, name: str) -> Partitions:
        """Both partitions at the split point of that name."""
        return Partitions(self.split_point(name), self.backbone(name), self.head(name))

    def _partition(self, made: _Made, make: Callable[[SplitPoint], nn.Module], name: str) -> nn.Module:
        split_point = self.split_point(name)
        with self._lock:
            if split_point not in made:
                made[split_point] = make(split_point)
            made.move_to_end(split_point)
            while len(made) > MAX_PARTITIONS:
                made.popitem(last=False)
            return made[split_point]

    @property
    def graph(self) -> fx.GraphModule:
        """The whole model on the CPU, batch norms folded; everybody's, so not to be changed.

        Weights that were released are not in it, see ``state``.
        """
        return self._graph

    @cached_property
    def fingerprint(self) -> str:
        """Tells the model's operations from any other's."""
        return fingerprint(self._graph)

    @property
    def parameters(self) -> int:
        """How many the whole model has."""
        return sum(parameter.numel() for parameter in self._graph.parameters())

    def parameters_before(self, name: str) -> int:
        """How many the partition before the split point of that name has: those that lie on ``device``."""
        return sum(parameter.numel() for parameter in backbone_of(self._graph, self.split_point(name)).parameters())

    def segments(self) -> tuple[tuple[nn.Module, ...], tuple[nn.Module, ...]]:
        """The pieces between neighbouring split points, twice: as the backbone and as the head runs them, but not
        compiled.
        """
        with self._lock:
            self._recall(list(self._absent))
        pieces = segments(self._graph, self.split_points)
        ends = [split_point.position for split_point in self.split_points[1:]]

        def kinds(form: ExecutionConfig) -> list[str]:
            return [self._convolutions_before(end, form) for end in ends]

        backbones = tuple(map(self._on_device, pieces, kinds(self.form), [EAGER] * len(pieces)))
        return backbones, tuple(map(in_form, pieces, kinds(self._heads_form), [EAGER] * len(pieces)))

    @property
    def _heads_form(self) -> ExecutionConfig:
        """What was learnt of a GPU says nothing of the CPU; nor is there time to compile when a head first runs."""
        return self.form if self.device.type == "cpu" and self.form.compiler == EAGER else ExecutionConfig()

    def _make_backbone(self, split_point: SplitPoint) -> nn.Module:
        parts = self._parts(self.form, 1, split_point.position, self._with_weights(backbone_of, split_point))
        partition = _joined([self._on_device(part, kind, self.form.compiler) for kind, part in parts])
        return (
            partition
            if self.form.operators == ImplementationChoice.MEASURED.value
            else Choosing(partition, self.form.operators)
        )

    def _make_head(self, split_point: SplitPoint) -> nn.Module:
        form = self._heads_form
        parts = self._parts(
            form, split_point.position, len(self._graph.graph.nodes) - 1, self._with_weights(head_of, split_point)
        )
        return _joined([in_form(part, kind, form.compiler) for kind, part in parts])

    def _with_weights(
        self, part_of: Callable[[fx.GraphModule, SplitPoint], fx.GraphModule], split_point: SplitPoint
    ) -> fx.GraphModule:
        part = part_of(self._graph, split_point)
        return part_of(self._graph, split_point) if self._recall(state_of(part)) else part

    def _recall(self, names: Collection[str]) -> bool:
        """Have those of the weights here that were released; False if none was."""
        missing = [name for name in names if name in self._absent]
        put(self._graph, self._fetched(missing))
        for name in missing:
            del self._absent[name]
        return bool(missing)

    def _fetched(self, names: Collection[str]) -> dict[str, Tensor]:
        """Weights that were released, read again."""
        found: dict[str, Tensor] = {}
        for fetch in {self._absent[name] for name in names}:
            found.update(fetch([name for name in names if self._absent[name] is fetch]))
        return found

    def _parts(
        self, form: ExecutionConfig, first: int, last: int, partition: fx.GraphModule
    ) -> list[tuple[str, fx.GraphModule]]:
        """The parts of a partition in which convolutions are the same throughout, and what these are."""
        inner = [
            split_point for _, name in form.segments if first < (split_point := self.split_point(name)).position < last
        ]
        if not inner:
            return [(self._convolutions_before(last, form), partition)]
        nodes = list(self._graph.graph.nodes)
        found = []
        for start, end in itertools.pairwise([first, *(split_point.position for split_point in inner), last]):
            crossing = live_values(nodes, end) if end < len(nodes) - 1 else results_of(nodes)
            part = extract(self._graph, nodes[start:end], live_values(nodes, start), crossing)
            found.append((self._convolutions_before(end, form), part))
        return found

    def _convolutions_before(self, position: int, form: ExecutionConfig) -> str:
        """Those of the segment in which the node before a position lies."""
        for kind, name in form.segments:
            if position <= self.split_point(name).position:
                return kind
        return form.convolutions

    def _on_device(self, part: fx.GraphModule, convolutions: str, compiler: str) -> nn.Module:
        if self.device.type != "cpu" or self.dtype != torch.float32:
            part = place(part, self.device, self.dtype)
        return in_form(part, convolutions, compiler)

    def _forget(self) -> None:
        self._backbones: _Made = OrderedDict()
        self._heads: _Made = OrderedDict()


def _joined(parts: Sequence[nn.Module]) -> nn.Module:
    return parts[0] if len(parts) == 1 else Chain(parts)
