from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import split_infer_ros
from split_infer_ros.measurements.database import Database, best_of, default_path
from split_infer_ros.measurements.key import MEANINGS, Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.telemetry.machine import instruction_set

HERE = Key(
    {"device": "cpu", "cpu": "x", "instruction_set": "AVX512", "cores": 2, "driver": None}, {"torch": "2", "cuda": None}
)
TASK = {"model": "m", "stage": "network", "shapes": [[3, 4]], "precision": "fp32"}


def record(*costs: float, batch: int = 1, key: Key = HERE, error: str | None = None) -> Record:
    return Record(key.target, key.versions_for(TASK), TASK, {"batch_size": batch}, costs, error, 1.0)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "new folder" / "tuning.jsonl")


def test_an_empty_one_knows_nothing(database):
    assert database.records() == []
    assert database.find(HERE, TASK) == []
    assert best_of(database.find(HERE, TASK)) is None
    assert not database.path.exists()


def test_the_best_is_the_lowest_median_without_error(database):
    database.add([record(3.0, 3.0, batch=1), record(1.0, 1.0, 9.0, batch=2)])
    database.add([record(0.5, batch=4, error="it crashed"), record(0.1, 5.0, 5.0, batch=8), record(batch=16)])
    best = best_of(database.find(HERE, TASK))
    assert best is not None
    assert best.config == {"batch_size": 2}
    assert len(database.find(HERE, TASK)) == 5
    assert database.find(HERE, {**TASK, "stage": "backbone"}) == []


@pytest.mark.parametrize(
    "other",
    [
        Key({**HERE.target, "cpu": "y"}, HERE.versions),
        Key({**HERE.target, "cores": 4}, HERE.versions),
        Key({**HERE.target, "instruction_set": "AVX2"}, HERE.versions),
        Key(HERE.target, {**HERE.versions, "torch": "3"}),
        Key({**HERE.target, "more": 1}, HERE.versions),
    ],
)
def test_records_of_other_machines_are_kept_but_not_used(database, caplog, other):
    database.add([record(0.1, key=other)])
    assert best_of(database.find(HERE, TASK)) is None
    assert "1 records of m network, all of other machines or versions" in caplog.text
    caplog.clear()
    database.add([record(0.2)])
    best = best_of(database.find(HERE, TASK))
    assert best is not None
    assert best.costs == (0.2,)
    assert len(database.records()) == 2
    assert caplog.text == ""


def test_uncertain_record_is_never_the_best(database):
    doubtful = Record(HERE.target, HERE.versions_for(TASK), TASK, {}, (0.1, 9.0), facts={"uncertain": True})
    database.add([doubtful])
    assert best_of(database.find(HERE, TASK)) is None
    database.add([record(3.0)])
    assert best_of(database.find(HERE, TASK)) == record(3.0)


def test_pruning_takes_only_what_is_asked_for(database, caplog):
    assert database.prune(lambda record: True) == 0
    database.add([record(1.0), record(2.0), record(3.0)])
    later = Record({}, {}, {}, {}, (), others={"format": 2}).as_line()
    with database.path.open("a") as file:
        file.write(later + "\n" + later[:20])
    assert database.prune(lambda record: record.costs == (2.0,)) == 1
    assert [found.costs for found in database.records()] == [(1.0,), (3.0,)]
    assert database.path.read_text().endswith(later + "\n" + later[:20])
    assert database.prune(lambda record: False) == 0
    assert list(database.path.parent.iterdir()) == [database.path]


def test_full_disk_while_pruning_leaves_the_file_unchanged(database, monkeypatch):
    database.add([record(1.0), record(2.0)])
    before = database.path.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        database.prune(lambda record: True)
    assert database.path.read_bytes() == before
    assert list(database.path.parent.iterdir()) == [database.path]


def test_writer_that_waits_for_pruning_writes_to_the_new_file(database):
    database.add([record(1.0), record(2.0)])
    writer = threading.Thread(target=lambda: database.add([record(3.0)]))

    def unwanted(found: Record) -> bool:
        if not writer.ident:
            writer.start()
            writer.join(0.1)  # it waits for the lock
        return found.costs == (1.0,)

    assert database.prune(unwanted) == 1
    writer.join(10)
    assert [found.costs for found in database.records()] == [(2.0,), (3.0,)]


def test_a_tuple_is_the_list_that_json_makes_of_it(database):
    database.add([record(1.0)])
    assert database.find(HERE, {**TASK, "shapes": ((3, 4),)}) == [record(1.0)]


def test_unknown_fields_are_kept(database):
    newer = Record(HERE.target, HERE.versions_for(TASK), TASK, {}, (1.0,), others={"weather": "rain"})
    database.add([newer])
    assert database.records() == [newer]


def test_edited_and_truncated_lines_are_ignored_with_a_warning(database, caplog):
    database.add([record(1.0, batch=1), record(2.0, batch=2), record(3.0, batch=3), record(4.0, batch=4)])
    lines = database.path.read_text().splitlines()
    lines[1] = lines[1].replace("2.0", "0.001")
    lines[2] = lines[2][:40]
    database.path.write_bytes("\n".join([*lines, ""]).encode() + b"\xff\xfe\n")
    assert [found.costs for found in database.records()] == [(1.0,), (4.0,)]
    assert [f"line {number} is ignored" in caplog.text for number in range(1, 6)] == [False, True, True, False, True]


