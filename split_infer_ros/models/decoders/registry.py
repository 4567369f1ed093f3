"""The families of models whose outputs are known, by the name that the parameter ``decoder`` takes."""

from __future__ import annotations

from split_infer_ros.models.decoders import classifier, queries, scored, selected, yolo
from split_infer_ros.models.decoders.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family for module in (yolo, queries, selected, scored, classifier) for family in module.FAMILIES
}
