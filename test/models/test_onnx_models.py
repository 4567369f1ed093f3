"""Entries of ONNX files: size, labels, pre-processing and decoding follow from the file, and options override."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")

from onnx import TensorProto
from onnx_files import COCO_SIZED, Shape, hollow, network, ultralytics
from photographs import photographs
from plain_boxes import Found, best_first, check_equal, corners_of, suppressed

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.decoders.decode import MAX_ROUNDING, NO_CLASS
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.onnx_json import parse_reading, write_reading
from split_infer_ros.models.onnx_models import OnnxFile
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.models.side_file import SideFile
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model_spec import ModelSpec

YOLOV8: dict[str, Shape] = {"output0": (1, 84, 8400)}
OPEN = {"images": ("batch", 3, "height", "width")}


def entry_of(graph: OnnxGraph, **options: str) -> ModelEntry:
    file = OnnxFile("dir/model.onnx", graph, OnnxOptions(**options))
    return file.entry(file.recognise())


def is_made_by(entry: ModelEntry, recipe: str) -> bool:
    """Whether an entry's images are pre-processed by a recipe."""
    return entry.preprocess == Recipe.parse(recipe).preprocess(*entry.image_shape[1:])


def test_an_exporters_file_needs_nothing_else() -> None:
    graph = hollow(YOLOV8, metadata=ultralytics())
    entry = entry_of(graph)
    assert entry.name == "dir/model.onnx"
    assert entry.summary == "model.onnx, 80 classes, decoded as yolov8"
    assert entry.image_shape == (3, 640, 640)
    assert entry.labels == tuple(f"class {number}" for number in range(80))
    assert entry.build() is graph
    assert entry.weights is None
    assert is_made_by(entry, "letterbox")


@pytest.mark.parametrize(
    ("outputs", "metadata", "recipe"),
    [
        ({"output": (1, 25200, 85)}, {"stride": "32", "names": COCO_SIZED}, "letterbox"),
        ({"output": (1, 8400, 85)}, {}, "yolox"),
        ({"output0": (1, 300, 6)}, ultralytics(end2end="True"), "letterbox"),
        ({"output0": (1, 300, 6)}, ultralytics(head="RTDETRDecoder"), "stretch"),
        ({"output0": (1, 80)}, ultralytics(task="classify"), "crop"),
        ({"x": (1, 1000)}, {}, "crop_imagenet"),
        ({"logits": (1, 300, 80), "pred_boxes": (1, 300, 4)}, {}, "stretch_smooth"),
        ({"logits": (1, 100, 92), "pred_boxes": (1, 100, 4)}, {}, "stretch_imagenet"),
        ({"dets": (1, 300, 4), "labels": (1, 300, 91)}, {}, "stretch_imagenet"),
        ({"boxes": ("n", 4), "labels": ("n",), "scores": ("n",)}, {}, "letterbox_corner"),
    ],
)
def test_preprocessing_follows_the_exporter(outputs: dict[str, Shape], metadata: dict[str, str], recipe: str) -> None:
    graph = hollow(outputs, metadata=metadata)
    assert is_made_by(entry_of(graph), recipe)
    assert is_made_by(entry_of(graph, preprocessing="stretch,bgr"), "bgr,stretch")


@pytest.mark.parametrize(
    ("shape", "imgsz", "wanted", "size"),
    [
        (("batch", 3, "height", "width"), "[480, 640]", "", (480, 640)),
        (("batch", 3, "height", "width"), "320", "", (320, 320)),
        (("batch", 3, "height", "width"), "[480, 640]", "64x96", (64, 96)),
        (("batch", 3, "height", "width"), "", "64x96", (64, 96)),
        ((1, 3, 480, 640), "[640, 640]", "", (480, 640)),  # the graph is right
        ((1, 3, 480, 640), "", "480x640", (480, 640)),
        ((1, 3, "height", 640), "[480, 640]", "", (480, 640)),
    ],
)
def test_input_size_is_the_files_or_the_users(shape: Shape, imgsz: str, wanted: str, size: tuple[int, int]) -> None:
    outputs: dict[str, Shape] = {"output0": ("batch", 84, "boxes")}
    graph = hollow(outputs, inputs={"images": shape}, metadata=ultralytics(imgsz=imgsz))
    assert entry_of(graph, input_size=wanted).image_shape == (3, *size)


