"""Draws what a rotating LIDAR measures in a street: the ground, walls, cars and pedestrians.

Beams are traced, so objects hide what is behind them, and their points get fewer with the distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SENSOR_HEIGHT_M = 1.8
LOWEST_BEAM, HIGHEST_BEAM = -0.42, 0.06  # radians from the horizontal
MAX_RANGE_M = 120.0
NOISE_M = 0.02  # the standard deviation of a measured distance
BEAMS = 64
CAR, PEDESTRIAN = (4.4, 1.8, 1.5), (0.5, 0.5, 1.75)  # length, width and height in metres
GAP_M = 2.5  # between objects: less than this, and they would be one cluster


@dataclass(frozen=True, slots=True, eq=False)
class LidarScene:
    """One turn of a LIDAR.

    Attributes:
        points: float32 (beams, columns, 3) in metres around the sensor. Beams that met nothing have NaN.
        lows, highs: float64 (number of objects, 3), opposite corners of each car and pedestrian.
        hits: int64 (number of objects,), how many points each of them has.
    """

    points: NDArray[np.float32]
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    hits: NDArray[np.int64]


def draw_lidar_scene(seed: int, columns: int = 1563, *, cars: int = 20, pedestrians: int = 20) -> LidarScene:
    """Draws a street of 20 m width between walls. With the usual 1563 columns, there are 100,032 beams.

    Args:
        seed: decides where objects are, and the noise.
        columns: how often the LIDAR measures in one turn.
        cars, pedestrians: how many of them there are.
    """
    rng = np.random.default_rng(seed)
    lows, highs = _place(rng, [CAR] * cars + [PEDESTRIAN] * pedestrians)
    walls = np.array([[-80, -11, 0, 80, -10, 6], [-80, 10, 0, -3, 11, 6], [9, 10, 0, 80, 11, 6]], float)
    walls[:, [2, 5]] -= SENSOR_HEIGHT_M
    rays = _rays(columns)
    distances = np.full(len(rays), np.inf)
    down = rays[:, 2] < 0
    distances[down] = -SENSOR_HEIGHT_M / rays[down, 2]
    hit = np.full(len(rays), -1)
    for index, (low, high) in enumerate(zip([*lows, *walls[:, :3]], [*highs, *walls[:, 3:]], strict=True)):
        entry = _entry(rays, low, high)
        hit[entry < distances] = index
        distances = np.minimum(distances, entry)
    is_lost = distances > MAX_RANGE_M
    distances = np.where(is_lost, np.nan, distances + rng.normal(0, NOISE_M, len(rays)))
    points = (rays * distances[:, None]).astype(np.float32).reshape(BEAMS, columns, 3)
    hits = np.bincount(hit[~is_lost] + 1, minlength=len(lows) + 1)[1 : len(lows) + 1]
    return LidarScene(points, lows, highs, hits)


def _rays(columns: int) -> NDArray[np.float64]:
    """Returns the direction of each beam, (beams * columns, 3), of length 1."""
    up, round_ = np.meshgrid(
        np.linspace(LOWEST_BEAM, HIGHEST_BEAM, BEAMS),
        np.linspace(-np.pi, np.pi, columns, endpoint=False),
        indexing="ij",
    )
    return np.stack((np.cos(up) * np.cos(round_), np.cos(up) * np.sin(round_), np.sin(up)), axis=-1).reshape(-1, 3)


def _place(
    rng: np.random.Generator, sizes: list[tuple[float, float, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns corners of objects on the ground that are ``GAP_M`` from each other, from the walls and the sensor."""
    lows, highs = [np.array([-3.0, -1.0, -SENSOR_HEIGHT_M])], [np.array([3.0, 1.0, 0.0])]  # the car with the sensor
    for size in sizes:
        while True:
            x, y = rng.uniform(-60, 60), rng.uniform(-10 + GAP_M, 10 - GAP_M - size[1])
            low = np.array([x, y, -SENSOR_HEIGHT_M])
            high = low + size
            apart = [
                (low[:2] > other_high[:2] + GAP_M).any() or (high[:2] < other_low[:2] - GAP_M).any()
                for other_low, other_high in zip(lows, highs, strict=True)
            ]
            if all(apart):
                break
        lows.append(low)
        highs.append(high)
    return np.array(lows[1:]), np.array(highs[1:])


def _entry(rays: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the distance at which each ray from the origin enters a box; infinity where it misses the box."""
    with np.errstate(divide="ignore"):
        first, second = low / rays, high / rays
    entry, leave = np.minimum(first, second).max(axis=1), np.maximum(first, second).min(axis=1)
    return np.where((entry <= leave) & (entry > 0), entry, np.inf)
