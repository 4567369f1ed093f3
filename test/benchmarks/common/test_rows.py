from benchmarks.common.rows import measured


def test_row_has_the_median_and_its_interval() -> None:
    row = measured(hop_ms=[float(value) for value in range(1, 22)])
    assert (row["turns"], row["hop_ms"]) == (21, 11.0)
    assert row["hop_ms_low"] < 11.0 < row["hop_ms_high"]
