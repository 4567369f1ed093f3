import json
import os
import platform
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from split_infer_ros.telemetry.machine import (
    cpu_name,
    describe_machine,
    gpu_driver,
    gpu_name,
    installed_torch,
    instruction_set,
    release,
    ros_version,
    torch_versions,
)


def test_the_machine_is_described_in_plain_values():
    facts = describe_machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cpu"]
    assert facts["instruction_set"] == instruction_set()
    assert 1 <= facts["cores"] <= os.cpu_count()
    assert facts["memory_bytes"] > 2**27
    assert set(facts["versions"]) == {"python", "torch", "cuda", "ros"}


def test_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert describe_machine()["cores"] == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("cpuinfo", "board", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel name\t: other\n", None, "AMD EPYC"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "NVIDIA Jetson AGX Orin\0", "NVIDIA Jetson AGX Orin"),
    ],
)
def test_the_processor_has_a_name(tmp_path, cpuinfo, board, name):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    if board:
        (tmp_path / "model").write_text(board)
    assert cpu_name(tmp_path / "cpuinfo", tmp_path / "model") == name


def test_a_processor_without_files_still_has_a_name(tmp_path):
    assert cpu_name(tmp_path / "none", tmp_path / "none")


def test_the_sourced_ros_comes_first(monkeypatch):
    monkeypatch.setenv("ROS_DISTRO", "kilted")
    assert ros_version() == "kilted"


def test_the_driver_has_a_version(tmp_path):
    file = tmp_path / "version"
    assert gpu_driver(file) is None
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root)\n")
    assert gpu_driver(file) == "580.65.06"
    file.write_text("something else\n")
    assert gpu_driver(file) is None


def test_a_cpu_has_no_gpus_name_and_no_cuda():
    assert gpu_name("cpu") is None
    assert torch_versions("cpu") == {"torch": release(torch.__version__), "cuda": None}


def test_torch_has_versions_that_are_read_without_it(tmp_path, monkeypatch):
    assert installed_torch() == (torch.__version__, torch.version.cuda)
    package = SimpleNamespace(version="2.15.0", locate_file=tmp_path.joinpath)
    monkeypatch.setattr(metadata, "distribution", lambda name: package)
    read = installed_torch.__wrapped__
    assert read() == ("2.15.0", None)
    (tmp_path / "torch").mkdir()
    file = tmp_path / "torch" / "version.py"
    file.write_text("__version__ = '2.15.0+cpu'\ndebug = False\ncuda: Optional[str] = None\n")
    assert read() == ("2.15.0+cpu", None)
    file.write_text("__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\nhip: Optional[str] = '1.0'\n")
    assert read() == ("2.15.0+cu132", "13.2")


def test_a_process_may_have_no_torch(monkeypatch):
    def find(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", find)
    assert installed_torch.__wrapped__() == (None, None)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.15.0", "2.15"),
        ("2.15.3+cu132", "2.15+cu132"),
        ("2.16.0.dev20261101+cpu", "2.16.0.dev20261101+cpu"),
        ("2.5.0a0+872d972e41.nv24.08", "2.5.0a0+872d972e41.nv24.08"),
        ("unknown", "unknown"),
    ],
)
def test_a_release_is_a_version_without_its_patch_level(version, expected):
    assert release(version) == expected


X86 = (
    "model name\t: x\nflags\t\t: fpu sse4_1 avx fma avx2 avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 "
    "amx_int8\n"
)
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


@pytest.mark.parametrize(
    ("cpuinfo", "limits", "expected"),
    [
        (2 * X86, {}, "AVX512 (amx_int8 avx2 avx512_bf16 avx512_vnni avx512f)"),
        (X86.replace("avx512", "other"), {}, "AVX2 (amx_int8 avx2)"),
        (X86.replace("fma", "other"), {}, "DEFAULT (amx_int8 avx2 avx512_bf16 avx512_vnni avx512f)"),
        (X86, {"ONEDNN_MAX_CPU_ISA": ""}, "AVX512 (amx_int8 avx2 avx512_bf16 avx512_vnni avx512f)"),
        (X86.replace("avx512", "other"), {"ATEN_CPU_CAPABILITY": "default"}, "DEFAULT (amx_int8 avx2)"),
        (X86.replace("avx512", "other"), {"ATEN_CPU_CAPABILITY": "sse"}, "AVX2 (amx_int8 avx2)"),  # torch has no such
        ("flags\t: fpu\n", {"ONEDNN_MAX_CPU_ISA": "avx2", "DNNL_MAX_CPU_ISA": "all"}, "DEFAULT, oneDNN up to AVX2"),
        ("flags\t: fpu fma avx2\n", {"DNNL_MAX_CPU_ISA": "SSE41"}, "AVX2 (avx2), oneDNN up to SSE41"),
        ("Features\t: fp asimd asimdhp asimddp sve bf16 i8mm\n", {}, "DEFAULT (asimddp asimdhp bf16 i8mm sve)"),
        ("Features\t: asimd sme sme2 smei8i32 smefa64\n", {}, "DEFAULT (sme sme2 smefa64 smei8i32)"),
        ("flags\t: smep smap fma avx2\n", {}, "AVX2 (avx2)"),  # protection of the supervisor mode
        ("", {}, "DEFAULT"),
    ],
)
def test_the_instruction_set_decides_the_kernels(tmp_path, monkeypatch, cpuinfo, limits, expected):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert instruction_set(tmp_path / "cpuinfo") == expected
    if not limits:
        assert instruction_set(tmp_path / "none") == "DEFAULT"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch counts the length of vectors on ARM")
def test_the_capability_is_torchs():
    """Newer versions of torch tell AVX512_VNNI from AVX512, which the brackets do as well."""
    assert torch.backends.cpu.get_cpu_capability().startswith(instruction_set().split()[0])
