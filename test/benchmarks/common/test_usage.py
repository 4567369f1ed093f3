import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.usage import MB, Usage, peak_bytes, resident_bytes

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_a_rivals_turn_shows_in_its_peak_and_share() -> None:
    usage = Usage()
    with usage.of("small"):
        sum(range(1000))
    with usage.of("large"):
        large = bytearray(64 << 20)
        large[:: 1 << 12] = bytes(len(large[:: 1 << 12]))  # pages that nobody wrote to take nothing
    rows = {name: usage.row(name) for name in ("small", "large")}
    assert rows["large"]["peak_mb"] >= (64 << 20) / MB
    assert 0 <= rows["small"]["cpu_busy"] <= rows["large"]["cpu_busy"] + 1


def test_share_of_turns_far_shorter_than_a_clock_tick() -> None:
    usage = Usage()
    for _ in range(20):
        with usage.of("computes"):
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
        with usage.of("sleeps"):
            time.sleep(0.002)
    assert 1.0 >= usage.row("computes")["cpu_busy"] > 2 * usage.row("sleeps")["cpu_busy"] > 0.0


def test_memory_of_another_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert 0 < resident_bytes(other.pid) <= peak_bytes(other.pid)
        other.communicate(b"\n")


def test_a_process_knows_how_long_it_runs() -> None:
    code = "from benchmarks.common.usage import seconds_since_start as s; print(s())"
    begin = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=BENCHMARKS)
    printed = result.stdout
    assert 0.0 <= float(printed) <= time.monotonic() - begin + 0.1  # the start is known to a hundredth of a second
