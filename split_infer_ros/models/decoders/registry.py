"""The known families of models, by the name that the parameter ``decoder`` takes."""

from __future__ import annotations

from split_infer_ros.models.decoders import classifier, queries, scored, selected, yolo
from split_infer_ros.models.decoders.family import Family, always
from split_infer_ros.models.decoders.layout import UNREAD, OutputLayout, Part

# Outputs that are not read, because a user's function decodes them, or only times matter.
_UNREAD = Family(
    UNREAD,
    "nothing: no image has detections",
    lambda facts: [OutputLayout(UNREAD, None, Part(()), classes=facts.classes)],
    always("letterbox"),
    lambda layout, facts: False,
)
_MODULES = (yolo, queries, selected, scored, classifier)

FAMILIES: dict[str, Family] = {
    family.name: family for family in (*(each for module in _MODULES for each in module.FAMILIES), _UNREAD)
}
