"""Chooses the two processors: the first plays the accelerator, the second plays the CPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from split_infer_ros.runtime.cores import Cores, StageCores, as_text, num_physical_cores


@dataclass(frozen=True, slots=True)
class Processors:
    """Two processors, by Linux's numbers.

    Attributes:
        accelerator: the processor that plays the accelerator.
        host: the processor that plays the CPU.
    """

    accelerator: int
    host: int

    @classmethod
    def choose(cls, usable: Collection[int]) -> Processors:
        """Returns the first two of the processors that this process may use.

        Raises:
            SystemExit: there are fewer than two.
        """
        if len(usable) < 2:
            raise SystemExit(
                f"This benchmark needs two processors, and this process may use only {as_text(usable)}: start it "
                "without taskset, or in a container with two processors."
            )
        return cls(*sorted(usable)[:2])

    @property
    def stages(self) -> StageCores:
        """The accelerator for backbones, and the host for heads."""
        return StageCores(_only(self.accelerator), _only(self.host))

    @property
    def lanes(self) -> tuple[StageCores, StageCores]:
        """Two pipelines, each of them with both stages on one processor."""
        accelerator, host = _only(self.accelerator), _only(self.host)
        return StageCores(accelerator, accelerator), StageCores(host, host)

    @property
    def both(self) -> StageCores:
        """Both processors for both stages."""
        together = Cores(frozenset((self.accelerator, self.host)))
        return StageCores(together, together)

    @property
    def are_siblings(self) -> bool:
        """Whether both belong to one core, by Linux's ``thread_siblings_list``. They then share its units."""
        with self.both.backbone.bound():
            return num_physical_cores() == 1

    def __str__(self) -> str:
        relation = "both of one core, so they share its units" if self.are_siblings else "of two cores"
        return f"processor {self.accelerator} plays the accelerator and {self.host} the CPU; they are {relation}"


def _only(number: int) -> Cores:
    return Cores(frozenset((number,)))