def test_an_open_size_that_nobody_names_is_on_the_log() -> None:
    graph = hollow({"output0": (1, 84, "n")}, inputs=OPEN, metadata=ultralytics(imgsz=""))
    (note,) = entry_of(graph).notes
    assert "it runs at 640x640; input_size sets another size" in note


def test_a_size_that_the_file_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"input_size is 320x640, but model.onnx takes only 640x640"):
        entry_of(hollow(YOLOV8, metadata=ultralytics()), input_size="320x640")


@pytest.mark.parametrize("text", ["640", "640x", "0x640", "640x99999", "-1x4", "640 x 640", "axb", "9" * 99])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"input_size '{text}' is no size; it takes HEIGHTxWIDTH"):
        OnnxOptions(input_size=text)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("decoder", "decoder 'yolo' is unknown; it takes one of: auto, .*yolo"),
        ("preprocessing", "preprocessing 'yolo' has the unknown word 'yolo'; it takes auto, or words .*yolo"),
    ],
)
def test_an_unknown_option_is_refused_with_the_list(option: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        ModelSpec("model.onnx", **{option: "yolo"}).onnx_options  # type: ignore[arg-type]  # noqa: B018


def test_an_input_of_another_kind_is_the_same_model() -> None:
    """A file in uint8 with the channels last gets grey values, and its graph takes float32 images as others do."""
    graph = hollow(YOLOV8, inputs={"images": (1, 48, 64, 3)}, dtypes={"images": TensorProto.UINT8})
    entry = entry_of(graph, decoder="yolov8")
    assert is_made_by(entry, "letterbox,0..255")
    built = entry.build()
    assert isinstance(built, OnnxGraph)
    assert str(built.inputs[0]).endswith("images float32 (1, 3, 48, 64)")


def test_labels_of_a_file_replace_the_metadatas(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("\n".join(f"thing {number}" for number in range(80)))
    broken = hollow(YOLOV8, metadata=ultralytics(names="rubbish("))
    assert entry_of(broken, labels=str(path)).labels[79] == "thing 79"
    assert entry_of(broken).labels[79] == "79", "names that cannot be read do not stop the model"


def test_classes_without_names_are_numbers() -> None:
    assert entry_of(hollow(YOLOV8)).labels == tuple(str(number) for number in range(80))
    assert len(entry_of(hollow({"output0": (1, 300, 6)})).labels) == 1000  # nothing says how many there are


def test_labels_of_another_number_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("one\ntwo")
    with pytest.raises(
        ConfigurationError, match=r"There are 2 labels for model.onnx .*, whose outputs have 1000 classes"
    ):
        entry_of(hollow({"x": (1, 1000)}), labels=str(path))


def test_a_detr_may_have_more_logits_than_names(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("one\ntwo")
    graph = hollow({"dets": (1, 300, 4), "labels": (1, 300, 3)})
    assert entry_of(graph, labels=str(path)).labels == ("one", "two", "2")


def test_options_are_refused_for_other_models() -> None:
    with pytest.raises(ConfigurationError, match=r"decoder is 'yolov8', but model 'shapes' knows that itself"):
        find_model("shapes", onnx_options=OnnxOptions(decoder="yolov8"))


def run(model: object, entry: ModelEntry, images: Sequence[np.ndarray]) -> torch.Tensor:
    """Computes the network's output for images as the entry pre-processes them."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])  # type: ignore
    pixels = [Pixels(image, (0, 1, 2)) for image in images]
    gathered = entry.preprocess.gather(pixels, entry.preprocess.staging(len(pixels)))
    (output,) = session.run(None, {"images": entry.preprocess.normalise(gathered, channels_last=False)})
    return torch.from_numpy(output)


@pytest.mark.parametrize("layout", ["yolov8", "yolov5", "end_to_end", "rtdetr"])
def test_a_networks_outputs_are_decoded_for_each_image(layout: str) -> None:
    """The loops read the very outputs that the decoder reads, so only the decoder's arithmetic differs."""
    metadata = ultralytics(imgsz="[32, 32]", names="{0: 'a', 1: 'b', 2: 'c'}")
    limits = Limits(0.3, 0.5, 300)
    if layout == "yolov8":
        model = network(21, 7, scale=[32, 32, 16, 16, 1, 1, 1], metadata=metadata, transposed=True)
    elif layout == "yolov5":
        del metadata["author"], metadata["task"]
        model = network(63, 8, scale=[32, 32, 16, 16, 1, 1, 1, 1], metadata=metadata)
    elif layout == "end_to_end":
        model = network(30, 6, scale=[16, 16, 32, 32, 1, 2], metadata=metadata | {"end2end": "True"})
    else:
        model = network(30, 7, metadata=metadata | {"head": "RTDETRDecoder"})
    entry = entry_of(OnnxGraph("model.onnx", model))
    assert layout in entry.summary
    output = run(model, entry, photographs()[:4])
    found = entry.decode((output,), limits)
    assert len(found) == 4
    assert len({tuple(each.scores.tolist()) for each in found}) == 4  # images differ
    for detections, image in zip(found, output, strict=True):
        rows = (image.T if layout == "yolov8" else image).tolist()
        expected: list[Found] = []
        for row in rows:
            if layout == "end_to_end":
                label = round(row[5]) if abs(row[5] - round(row[5])) <= MAX_ROUNDING else NO_CLASS
                expected.append(((row[0], row[1], row[2], row[3]), row[4], label))
                continue
            places = [32 * side for side in row[:4]] if layout == "rtdetr" else row[:4]
            scores = [row[4] * score for score in row[5:]] if layout == "yolov5" else row[4:]
            expected.append((corners_of(*places), max(scores), scores.index(max(scores))))
        select = suppressed if layout.startswith("yolo") else best_first
        assert len(expected) > len(select(expected, limits)) > 5
        check_equal(detections, select(expected, limits))


@pytest.mark.parametrize(("operators", "is_probability"), [(["Conv"], False), (["Softmax"], True), (["Sigmoid"], True)])
def test_a_classifiers_softmax_is_not_computed_twice(operators: list[str], is_probability: bool) -> None:
    graph = hollow({"y0": (1, 3)}, operators=operators)  # "y0" is what the node gives
    values = torch.tensor([[0.2, 0.7, 0.1]])
    (found,) = entry_of(graph, decoder="classifier").decode((values,), Limits(0.0))
    assert found.labels.tolist() == [1, 0, 2]
    expected = torch.tensor([0.7, 0.2, 0.1]) if is_probability else values[0].softmax(0)[[1, 0, 2]]
    torch.testing.assert_close(torch.from_numpy(found.scores), expected)
    assert found.boxes[0].tolist() == [0, 0, 640, 640]


def test_yolox_is_decoded_by_its_graph() -> None:
    """Without an exponential in the graph, boxes are in cells. With one, they are in pixels already."""
    raw = torch.zeros((1, 8400, 85))
    raw[0, 8399, :6] = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.9, 0.9])  # the last cell, of 32 pixels, at (19, 19)
    (in_cells,) = entry_of(hollow({"output": (1, 8400, 85)})).decode((raw,), Limits(0.5))
    assert in_cells.boxes.tolist() == [[608, 608, 640, 640]]
    raw[0, 8399, :4] = torch.tensor([100.0, 200.0, 20.0, 40.0])
    graph = hollow({"output": (1, 8400, 85)}, operators=["Conv", "Exp"])
    (in_pixels,) = entry_of(graph).decode((raw,), Limits(0.5))
    assert in_pixels.boxes.tolist() == [[90, 180, 110, 220]]


def test_a_file_is_a_model_without_running_code(tmp_path: Path) -> None:
    """``find_model`` reads the file as data, so it needs no permission."""
    path = tmp_path / "mine.onnx"
    metadata = ultralytics(imgsz="[32, 32]", names="{0: 'a', 1: 'b', 2: 'c'}")
    path.write_bytes(network(21, 7, metadata=metadata, transposed=True).SerializeToString())
    entry = find_model(str(path))
    assert entry.name == str(path)
    assert entry.labels == ("a", "b", "c")
    assert entry.image_shape == (3, 32, 32)
    renamed = find_model(str(path), onnx_options=OnnxOptions(preprocessing="stretch"))
    assert is_made_by(renamed, "stretch")
    (tmp_path / "labels.json").write_text('["x", "y", "z"]')
    spec = ModelSpec(str(path), labels=str(tmp_path / "labels.json"))
    assert build_model(spec)[0].labels == ("x", "y", "z")


@pytest.mark.parametrize("weights", ["default", "none", "random"])
def test_an_onnx_file_has_its_own_weights(tmp_path: Path, weights: str) -> None:
    path = tmp_path / "mine.onnx"
    path.write_bytes(network(21, 7, metadata=ultralytics(names="['a', 'b', 'c']"), transposed=True).SerializeToString())
    build_model(ModelSpec(str(path), weights=weights))
    with pytest.raises(ConfigurationError, match=r"weights 'w.pt' cannot go into .*mine.onnx"):
        build_model(ModelSpec(str(path), weights="w.pt"))


TRIPLE: dict[str, Shape] = {"boxes": (1, 9, 4), "scores": (1, 9, 3), "extra": (1, 2)}


def test_a_file_beside_the_model_declares_its_outputs(tmp_path: Path) -> None:
    """What the user says in options comes before what the file says."""
    (tmp_path / "names.txt").write_text("cat\ndog\ncup")
    side = SideFile(
        tmp_path / "net.yaml",
        {"boxes": "boxes", "scores": "scores", "encoding": "centre_size", "range": "0..1"},
        "names.txt",
        "stretch,bgr",
    )

    def file(**options: str) -> OnnxFile:
        return OnnxFile("net.onnx", hollow(TRIPLE), OnnxOptions(**options), side, tmp_path)

    entry = file().entry(file().recognise())
    assert entry.labels == ("cat", "dog", "cup")
    assert entry.notes == ("The outputs extra of model.onnx are ignored.",)
    assert entry.preprocess.bgr
    raw = torch.zeros((1, 9, 3)), torch.tensor([[0.5, 0.25, 0.1, 0.5]]).expand(1, 9, 4)
    raw[0][0, 4, 1] = 0.9
    (found,) = entry.decode((raw[1], raw[0], torch.zeros(1, 2)), Limits())
    assert found.labels.tolist() == [1]
    assert found.boxes[0].tolist() == pytest.approx([288, 0, 352, 320], abs=1e-3)
    (tmp_path / "mine.txt").write_text("x\ny\nz")
    mine = file(labels=str(tmp_path / "mine.txt"), preprocessing="letterbox")
    assert mine.entry(mine.recognise()).labels == ("x", "y", "z")
    assert not mine.entry(mine.recognise()).preprocess.bgr
    with pytest.raises(ConfigurationError, match="decoder paddle cannot read"):
        file(decoder="paddle", labels=str(tmp_path / "mine.txt")).recognise()


def test_anchors_lie_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "anchors.json").write_text(str([[0.5, 0.5, 0.2, 0.2]] * 9))
    declared = {"boxes": "boxes", "scores": "scores", "encoding": "anchors", "range": "0..1", "anchors": "anchors.json"}
    file = OnnxFile("net.onnx", hollow(TRIPLE), OnnxOptions(), SideFile(tmp_path / "net.yaml", declared), tmp_path)
    scores = torch.full((1, 9, 3), 0.9)
    (found,) = file.entry(file.recognise()).decode((torch.zeros(1, 9, 4), scores, torch.zeros(1, 2)), Limits())
    assert found.boxes[0].tolist() == pytest.approx([256, 256, 384, 384], abs=1e-3)
    (tmp_path / "anchors.json").unlink()
    with pytest.raises(ConfigurationError, match=r"anchors\.json cannot be read"):
        file.entry(file.recognise())


def test_a_name_in_the_file_beside_the_model_is_checked(tmp_path: Path) -> None:
    side = SideFile(tmp_path / "net.yaml", "yolo")
    with pytest.raises(ConfigurationError, match=r"net\.yaml.*'yolo'"):
        OnnxFile("net.onnx", hollow(TRIPLE), OnnxOptions(), side, tmp_path).recognise()


@pytest.mark.parametrize("decoder", ["auto", "boxes=boxes,scores=scores,nms=all", "none"])
def test_a_written_reading_is_read_as_it_was(decoder: str) -> None:
    outputs: dict[str, Shape] = TRIPLE if decoder != "auto" else YOLOV8
    file = OnnxFile("net.onnx", hollow(outputs), OnnxOptions(decoder=decoder))
    reading = file.recognise()
    assert parse_reading(file.graph, json.loads(json.dumps(write_reading(reading)))) == reading
