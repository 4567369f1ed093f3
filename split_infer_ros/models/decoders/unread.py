"""A family whose outputs are not read, because a user's function decodes them, or only times matter."""

from __future__ import annotations

from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.family import Family, always
from split_infer_ros.models.decoders.layout import UNREAD, OutputLayout, Part


def _find(facts: OutputFacts) -> list[OutputLayout]:
    return [OutputLayout(UNREAD, None, Part(()), classes=facts.classes)]


def _never(layout: OutputLayout, facts: OutputFacts) -> bool:
    return False


FAMILIES = (Family(UNREAD, "nothing: no image has detections", _find, always("letterbox"), _never),)