def test_numbers_beyond_floats_cost_only_their_own_lines(database, caplog):
    database.add([record(1.0), record(2.0), Record({}, {}, {}, {}, (10**400,))])
    text = database.path.read_text()
    database.path.write_text(text.replace("2.0", "1e999"))
    assert [found.costs for found in database.records()] == [(1.0,)]
    assert [f"line {number} is ignored" in caplog.text for number in range(1, 4)] == [False, True, True]
    assert database.prune(lambda record: True) == 1


def test_torn_last_line_is_ignored_and_spoils_no_other(database, caplog):
    database.add([record(1.0), record(2.0)])
    database.path.write_bytes(database.path.read_bytes()[:-30])
    assert [found.costs for found in database.records()] == [(1.0,)]
    assert "ends in the middle of a record, which is ignored" in caplog.text
    database.add([record(3.0)])
    assert [found.costs for found in database.records()] == [(1.0,), (3.0,)]


def test_a_full_disk_leaves_the_file_as_it_was(database, monkeypatch):
    database.add([record(1.0)])
    before = database.path.read_bytes()
    write = os.write
    room = [30]

    def short_write(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count, room[0] = write(file, data[: room[0]]), 0
        return count

    monkeypatch.setattr(os, "write", short_write)
    with pytest.raises(OSError, match="No space"):
        database.add([record(2.0)])
    assert database.path.read_bytes() == before


WRITER = """
import sys
from pathlib import Path
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.record import Record
from split_infer_ros.telemetry.machine import instruction_set
assert "torch" not in sys.modules
database = Database(Path(sys.argv[1]))
for number in range(50):
    database.add(Record({}, {}, {"by": sys.argv[2]}, {"text": "x" * 20_000}, (number,)) for _ in range(2))
"""


def test_processes_and_threads_write_at_the_same_time(database):
    database.add([])
    environment = {"PYTHONPATH": str(Path(split_infer_ros.__file__).parents[1]), "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1"}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, database.path, name], env=environment) for name in "ab"]
    threads = [threading.Thread(target=lambda: [database.add([record(float(n))]) for n in range(50)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for writer in writers:
        assert writer.wait(60) == 0
    found = database.records()
    assert len(found) == 2 * 100 + 2 * 50
    for name in "ab":
        assert [r.costs[0] for r in found if r.task == {"by": name}] == [n // 2 for n in range(100)]


def test_the_file_lies_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Database().path == default_path() == tmp_path / "split_infer_ros" / "tuning.jsonl"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_path() == tmp_path / "home" / ".cache" / "split_infer_ros" / "tuning.jsonl"


def test_the_key_of_this_machine_is_the_same_each_time(database):
    key = Key.here("cpu")
    assert key.target["device"] == "cpu"
    assert set(key.target) == {"device", "cpu", "instruction_set", "cores", "driver"}
    assert set(key.versions) == {"torch", "cuda"}
    database.add([record(1.0, key=key)])
    assert Key.here("cpu").fits(database.records()[0])


def test_other_instruction_sets_make_another_key(monkeypatch):
    keys = [Key.here("cpu")]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    keys.append(Key.here("cpu"))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default" if "DEFAULT" not in instruction_set() else "avx2")
    keys.append(Key.here("cpu"))
    assert len({key.target["instruction_set"] for key in keys}) == 3
    assert all(key.versions == keys[0].versions for key in keys)


def has_torch(monkeypatch, version):
    monkeypatch.setattr("split_infer_ros.telemetry.machine.installed_torch", lambda: (version, None))


@pytest.mark.parametrize(
    ("installed", "fits"), [("2.15.1+cu132", True), ("2.16.0+cu132", False), ("2.15.0+cpu", False)]
)
def test_a_patch_release_of_torch_forgets_nothing(monkeypatch, installed, fits):
    has_torch(monkeypatch, "2.15.0+cu132")
    kept = record(1.0, key=Key.here("cpu"))
    has_torch(monkeypatch, installed)
    assert Key.here("cpu").fits(kept) == fits


def test_release_keeps_records_unless_their_meaning_changed(monkeypatch, database):
    other = {**TASK, "stage": "split_points"}
    database.add([record(1.0), Record(HERE.target, HERE.versions_for(other), other, {}, (1.0,))])
    monkeypatch.setattr(split_infer_ros, "__version__", "99.0")
    assert len(database.find(HERE, TASK)) == len(database.find(HERE, other)) == 1
    monkeypatch.setitem(MEANINGS, "network", MEANINGS["network"] + 1)
    assert database.find(HERE, TASK) == []
    assert len(database.find(HERE, other)) == 1


def test_records_without_a_meaning_are_read_but_not_used(database, caplog):
    target = {"device": "cpu", "cpu": "x", "cores": 2, "driver": None}
    old = Record(target, {"package": "0.1.0", "torch": "2.15.0", "cuda": None}, TASK, {}, (1.0,))
    database.add([old])
    assert database.records() == [old]
    assert caplog.text == ""
    assert database.find(HERE, TASK) == []
    assert "1 records of m network, all of other machines or versions" in caplog.text


def test_what_is_no_file_of_a_databases_size_is_not_read(tmp_path, caplog, monkeypatch):
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    assert Database(pipe).records() == []  # reading it would wait for a writer
    assert "pipe cannot be read: it is a pipe, a folder or a device, not a file." in caplog.text
    with pytest.raises(OSError, match="not a file"):
        Database(pipe).add([])
    large.touch()
    os.truncate(large, 2**40)
    assert Database(large).records() == []
    assert "it has 1,099,511,627,776 bytes, and no database has more than 268,435,456" in caplog.text
    with pytest.raises(OSError, match="no database has more"):
        Database(large).prune(lambda record: True)
