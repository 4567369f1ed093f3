"""What is measured while frames flow (window), and how benchmarks report (machine, report)."""
