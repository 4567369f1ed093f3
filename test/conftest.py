"""What every test gets: its file's own ROS domain, a bound on its time, and a named skip where ROS is missing."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from deadline import Deadline
from domains import own_domain
from launch_files import LaunchFile
from recorded_durations import RecordedDurations

from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.usage_reports import stop_usage_reports

if importlib.util.find_spec("hypothesis"):  # the tests for a GPU do without
    from hypothesis import settings

    # A busy machine may stop an example for seconds. The same examples in each run; --hypothesis-profile=search draws
    # others.
    settings.register_profile("search", deadline=None)
    settings.register_profile("same examples", deadline=None, derandomize=True)
    settings.load_profile("same examples")
stop_usage_reports()  # tests that skip where OpenVINO is missing import it to find out

HERE = Path(__file__).parent
SECONDS_PER_TEST = 120
SECONDS_PER_SLOW_TEST = 1500

# What a folder of tests cannot do without. (Where it is missing, its files are not even imported.)
NEEDED = {"nodes": "rclpy", "launch": "launch_ros"}
LARGE = ("torch", "torchvision", "skimage")  # what an environment may lack; a file that imports it is then skipped


class SkippedFile(pytest.Module):
    """A file that cannot be imported here; it is reported as skipped, by its name."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(f"{self.path.relative_to(HERE)} needs {NEEDED[self.path.parent.name]}", allow_module_level=True)


class TestFile(pytest.Module):
    """A file of tests. Where it imports a large package that is not installed, it is reported as skipped."""

    __test__ = False

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error.__cause__
            if not isinstance(cause, ModuleNotFoundError) or str(cause.name).partition(".")[0] not in LARGE:
                raise
            pytest.skip(f"{self.path.relative_to(HERE)} needs {cause.name}", allow_module_level=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", type=Path, metavar="FILE", help="write the seconds of each test file to it")
    parser.addoption(
        "--slow-too", action="append", default=[], metavar="FILE", help="mark the tests of a file as slow_too"
    )
    parser.addoption("--until", type=float, metavar="TIME", help="skip tests that begin later, in seconds since 1970")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record-durations")
    if path is not None and not hasattr(config, "workerinput"):  # workers report to the process that records
        config.pluginmanager.register(RecordedDurations(path))
    until = config.getoption("--until")
    if until is not None:
        config.pluginmanager.register(Deadline(until))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File:
    needed = NEEDED.get(module_path.parent.name)
    if needed and importlib.util.find_spec(needed) is None:
        return SkippedFile.from_parent(parent, path=module_path)
    if module_path.parent == HERE / "launch":
        return LaunchFile.from_parent(parent, path=module_path)
    # launch_testing's plugin would import the file by its bare name, which files of two folders may share.
    return TestFile.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow_too = {(config.rootpath / path).resolve() for path in config.getoption("--slow-too")}
    for item in items:
        if item.path in slow_too:
            item.add_marker("slow_too")
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            seconds = SECONDS_PER_SLOW_TEST if item.get_closest_marker("slow") else SECONDS_PER_TEST
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(seconds))


def pytest_collection_finish() -> None:
    """Keeps what was imported from being searched for garbage: hundreds of thousands of objects in each collection.

    The code under test collects garbage in many places, and so do the tests. That took a quarter of their time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of this test run, in place of the user's. So what was measured before does not count."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"  # one for all workers
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def ros_domain(request: pytest.FixtureRequest) -> Iterator[int]:
    """A ROS domain that no other test file on this machine uses meanwhile, for child processes too."""
    with own_domain(str(request.path), kills=request.node.get_closest_marker("kills_nodes") is not None) as domain:
        yield domain


@pytest.fixture(scope="module", autouse=True)
def nothing_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives back what a test file keeps for its own tests, such as large detectors: a worker runs hundreds of files."""
    yield
    for kept in vars(request.module).values():
        if getattr(kept, "__module__", "") == request.module.__name__ and hasattr(kept, "cache_clear"):
            kept.cache_clear()
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # what is left stays for long, such as modules that were imported late
    trim()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """Pytest's log capture, which also works once ROS's launch or NNCF is imported.

    After the first, new loggers pass no record on to the root logger, where pytest listens. The second makes all of
    that logger's handlers leave out warnings.
    """
    caplog.handler.setLevel(logging.NOTSET)
    logger_class = logging.getLoggerClass()
    logging.setLoggerClass(logging.Logger)  # for modules that the test is the first to import
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("split_infer_ros"):
            monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    yield caplog
    logging.setLoggerClass(logger_class)


@pytest.fixture
def gpu() -> Iterator[object]:
    """A simulated GPU; what raced on it, would have failed or was not freed, fails a test that does not say so."""
    from simulated_gpu import simulated  # most tests do without torch, which takes seconds

    with simulated() as made:
        yield made
        gc.collect()
        made.allocator.release()
        made.assert_nothing_left()


@pytest.fixture
def plain_operators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Switches Triton off, whose kernels cannot be simulated, and keeps the other tests' database unchanged."""
    from split_infer_ros.vision_ops import implementations

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(implementations, "_choose", lambda *_: implementations.ImplementationChoice.PLAIN)
    monkeypatch.setattr(implementations, "_cache", {})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """The small detector in a pipeline, with a cache folder of its own."""
    from streamed_run import Run  # most tests do without torch, which takes seconds

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = Run()
    with found.pipeline:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own in the place of /dev/shm."""
    from split_infer_ros.buffers import segment

    monkeypatch.setattr(segment, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The processor's extensions, as far as precisions depend on them; none at first."""
    from split_infer_ros.engines import precision_checks  # most tests do without torch, which takes seconds

    found: set[str] = set()
    monkeypatch.setattr(precision_checks, "onednn_limit", str)
    monkeypatch.setattr(precision_checks, "cpu_extensions", lambda: frozenset(found))
    monkeypatch.setattr(precision_checks, "cpu_name", lambda: "Processor X")
    return found
