"""What is known of one pipeline, or of one tenant of a pipeline, report by report."""

from __future__ import annotations

import math

from diagnostic_msgs.msg import DiagnosticStatus

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.msg import PipelineReport, PipelineStats
from split_infer_ros.nodes.conversions import counts_of

UNHEARD_S = 3.0
FAILING_S = 3.0  # without a frame that goes out, while some are dropped
INTENDED = frozenset(reason.value for reason in DropReason if reason.intended)
LEFT_OUT = "Detections were left out: the model gives boxes, scores or labels that cannot be."


class Watch:
    """Hears reports; says rates, and how things are. Times are seconds of the steady clock.

    Attributes:
        newest: the last report.
    """

    def __init__(self, report: PipelineReport, now: float) -> None:
        self.newest = self._before = report
        self._flowed = report  # when a frame went out last
        self._heard = self._came = self._went = now
        self._leaves_out = False

    def hear(self, report: PipelineReport, now: float) -> None:
        """A report came in."""
        if report.received != self.newest.received:
            self._came = now
        if report.published != self.newest.published:
            self._flowed, self._went = report, now
        self.newest, self._heard = report, now

    def rates(self) -> PipelineStats:
        """Since they were asked for last. Energy is not among them: it is the machine's, not one pipeline's."""
        before, newest = self._before, self.newest
        self._before = newest
        self._leaves_out = _left_out(newest) > _left_out(before)
        stats = PipelineStats(report=newest, tenant=newest.tenant, joules_per_image=math.nan)
        stats.header.stamp = newest.stamp
        passed = newest.time - before.time
        # a backbone that was configured anew counts from zero again
        if passed > 0 and _goes_on(before, newest):
            stats.period_s = passed
            stats.received_hz = (newest.received - before.received) / passed
            stats.published_hz = (newest.published - before.published) / passed
            dropped = sum(counts_of(newest).dropped.values()) - sum(counts_of(before).dropped.values())
            stats.dropped_hz = dropped / passed
            stats.backbone_busy = min(1.0, (newest.backbone_busy_s - before.backbone_busy_s) / passed)
            stats.head_busy = min(1.0, (newest.head_busy_s - before.head_busy_s) / passed)
        return stats

    def verdict(self, now: float, camera_timeout_s: float) -> tuple[bytes, str]:
        """The level of a diagnostic status, and why."""
        report, counts = self.newest, counts_of(self.newest)
        silent_s = now - self._came
        if now - self._heard > UNHEARD_S:
            return DiagnosticStatus.STALE, "No backbone reports: is one running and active?"
        if report.state == PipelineReport.LOST:
            return DiagnosticStatus.ERROR, report.fault
        if report.state == PipelineReport.FAILED:
            return DiagnosticStatus.ERROR, f"It does not run: {report.fault}"
        if not counts.balanced:
            return DiagnosticStatus.ERROR, "Frames were lost without a name."
        if report.fault:
            return DiagnosticStatus.WARN, f"It runs as before: {report.fault}"
        if report.state == PipelineReport.LOADING:
            return DiagnosticStatus.OK, "Its model is being loaded."
        if camera_timeout_s and silent_s > camera_timeout_s:
            return DiagnosticStatus.WARN, f"No frame has come in for {silent_s:.0f} s: does the camera run?"
        lost = self._lost()
        if lost and now - self._went > FAILING_S:
            level = DiagnosticStatus.ERROR if report.failure else DiagnosticStatus.WARN
            return level, f"Frames come in and none goes out; dropped as {', '.join(lost)}. {report.failure}".rstrip()
        if self._leaves_out:
            return DiagnosticStatus.WARN, LEFT_OUT
        if counts.received and not counts.published and not counts.in_flight:
            return DiagnosticStatus.WARN, "Frames come in and none goes out."
        return DiagnosticStatus.OK, "Frames flow." if counts.received else "No frame has come in yet."

    def facts(self, rates: PipelineStats) -> dict[str, object]:
        """For people, by name.

        Args:
            rates: those of the last period.
        """
        report, counts = self.newest, counts_of(self.newest)
        return {
            "model": report.model,
            "device": report.device,
            "split_point": report.split_point,
            "received": counts.received,
            "published": counts.published,
            "in flight": counts.in_flight,
            **{f"dropped: {reason}": count for reason, count in counts.dropped.items()},
            **{f"left out: {entry.reason}": entry.count for entry in report.left_out},
            "backbone busy (%)": f"{100 * rates.backbone_busy:.0f}",
            "head busy (%)": f"{100 * rates.head_busy:.0f}",
            "energy an image (J)": f"{rates.joules_per_image:.2f}",
            "latency p50 (ms)": f"{report.latency_p50_ms:.1f}",
            "latency p99 (ms)": f"{report.latency_p99_ms:.1f}",
            "slots in use": f"{report.slots_used} of {report.pool_slots}",
            "memory": f"{report.memory}: {report.memory_reason}",
            "memory of features (bytes)": f"{report.pool_bytes:,}",
            "memory of staging (bytes)": f"{report.staging_bytes:,}",
            **weights_facts(
                *(report.weights_residency, report.weights_bytes, report.weights_read_mb_s, report.weights_stalled_s)
            ),
        }

    def _lost(self) -> list[str]:
        """Returns the unintended reasons for which frames were dropped since a result was last published."""
        before, dropped = counts_of(self._flowed).dropped, counts_of(self.newest).dropped
        return [name for name in dropped if dropped[name] > before.get(name, 0) and name not in INTENDED]


def weights_facts(residency: str, nbytes: int, read_mb_s: float, stalled_s: float) -> dict[str, str]:
    """Of a partition's weights, for people: where they are, the memory they have, reading, and waiting for it."""
    return {
        "weights": f"{residency}, {nbytes:,} bytes",
        "weights read (MB/s)": f"{read_mb_s:.0f}",
        "waited for weights (s)": f"{stalled_s:.1f}",
    }


def _goes_on(before: PipelineReport, newest: PipelineReport) -> bool:
    counters = ("received", "published", "backbone_busy_s", "head_busy_s")
    return all(getattr(newest, name) >= getattr(before, name) for name in counters)


def _left_out(report: PipelineReport) -> int:
    return sum(entry.count for entry in report.left_out)
