"""Fills the blocks of figures on README and the pages of the documentation from the JSON files of results.

A block begins with the line ``<!-- figures: NAME -->`` and ends with ``<!-- end of figures -->``. What stands between
them is made by ``scripts/results.py``. Measured figures stand nowhere else but under docs/results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from result_files import FOLDER, TITLES, Results, column_of, table

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
RESULTS = "docs/results/README.md"  # from README, the one page that has blocks with links
PIPELINE, TRANSPORTS, TUNING = (
    "pipeline_avx512_2_cores",
    "transports_quick_avx512_2_cores",
    "tuning_quick_avx512_2_cores",
)
STREAMING, START, DETECTOR = "demand_layering_quick_avx512_2_cores", "start_avx2_2_cores", "detector_avx2_2_cores"
ENGINES = [f"engines_{part}_of_4_avx512_2_cores" for part in (1, 2, 3, 4)]
MERGED = "merged_kernels"
SPLITTING = "unified_splitting_resnet18_h100"
STARTS = {  # rows of a start, and the claims that they show, without the name of the node
    "start with a filled cache: seconds to the first detection": "first detection of the pipeline, times the",
    "anonymous memory, camera slow": "anonymous memory of the pipeline, times the",
    "anonymous memory, camera too fast, `objective: throughput`": (
        "anonymous memory, camera too fast of the pipeline, times the"
    ),
}
DETECTIONS = {  # rows against the better of both nodes
    "frames a second, camera too fast, against the better node": "frames/s, times those of the better",
    "the same with `objective: throughput`": "frames/s with objective throughput, times those of the better",
    "age of detections, camera too fast": "age p50, camera too fast, part of that of the better",
    "latency p50, one image at a time, against the better node": "latency p50, part of the better engine's node",
}

Blocks = Mapping[str, str]


class Figures:
    """The numbers of all results, as text.

    Args:
        results: of all files.
    """

    def __init__(self, results: Sequence[Results]) -> None:
        self._results = {str(result["stem"]): result for result in results}

    def result(self, stem: str) -> Results:
        """A file's result.

        Raises:
            SystemExit: there is no such file.
        """
        if stem not in self._results:
            raise SystemExit(
                f"{FOLDER / stem}.json is missing: a block of figures is made from it (scripts/figures.py)."
            )
        return self._results[stem]

    def claims(self, stem: str, name: str) -> list[Mapping[str, Any]]:
        """The claims whose name contains ``name``.

        Raises:
            SystemExit: there is none.
        """
        found = [claim for claim in self.result(stem)["claims"] if name in claim["name"]]
        if not found:
            raise SystemExit(f"{stem}.json has no claim {name!r}: a block of figures shows it (scripts/figures.py).")
        return found

    def claim(self, stem: str, name: str) -> Mapping[str, Any]:
        """The one claim whose name contains ``name``.

        Raises:
            SystemExit: there is none, or more than one.
        """
        found = self.claims(stem, name)
        if len(found) > 1:
            raise SystemExit(f"{stem}.json has {len(found)} claims {name!r}: a block of figures shows one.")
        return found[0]

    def ratio(self, stem: str, name: str) -> str:
        """A claim's ratio, such as ``1.10``."""
        return ratio(self.claim(stem, name)["value"])

    def interval(self, stem: str, name: str) -> str:
        """A claim's ratio and its interval, such as ``1.10 (1.08 to 1.35)``; says so where it shows no difference."""
        claim = self.claim(stem, name)
        shown = f"{ratio(claim['value'])} ({ratio(claim['low'])} to {ratio(claim['high'])})"
        return f"{shown}: no difference shown" if claim["low"] <= 1 <= claim["high"] else shown

    def row(self, stem: str, **where: Any) -> Mapping[str, Any]:
        """The one row that has these values.

        Raises:
            SystemExit: there is none, or more than one.
        """
        found = [row for row in self.result(stem)["rows"] if where.items() <= row.items()]
        if len(found) != 1:
            raise SystemExit(f"{stem}.json has {len(found)} rows with {where}: a block of figures shows one.")
        return found[0]


def ratio(value: float) -> str:
    """A ratio with two digits after the point."""
    return f"{value:.2f}"


def blocks_of(results: Sequence[Results]) -> Blocks:
    """Returns the text of each block by its name, without the lines that begin and end it."""
    figures = Figures(results)
    made = {"features": _features, "usual_nodes": _usual_nodes, "merged_loads": _merged_loads}
    return {name: "\n".join(lines(figures)) for name, lines in made.items()}


def fill(text: str, blocks: Blocks) -> str:
    """Returns a page with its blocks made anew.

    Raises:
        SystemExit: there is no block of a name on the page.
    """

    def filled(found: re.Match[str]) -> str:
        if found[2] not in blocks:
            raise SystemExit(f"There are no figures {found[2]!r}; a page may have {', '.join(blocks)}.")
        return f"{found[1]}{blocks[found[2]]}\n\n{found[4]}"

    return BLOCK.sub(filled, text)


