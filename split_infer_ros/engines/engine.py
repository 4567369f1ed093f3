"""The engines that can execute a part of a network, and whether they are installed."""

from __future__ import annotations

import enum
import importlib.util
from types import ModuleType

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.num_threads import max_threads, use_engine_threads, use_threads
from split_infer_ros.runtime.optional_packages import import_package
from split_infer_ros.runtime.usage_reports import stop_usage_reports

AUTO = "auto"  # the user's choice that lets the package choose the engine
CPU = "CPU"  # an engine's bare name means this provider of ONNX Runtime, or device of OpenVINO
PROVIDER_SUFFIX = "ExecutionProvider"  # ends the names of all providers of ONNX Runtime
GPU_PROVIDERS = ("CUDA", "Tensorrt")  # they read and write a GPU's memory; in ONNX Runtime's spelling


class Engine(enum.Enum):
    """An engine executes a part of a network.

    - ``TORCH``: torch, with the choices that ``ExecutionConfig`` has for convolutions and compilers.
    - ``ONNXRUNTIME``: ONNX Runtime, with one of its providers.
    - ``OPENVINO``: OpenVINO, on one of its devices.
    """

    TORCH = "torch"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"

    @property
    def reads_channels_last(self) -> bool:
        """Whether the engine reads channels-last images without converting them; otherwise it reads planes."""
        return self is Engine.TORCH

    def use_threads(self, num_threads: int, num_lanes: int = 1) -> None:
        """Sets how many threads this engine uses when the calling thread runs it.

        Args:
            num_threads: number of threads; 0: as many as this process was given at its start.
            num_lanes: how many callers, this one included, compute at the same time with ``num_threads`` threads each.
        """
        if self is not Engine.TORCH:
            use_engine_threads(num_threads, num_lanes)
        else:
            use_threads(num_threads or max_threads(), num_lanes)

    @property
    def is_installed(self) -> bool:
        """Whether the engine's package is there to import. Nothing is imported."""
        return importlib.util.find_spec(self.value) is not None


TITLES = {Engine.TORCH: "torch", Engine.ONNXRUNTIME: "ONNX Runtime", Engine.OPENVINO: "OpenVINO"}


def parse_engine(text: str) -> tuple[Engine, str]:
    """Reads the name of an engine, such as ``torch``, ``openvino``, ``onnxruntime:CUDA`` or ``openvino:GPU``.

    Returns:
        The engine and its provider: a provider of ONNX Runtime, or a device in OpenVINO's spelling. The provider is
        empty for the CPU. It may be one that this machine lacks; see ``find_provider``.

    Raises:
        ConfigurationError: there is no engine of that name, or it has no providers.
    """
    name, colon, provider = text.partition(":")
    engine = next((each for each in Engine if each.value == name), None)
    if engine is None:
        names = ", ".join(each.value for each in Engine)
        raise ConfigurationError(
            f"engine cannot be '{text}'; it takes one of: {AUTO}, {names}, {Engine.ONNXRUNTIME.value}:PROVIDER, "
            f"{Engine.OPENVINO.value}:DEVICE."
        )
    if colon and (engine is Engine.TORCH or not provider):
        raise ConfigurationError(
            f"engine cannot be '{text}'; only {Engine.ONNXRUNTIME.value} has providers and only "
            f"{Engine.OPENVINO.value} has devices, for example {Engine.ONNXRUNTIME.value}:CUDA and "
            f"{Engine.OPENVINO.value}:GPU."
        )
    if engine is Engine.OPENVINO:
        provider = provider.upper()
    return engine, "" if provider.upper() == CPU else provider


def check_engine(text: str) -> None:
    """Checks a user's choice of an engine, which may be ``auto``. The engine need not be installed.

    Raises:
        ConfigurationError: there is no such engine.
    """
    if text != AUTO:
        parse_engine(text)


def engine_text(engine: Engine, provider: str) -> str:
    """Returns the text from which ``parse_engine`` reads this engine and provider."""
    return f"{engine.value}:{provider}" if provider else engine.value


def import_for(engine: Engine, package: str) -> ModuleType:
    """Imports a package that an engine needs. First turns off the package's usage reports.

    Raises:
        ConfigurationError: the package is not installed, or cannot be loaded.
    """
    stop_usage_reports()
    return import_package(
        package,
        f"engine {engine.value} needs the Python package {package}",
        f"pip install onnx onnxscript {engine.value}, or take engine torch",
    )


def find_provider(engine: Engine, name: str) -> str:
    """Returns an engine's own name of a provider: ``CUDAExecutionProvider`` for ``cuda``, or ``GPU.1`` for ``gpu.1``.

    Args:
        engine: ONNX Runtime or OpenVINO.
        name: the provider's name without ``ExecutionProvider``, in upper or lower case; empty for the CPU.

    Raises:
        ConfigurationError: the engine is not installed, or has no such provider on this machine.
    """
    available = providers_of(engine)
    found = available.get((name or CPU).lower())
    if found is None:
        names = ", ".join(each.removesuffix(PROVIDER_SUFFIX) for each in available.values())
        kind = "devices" if engine is Engine.OPENVINO else "providers"
        raise ConfigurationError(
            f"engine {engine.value}:{name} is not possible here: the installed {TITLES[engine]} has the {kind} {names}."
        )
    return found


def providers_of(engine: Engine) -> dict[str, str]:
    """Returns the providers that an engine has on this machine: the engine's own names, by the names of users.

    A user's name is in lower case, without ``ExecutionProvider``. For OpenVINO, providers are devices. If there are
    ``GPU.0`` and ``GPU.1``, the name ``gpu`` means the first.

    Raises:
        ConfigurationError: the engine is not installed.
    """
    runtime = import_for(engine, engine.value)
    if engine is Engine.ONNXRUNTIME:
        return {each.removesuffix(PROVIDER_SUFFIX).lower(): each for each in runtime.get_available_providers()}
    devices = [str(each) for each in runtime.Core().available_devices]
    return {each.lower(): each for each in devices} | {
        kind.lower(): kind for each in devices for kind, dot, _ in [each.partition(".")] if dot
    }


def can_run_on(text: str, device: Device) -> bool:
    """Returns whether an engine is installed and runs on a device. ``text`` is a name for ``parse_engine``."""
    try:
        engine, provider = parse_engine(text)
        check_device(engine, provider, device)
        if provider:  # the CPU's is always there; looking for it would import the engine at each start
            find_provider(engine, provider)
    except ConfigurationError:
        return False
    return engine.is_installed


def fits_device(engine: Engine, provider: str, device: Device) -> bool:
    """Returns whether an engine with a provider runs on a device. The engine need not be installed."""
    return engine is Engine.TORCH or (device.type != "cpu") == is_for_gpu(engine, provider)


def is_for_gpu(engine: Engine, provider: str) -> bool:
    """Returns whether a provider reads and writes GPU memory. OpenVINO's devices read and write the CPU's memory."""
    return engine is Engine.ONNXRUNTIME and provider.lower() in (each.lower() for each in GPU_PROVIDERS)


def check_device(engine: Engine, provider: str, device: Device) -> None:
    """Checks that an engine runs on a device. torch runs on all devices.

    Raises:
        ConfigurationError: the engine does not run on the device.
    """
    if fits_device(engine, provider, device):
        return
    name = engine_text(engine, provider)
    if device.type == "cpu":
        raise ConfigurationError(f"engine {name} needs a GPU, and the device is {device}: take engine onnxruntime.")
    raise ConfigurationError(
        f"engine {name} does not run on device {device}: take engine torch, onnxruntime:CUDA or "
        "onnxruntime:TensorRT, or device cpu."
    )
