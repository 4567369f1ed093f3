"""A task in a user's own Python: what it gets and returns, and that no fault of it harms the process that serves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from user_tasks import IMPOSSIBLE

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import BGR, RGB, Pixels
from split_infer_ros.models.takes import Takes
from split_infer_ros.runtime.search_path import USER_PATH
from split_infer_ros.tasks import user_task
from split_infer_ros.tasks.task import MAX_OBJECTS
from split_infer_ros.tasks.task_child import TaskError, TaskLostError
from split_infer_ros.tasks.user_task import UserTask

START_S = 60.0
FRAME_FILES = Path("/dev/shm")

Open = Callable[[str], UserTask]


@pytest.fixture
def open_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens tasks of the module ``user_tasks``, and closes them after the test."""
    monkeypatch.setattr(user_task, "MIN_LIMIT_S", 0.5)
    monkeypatch.setattr(user_task, "FIRST_RUN_S", 5.0)
    monkeypatch.setattr(user_task, "RETRY_S", 0.1)
    opened: list[UserTask] = []

    def make(factory: str) -> UserTask:
        opened.append(UserTask(f"task:user_tasks:{factory}", allow_user_code=True))
        return opened[-1]

    yield make
    for task in opened:
        task.close()


def pixels(first: tuple[int, int, int] = (0, 0, 0), height: int = 4, width: int = 6) -> Pixels:
    """Returns a white image with a first pixel of this red, green and blue."""
    data = np.full((height, width, 3), 255, np.uint8)
    data[0, 0] = first
    return Pixels(data, RGB)


def test_each_frame_of_a_batch_gets_its_own_objects(open_task: Open) -> None:
    task = open_task("Images")
    assert (task.takes, task.labels) == (Takes.IMAGES, ("bright", "dark"))
    large, small = task.run([pixels((0, 0, 51), 300, 400), pixels((0, 0, 255))])
    assert large.boxes.tolist() == [[0, 0, 400, 300], [1, 1, 2, 2]]
    assert large.scores.tolist() == pytest.approx([0.2, 1.0], abs=1e-6)  # in float32
    assert large.labels.tolist() == [0, 1]
    assert small.boxes.tolist() == [[0, 0, 6, 4], [1, 1, 2, 2]]


def test_images_come_in_rgb_whatever_the_camera_sends(open_task: Open) -> None:
    task = open_task("Images")
    blue_first = Pixels(np.full((2, 2, 3), (255, 0, 0), np.uint8), BGR)
    (found,) = task.run([blue_first])
    assert found.scores[0] == 1.0  # the task reads the score from blue


def test_points_come_as_they_are(open_task: Open) -> None:
    task = open_task("Points")
    assert task.takes is Takes.POINTS
    points = np.array([[1, 2, 3], [-1, 5, 0.5]], np.float32)
    found, empty = task.run([points, points[:0]])
    assert found.boxes.tolist() == [[-1, 2, 0.5, 1, 5, 3]]
    assert len(empty) == 0
    assert len(task.run([task.example()])[0]) == 1


def test_error_of_the_user_costs_one_batch(open_task: Open) -> None:
    task = open_task("Images")
    with pytest.raises(TaskError, match=r"task:user_tasks:Images failed: ValueError: no such colour\."):
        task.run([pixels((1, 0, 0))])
    assert len(task.run([pixels()])) == 1


@pytest.mark.parametrize(
    ("first", "message"), [((2, 0, 0), "took longer than 0.5 s"), ((3, 0, 0), "died .exit code 9.")]
)
def test_task_that_hangs_or_dies_starts_again(open_task: Open, first: tuple[int, int, int], message: str) -> None:
    task = open_task("Images")
    task.run([pixels()])
    with pytest.raises(TaskLostError, match=message):
        task.run([pixels(first)])

    end, found = time.monotonic() + START_S, 0
    while not found:
        begin = time.monotonic()
        assert begin < end, "the task does not start again"
        with suppress(TaskLostError):  # it still starts
            found = len(task.run([pixels()]))
        assert found or time.monotonic() - begin < START_S / 10, "a batch waited for the start"
        time.sleep(0.01)


@pytest.mark.parametrize(("index", "reason"), list(enumerate(IMPOSSIBLE)))
def test_impossible_objects_are_named(open_task: Open, index: int, reason: str) -> None:
    with pytest.raises(TaskError, match=f"returned impossible objects: 1 x {reason}"):
        open_task("Images").run([pixels((4, index, 0))])


