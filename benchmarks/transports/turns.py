"""The turns of the benchmark ``transports``: its rivals, and the figures measured for each rival."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.turns import rotated
from benchmarks.common.usage import Usage
from benchmarks.ros.dds_hop import DdsHop
from benchmarks.ros.process_usage import ProcessUsage
from benchmarks.ros.trace import busy
from benchmarks.transports.image_hop import BEST_EFFORT, RELIABLE, ImageHop
from benchmarks.transports.pipeline import TransportPipeline

IN_PROCESS, SHARED, NETWORK = TRANSPORTS = ("intra_process", "shared_memory", "network")
DDS = "plain DDS"
# for the bytes of a batch, the split point and the batch size that give them
SIZES = {268_800: ("output", 2), 4_915_200: ("stem.2", 1), 19_660_800: ("stem.2", 4)}
SMALL, _, LARGE = SIZES
QUICK = {LARGE: (*TRANSPORTS, DDS), SMALL: (SHARED,)}
SHIPPED, DEFAULT = "shipped", "default"  # profiles
BATCHES = 1  # batches of each size in a transport's turn; as many messages go through DDS
BURST = 4  # in a burst, the images of so many batches come at once
IMAGES = 2  # images with each profile in a turn
DDS_PERIOD_S = 0.1


class Bench:
    """Measures a pipeline with each transport, and a pair of processes with each Fast DDS profile.

    Attributes:
        usage: the usage of the rivals' processes, by contest.
        own_usage: the usage of this process while messages go through DDS.
    """

    def __init__(
        self,
        transports: Mapping[str, TransportPipeline],
        *,
        images: Mapping[str, ImageHop],
        dds: DdsHop,
        processes: Mapping[str, Sequence[int]],
        is_quick: bool,
    ) -> None:
        self._transports = transports
        self._images = images
        self._dds = dds
        self._is_quick = is_quick
        self._hops = QUICK if is_quick else dict.fromkeys(SIZES, (*TRANSPORTS, DDS))
        self.usage = {what: ProcessUsage(processes) for what in ("hop", "frames", "1080p")}
        self.own_usage = Usage()

    def hop(self, turn: int) -> dict[str, float]:
        """Returns the median hop of each transport and of plain DDS in a turn, in seconds, by rival and size."""
        found = {}
        for size, rivals in self._hops.items():
            for rival in rotated(rivals, turn):
                if rival == DDS:
                    with self.own_usage.of(DDS):
                        found[f"{rival} {size}"] = self._dds.median(size, BATCHES, DDS_PERIOD_S)
                else:
                    self._transports[rival].set(*SIZES[size])
                    with self.usage["hop"].of(rival):
                        batches = self._transports[rival].one_by_one(BATCHES)
                    found[f"{rival} {size}"] = statistics.median(batch.hop_s for batch in batches)
        return found

    def frames(self, turn: int) -> dict[str, float]:
        """Returns each transport's frames per second in a turn, and the share of time in which each stage worked."""
        found = {}
        for rival in rotated(TRANSPORTS[:2] if self._is_quick else TRANSPORTS, turn):
            self._transports[rival].set(*SIZES[LARGE])
            with self.usage["frames"].of(rival):
                batches = self._transports[rival].burst(BURST)
            begin, end = batches[0].backbone[0], batches[-1].delivered
            found[rival] = sum(batch.frames for batch in batches) / (end - begin)
            found |= {f"{rival} {stage}": share for stage, share in busy(batches, begin, end).items()}
        return found

    def images(self, turn: int) -> dict[str, float]:
        """Returns the median seconds of a 1080p image with each profile, and the share that best-effort readers get."""
        found = {}
        for profile in rotated((SHIPPED, DEFAULT), turn):
            with self.usage["1080p"].of(profile):
                found[profile] = self._images[profile].measure(RELIABLE, IMAGES)[0]
                if profile == SHIPPED or not self._is_quick:
                    found[f"{profile} arrived"] = self._images[profile].measure(BEST_EFFORT, IMAGES)[1]
        return found
