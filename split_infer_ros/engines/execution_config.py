"""Says how a network is executed: with which engine, in which precision, and with which of torch's options."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from split_infer_ros.buffers.host_arrays import FLOAT32, DType, torch_dtype
from split_infer_ros.engines.engine import AUTO, Engine, engine_text, parse_engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import keeps_float32
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.num_threads import fewer_than_all
from split_infer_ros.vision_ops.implementations import ImplementationChoice

if TYPE_CHECKING:
    from torch import Tensor


class Convolutions(enum.Enum):
    """How torch executes convolutions. If a kind is not available, convolutions run channels last.

    - ``PACKED``: on a CPU, channels last, with packed weights and the activation in the same pass.
    - ``BLOCKED``: on a CPU, in oneDNN's layouts from one convolution to the next.
    - ``CHANNELS_LAST``, ``CONTIGUOUS``: with torch's own kernels in that layout.
    - ``TRITON``: on a GPU, with this package's kernel for each convolution where measurements found one to be faster.
    - ``MERGED``: likewise, with a merged kernel for each convolution and dense layer. It loads weights once for all
      images of a batch. Such layers of two models can be fused.
    """

    PACKED = "packed"
    BLOCKED = "blocked"
    CHANNELS_LAST = "channels_last"
    CONTIGUOUS = "contiguous"
    TRITON = "triton"
    MERGED = "merged"


class Compiler(enum.Enum):
    """What compiles a network that torch executes.

    - ``NONE``: nothing; torch executes the network eagerly.
    - ``INDUCTOR``: torch.compile, with frozen weights.
    - ``INDUCTOR_AUTOTUNED``: as ``INDUCTOR``, but the compiler also tries kernels and takes the fastest.
    """

    NONE = "none"
    INDUCTOR = "inductor"
    INDUCTOR_AUTOTUNED = "inductor_autotuned"


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """How a network is executed.

    Except for ``precision``, all choices change a network's results only by rounding in that precision.

    Attributes:
        convolutions: how convolutions run if ``segments`` is empty.
        folding: whether batch norms are folded into convolutions.
        compiler: what compiles the network.
        operators: which implementation of the vision operators runs on a GPU, or that some operators do not run there.
        segments: one pair for each segment, in order: how its convolutions run, and the name of the split point where
            it ends. The last segment ends at ``output``. Empty if all convolutions run alike.
        engine: the engine that executes the network. For other engines than torch, only ``folding``, ``precision``,
            ``micro_batch`` and ``threads`` matter.
        provider: a provider of ONNX Runtime, such as ``CUDA``, or a device of OpenVINO, such as ``GPU``; empty for the
            CPU and for torch.
        precision: the precision in which the network computes.
        micro_batch: how many images of a batch an engine other than torch computes at once; 0: all images.
        threads: how many threads the backbone's operations use on a CPU; 0: one for each core.
    """

    convolutions: Convolutions = Convolutions.PACKED
    folding: bool = True
    compiler: Compiler = Compiler.NONE
    operators: ImplementationChoice = ImplementationChoice.MEASURED
    segments: tuple[tuple[Convolutions, str], ...] = ()
    engine: Engine = Engine.TORCH
    provider: str = ""
    precision: Precision = Precision.FP32
    micro_batch: int = 0
    threads: int = 0

    @property
    def engine_text(self) -> str:
        """The engine and its provider, as a text that ``parse_engine`` reads."""
        return engine_text(self.engine, self.provider)

    @property
    def boundary_dtype(self) -> DType:
        """The dtype of a partition's images, and of features that do not keep their own dtype.

        ``SplitPoint.in_precision`` takes this dtype.
        """
        return FLOAT32 if keeps_float32(self.engine, self.provider) else self.precision.dtype

    def blank_images(self, shape: tuple[int, ...], device: Device) -> Tensor:
        """Returns black images of a shape (n, 3, h, w) on a device, in the dtype and layout that the engine reads."""
        import torch  # only here: most users of a config make no tensors

        images = torch.zeros(shape, device=device, dtype=torch_dtype(self.boundary_dtype))
        layout = torch.channels_last if self.engine.reads_channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)

    def with_engine(self, wanted: str, untuned: str) -> ExecutionConfig:
        """Returns this config if it names the engine that a user wants, else the default config of that engine.

        The precision stays.

        Args:
            wanted: the user's engine, as a text for ``parse_engine``, or ``auto``.
            untuned: the engine that ``auto`` means for a model without measurements.

        Raises:
            ConfigurationError: there is no such engine, or the engine does not run the model.
        """
        takes_torch = untuned == Engine.TORCH.value
        if wanted == AUTO and (self.engine is not Engine.TORCH or takes_torch):
            return self
        engine, provider = parse_engine(untuned if wanted == AUTO else wanted)
        if engine is Engine.TORCH and not takes_torch:
            raise ConfigurationError(
                f"engine {wanted} runs an ONNX model only if its ModelSpec says on_torch: load it so, or take {AUTO}, "
                f"{Engine.ONNXRUNTIME.value} or {Engine.OPENVINO.value}."
            )
        if (engine, provider.lower()) == (self.engine, self.provider.lower()):
            return self
        return ExecutionConfig(engine=engine, provider=provider, precision=self.precision)

    def as_json(self) -> dict[str, Any]:
        """Returns the plain values with which the database stores this configuration. It has no ``threads`` if all."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "provider"}
        plain = {name: each.value if isinstance(each, enum.Enum) else each for name, each in values.items()}
        segments = [[convolutions.value, end] for convolutions, end in self.segments]
        if not self.threads:
            del plain["threads"]
        return plain | {"engine": self.engine_text, "segments": segments}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ExecutionConfig:
        """Makes a config from the values that ``as_json`` returns. Ignores values that this class does not have.

        As many threads as this process may use at most are 0 threads.
        """
        engine, provider = parse_engine(values["engine"])
        return cls(
            convolutions=Convolutions(values["convolutions"]),
            folding=values["folding"],
            compiler=Compiler(values["compiler"]),
            operators=ImplementationChoice(values["operators"]),
            segments=tuple((Convolutions(kind), end) for kind, end in values.get("segments", ())),
            engine=engine,
            provider=provider,
            precision=Precision(values["precision"]),
            micro_batch=values.get("micro_batch", 0),
            threads=fewer_than_all(values.get("threads", 0)),
        )
