"""Damage to files of any format: bytes that are cut off, flipped or moved, and odd values in JSON."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, 2**31, 2**40, 2**53 - 1, 2**62, 2**63 - 1, -(2**63), 10**400, 1.5, -0.5, 1e308, True, None, "", "é\0",
    "a" * 5000, "../../etc/passwd", "/etc/passwd", [], {}, [0], [2**40, 2**40], [[]], {"a": 0}, [1] * 2000,
)  # fmt: skip


def cut(rng: random.Random, data: bytes) -> bytes:
    """Returns the first part of the data, often nearly all of the data or nearly nothing."""
    return data[: rng.choice((rng.randrange(len(data)), rng.randrange(min(len(data), 300)), len(data) - 1))]


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Returns the data with some bits or bytes changed, often near the ends, where file formats have their tables."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 60))):
        span = rng.choice((len(found), len(found), min(len(found), 400)))
        place = rng.randrange(span) if rng.random() < 0.7 else len(found) - 1 - rng.randrange(span)
        found[place] = found[place] ^ (1 << rng.randrange(8)) if rng.random() < 0.5 else rng.randrange(256)
    return bytes(found)


def moved(rng: random.Random, data: bytes) -> bytes:
    """Returns the data with a block of bytes removed, repeated, moved or overwritten."""
    found = bytearray(data)
    place, length = rng.randrange(len(found)), rng.choice((1, 4, 8, 100, 4096))
    pick = rng.randrange(4)
    if pick == 0:
        del found[place : place + length]
    elif pick == 1:
        found[place:place] = found[rng.randrange(len(found)) :][:length] * rng.choice((1, 1, 50))
    elif pick == 2:
        found[place : place + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
    else:
        found[place : place + length] = rng.randbytes(length)
    return bytes(found)


def with_odd_value(rng: random.Random, value: Any) -> Any:
    """Changes a JSON value in place, and returns it: one to three parts are then odd, missing or doubled."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return value
        holder, key = rng.choice(places)
        pick = rng.randrange(8)
        if pick == 0:
            del holder[key]
        elif pick == 1 and isinstance(holder, list):
            holder.extend(deepcopy(holder[key]) for _ in range(rng.choice((1, 5))))
        elif pick == 2 and type(holder[key]) is int:
            holder[key] += rng.choice((-64, -8, -1, 1, 8, 64, 4096))
        else:
            holder[key] = deepcopy(rng.choice(ODD_VALUES))  # a later change must not make it contain itself
    return value


def _places(value: Any) -> Any:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
