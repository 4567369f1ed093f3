"""A process of one or more nodes: started in order, ended by SIGINT or SIGTERM with exit code 0.

A lost GPU ends it as well, with ``DEVICE_LOST_EXIT``.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

import rclpy
from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.nodes.ending import Ending
from split_infer_ros.nodes.managed import ManagedNode, in_words
from split_infer_ros.nodes.parameters.declaration import refuse_unknown
from split_infer_ros.runtime.faults import DEVICE_LOST_EXIT, is_sticky
from split_infer_ros.runtime.process import prepare_process

PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")

END_S = 5.0  # a callback that runs may take so long to finish


Makers = Sequence[Callable[[], ManagedNode]]


def run(node_types: Makers | Callable[[], Makers], until: Callable[[Sequence[ManagedNode]], int] | None = None) -> int:
    """Run nodes until a signal comes, or ``until`` returns; returns the process's exit code.

    Where the GPU is lost to this process, this does not return: the process ends with ``DEVICE_LOST_EXIT``, in order if
    that takes no longer than ``ending.ORDERLY_S``, else as it is.

    Args:
        node_types: what makes each node, or what tells that once ROS's arguments are known; nodes are started in this
            order and closed in the reverse one.
        until: runs on the main thread while the nodes spin on another; its result is the exit code.
    """
    ending = Ending(DEVICE_LOST_EXIT)
    code = _run(node_types, until, ending)
    gc.collect()  # the middleware gives shared memory back with the last handle; when Python ends it is too late
    if ending.begun:
        ending.now()  # Python's own end would have torch free what lies on a GPU that refuses everything
    return code


def _run(
    node_types: Makers | Callable[[], Makers], until: Callable[[Sequence[ManagedNode]], int] | None, ending: Ending
) -> int:
    _use_profile()
    prepare_process()
    _on_signals(_leave)
    nodes: list[ManagedNode] = []
    code = 0
    try:
        with _in_a_sentence():
            rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        executor = SingleThreadedExecutor()
        leaving: Future[None] = Future()
        spinning = threading.Thread(target=_spin, args=(executor, leaving, ending), name="executor", daemon=True)
        try:
            with _in_a_sentence():
                for make in node_types() if callable(node_types) else node_types:
                    nodes.append(make())
            refuse_unknown([node.table for node in nodes])
            for node in nodes:
                node.when_lost(ending.begin, ending.interrupt)
                executor.add_node(node)
                node.start()
            spinning.start()
            if until is not None:
                code = until(nodes)
            while until is None and spinning.is_alive():
                spinning.join(1.0)
            if until is None:
                code = 1  # a callback failed, and its traceback was printed
        except Exception as error:
            if is_sticky(error):
                ending.begin()
            raise
        finally:
            _on_signals(signal.SIG_IGN)
            leaving.set_result(None)  # an executor that is shut down while it spins may wait for ever
            if spinning.is_alive():
                spinning.join(END_S)
            executor.shutdown()
            for node in reversed(nodes):
                # a lost GPU refuses to free anything; the other nodes are to close all the same
                with suppress(Exception) if ending.begun else nullcontext():
                    node.close()
            rclpy.try_shutdown()
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except SystemExit:
        pass  # a signal: leaving is what was asked for
    except Exception as error:
        if not ending.begun:
            raise
        print(f"error: {in_words(error)}", file=sys.stderr)
    return code


def _spin(executor: SingleThreadedExecutor, leaving: Future[None], ending: Ending) -> None:
    try:
        executor.spin_until_future_complete(leaving)
    except Exception as error:
        if is_sticky(error):
            ending.begin()
            ending.interrupt()
        raise


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """ROS's own complaints about what the process was started with, as errors of the user's."""
    try:
        yield
    except (RuntimeError, ParameterException, NameValidationException) as error:  # (rcl's are RuntimeErrors)
        sentence = re.sub(r", at /\S+:\d+", "", " ".join(str(error).split()))
        raise ConfigurationError(f"ROS does not start with these arguments: {sentence}") from error


def shipped_profile() -> Path | None:
    """The package's own profile of Fast DDS; None where it is not installed."""
    with suppress(PackageNotFoundError):
        profile = Path(get_package_share_directory("split_infer_ros"), "config", "fastdds.xml")
        if profile.is_file():
            return profile
    return None


def _use_profile() -> None:
    """Have Fast DDS carry whole images in shared memory, unless the user has a profile."""
    profile = shipped_profile()
    if profile is not None and not any(name in os.environ for name in PROFILE_VARIABLES):
        os.environ[PROFILE_VARIABLES[0]] = str(profile)


def _leave(signal_number: int, frame: FrameType | None) -> None:
    _on_signals(lambda *_: None)  # a second one may have come already: it must not interrupt the leaving
    raise SystemExit(0)


def _on_signals(handler: Callable[..., None] | signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)
