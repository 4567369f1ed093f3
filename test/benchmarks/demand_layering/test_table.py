from __future__ import annotations

from benchmarks.demand_layering.table import MIB, PAPER, paper_table


def row(way: str, delay_ms: float, memory_mib: float, model: str = "yolov4") -> dict[str, object]:
    return {
        "model": model,
        "way": way,
        "delay_ms": delay_ms,
        "weights_mb": 245.8 * MIB / 1e6,
        "memory_mb": memory_mib * MIB / 1e6,
    }


def test_the_papers_own_measurements_give_the_papers_table() -> None:
    """Paper 002, section I: memory, its reduction, delay and its increase."""
    rows = [
        row("resident", 160.8, 245.8),
        row("mmap", 900.0, 0.0),
        row("two_stage", 195.3, 18.0),
        row("synchronous", 198.9, 72.0),
        row("asynchronous", 181.2, 36.0),
    ]
    title, _, *lines = paper_table(rows).splitlines()
    assert title == "yolov4: 245.8 MiB of weights, 160.8 ms when they are resident"
    found = {line.split()[0]: line.split()[1:] for line in lines}
    assert {way: numbers[:6] for way, numbers in found.items()} == {
        "synchronous": ["72.0", "-85.4", "%", "198.9", "+23.7", "%"],
        "asynchronous": ["36.0", "-92.7", "%", "181.2", "+12.7", "%"],
        "two_stage": ["18.0", "-96.3", "%", "195.3", "+21.5", "%"],
    }
    for way, numbers in found.items():
        assert numbers[6:] == f"{PAPER[way].memory_mib} MiB, {PAPER[way].delay_percent}".split()


def test_other_models_have_a_table_of_their_own() -> None:
    rows = [
        row("resident", 100.0, 10.0),
        row("resident", 50.0, 10.0, "resnet50"),
        row("auto", 55.0, 24.58, "resnet50"),
    ]
    first, second = paper_table(rows).split("\n\n")
    assert len(first.splitlines()) == 2
    assert second.splitlines()[-1].split() == ["auto", "24.6", "-95.0", "%", "55.0", "+10.0", "%"]
    assert "paper" not in second
