"""How a network is executed: choices that change its speed, but change its results by rounding alone."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

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
    """

    convolutions: Convolutions = Convolutions.PACKED
    folding: bool = True
    compiler: Compiler = Compiler.NONE
    operators: ImplementationChoice = ImplementationChoice.MEASURED
    segments: tuple[tuple[Convolutions, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the plain values under which the database stores this configuration."""
        return asdict(self) | {
            "convolutions": self.convolutions.value,
            "compiler": self.compiler.value,
            "operators": self.operators.value,
            "segments": [[convolutions.value, end] for convolutions, end in self.segments],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ExecutionConfig:
        """Reads plain values, of which those that ``ExecutionConfig`` does not have are ignored."""
        return cls(
            convolutions=Convolutions(values["convolutions"]),
            folding=values["folding"],
            compiler=Compiler(values["compiler"]),
            operators=ImplementationChoice(values["operators"]),
            segments=tuple((Convolutions(kind), end) for kind, end in values.get("segments", ())),
        )
