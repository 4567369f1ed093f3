"""Finds objects in the point clouds of a LIDAR in a street, as Autoware does (paper 003, section V, case II).

Beams are traced through a drawn street with cars, pedestrians and walls. A turn of the LIDAR is a PointCloud2 of
100,032 beams. It is read, and its points are clustered in two ways, with the same bounds and distances:

- voxel grid: the points of a voxel become one, as the task `clusters` does it.
- all points: each point is clustered, as by plain Euclidean clustering. The same functions compute it.

A cloud with ten times as many beams shows what a dense LIDAR, or several, cost. All run on one thread, in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import median, ratio
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report, run_command, seconds_for_turns, show
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, rotated, take_turns
from benchmarks.point_clouds.lidar_scene import LidarScene, draw_lidar_scene
from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.point_clouds.clustering import Clusterer, connect
from split_infer_ros.point_clouds.point_groups import PointGroups
from split_infer_ros.point_clouds.reading import AXES, read_points
from split_infer_ros.point_clouds.settings import ClusterSettings

FULL_S = 120.0
USUAL, DENSE = 1563, 15_630  # columns of 64 beams
MAX_S = 0.1  # a LIDAR turns ten times a second
FLOAT32 = 7
GRID, ALL, READ, DENSE_GRID = "voxel grid", "all points", "read", "voxel grid, a million beams"


def message_of(scene: LidarScene) -> Any:
    """Returns a turn of the LIDAR with the fields of a ``sensor_msgs/PointCloud2``."""
    height, width, _ = scene.points.shape
    fields = [
        SimpleNamespace(name=name, offset=4 * place, datatype=FLOAT32, count=1) for place, name in enumerate(AXES)
    ]
    facts = {"height": height, "width": width, "point_step": 12, "row_step": 12 * width, "is_bigendian": False}
    return SimpleNamespace(**facts, fields=fields, data=scene.points.astype("<f4").tobytes())


class Street:
    """A turn of the LIDAR, and the two ways to find objects in it.

    Args:
        settings: what counts as a cluster.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.usual, self.dense = message_of(draw_lidar_scene(0, USUAL)), message_of(draw_lidar_scene(0, DENSE))
        self._clusterer = Clusterer(settings)

    def by_voxels(self, points: Floats) -> PointGroups:
        """Returns the clusters as the task finds them."""
        return self._clusterer.find(points)

    def by_points(self, points: Floats) -> PointGroups:
        """Returns the clusters of single points."""
        kept = self._clusterer.within_bounds(points)
        labels = connect(kept.astype(np.float64), self.settings.neighbour_distance_m)
        groups = PointGroups.of_points(kept).merged(labels)
        return groups.where(groups.counts >= self.settings.min_points)

    def turn(self, turn: int) -> Mapping[str, float]:
        """Returns the seconds of one cloud by each way, by its name. ``READ`` is a part of each of them."""
        ways: dict[str, tuple[Any, Callable[[Floats], PointGroups]]] = {
            GRID: (self.usual, self.by_voxels),
            ALL: (self.usual, self.by_points),
            DENSE_GRID: (self.dense, self.by_voxels),
        }
        seconds = {}
        for name in rotated(list(ways), turn):
            message, find = ways[name]
            begin = time.perf_counter()
            points = read_points(message)
            was_read = time.perf_counter()
            find(points)
            seconds[name] = time.perf_counter() - begin
            if name == GRID:
                seconds[READ] = was_read - begin
        return seconds


def claims(contest: Contest) -> list[Claim]:
    """Returns the claims about one turn of the LIDAR."""
    figures, turn_s = contest.figures, contest.turn_s
    saved = ratio(figures[ALL], figures[GRID])
    return [
        Claim("100,032 beams, read and clustered", median(figures[GRID]), "s", MAX_S, Direction.AT_MOST, turn_s=turn_s),
        Claim("time of all points, times that of the voxel grid", saved, "x", 1.0, turn_s=turn_s),
    ]


def run(chosen: argparse.Namespace) -> Report:
    """Measures, and returns the report."""
    street = Street(ClusterSettings())
    contest = Contest("street", street.turn, claims)
    take_turns([contest], seconds_for_turns(chosen, FULL_S))
    usual, dense = read_points(street.usual), read_points(street.dense)
    found = {GRID: street.by_voxels(usual), ALL: street.by_points(usual), DENSE_GRID: street.by_voxels(dense)}
    beams = {GRID: street.usual, ALL: street.usual, DENSE_GRID: street.dense}
    rows: list[dict[str, Any]] = [
        {
            "rival": name,
            "beams": beams[name].height * beams[name].width,
            "clusters": len(clusters),
            **measured(cloud_ms=in_ms(contest.figures[name])),
        }
        for name, clusters in found.items()
    ]
    rows.append({"rival": READ, "beams": beams[GRID].height * beams[GRID].width})
    rows[-1] |= measured(cloud_ms=in_ms(contest.figures[READ]))
    for row in rows:
        show(row)
    panel = Panel("100,032 beams", "ms", {name: in_ms(contest.figures[name]) for name in (READ, GRID, ALL)})
    return Report("point_clouds", claims(contest), rows, [panel])


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
