"""What counts as a cluster of points."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.setting import check_settings, given_settings, setting

# It bounds the pairs of neighbours, and so the memory and the time of a cloud. A voxel has as many neighbours as there
# are voxels in a ball: at most a few hundred.
MAX_RATIO = 4.0  # of the distance between neighbours to a voxel's side


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What counts as a cluster. Lengths are in metres, in the frame of the point cloud: z points upwards.

    Raises:
        ConfigurationError: a value is not accepted, or two values contradict each other.
    """

    voxel_size_m: float = setting(
        0.2, "The side of a voxel. The points in a voxel are clustered as one.", minimum=0.02, maximum=10.0
    )
    neighbour_distance_m: float = setting(
        0.6,
        "Two voxels are in one cluster if the centroids of their points are at most this far apart. It may be 1 to "
        f"{MAX_RATIO:g} times voxel_size_m.",
        minimum=0.02,
        maximum=40.0,
    )
    min_points: int = setting(
        10, "The fewest points of a cluster. Smaller groups are left out.", minimum=1, maximum=1_000_000
    )
    min_z_m: float = setting(
        -1.4,
        "Points below this height are left out. Otherwise the ground connects everything. The default suits a sensor "
        "that is 1.8 m above the ground.",
        minimum=-1000.0,
        maximum=1000.0,
    )
    max_z_m: float = setting(2.0, "Points above this height are left out.", minimum=-1000.0, maximum=1000.0)
    max_range_m: float = setting(
        100.0,
        "Points farther than this from the vertical axis through the sensor are left out.",
        minimum=1.0,
        maximum=1000.0,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.min_z_m >= self.max_z_m:
            raise ConfigurationError(
                f"min_z_m is {self.min_z_m:g} and max_z_m is {self.max_z_m:g}, so no point is between them; make "
                "max_z_m the larger one."
            )
        if not self.voxel_size_m <= self.neighbour_distance_m <= MAX_RATIO * self.voxel_size_m:
            raise ConfigurationError(
                f"neighbour_distance_m cannot be {self.neighbour_distance_m:g} for voxels of {self.voxel_size_m:g} m; "
                f"it takes {self.voxel_size_m:g} to {MAX_RATIO * self.voxel_size_m:g}."
            )

    @property
    def given(self) -> list[str]:
        """The names of the settings that are not at their defaults."""
        return given_settings(ClusterSettings, self)
