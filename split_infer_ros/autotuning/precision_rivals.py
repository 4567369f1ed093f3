"""Finds 16-bit precisions in which a served model may run faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from split_infer_ros.autotuning.background_trials import BackgroundTrials, PendingRivals, is_clearly_slower
from split_infer_ros.autotuning.engine_choice import describe_comparison
from split_infer_ros.autotuning.spaces import untuned_config
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.search.space import Config
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for


class PrecisionRivals(PendingRivals):
    """Proposes 16-bit precisions, the fastest one first. It is a ``Rivals``.

    One that is clearly slower in a trial is not proposed.

    Args:
        trials: runs the trials.
        database: keeps the records.
        precisions: the precisions to try.
        engines: the engines that may run the model; empty: all.
        min_agreement: how much detections must agree with those in fp32, 0..1; 0: as much as the precision should.
    """

    def __init__(
        self,
        trials: BackgroundTrials,
        database: Database,
        precisions: Sequence[Precision],
        engines: Sequence[str] = (),
        min_agreement: float = 0.0,
    ) -> None:
        super().__init__(trials)
        self._database = database
        self._precisions = precisions
        self._engines = engines
        self._min_agreement = min_agreement
        self._left: list[ExecutionConfig] | None = None  # the fastest first; None before they were timed

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns the next precision that may be faster; see ``Rivals.next``."""
        if self._hot is not None:
            return None
        if self._left is None:
            self._left = self._timed(model, split_point, is_over)
        while self._pending is None and self._left:
            self._pending = self._loaded(self._left.pop(0))
        if self._pending is None and not is_over():
            self._note_cost()
        return self._pending

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest precision."""
        super().settle(verdict)
        if verdict.rival_wins:
            self._left = []  # the others were slower in the trial

    def _timed(self, model: SplitModel, split_point: str, is_over: Callable[[], bool]) -> list[ExecutionConfig] | None:
        """Returns what is not clearly slower than the present configuration, the fastest first; None if it is over."""
        configs: dict[str, Config] = {}
        for precision in self._precisions:
            engines = [name for name in engines_for(model, precision) if name in (self._engines or (name,))]
            configs |= {_name(name, precision): untuned_config(model, precision, name) for name in engines}
        if not configs or not self._trials.may_go_on:
            return []
        records = self._trials.compare(configs, model, split_point, is_over)
        if is_over():
            return None
        present, *tried = records
        if not tried:
            self._found.append(f"{', '.join(configs)} could not be compared")
        self._database.keep(tried, "the comparison of precisions is")
        usable = [record for record in tried if not is_clearly_slower(record, present)]
        for record in tried:
            if record not in usable:
                precision = Precision(record.config["precision"])
                self._found.append(f"in {precision.value}, {describe_comparison([record])} in a trial")
        usable.sort(key=lambda record: record.median_s)
        return [ExecutionConfig.from_json(record.config) for record in usable]

    def _loaded(self, config: ExecutionConfig) -> Rival | None:
        name, precision = _name(config.engine_text, config.precision), config.precision
        try:
            model = load_model(replace(self._trials.spec, execution_config=config))
        except ConfigurationError as error:
            self._found.append(f"{name} is not used ({str(error).rstrip('.')})")
            return None
        return Rival(name, model, min_agreement=self._min_agreement or precision.min_agreement)


def _name(engine: str, precision: Precision) -> str:
    return f"{engine} in {precision.value}"
