from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.memory_cost.samples import TASK, Probe, find_samples, from_records, to_records

HERE = Key({"device": "cpu"}, {"torch": "1"})
FIRST = {Probe.TO_HOST: {4096: (1.0, 2.0), 8192: (2.0, 4.0)}, Probe.TO_DEVICE: {4096: (3.0, 3.5)}}


def test_samples_are_kept_for_this_machine(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    assert find_samples(database, HERE) == {}
    database.add(to_records(FIRST, HERE))
    assert find_samples(database, HERE) == FIRST
    assert find_samples(database, replace(HERE, target={"device": "other"})) == {}
    later = {Probe.TO_HOST: {4096: (9.0,)}}
    database.add(to_records(later, HERE))
    assert find_samples(database, HERE) == {**FIRST, **later}  # a probe that was timed again counts as a whole


def test_other_records_are_ignored() -> None:
    def record(config: dict[str, object], error: str | None = None) -> Record:
        return Record({}, {}, TASK, config, (1.0,), error)

    good = record({"probe": "to_host", "bytes": 4096})
    assert from_records(
        [
            good,
            record({"probe": "to_the_moon", "bytes": 4096}),
            record({"probe": ["to_host"], "bytes": 4096}),
            record({"probe": "to_host", "bytes": "many"}),
            record({"probe": "to_host", "bytes": 0}),
            record({"bytes": 4096}),
            record({"probe": "to_device", "bytes": 4096}, "out of memory"),
        ]
    ) == {Probe.TO_HOST: {4096: (1.0,)}}
