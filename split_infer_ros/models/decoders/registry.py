"""The known families of models, by the name that the parameter ``decoder`` takes."""

from __future__ import annotations

from split_infer_ros.models.decoders import classifier, queries, scored, selected, unread, yolo
from split_infer_ros.models.decoders.family import Family

_MODULES = (yolo, queries, selected, scored, classifier, unread)

FAMILIES: dict[str, Family] = {family.name: family for module in _MODULES for family in module.FAMILIES}
