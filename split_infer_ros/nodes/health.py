"""Tells the health of a pipeline, or of one tenant, from its reports."""

from __future__ import annotations

import math

from diagnostic_msgs.msg import DiagnosticStatus

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.msg import PipelineReport, PipelineStats
from split_infer_ros.nodes.conversions import counts_of

REPORT_TIMEOUT_S = 3.0
FAILING_S = 3.0  # how long frames may be dropped without one being published
INTENDED = frozenset(reason.value for reason in DropReason if reason.intended)
UNHEARD = "Nobody subscribes to the results, so nothing is computed."
LEFT_OUT = "Detections were left out because the model gives impossible boxes, scores or labels."


class PipelineHealth:
    """Derives rates and a diagnostic status from the reports of one pipeline or tenant.

    All times are seconds of the steady clock.

    Args:
        report: the first report.
        now: when the first report came.

    Attributes:
        newest: the report that came last.
    """

    def __init__(self, report: PipelineReport, now: float) -> None:
        self.newest = report
        self._rated = report  # the newest report when rates were last taken
        self._last_flowing = report  # the first report that counted the frame published last
        self._reported_at = self._received_at = self._published_at = now
        self._leaves_out = self._is_unheard = False

    def update(self, report: PipelineReport, now: float) -> None:
        """Takes a new report, which came at the time ``now``."""
        if report.received != self.newest.received:
            self._received_at = now
        if report.published != self.newest.published:
            self._last_flowing, self._published_at = report, now
        self._is_unheard = _unheard(report) > _unheard(self.newest)
        self.newest, self._reported_at = report, now

    def take_rates(self) -> PipelineStats:
        """Returns the rates since the last call of this method.

        The energy of an image is NaN, because sensors measure the whole machine and not one pipeline.
        """
        before, newest = self._rated, self.newest
        self._rated = newest
        self._leaves_out = _left_out(newest) > _left_out(before)
        stats = PipelineStats(report=newest, tenant=newest.tenant, joules_per_image=math.nan)
        stats.header.stamp = newest.stamp
        period_s = newest.time - before.time
        # a backbone that was configured anew counts from zero again
        if period_s > 0 and _continues(before, newest):
            stats.period_s = period_s
            stats.received_hz = (newest.received - before.received) / period_s
            stats.published_hz = (newest.published - before.published) / period_s
            dropped = sum(counts_of(newest).dropped.values()) - sum(counts_of(before).dropped.values())
            stats.dropped_hz = dropped / period_s
            stats.backbone_busy = min(1.0, (newest.backbone_busy_s - before.backbone_busy_s) / period_s)
            stats.head_busy = min(1.0, (newest.head_busy_s - before.head_busy_s) / period_s)
        return stats

    def diagnose(self, now: float, camera_timeout_s: float, ended_source: str = "") -> tuple[bytes, str]:
        """Returns the level of a diagnostic status and its message.

        Args:
            now: the present time.
            camera_timeout_s: how many seconds may pass without a new frame before there is a warning. 0 means no limit.
            ended_source: the source of the node ``camera`` if the source has ended, such as a video file at its end.
                Empty while the source still sends frames. For a single pipeline, an ended source is not a warning. A
                tenant gets the warning, because it may have another camera.
        """
        report, counts = self.newest, counts_of(self.newest)
        silent_s = now - self._received_at
        if now - self._reported_at > REPORT_TIMEOUT_S:
            return DiagnosticStatus.STALE, "No backbone reports: is one running and active?"
        if report.state == PipelineReport.LOST:
            return DiagnosticStatus.ERROR, report.fault
        if report.state == PipelineReport.FAILED:
            return DiagnosticStatus.ERROR, f"It does not run: {report.fault}"
        if not counts.balanced:
            return DiagnosticStatus.ERROR, "Frames were lost for no named reason."
        if report.fault:
            return DiagnosticStatus.WARN, f"It runs as before: {report.fault}"
        if report.state == PipelineReport.LOADING:
            return DiagnosticStatus.OK, "Its model is being loaded."
        if camera_timeout_s and silent_s > camera_timeout_s:
            ended = f"{ended_source} has ended." if ended_source else ""
            if ended and not report.tenant:
                return DiagnosticStatus.OK, f"{ended} The last frame came in {silent_s:.0f} s ago."
            message = f"No frame has come in for {silent_s:.0f} s: does the camera run? {ended}"
            return DiagnosticStatus.WARN, message.rstrip()
        if self._is_unheard:
            return DiagnosticStatus.OK, UNHEARD
        reasons = self._failing_reasons()
        if reasons and now - self._published_at > FAILING_S:
            level = DiagnosticStatus.ERROR if report.failure else DiagnosticStatus.WARN
            message = f"Frames come in and none goes out; dropped as {', '.join(reasons)}. {report.failure}"
            return level, message.rstrip()
        if self._leaves_out:
            return DiagnosticStatus.WARN, LEFT_OUT
        if counts.received and not counts.published and not counts.in_flight:
            return DiagnosticStatus.WARN, "Frames come in and none goes out."
        return DiagnosticStatus.OK, "Frames flow." if counts.received else "No frame has come in yet."

    def diagnostic_values(self, rates: PipelineStats) -> dict[str, object]:
        """Returns the key-value pairs of a diagnostic status.

        Args:
            rates: the newest result of ``take_rates``.
        """
        report, counts = self.newest, counts_of(self.newest)
        return {
            "model": report.model,
            "device": report.device,
            "engine": f"{report.engine}, {report.precision}",
            "improvement": report.improvement or "none",
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
            "age p50 (ms)": f"{report.age_p50_ms:.1f}",
            "age p99 (ms)": f"{report.age_p99_ms:.1f}",
            "slots in use": f"{report.slots_used} of {report.pool_slots}",
            "memory": f"{report.memory}: {report.memory_reason}",
            "memory of features (bytes)": f"{report.pool_bytes:,}",
            "memory of staging (bytes)": f"{report.staging_bytes:,}",
            "memory of the model (bytes)": f"{report.model_bytes:,}",
            "memory of the process (bytes)": f"{report.resident_bytes:,}",
            "memory of the process in no file (bytes)": f"{report.anonymous_bytes:,}",
            **weights_values(
                residency=report.weights_residency,
                memory_bytes=report.weights_bytes,
                read_mb_s=report.weights_read_mb_s,
                stalled_s=report.weights_stalled_s,
            ),
        }

    def _failing_reasons(self) -> list[str]:
        """Returns the drop reasons whose counts grew since a frame was last published, except the intended reasons."""
        before, dropped = counts_of(self._last_flowing).dropped, counts_of(self.newest).dropped
        return [name for name in dropped if dropped[name] > before.get(name, 0) and name not in INTENDED]


def weights_values(*, residency: str, memory_bytes: int, read_mb_s: float, stalled_s: float) -> dict[str, str]:
    """Returns the key-value pairs of a diagnostic status about a partition's weights.

    Args:
        residency: how the weights are kept, as the parameter ``weights_residency`` names it.
        memory_bytes: bytes of memory for the weights.
        read_mb_s: megabytes that are read per second.
        stalled_s: seconds that layers waited for their weights.
    """
    return {
        "weights": f"{residency}, {memory_bytes:,} bytes",
        "weights read (MB/s)": f"{read_mb_s:.0f}",
        "waited for weights (s)": f"{stalled_s:.1f}",
    }


def _continues(before: PipelineReport, newest: PipelineReport) -> bool:
    """Returns whether no counter went back. Counters start at 0 again when a backbone is configured anew."""
    counters = ("received", "published", "backbone_busy_s", "head_busy_s")
    return all(getattr(newest, name) >= getattr(before, name) for name in counters)


def _left_out(report: PipelineReport) -> int:
    return sum(entry.count for entry in report.left_out)


def _unheard(report: PipelineReport) -> int:
    return counts_of(report).dropped.get(DropReason.NOBODY_LISTENS.value, 0)
