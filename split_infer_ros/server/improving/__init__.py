"""Improves served models while frames flow: other engines take turns with the present one on live frames."""
