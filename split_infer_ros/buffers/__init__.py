"""Slots that both processors see: who may use one (slots), how features lie in it (layout), its memory."""
