"""Computes some frames in fp32 as well after a swap to another precision, and has the swap undone if need be."""

from __future__ import annotations

from collections.abc import Callable

from split_infer_ros.errors import error_sentence
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.priority import BACKBONE, give_way
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.improving.agreement_check import AgreementCheck
from split_infer_ros.server.improving.agreement_watch import OFTEN, AgreementWatch
from split_infer_ros.server.improving.scenes import brightness
from split_infer_ros.server.improving.two_precisions import TwoPrecisions
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.split.result_agreement import is_classifier


class PrecisionWatch:
    """Watches over a served model that runs in another precision than fp32, on a thread of its own.

    Args:
        served: the model.
        check: the check after which the model was replaced by one of another precision.
        undo: called with the watch and a text that says why the swap should be undone. It returns whether the watch is
            over.

    Attributes:
        served, check: the arguments.
    """

    def __init__(
        self,
        served: ServedModel,
        check: AgreementCheck,
        undo: Callable[[PrecisionWatch, str], bool],
    ) -> None:
        self.served, self.check = served, check
        self._undo = undo
        self._policy = AgreementWatch(
            classifies=is_classifier(check.reference), min_agreement=check.min_agreement, scenes=check.scenes
        )
        self._computed: TwoPrecisions | None = None
        self._frames = 0
        self._thread: WorkerThread[tuple[int, Pixels]] = WorkerThread("agreement", self._judge, _set_up)
        self._is_over = False  # from ``stop`` on
        self._reason = ""  # why the swap should be undone, if that was not possible yet

    def start(self) -> None:
        """Begins to watch. May be called again after ``stop``."""
        self._is_over = False
        self._thread.start()
        self.served.observe(self._observe)

    def stop(self, wait_s: float | None = None) -> None:
        """Judges no further frame.

        Args:
            wait_s: how long to wait for the end of a comparison that is under way; None: until its end. Who holds the
                lock under which plans change must not wait, because the way back to fp32 needs that lock.
        """
        self._is_over = True
        self.served.ignore(self._observe)
        self._thread.stop(wait_s)

    def _observe(self, batch: Batch) -> None:
        """Offers one frame in a few to the thread, unless it is busy (lock held)."""
        before, self._frames = self._frames, self._frames + len(batch.frames)
        payload = batch.frames[0].payload
        if before // OFTEN != self._frames // OFTEN and not len(self._thread) and isinstance(payload, Pixels):
            self._thread.put((self._frames, payload))

    def _judge(self, offered: tuple[int, Pixels]) -> None:
        if not self._is_over and not self._reason:
            self._reason = self._compared(*offered)
        if not self._is_over and self._reason and self._undo(self, self._reason):
            self._reason = ""

    def _compared(self, frame: int, image: Pixels) -> str:
        """Computes a frame in both precisions if that is due. Returns why the swap should be undone, if it should."""
        light = brightness(image)
        if not self._policy.wants(frame, light):
            return ""
        try:
            split_point = self.served.plan.split_point.name
            if self._computed is None or self._computed.split_point != split_point:
                self._computed = TwoPrecisions(self.check.reference, self.check.other, split_point)
            return self._policy.note(light, self._computed.add_to(self._policy.agreement, image))
        except Exception as error:  # nobody would watch over the precision any more
            return f"it cannot be compared with fp32 any more ({error_sentence(error).rstrip('.')})"


def _set_up() -> None:
    use_one_thread()
    give_way(BACKBONE)