def test_rows_and_lists_of_another_length_are_named(open_task: Open) -> None:
    named = "rows of 3 numbers for a frame, and must return rows of 6: a box of 4 numbers, a score"
    with pytest.raises(TaskError, match=named):
        open_task("Images").run([pixels((5, 0, 0))])
    with pytest.raises(ConfigurationError, match="run returned a list of 0, and must return a list of 1"):
        open_task("FewerResults")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nowhere", "AttributeError"),
        ("fails", "OSError: no model there"),
        ("nothing", r"returned a object without a method run\(batch\)"),
        ("NoLabels", "labels is None, and must be a list of at least one name"),
        ("Sounds", "takes is 'sounds', and must be 'images' or 'points'"),
    ],
)
def test_factory_that_gives_no_task_is_named(open_task: Open, factory: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"model 'task:user_tasks:{factory}' cannot be made .*{message}"):
        open_task(factory)


def test_without_permission_nothing_runs() -> None:
    with pytest.raises(ConfigurationError, match="set allow_user_code to true if you trust it"):
        UserTask("task:user_tasks:Images", allow_user_code=False)


def test_a_closed_task_ends_a_batch_that_hangs(open_task: Open) -> None:
    task = open_task("Images")
    task.run([pixels()])
    failures: list[str] = []

    def hang() -> None:
        try:
            task.run([pixels((2, 0, 0))])
        except TaskLostError as error:
            failures.append(str(error))

    thread = threading.Thread(target=hang)
    thread.start()
    task.close()
    thread.join(START_S)
    assert len(failures) <= 1
    assert not thread.is_alive()


def test_a_frame_without_a_table_of_rows_is_named(open_task: Open) -> None:
    task = open_task("Images")
    assert len(task.run([pixels((5, 1, 0))])[0]) == 0  # None: it found nothing
    with pytest.raises(TaskError, match=r"an array of shape \(\) for a frame"):
        task.run([pixels((5, 2, 0))])


def test_of_too_many_objects_the_best_ones_stay(open_task: Open) -> None:
    (found,) = open_task("Images").run([pixels((6, 0, 0))])
    assert len(found) == MAX_OBJECTS
    assert found.scores.min() == pytest.approx((5000 - MAX_OBJECTS) / 5000, abs=1e-6)  # in float32


def test_task_that_hangs_in_its_first_run_is_refused(open_task: Open) -> None:
    with pytest.raises(ConfigurationError, match=r"HangsAtFirst' cannot be made .*took longer than 5 s"):
        open_task("HangsAtFirst")


def test_a_hang_after_a_restart_is_ended_as_soon(open_task: Open) -> None:
    task = open_task("Images")
    for _ in range(2):
        wait_for_result(task)
        begin = time.monotonic()
        with pytest.raises(TaskLostError, match=r"took longer than 0\.5 s"):
            task.run([pixels((2, 0, 0))])
        assert time.monotonic() - begin < user_task.FIRST_RUN_S


def test_other_labels_after_a_restart_are_not_believed(open_task: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    task = open_task("Named")
    monkeypatch.setenv("TASK_LABELS", "one two three")
    with pytest.raises(TaskLostError, match="died"):
        task.run([pixels((3, 0, 0))])
    end, said = time.monotonic() + START_S, ""
    while "other labels than before" not in said:
        assert time.monotonic() < end, said
        with pytest.raises(TaskLostError) as refused:
            task.run([pixels()])
        said = str(refused.value)
        time.sleep(0.01)
    assert task.labels == ("bright", "dark")


def test_task_that_is_closed_while_it_starts_leaves_nothing(open_task: Open) -> None:
    before = set(FRAME_FILES.glob("split_infer_ros_frames_*"))
    task = open_task("Images")
    with pytest.raises(TaskLostError):
        task.run([pixels((3, 0, 0))])
    task.close()
    assert set(FRAME_FILES.glob("split_infer_ros_frames_*")) <= before
    assert "restart task" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(TaskLostError):
        task.run([pixels()])


def test_frames_without_room_are_named(open_task: Open) -> None:
    huge = np.broadcast_to(np.zeros((1, 3), np.float32), (10**13, 3))  # takes no memory here
    task = open_task("Points")
    with pytest.raises(TaskError, match=r"has no room for 120000000 MB .*: mount /dev/shm larger"):
        task.run([huge])
    assert len(task.run([np.ones((2, 3), np.float32)])[0]) == 1


def test_costs_of_another_source_are_others(open_task: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PYTHONPATH", USER_PATH):
        monkeypatch.setenv(variable, f"{tmp_path}:{os.environ.get(variable, '')}")
    found = []
    for line in ("", "# edited"):
        (tmp_path / "edited_task.py").write_text(f"from user_tasks import Images\n{line}\n")
        task = UserTask("task:edited_task:Images", allow_user_code=True)
        found.append(task.identity)
        task.close()
    assert found[0] != found[1]


def wait_for_result(task: UserTask) -> None:
    """Waits until a task has started again."""
    end = time.monotonic() + START_S
    while True:
        assert time.monotonic() < end, "the task does not start again"
        with suppress(TaskLostError):
            task.run([pixels()])
            return
        time.sleep(0.01)
