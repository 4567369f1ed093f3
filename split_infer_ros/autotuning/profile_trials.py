"""Measures the profile of a model that serves, in a process of its own that leaves the cores to all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from split_infer_ros.autotuning.background_trials import BackgroundTrials
from split_infer_ros.autotuning.spaces import PROFILE
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.runtime.cores import ANY_CORES, StageCores
from split_infer_ros.server.profiling.profiler import Effort, Profiler
from split_infer_ros.server.profiling.stored_profile import keep_samples, profile_finder, stored_samples
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.profile import FindProfile, Profile
from split_infer_ros.split.profile_samples import PointSamples, ProfilePart

SAMPLES = "samples"  # the fact that holds what a trial measured

# A whole pipeline beside one that serves tells little: which of its runs are disturbed is chance. So only one runs, for
# the rates of the stages. All choices are then predicted in one way, and turns on live frames decide between them.
BRIEF = Effort(rounds=4, warm_up=1, batches=4, seconds=0.5, runs=0, max_s=0.0)


class ProfileTrials:
    """Measures what the database lacks of a model's profile. It is a ``BackgroundProfiles``.

    The records are those of the command ``profile``. Each batch size is a trial, and its records are kept at once.

    Args:
        trials: runs the trials.
        database: keeps the records.
        cores: the cores of each stage.
    """

    def __init__(self, trials: BackgroundTrials, database: Database, cores: StageCores = ANY_CORES) -> None:
        self._trials = trials
        self._database = database
        self._cores = cores

    def find(self, model: SplitModel, batch_sizes: Sequence[int], is_over: Callable[[], bool]) -> FindProfile:
        """Measures batch sizes that the database lacks, the smallest first; see ``BackgroundProfiles.find``.

        Batch sizes behind one that could not be measured are left out of the profile.

        Raises:
            ConfigurationError: the model could be measured at no batch size.
        """
        known = {each.batch_size for each in stored_samples(model, self._database, cores=self._cores)}
        for size in sorted(set(batch_sizes) - known):
            if is_over():
                break
            if not self._trials.may_go_on:
                if not known:
                    raise ConfigurationError("the trials took too much processor time")
                break
            about = {"batch_size": size, "cores": self._cores.numbers}
            outcome = self._trials.run(PROFILE, about, model.execution_config.as_json())
            if outcome.error is not None:
                if not known:
                    raise ConfigurationError(f"{model.entry.name} cannot be measured. {outcome.error}")
                break
            keep_samples(samples_of(outcome.facts), model, self._database, cores=self._cores)
            known.add(size)

        def find_profile(sizes: Sequence[int], may_measure: bool) -> Profile:
            measured = [size for size in sizes if size in known] or sizes
            return profile_finder(model, self._database, lambda line: None, self._cores)(measured, may_measure)

        return find_profile

    def cost(self) -> str:
        """Returns in words what the trials since the last call have taken; empty if there were none."""
        return self._trials.cost()

    def interrupt(self) -> None:
        """Ends a trial that is under way, from any thread."""
        self._trials.interrupt()

    def close(self) -> None:
        """Ends the process of the trials, if there is one. Another one starts when it is needed."""
        self._trials.close()


def measure_profile(
    model: SplitModel, batch_size: int, effort: Effort = BRIEF, cores: StageCores = ANY_CORES
) -> dict[str, Any]:
    """Measures every split point of a model at one batch size. Returns the answer of a trial, for ``samples_of``."""
    samples = Profiler(model, effort=effort, cores=cores).measure([batch_size])
    return {
        "costs": [],
        SAMPLES: [
            [each.split_point, each.batch_size, {part.value: list(costs) for part, costs in each.parts.items()}]
            for each in samples
        ],
    }


def samples_of(facts: Mapping[str, Any]) -> list[PointSamples]:
    """Returns the samples in the facts of a trial."""
    return [
        PointSamples(split_point, batch_size, {ProfilePart(name): tuple(costs) for name, costs in parts.items()})
        for split_point, batch_size, parts in facts[SAMPLES]
    ]
