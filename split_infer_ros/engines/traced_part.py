"""Makes a traced part of a network executable with the engine that an execution config names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, fx, nn

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.engine import Engine, check_device, find_provider, import_for
from split_infer_ros.engines.executable import in_micro_batches, make_part
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.exported_part import exported_part
from split_infer_ros.engines.precision_checks import check_precision
from split_infer_ros.engines.torch_part import make_torch_part
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.vision_ops.implementations import ImplementationChoice, use_implementation

Part = Callable[..., Any]  # a torch module, or an ``EnginePart``


def make_traced_part(
    part: fx.GraphModule,
    config: ExecutionConfig,
    *,
    inputs: Sequence[TensorSpec] = (),
    device: Device = CPU,
    name: str = "the network",
    is_whole: bool = False,
    gives_results: bool = False,
) -> Part:
    """Makes a part of a prepared network executable.

    Args:
        part: maps tensors to a tuple of tensors. It may be changed in place. Modules that it shares with other parts
            are not changed.
        config: names the engine. ``convolutions`` and ``compiler`` matter only for engine torch. ``segments`` are
            ignored.
        inputs: the specs of the tensors that the part takes. Other engines than torch need them.
        device: the device on which the part runs.
        name: the network's name, for messages.
        is_whole, gives_results: as for ``make_executable``.

    Raises:
        ConfigurationError: the engine is not installed, does not run on the device, does not compute in the precision,
            or cannot run the part.
    """
    engine = config.engine
    if engine is Engine.TORCH or not _computes(part):
        return make_torch_part(part, config.convolutions, config.compiler)
    check_device(engine, config.provider, device)
    check_precision(config.precision, engine, config.provider)
    version = str(import_for(engine, engine.value).__version__).partition("-")[0]
    provider = find_provider(engine, config.provider)
    executable = exported_part(
        part,
        inputs,
        partial(make_part, config=config, device=device, is_whole=is_whole, gives_results=gives_results),
        name=name,
        engine=engine,
        version=f"{version}-{provider}",
        precision=config.precision,
    )
    return in_micro_batches(executable, config)


def _computes(part: fx.GraphModule) -> bool:
    """Returns whether a part has any operation. A split point at an end of a model makes a partition without any."""
    return any(node.op not in ("placeholder", "get_attr", "output") for node in part.graph.nodes)


class OperatorOverride(nn.Module):
    """A part that runs its vision operators in one given implementation.

    Args:
        part: the part to run.
        operators: the implementation of vision operators.
    """

    def __init__(self, part: Part, operators: ImplementationChoice) -> None:
        super().__init__()
        self._part, self._operators = part, operators

    def forward(self, *tensors: Tensor) -> Any:
        """Runs the part."""
        with use_implementation(self._operators):
            return self._part(*tensors)


class PartChain(nn.Module):
    """Parts that run one after the other. Each part takes the results of the previous one.

    Args:
        parts: the parts, in order.

    Attributes:
        parts: the argument.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        for index, part in enumerate(parts):
            if isinstance(part, nn.Module):  # then torch finds its weights; other engines keep theirs
                self.add_module(str(index), part)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs all parts and returns the results of the last one."""
        for part in self.parts:
            tensors = part(*tensors)
        return tensors