def without_blocks(text: str) -> str:
    """Returns a page with its blocks emptied. Lines keep their numbers."""
    return BLOCK.sub(lambda found: found[1] + "\n" * found[3].count("\n") + found[4], text)


def pages_with_figures() -> list[Path]:
    """Returns README and all pages of the documentation but the results, which are figures throughout."""
    return [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if FOLDER not in path.parents)]


def _features(figures: Figures) -> Iterator[str]:
    size = max(row.get("bytes", 0) for row in figures.result(TRANSPORTS)["rows"])
    hop, dds = (
        figures.row(TRANSPORTS, what="hop", rival=rival, bytes=size)["hop_ms"]
        for rival in ("intra_process", "plain DDS")
    )
    values = [claim["value"] for stem in ENGINES for claim in figures.claims(stem, "batch 1: auto")]
    resident, streamed = (figures.row(STREAMING, way=way) for way in ("resident", "auto"))
    tuned = figures.row(TUNING, what="model")
    share = 100 * streamed["memory_mb"] / streamed["weights_mb"]
    rows = [
        (
            "Within a process, only a handle is passed on, however large the features are.",
            f"{hop:.2f} ms for {size / 1e6:.0f} MB, where a DDS message takes {dds:.0f} ms",
            TRANSPORTS,
        ),
        (
            "The GPU runs the backbone while the CPU runs the head.",
            f"on an H100, ResNet-18 serves {figures.ratio(SPLITTING, 'as built')} times the images of the model as "
            f"built, and {figures.ratio(SPLITTING, 'the optimised')} of those of an optimised loop without a split, "
            "in six turns",
            SPLITTING,
        ),
        (
            "More frames than a plain PyTorch node with the same network.",
            f"{figures.interval(DETECTOR, 'of torch')} times as many with a detector of the size of YOLOv8n and "
            "`objective: throughput`; "
            f"{figures.interval(PIPELINE, 'frames/s')} with MobileNetV2, in batches of four",
            DETECTOR,
        ),
        (
            "`engine: auto` compares torch, ONNX Runtime and OpenVINO on your machine, and picks one.",
            f"for a single image, {ratio(min(values))} to {ratio(max(values))} times the speed of the fastest engine "
            f"run by itself: medians of {len(values)} networks in few turns",
            ENGINES[0],
        ),
        (
            "The command `tune` finds a faster way to run a model in torch.",
            f"MobileNetV2 takes {tuned['as built_ms']:.1f} ms as built, {tuned['untuned_ms']:.1f} by default, and "
            f"{tuned['tuned_ms']:.1f} tuned; on ONNX Runtime {tuned['ONNX Runtime_ms']:.1f}",
            TUNING,
        ),
        (
            "A model may be larger than memory. Its weights are streamed from storage.",
            f"ResNet-50 with {share:.0f} % of its weights in memory takes {streamed['delay_ms']:.1f} ms instead of "
            f"{resident['delay_ms']:.1f} ms",
            STREAMING,
        ),
    ]
    cells = ((what, measured, _evidence(figures.result(stem))) for what, measured, stem in rows)
    yield from table(["", "measured", "evidence"], cells)


def _usual_nodes(figures: Figures) -> Iterator[str]:
    nodes = ("openvino node's", "onnxruntime node's")
    start, detector = _evidence(figures.result(START)), _evidence(figures.result(DETECTOR))
    rows = [
        *(
            [what, *(figures.interval(START, f"{claim} {node}") for node in nodes), start]
            for what, claim in STARTS.items()
        ),
        *([what, figures.interval(DETECTOR, claim), "", detector] for what, claim in DETECTIONS.items()),
    ]
    yield from table(["pipeline ÷ node", "OpenVINO, fp32", "ONNX Runtime, fp32", "evidence"], iter(rows))


def _merged_loads(figures: Figures) -> Iterator[str]:
    sums = [row for row in figures.result(MERGED)["rows"] if row["what"] == "model" and row["requests"] > 1]
    numbers = sorted({row["requests"] for row in sums})
    models = dict.fromkeys(row["model"] for row in sums)
    saved = {(row["model"], row["requests"]): f"{row['saved_percent']:.1f} %" for row in sums}
    rows = ([f"`{model}`", *(saved[model, number] for number in numbers)] for model in models)
    yield from table(["global loads saved by merging", *(f"{number} requests" for number in numbers)], rows)


def _evidence(result: Results) -> str:
    """A link to a benchmark's section, and the machine."""
    anchor = re.sub(r"[^\w -]", "", TITLES[result["bench"]].lower()).replace(" ", "-")
    return f"[{result['bench']}, {column_of(result)}]({RESULTS}#{anchor})"
