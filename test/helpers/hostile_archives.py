"""Damaged and hostile exported programs (``.pt2``) and state dicts (``.pth``): zip archives with JSON and pickles."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hostile_bytes import flipped, moved, with_odd_value
from torch import nn

from split_infer_ros.models.catalogue import find_model

BOMB_BYTES = 3 << 30  # more than an inspection may take
EVIL_NAMES = ("../../ran", "/etc/passwd", "data/" + "a" * 60_000, "\\..\\ran", "/")


@cache
def whole_program() -> bytes:
    """Returns the bytes of an exported program that loads: a small classifier for any batch size."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    batch = {0: torch.export.Dim("batch", min=1)}
    file = io.BytesIO()
    torch.export.save(torch.export.export(net, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=(batch,)), file)
    return file.getvalue()


@cache
def whole_state() -> bytes:
    """Returns the bytes of a state dict that loads: the weights of the shapes detector."""
    file = io.BytesIO()
    torch.save(find_model("shapes").build().state_dict(), file)  # type: ignore[union-attr]
    return file.getvalue()


@cache
def bombed(data: bytes) -> bytes:
    """Returns an archive with a member that is enormous when it is decompressed, in place of the largest weights."""
    members, file = members_of(data), io.BytesIO()
    name = max(members, key=lambda name: len(members[name]) if "/data/" in name else 0)
    del members[name]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, content in members.items():
            archive.writestr(other, content)
        with archive.open(name, "w", force_zip64=True) as member:
            for _ in range(BOMB_BYTES >> 24):
                member.write(bytes(1 << 24))
    return file.getvalue()


class Evil:
    """An object that creates a folder at ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def changed_members(rng: random.Random, data: bytes) -> bytes:
    """Returns an archive with members that are missing, doubled, cut, renamed, extended or compressed."""
    if rng.random() < 0.02:
        return bombed(data)
    members = members_of(data)
    for _ in range(rng.choice((1, 1, 2))):
        name, pick = rng.choice(sorted(members)), rng.randrange(6)
        if pick == 0:
            del members[name]
        elif pick == 1:
            members[name] = members[name][: rng.randrange(len(members[name]) + 1)]
        elif pick == 2:
            members[rng.choice((*EVIL_NAMES, name.upper()))] = members.pop(name)
        elif pick == 3:
            members[name] = members[rng.choice(sorted(members))]
        elif pick == 4:
            members[name] += bytes(rng.choice((1, 1000)))
        else:
            return archive_of(members, zipfile.ZIP_DEFLATED)
    return archive_of(members)


def damaged_members(rng: random.Random, data: bytes) -> bytes:
    """Returns an archive with a member whose bytes are flipped or moved. Its checksum is right."""
    members = members_of(data)
    name = rng.choice(sorted(name for name in members if members[name]))
    members[name] = rng.choice((flipped, moved))(rng, members[name])
    return archive_of(members)


def odd_json(rng: random.Random, data: bytes) -> bytes:
    """Returns an archive with a JSON member that has odd values, or is nested very deeply."""
    members = members_of(data)
    name = rng.choice(sorted(name for name in members if name.endswith(".json")))
    if rng.random() < 0.05:
        members[name] = rng.choice((b"[" * 10**6, b'{"a":' * 10**5, b"9" * 10**6))
    else:
        members[name] = json.dumps(with_odd_value(rng, json.loads(members[name]))).encode()
    return archive_of(members)


def odd_graph(rng: random.Random, data: bytes) -> bytes:
    """Returns an exported program with odd values in its nodes or tensors."""
    members = members_of(data)
    name = next(name for name in members if "models/" in name and name.endswith(".json"))
    program = json.loads(members[name])
    part = rng.choice(("nodes", "tensor_values", "outputs", "inputs"))
    program["graph_module"]["graph"][part] = with_odd_value(rng, program["graph_module"]["graph"][part])
    members[name] = json.dumps(program).encode()
    return archive_of(members)


def pickled_objects(rng: random.Random, data: bytes, ran: Path) -> bytes:
    """Returns an exported program with pickles that create the folder ``ran`` when they are loaded.

    They are in one of the places where a program may have pickles.
    """
    members, evil = members_of(data), pickle.dumps(Evil(ran))
    top = next(iter(members)).partition("/")[0]
    pick = rng.randrange(3)
    if pick == 0:
        member = rng.choice(("custom_obj_0", "opaque_obj_0"))
        members[f"{top}/data/constants/{member}"] = evil
        for name in [name for name in members if name.endswith("constants_config.json")]:
            members[name] = json.dumps({"config": {"x": {"path_name": member, "is_param": False, "use_pickle": True,
                                                         "tensor_meta": None}}}).encode()  # fmt: skip
        return archive_of(members)
    for name in list(members):
        if pick == 1 and name.endswith(".pt"):
            members[name] = evil
        if pick == 2 and name.endswith("weights_config.json"):
            config = json.loads(members[name])
            for payload in config["config"].values():
                payload["use_pickle"] = True
            members[name] = json.dumps(config).encode()
            for other in [each for each in members if "/data/weights/weight_" in each]:
                members[other] = evil
    return archive_of(members)


def pickled_state(rng: random.Random, data: bytes, ran: Path) -> bytes:
    """Returns a state dict with a pickle that creates the folder ``ran``, or that does not fit its tensors."""
    members = members_of(data)
    name = next(name for name in members if name.endswith("data.pkl"))
    if rng.random() < 0.2:
        members[name] = pickle.dumps({"w": Evil(ran)}, protocol=2)
        return rng.choice((archive_of(members), pickle.dumps(Evil(ran), protocol=2)))
    found = bytearray(members[name])
    for _ in range(rng.choice((1, 1, 3))):
        found[rng.randrange(len(found))] = rng.choice((*b"KMJIQRtu0b.(}]\x8a\x8b\x85\x86\x87", rng.randrange(256)))
    members[name] = bytes(found)
    return archive_of(members)
