"""All formats of model files: the kinds of damage to each, and a function that does with a file what a node does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import hostile_archives
import hostile_decoders
import hostile_descriptions
import hostile_onnx
import hostile_weights
import torch
from hostile_bytes import cut, flipped, moved
from networks import graph_of, network_of

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Limits
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_partition import open_packed
from split_infer_ros.weight_streaming.packed_weights import find_packed
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

Damage = Callable[[random.Random, bytes], bytes]
ON_BYTES: dict[str, Damage] = {"cut": cut, "flipped bytes": flipped, "moved blocks": moved}


@dataclass(frozen=True)
class Format:
    """A format of model files.

    Attributes:
        suffix: the suffix of the format's files.
        whole: returns the bytes of a file that loads.
        damages: the kinds of damage, by name. Each function takes a random generator and the bytes of a file that
            loads, and returns the bytes of a damaged file.
        serve: does with a file what a node does. It may raise a SplitInferError.
    """

    suffix: str
    whole: Callable[[], bytes]
    damages: Mapping[str, Damage]
    serve: Callable[[Path, random.Random], None]


def serve(spec: ModelSpec, rng: random.Random) -> None:
    """Loads a model, splits it at a random split point, and runs two images through both partitions and the decoder."""
    model = load_model(spec)
    name = rng.choice([split_point.name for split_point in model.split_points])
    images = torch.rand((2, *model.entry.image_shape), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        outputs = model.head(name)(*model.backbone(name)(images))
        model.entry.decode(outputs if isinstance(outputs, tuple) else (outputs,), Limits(0.1))


def serve_onnx(path: Path, rng: random.Random) -> None:
    serve(ModelSpec(str(path), device="cpu"), rng)


def serve_program(path: Path, rng: random.Random) -> None:
    serve(ModelSpec(str(path), device="cpu", allow_user_code=True), rng)


def serve_weights(path: Path, rng: random.Random) -> None:
    serve(ModelSpec("shapes", str(path), "cpu"), rng)


def serve_packed(path: Path, rng: random.Random) -> None:
    """Runs the shapes detector on two images, with weights streamed from a packed file."""
    model = detector()

    def run() -> None:
        find_packed(network_of(model), str(path), num_threads=1, batch_size=2)
        packed = open_packed(network_of(model), graph_of(model), path, num_threads=1)
        plan = plan_memory(Residency.ASYNCHRONOUS, packed.block_sizes, packed.step_blocks, kept_bytes=packed.kept_bytes)
        streamed = StreamedPartition.open(packed, plan, timeout_s=5)
        try:
            with torch.inference_mode():
                outputs = tuple(streamed(torch.rand((2, *model.entry.image_shape))))
                model.entry.decode(outputs, Limits(0.1))
        finally:
            streamed.close()

    run_with_threads(1, run)


def serve_description(path: Path, rng: random.Random, *, ran: Path) -> None:
    """Serves the good model beside a side file, with the parameters in the first line of the side file.

    If code in a file is run, that creates the folder ``ran``.
    """
    parameters = hostile_descriptions.parameters_of(path.read_bytes())
    hostile_descriptions.make_surroundings(path.parent, ran)
    if parameters.get("labels", "/")[:1] not in "/~":  # the name of a file beside it
        parameters["labels"] = str(path.parent / parameters["labels"])
    model = path.with_suffix(".onnx")
    model.write_bytes(hostile_descriptions.model_of(parameters.pop("net")))
    serve(ModelSpec(str(model), device="cpu", **parameters), rng)


@cache
def detector() -> SplitModel:
    entry = find_model("shapes")
    return SplitModel(TorchNetwork(entry, graph_of(load_model(ModelSpec("shapes", device="cpu")))))


def whole_packed(folder: Path) -> bytes:
    path = folder / "whole.weights"
    if not path.exists():
        pack_model(network_of(detector()), path, num_threads=1, batch_size=2)
    return path.read_bytes()


def formats(folder: Path) -> dict[str, Format]:
    """Returns every format, by name.

    Args:
        folder: a folder for files from which damaged ones are made. If a damaged file runs code, that creates the
            folder ``ran`` there.
    """
    ran = folder / "ran"
    members: dict[str, Damage] = {
        "members": hostile_archives.changed_members,
        "damaged members": hostile_archives.damaged_members,
    }
    return {
        "ONNX": onnx_format(hostile_onnx.whole_models),
        "exported program": Format(
            ".pt2",
            hostile_archives.whole_program,
            {
                **ON_BYTES,
                **members,
                "odd JSON": hostile_archives.odd_json,
                "odd graph": hostile_archives.odd_graph,
                "pickled objects": partial(hostile_archives.pickled_objects, ran=ran),
            },
            serve_program,
        ),
        "state dict": Format(
            ".pth",
            hostile_archives.whole_state,
            {**ON_BYTES, **members, "odd pickles": partial(hostile_archives.pickled_state, ran=ran)},
            serve_weights,
        ),
        "safetensors": Format(
            ".safetensors",
            hostile_weights.whole_safetensors,
            {
                **ON_BYTES,
                "odd header": hostile_weights.odd_header,
                "other shapes": hostile_weights.other_shapes,
                "odd length": hostile_weights.odd_length,
            },
            serve_weights,
        ),
        "packed weights": Format(
            ".weights",
            partial(whole_packed, folder),
            {
                **ON_BYTES,
                "odd header": hostile_weights.odd_packed_header,
                "other tensors": hostile_weights.other_tensors,
                "odd start": hostile_weights.odd_start,
                "other values": hostile_weights.other_values,
            },
            serve_packed,
        ),
        "ONNX of every decoder": onnx_format(hostile_decoders.decoder_models),
        "description": Format(
            ".yaml",
            hostile_descriptions.whole,
            {kind: partial(hostile_descriptions.damaged, kind=kind, ran=ran) for kind in hostile_descriptions.DAMAGES},
            partial(serve_description, ran=ran),
        ),
    }


def onnx_format(whole_models: Callable[[], tuple[bytes, ...]]) -> Format:
    """Returns the format of ONNX files. ``whole_models`` returns the models from which they are made."""

    def of_model(rng: random.Random, _: bytes, kind: str) -> bytes:
        return hostile_onnx.damaged_model(rng, kind, whole_models())

    def of_bytes(rng: random.Random, _: bytes, damage: Damage) -> bytes:
        return damage(rng, rng.choice(whole_models()))

    damages: dict[str, Damage] = {kind: partial(of_bytes, damage=damage) for kind, damage in ON_BYTES.items()}
    damages |= {kind: partial(of_model, kind=kind) for kind in hostile_onnx.DAMAGES}
    return Format(".onnx", lambda: whole_models()[0], damages, serve_onnx)
