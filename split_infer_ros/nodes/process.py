"""Runs one or more nodes as a process. SIGINT, SIGTERM or SIGHUP ends it with exit code 0.

The loss of the GPU ends it with exit code ``DEVICE_LOST_EXIT``.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import rclpy
from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.nodes.arguments import check_encoding, check_parameter_files, refuse_arguments
from split_infer_ros.nodes.managed import LOG_PERIOD_S, ManagedNode, start_nodes
from split_infer_ros.nodes.parameters.declaration import refuse_unknown
from split_infer_ros.nodes.process_exit import ProcessExit, ThreadFailures
from split_infer_ros.nodes.ros_text import TextLogger
from split_infer_ros.runtime.faults import DEVICE_LOST_EXIT, is_sticky
from split_infer_ros.runtime.home import ensure_home
from split_infer_ros.runtime.process import prepare_process

PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
TRANSPORTS_VARIABLE = "FASTDDS_BUILTIN_TRANSPORTS"

CALLBACK_END_S = 5.0  # how long a running callback may take to finish
RETRY_S = 0.1  # pause after a callback that failed

AnyNode = ManagedNode[Any]
NodeFactories = Sequence[Callable[[], AnyNode]]
NodeTypes = NodeFactories | Callable[[], NodeFactories]
MainTask = Callable[[Sequence[AnyNode]], int]


class SignalReceived(BaseException):
    """A signal asks the process to end. This is not a SystemExit, because a user's own code may raise that."""


def run(node_types: NodeTypes, main_task: MainTask | None = None) -> int:
    """Runs nodes until a signal comes or ``main_task`` returns; returns the process's exit code.

    If the GPU is lost, this does not return: the process ends with ``DEVICE_LOST_EXIT``. The nodes get
    ``process_exit.ORDERLY_S`` seconds to close in order. After that, the process ends without waiting for them.

    Args:
        node_types: functions that make a node each, or one function that returns them once ROS's arguments are known.
            Nodes become active in this order and close in the reverse order; see ``start_nodes``.
        main_task: called with the nodes on the main thread, while another thread runs their callbacks. It returns the
            exit code. With a task, arguments that are not ROS's are allowed, and the caller reads them. Without a task,
            they are refused.
    """
    process_exit = ProcessExit(DEVICE_LOST_EXIT)
    code = _run(node_types, main_task, process_exit)
    gc.collect()  # the middleware frees shared memory with its last handle; while Python ends, that is too late
    if process_exit.started:
        process_exit.exit_now()  # while Python ends, torch would free memory on a GPU that refuses every call
    return code


def _run(node_types: NodeTypes, main_task: MainTask | None, process_exit: ProcessExit) -> int:
    ensure_home()
    _use_shipped_profile()
    prepare_process()
    failures = ThreadFailures()
    try:
        _set_signal_handlers(_exit_on_signal)
        with _as_configuration_errors():
            if main_task is None:
                refuse_arguments(sys.argv[1:])
            check_encoding(sys.argv[1:])
            check_parameter_files(sys.argv[1:])
            rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        with failures.watch(ProcessExit.interrupt_main_thread):
            return _run_nodes(node_types, main_task, process_exit)
    except SignalReceived:
        if failures.first:
            print(f"error: {failures.first}", file=sys.stderr)
        return int(bool(failures.first))
    except (Exception, SystemExit) as error:  # a user's own code may raise SystemExit
        print(f"error: {error_sentence(error)}", file=sys.stderr)
        return 0 if process_exit.started else 1


def _run_nodes(node_types: NodeTypes, main_task: MainTask | None, process_exit: ProcessExit) -> int:
    """Starts the nodes, spins until the end, and closes them; returns the exit code."""
    nodes: list[AnyNode] = []
    executor = SingleThreadedExecutor()
    spin_end: Future[None] = Future()
    spun = threading.Event()
    spinning = threading.Thread(
        target=_spin, args=(executor, spin_end, spun, process_exit), name="executor", daemon=True
    )
    try:
        with _as_configuration_errors():
            for make in node_types() if callable(node_types) else node_types:
                nodes.append(make())
        refuse_unknown([node.table for node in nodes])
        for node in nodes:
            node.device_loss.set_handlers(process_exit.start, process_exit.interrupt_main_thread)
            executor.add_node(node)
        start_nodes(nodes)
        spinning.start()
        if main_task is not None:
            return main_task(nodes)
        spun.wait()  # not `join`: if a signal interrupts it, Python 3.11 regards the thread as ended
        raise ConfigurationError("ROS has ended in this process, and nobody asked it to.")
    except Exception as error:
        if is_sticky(error):
            process_exit.start()
        raise
    finally:
        _set_signal_handlers(signal.SIG_IGN)
        spin_end.set_result(None)  # an executor that is shut down while it spins may wait for ever
        if spinning.is_alive():
            spinning.join(CALLBACK_END_S)
        executor.shutdown()
        for node in reversed(nodes):
            # a lost GPU refuses to free memory, but the other nodes must close all the same
            with suppress(Exception) if process_exit.started else nullcontext():
                node.close()
        rclpy.try_shutdown()


def _spin(
    executor: SingleThreadedExecutor, spin_end: Future[None], spun: threading.Event, process_exit: ProcessExit
) -> None:
    """Runs callbacks until ``spin_end`` is done, then sets ``spun``. Logs the error of a callback and goes on."""
    logger = TextLogger("split_infer_ros")
    try:
        while not spin_end.done():
            try:
                executor.spin_until_future_complete(spin_end)
            except Exception as error:
                if is_sticky(error):
                    process_exit.start()
                    process_exit.interrupt_main_thread()
                    raise
                if not rclpy.ok():
                    return
                logger.error(f"A callback failed: {error_sentence(error)}", throttle_duration_sec=LOG_PERIOD_S)
                logger.debug(traceback.format_exc())
                time.sleep(RETRY_S)
    finally:
        spun.set()


@contextmanager
def _as_configuration_errors() -> Iterator[None]:
    """Turns ROS's errors about the process's arguments into ConfigurationErrors."""
    try:
        yield
    except (RuntimeError, ParameterException, NameValidationException) as error:  # rcl raises RuntimeError
        sentence = re.sub(r", at /\S+:\d+", "", " ".join(str(error).split()))
        raise ConfigurationError(f"ROS does not start with these arguments: {sentence}") from error


def shipped_profile() -> Path | None:
    """Returns the package's own profile of Fast DDS; None if it is not installed."""
    with suppress(PackageNotFoundError):
        profile = Path(get_package_share_directory("split_infer_ros"), "config", "fastdds.xml")
        if profile.is_file():
            return profile
    return None


def _use_shipped_profile() -> None:
    """Makes Fast DDS carry whole images in shared memory, unless the user has a profile or names transports."""
    profile = shipped_profile()
    if profile is not None and not any(name in os.environ for name in (*PROFILE_VARIABLES, TRANSPORTS_VARIABLE)):
        os.environ[PROFILE_VARIABLES[0]] = str(profile)


def _exit_on_signal(signal_number: int, frame: FrameType | None) -> None:
    _set_signal_handlers(lambda *_: None)  # a second signal must not interrupt the clean-up
    raise SignalReceived


def _set_signal_handlers(handler: Callable[..., None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # under `nohup`, SIGHUP stays ignored
            signal.signal(number, handler)
