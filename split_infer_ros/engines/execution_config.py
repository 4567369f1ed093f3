"""How a network is executed: choices that change its speed, but change its results by rounding alone."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from split_infer_ros.engines.engine import AUTO, Engine, engine_text, parse_engine
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.implementations import ImplementationChoice


class Convolutions(enum.Enum):
    """How convolutions are executed. Where a kind is not available, convolutions run channels last.

    - ``PACKED``: on a CPU, channels last, with packed weights and the activation in the same pass.
    - ``BLOCKED``: on a CPU, in oneDNN's layouts from one convolution to the next.
    - ``CHANNELS_LAST``, ``CONTIGUOUS``: by torch's own kernels in that layout.
    - ``TRITON``: on a GPU, depthwise and 1x1 convolutions by this package's kernels where these were measured to be
      faster.
    """

    PACKED = "packed"
    BLOCKED = "blocked"
    CHANNELS_LAST = "channels_last"
    CONTIGUOUS = "contiguous"
    TRITON = "triton"


class Compiler(enum.Enum):
    """What compiles a network.

    - ``NONE``: nothing; torch executes it eagerly.
    - ``INDUCTOR``: torch.compile, with frozen weights.
    - ``INDUCTOR_AUTOTUNED``: the same; it also tries kernels and takes the fastest.
    """

    NONE = "none"
    INDUCTOR = "inductor"
    INDUCTOR_AUTOTUNED = "inductor_autotuned"


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """How a network is executed.

    Attributes:
        convolutions: how convolutions run behind the last of ``segments``.
        folding: whether batch norms are folded into convolutions.
        compiler: what compiles the network.
        operators: which implementation of the vision operators runs on a GPU.
        segments: pairs of how convolutions run and the name of the split point up to which they run so, in order.
            The last segment ends at ``output``. Empty if all convolutions run alike.
        engine: what executes the network. All other choices but ``folding`` are torch's.
        provider: of ONNX Runtime, such as ``CUDA``; empty for the CPU and for other engines.
    """

    convolutions: Convolutions = Convolutions.PACKED
    folding: bool = True
    compiler: Compiler = Compiler.NONE
    operators: ImplementationChoice = ImplementationChoice.MEASURED
    segments: tuple[tuple[Convolutions, str], ...] = ()
    engine: Engine = Engine.TORCH
    provider: str = ""

    def with_engine(self, wanted: str, native: Engine) -> ExecutionConfig:
        """Returns this config if it is of the engine that a user wants, else the default config of that engine.

        Args:
            wanted: the engine as ``parse_engine`` reads it, or ``auto``.
            native: the engine that runs the model as it came. With ``auto``, it runs a model of which nothing is
                known.

        Raises:
            ConfigurationError: there is no such engine, or it does not run the model.
        """
        if wanted == AUTO:
            is_usable = self.engine is not Engine.TORCH or native is Engine.TORCH
            return self if is_usable else ExecutionConfig(engine=native)
        engine, provider = parse_engine(wanted)
        if engine is Engine.TORCH and native is not Engine.TORCH:
            raise ConfigurationError(
                f"engine {wanted} does not run ONNX models: take {AUTO}, {Engine.ONNXRUNTIME.value} or "
                f"{Engine.OPENVINO.value}."
            )
        if (engine, provider.lower()) == (self.engine, self.provider.lower()):
            return self
        return ExecutionConfig(engine=engine, provider=provider)

    def as_json(self) -> dict[str, Any]:
        """Returns the plain values under which the database stores this configuration."""
        values = asdict(self)
        del values["provider"]
        return values | {
            "engine": engine_text(self.engine, self.provider),
            "convolutions": self.convolutions.value,
            "compiler": self.compiler.value,
            "operators": self.operators.value,
            "segments": [[convolutions.value, end] for convolutions, end in self.segments],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ExecutionConfig:
        """Reads plain values, of which those that ``ExecutionConfig`` does not have are ignored."""
        engine, provider = parse_engine(values["engine"])
        return cls(
            convolutions=Convolutions(values["convolutions"]),
            folding=values["folding"],
            compiler=Compiler(values["compiler"]),
            operators=ImplementationChoice(values["operators"]),
            segments=tuple((Convolutions(kind), end) for kind, end in values.get("segments", ())),
            engine=engine,
            provider=provider,
        )
