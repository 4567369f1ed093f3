"""Which precisions may replace fp32: those that the user allows, that run, and that are not clearly slower."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trial_runners import StandInRunner

from split_infer_ros.autotuning import precision_rivals, precisions_to_try
from split_infer_ros.autotuning.background_trials import PRESENT, BackgroundTrials
from split_infer_ros.autotuning.int8_rivals import Int8Rivals
from split_infer_ros.autotuning.precision_rivals import PrecisionRivals
from split_infer_ros.autotuning.spaces import RIVAL, RIVALS, TURNS
from split_infer_ros.autotuning.trial_process import TrialOutcome
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.runtime import num_threads
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.turns import CLEARLY_SLOWER, Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.heat import Processor

pytest.importorskip("torch")
SPEC = ModelSpec("shapes", device="cpu", on_torch=True)
IN_16_BITS = (Precision.FP16, Precision.BF16)
WON, LOST = Verdict(1.5, 1.4, 1.6), Verdict(0.9, 0.8, 1.0)


class Trials(StandInRunner):
    """Runs trials that take a given time in each precision."""

    def __init__(self, **costs: float | str) -> None:
        super().__init__(SPEC)
        self.costs = costs

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        if stage == RIVALS:
            turns = {name: [self.costs[each["precision"]]] * 3 for name, each in about[RIVALS].items()}
            return TrialOutcome((), None, {TURNS: turns})
        assert stage == RIVAL
        cost = self.costs[config["precision"]]
        return TrialOutcome((), cost) if isinstance(cost, str) else TrialOutcome((cost,))


@pytest.fixture(autouse=True)
def torch_has_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes in all precisions, whatever the processor is made for."""
    monkeypatch.setattr(precision_rivals, "engines_for", lambda model, precision: ("torch",))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


def opened(trials: Trials, database: Database, min_agreement: float = 0.0) -> PrecisionRivals:
    background = BackgroundTrials(SPEC, open_runner=trials.open)
    return PrecisionRivals(background, database, IN_16_BITS, min_agreement=min_agreement)


def no_image() -> Pixels | None:
    raise AssertionError("16 bits need no image before they are judged")


def proposed(rivals: PrecisionRivals) -> Rival | None:
    return rivals.next(load_model(SPEC), "output", lambda: False, no_image)


def test_the_fastest_precision_comes_first_and_is_proposed_until_it_is_settled(database: Database) -> None:
    rivals = opened(Trials(fp32=2.0, fp16=1.5, bf16=1.0), database)
    for _ in range(2):  # a camera that showed no objects
        rival = proposed(rivals)
        assert rival is not None
        assert (rival.name, rival.model.precision, rival.min_agreement) == ("torch in bf16", Precision.BF16, 0.99)
    rivals.refuse("its detections do not agree.")
    rival = proposed(rivals)
    assert rival is not None
    assert rival.model.precision is Precision.FP16
    rivals.settle(WON)
    assert proposed(rivals) is None
    assert rivals.summary == (
        "torch in bf16 is not used (its detections do not agree); "
        "torch in fp16 is 1.50 times as fast (1.40 to 1.60) on live frames; 0 s of processor time"
    )
    assert {record.config["precision"] for record in database.records()} == {"fp16", "bf16"}


def test_after_a_winner_slower_precisions_are_not_tried(database: Database) -> None:
    rivals = opened(Trials(fp32=2.0, fp16=1.5, bf16=1.0), database)
    assert proposed(rivals) is not None
    rivals.settle(WON)
    assert proposed(rivals) is None


def test_a_clearly_slower_precision_and_one_that_fails_are_not_proposed(database: Database) -> None:
    rivals = opened(Trials(fp32=1.0, fp16="It crashed.", bf16=CLEARLY_SLOWER + 0.1), database)
    assert proposed(rivals) is None
    assert rivals.summary.startswith(
        "in fp16, torch is not used (It crashed) in a trial; in bf16, torch 1400.0 ms in a trial; "
    )


def test_an_interrupted_trial_is_repeated(database: Database) -> None:
    trials = Trials(fp32=2.0, fp16=1.5, bf16=1.0)
    rivals = opened(trials, database)
    over = iter([True, True, True, True])
    assert rivals.next(load_model(SPEC), "output", lambda: next(over, True), no_image) is None
    assert proposed(rivals) is not None


def test_a_precision_in_which_the_model_does_not_load_is_left_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: ModelSpec) -> SplitModel:
        raise ConfigurationError("Its file is gone.")

    rivals = opened(Trials(fp32=2.0, fp16=1.5, bf16=1.0), database)
    model = load_model(SPEC)
    monkeypatch.setattr(precision_rivals, "load_model", refuse)
    assert rivals.next(model, "output", lambda: False, no_image) is None
    refused = "; ".join(f"torch in {name} is not used (Its file is gone)" for name in ("bf16", "fp16"))
    assert rivals.summary == f"{refused}; 0 s of processor time"


def test_the_user_says_how_much_detections_must_agree(database: Database) -> None:
    rival = proposed(opened(Trials(fp32=2.0, fp16=1.5, bf16=1.0), database, min_agreement=0.8))
    assert rival is not None
    assert rival.min_agreement == 0.8


def test_a_precision_keeps_the_number_of_threads(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(num_threads, "max_threads", lambda: 8)
    trials = Trials(fp32=2.0, fp16=2.0, bf16=1.0)
    rival = opened(trials, database).next(load_model(SPEC).with_threads(4), "output", lambda: False, no_image)
    assert rival is not None
    assert (rival.name, rival.model.execution_config.threads) == ("torch in bf16", 4)


def test_the_present_configuration_takes_turns_too(database: Database) -> None:
    trials = BackgroundTrials(SPEC, open_runner=Trials(fp32=2.0).open)
    records = trials.compare({}, load_model(SPEC), "output", lambda: False)
    assert [record.config["engine"] for record in records] == ["torch"]
    assert PRESENT == "present"


@pytest.mark.parametrize(
    ("wanted", "has_16_bits", "engines", "kinds"),
    [
        ("auto", True, (), [PrecisionRivals]),
        ("auto", False, (), []),
        ("auto_int8", False, (), [Int8Rivals]),
        ("auto_int8", True, ("openvino",), [PrecisionRivals, Int8Rivals]),
        ("auto_int8", False, ("torch",), []),
        ("fp32", True, (), []),
        ("bf16", True, (), []),
    ],
)
def test_precisions_are_tried_only_if_the_user_and_the_processor_allow_them(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    has_16_bits: bool,
    engines: tuple[str, ...],
    kinds: list[type],
) -> None:
    monkeypatch.setattr(precisions_to_try, "is_made_for", lambda precision, device: has_16_bits)
    found = precisions_to_try.precision_rivals(
        BackgroundTrials(SPEC), database, load_model(SPEC), wanted, engines, min_agreement=0.0
    )
    assert [type(each) for each in found] == kinds


def test_in_heat_no_precision_is_tried(database: Database) -> None:
    rivals = opened(Trials(fp32=2.0, fp16=1.5, bf16=1.0), database)
    rivals.again(Processor.CPU)
    assert proposed(rivals) is None
    rivals.again(None)
    assert proposed(rivals) is not None
