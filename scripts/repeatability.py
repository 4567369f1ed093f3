#!/usr/bin/env python3
"""Runs every benchmark's quick run several times, and writes the verdicts of each claim.

    scripts/run python scripts/repeatability.py [--runs 5] [--only NAME ...] [--out FILE]

All benchmarks have their first run, then all their second, and so on. So the runs of one benchmark lie minutes apart.
If a quick run fails or takes longer than its limit, the script ends.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from split_infer_ros.telemetry.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "results" / "repeatability.json"
LIMIT_S = 120.0


def quick_run(name: str) -> tuple[dict[str, str], float]:
    """Returns the verdict of each claim, by the claim's name, and the seconds that the whole process took.

    Raises:
        subprocess.SubprocessError: the run failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        begin = time.monotonic()
        command = [sys.executable, str(ROOT / "benchmarks"), name, "--quick", "--json", str(path)]
        subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - begin
        return {claim["name"]: claim["verdict"] for claim in json.loads(path.read_text())["claims"]}, seconds


def main() -> int:
    """Runs all benchmarks, and writes the file after each round."""
    there = sorted({path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")} - {"compare"})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--only", nargs="+", choices=there, default=there, metavar="NAME")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    chosen = parser.parse_args()
    claims: dict[str, dict[str, list[str]]] = {name: {} for name in chosen.only}
    seconds: dict[str, list[float]] = {name: [] for name in chosen.only}
    for run in range(chosen.runs):
        for name in chosen.only:
            verdicts, took = quick_run(name)
            print(f"{run + 1}, {name}: {len(verdicts)} claims in {took:.1f} s", flush=True)
            seconds[name].append(round(took, 1))
            for claim, verdict in verdicts.items():
                claims[name].setdefault(claim, []).append(verdict)
        found: dict[str, Any] = {"machine": describe_machine(), "runs": run + 1, "claims": claims, "seconds": seconds}
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
