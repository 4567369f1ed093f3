"""Damaged and hostile side files (descriptions): ``FILE.yaml`` beside a good model ``FILE.onnx``.

Also the files that a side file names, and parameters of a node that are given together with it. The parameters are in
the first line of the side file, as a comment.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hostile_decoders
import numpy as np
from hostile_bytes import cut, flipped, moved

PARAMETERS = b"# parameters: "  # a comment, of which ``serve`` makes the parameters beside the file
MODELS: dict[str, Callable[[], bytes]] = {
    "raw": hostile_decoders.raw,
    "anchored": hostile_decoders.anchored,
    "distributed": hostile_decoders.distributed,
}
WHOLE = {
    "raw": {
        "boxes": "raw[0:4]", "scores": "raw[5:]", "objectness": "raw[4:5]", "encoding": "centre_size", "range": "0..1",
        "nms": "per_class", "rows": "rows", "activation": "none", "background": "none", "per_box": "best",
    },
    "anchored": {
        "boxes": "offsets", "scores": "confidences", "encoding": "anchors", "anchors": "anchors.npy", "range": "0..1",
        "variances": "0.1/0.2", "background": "first", "activation": "none", "num_classes": "3",
    },
    "distributed": {
        "boxes": "boxes_4+boxes_2+boxes_1", "scores": "scores_4+scores_2+scores_1", "rows": "maps", "bins": "8",
        "encoding": "distributions", "strides": "8/16/32", "offset": "0.5", "peaks": "false", "first_class": "0",
    },
}  # fmt: skip
REST = {"labels": "names.txt", "preprocessing": "stretch,bgr,0..255", "input_size": "32x32"}
KEYS = (
    "boxes", "scores", "classes", "objectness", "centres", "counts", "images", "rows", "encoding", "range",
    "activation", "background", "per_box", "nms", "strides", "offset", "bins", "anchors", "variances", "peaks",
    "first_class", "num_classes", "name",
)  # fmt: skip
ODD = (
    "", "0", "-1", "1", "7", "1e400", "-1e308", ".nan", "nan", ".inf", "1_000", "0x10", "9" * 5000, "2147483648", "1.5",
    "true", "~", "null", "[]", "{}", "[[]]", "[[[[1]]]]", "{a: {b: c}}", "[a, b]", "'" + "a" * 5000 + "'", "raw",
    "raw[4:2]",
    "raw[0:0]", "raw[999999:]", "raw[:]", "raw[-1:]", "raw[0:999999999]", "raw+raw+raw", "raw[0:4]+raw[1:5]", "missing",
    "missing[0:4]", "raw[5:6]", "[raw, raw]", "1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1", "1", "1024", "8/0/32", "/", "8/" * 500,
    "256", "10000000", "0.1/0.2/0.3", "0/0", "1e-6/1e6", "none", "auto", "maps", "columns", "anchors", "cells", "sizes",
    "distributions", "corners", "corners_yx", "softmax", "sigmoid", "first", "last", "all", "best", "0..1", "pixels",
    "scores_4", "boxes_4+boxes_4", "confidences", "offsets", "'\\0'", '"\\0"', '"\\ud800"', '"\\e[2J\\n\\x07"',
    '"\\UFFFFFFFF"', "١٢", "\u202eabc", "99999", "100000", "100001",
)  # fmt: skip
PLACES = (
    "pipe", "folder", "missing", "loop.npy", "link", "zero.npy", "/dev/zero", "/dev/stdin", "/dev/tty", "/proc/kmsg",
    "../w.bin", "~nobody_of_this_name/a.npy", "~", "a" * 5000, "", ".", "/", "w.bin", "huge.npy", "huge.txt",
    "huge.json", "huge.yaml", "pipe.npy", "pipe.json", "pipe.txt", "pipe.yaml", "pickled.npy", "objects.npy",
    "claims.npy",
    "deep.json", "numbers.json", "empty.npy", "none.csv", "anchors.csv", "words.csv", "zipped.npy", "few.npy",
    "nan.npy",
    "complex.npy", "text.npy", "names.txt", "deep.yaml", "names.json", '"\\0"', "latin.txt", "lines.txt", "tags.yaml",
)  # fmt: skip
RECIPES = (
    "", "auto", "stretch", "stretch,stretch", "letterbox,crop", "bgr", "stretch,mean=nan", "stretch,std=0",
    "stretch,std=1e-320", "stretch,mean=1e400", "stretch,mean=1/2", "stretch,mean=1/2/3/4", "stretch,fill=1",
    "letterbox,fill=-1", "letterbox,fill=256", "letterbox,fill=mean", "letterbox,fill=1e2", "," * 300, "stretch," * 60,
    "a" * 5000, "stretch,mean=" + "9" * 300, "STRETCH,RGB", "stretch,0..1,0..255", "stretch,imagenet,mean=0.5",
    "__import__('os').abort()", "stretch;rm -rf", "yolox", "crop_imagenet", "letterbox,std=1e-6,mean=1e6,-1..1",
    "stretch\n", "stretch\t, bgr", "\ud800",
)  # fmt: skip
SIZES = (
    "", "32x32", "0x0", "1x1", "32", "32x", "x32", "32x32x3", "-1x5", "8192x8192", "8193x1", "99999x99999", "1e3x1e3",
    "9" * 5000 + "x1", "32 x 32", "32X32", "٣٢x٣٢", "64x64", "nanxnan", "None", "[32, 32]",
)  # fmt: skip


def written(net: str, declared: Any = None, rest: dict[str, str] | None = None, **parameters: str) -> bytes:
    """Returns a side file for a model, with parameters.

    Args:
        net: the name of the model.
        declared: the declaration of the decoder; by default the right one.
        rest: the other keys of the side file; by default the right ones.
        parameters: the parameters.
    """
    lines = [f"  {key}: {value}" for key, value in (WHOLE[net] if declared is None else declared).items()]
    lines += [f"{key}: {value}" for key, value in (REST if rest is None else rest).items()]
    return with_parameters(net, "decoder:\n" + "\n".join(lines) + "\n", **parameters)


def with_parameters(net: str, text: str, **parameters: str) -> bytes:
    head = PARAMETERS + json.dumps({"net": net, **parameters}).encode() + b"\n"
    return head + text.encode("utf-8", "surrogatepass")


def whole() -> bytes:
    return written("raw")


def on_bytes(rng: random.Random, damage: Callable[[random.Random, bytes], bytes]) -> bytes:
    """Returns a side file with damaged bytes. The parameters are not damaged."""
    head, _, rest = written(rng.choice(list(WHOLE))).partition(b"\n")
    return head + b"\n" + damage(rng, rest)


def odd_values(rng: random.Random, _: bytes) -> bytes:
    """Returns a side file in which keys of the declaration are odd, missing or unknown."""
    net = rng.choice(list(WHOLE))
    declared = dict(WHOLE[net])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        key = rng.choice((*KEYS, *declared, *declared, "unknown", "<<", "[a]", "{}"))
        if rng.random() < 0.1:
            declared.pop(key, None)
        else:
            declared[key] = rng.choice(ODD)
    return written(net, declared)


def odd_files(rng: random.Random, _: bytes) -> bytes:
    """Returns a side file that names bad files of labels or anchors: not files, endless, or harmful ones."""
    net = rng.choice(("anchored", "anchored", "raw"))
    declared, rest = dict(WHOLE[net]), dict(REST)
    parameters = {}
    if net == "anchored" and rng.random() < 0.7:
        declared["anchors"] = rng.choice(PLACES)
    elif rng.random() < 0.5:
        rest["labels"] = rng.choice(PLACES)
    else:
        parameters["labels"] = rng.choice(PLACES).strip('"')
    return written(net, declared, rest, **parameters)


def odd_labels(rng: random.Random, _: bytes) -> bytes:
    """Returns a side file with a list of labels that is not a list of names."""
    names = (
        "[a, b]", "[a, b, c, d]", "[[a], {b: c}, d]", "[" + "a, " * 20000 + "]", '["\\ud800", "\\0", "\\e[2J"]',
        "{0: a}",
        "[~, '', b]", "[" * 30 + "]" * 30, "a, b, c", "[a, a, a]", "|\n  a\n  b", "[1, 2.0, true]",
        '["' + "a" * 50000 + '", b, c]',
    )  # fmt: skip
    return written("raw", rest={**REST, "labels": rng.choice(names)})


def odd_yaml(rng: random.Random, _: bytes) -> bytes:
    """Returns hostile YAML: it grows when it is read, has tags, aliases or several documents, or is nested deeply."""
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    touch = "!!python/object/apply:os.mkdir ['{ran}']"
    texts = (
        bomb + "decoder: *i", f"decoder: {touch}", "decoder: !!python/object/new:os.system ['mkdir {ran}']",
        f"{touch}: a\ndecoder: none", "decoder: !!binary Zm9v", "decoder: !!timestamp 2001-01-01",
        "decoder: !!set {a, b}",
        "decoder: !<tag:yaml.org,2002:python/name:os.abort> x", "decoder: none\n---\ndecoder: none", "---\n---\n---",
        "decoder: " + "[" * 30000, "decoder: " + "{a: " * 15000,
        "decoder:\n" + "".join(" " * n + "- \n" for n in range(300)),
        "decoder: &a [*a]", "decoder: &a\n  <<: *a", "base: &b {a: 1}\ndecoder:\n  <<: *b", "decoder:\n\tboxes: raw",
        "decoder: none\n" * 4000, "{" + "a," * 20000 + "decoder}", "? [a, b]\n: c\ndecoder: none",
        "? {a: b}\n: c\ndecoder: none",
        "decoder: ? ? ?", "%YAML 9.9\n---\ndecoder: none", "%YAML 1." + "9" * 5000 + "\n---\ndecoder: none",
        "%TAG ! tag:x:\n---\n!a b",
        "decoder: |" + "\n  a" * 15000, "decoder: >999999999\n a", 'decoder: "' + "\\n" * 30000 + '"',
        'decoder: "\\UFFFFFFFF"',
        'decoder: "\\xzz"', '"decoder": none', "decoder: \x00", "decoder: \x1b[2J", "decoder: \ufeffnone",
        "\ufeff\ufeffdecoder: none",
        "decoder: \ufffe", "decoder: ''", "decoder:", "decoder: []", "decoder: {}", "decoder: nonsense",
        "decoder: auto", "decoder: '='",
        "decoder: a=b", "decoder: scores=raw", "decoder: 'boxes=raw[0:4],scores=raw[4:]'", "decoder: {1: 2, ~: 3}",
        "[decoder]", "decoder", "",
        "#" * 60000, "a" * 70000, "decoder: none\n#" + "é" * 40000, "decoder: none\nunknown: 1",
        "decoder: none\n? \n: ",
        "decoder: " + "&x " * 20000, "decoder: " + "!x " * 20000, "decoder: {" + '"a":' * 12000,
        "decoder: yolov8\nlabels: !!python/name:os.abort",
    )  # fmt: skip
    text = rng.choice(texts)
    made = with_parameters("raw", text)
    if rng.random() < 0.1:  # no comment then, so the model is the first one
        return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-7", "utf-8-sig")), "surrogatepass")
    return made


def odd_parameters(rng: random.Random, _: bytes) -> bytes:
    """Returns a side file with odd ``decoder``, ``preprocessing`` or ``input_size``, as parameters or in the file."""
    net, rest = rng.choice(list(WHOLE)), {**REST}
    parameters = {}
    pick = rng.randrange(4)
    if pick == 0:
        declared = dict(WHOLE[net])
        for _ in range(rng.choice((1, 1, 2))):
            declared[rng.choice((*KEYS, *declared))] = rng.choice(ODD)
        text = ",".join(f"{key}={value}" for key, value in declared.items())
        odd = (text, text, text, "=" * 5000, "=", "a==b", "scores=", "scores=raw,scores=raw", "," * 4000, "a=b" * 3000)
        parameters["decoder"] = rng.choice(
            (*odd, "yolov8", "nonsense", "\0", "__import__('os').abort()", "scores=raw[0:1]")
        )
    elif pick == 1:
        parameters["preprocessing"] = rng.choice(RECIPES)
    elif pick == 2:
        parameters["input_size"] = rng.choice(SIZES)
    else:
        key = rng.choice(("preprocessing", "input_size"))
        rest[key] = json.dumps(rng.choice(RECIPES if key == "preprocessing" else SIZES))
    return written(net, rest=rest, **parameters)


DAMAGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "cut": lambda rng, _: on_bytes(rng, cut),
    "flipped bytes": lambda rng, _: on_bytes(rng, flipped),
    "moved blocks": lambda rng, _: on_bytes(rng, moved),
    "odd values": odd_values,
    "odd files": odd_files,
    "odd names": odd_labels,
    "odd YAML": odd_yaml,
    "odd parameters": odd_parameters,
}


def damaged(rng: random.Random, data: bytes, *, kind: str, ran: Path) -> bytes:
    """Returns the bytes of a side file with one kind of damage. Code in it creates the folder ``ran`` if it is run."""
    return DAMAGES[kind](rng, data).replace(b"{ran}", str(ran).encode())


def parameters_of(data: bytes) -> dict[str, str]:
    """Returns the parameters in the first line of a side file; those of an undamaged one if there are none."""
    line = data.partition(b"\n")[0]
    return dict(json.loads(line[len(PARAMETERS) :])) if line.startswith(PARAMETERS) else {"net": "raw"}


def make_surroundings(folder: Path, ran: Path) -> None:
    """Makes the files that ``PLACES`` names in ``folder``: anchors and labels, good and harmful ones.

    ``hostile_onnx.make_surroundings`` has made some of them before. If code in a file is run, that creates the folder
    ``ran``.
    """

    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(ran),)

    anchors = np.full((hostile_decoders.BOXES, 4), 0.5, np.float32)
    for name, array in {"anchors": anchors, "few": anchors[:5], "nan": anchors * np.nan}.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "complex.npy", anchors.astype(np.complex64))
    np.save(folder / "text.npy", np.array([["a"] * 4]))
    np.savetxt(folder / "anchors.csv", anchors, delimiter=",")
    np.savez(folder / "zipped", anchors)
    (folder / "zipped.npz").rename(folder / "zipped.npy")
    (folder / "pickled.npy").write_bytes(pickle.dumps(Harm()))
    objects = io.BytesIO()
    np.save(objects, np.array([Harm()], dtype=object), allow_pickle=True)
    (folder / "objects.npy").write_bytes(objects.getvalue())
    claims = io.BytesIO()
    np.lib.format.write_array_header_1_0(claims, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 4)})
    (folder / "claims.npy").write_bytes(claims.getvalue())
    texts = {
        "deep.json": "[" * 100_000, "numbers.json": "[[1e999, 1, 1, " + "9" * 400 + "]]", "empty.npy": "",
        "none.csv": "\n\n",
        "words.csv": "a,b,c,d\n", "names.txt": "a\nb\nc\n", "names.json": '["a", "b", "\\ud800"]',
        "deep.yaml": "[" * 60_000,
        "lines.txt": "\n" * 200_000 + "a", "tags.yaml": f"names: !!python/object/apply:os.mkdir ['{ran}']",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "latin.txt").write_bytes(b"a\nb\n\xff\n")
    for suffix in ("npy", "txt", "json", "yaml"):
        with (folder / f"huge.{suffix}").open("wb") as file:
            file.truncate(2**40)  # takes no space
        os.mkfifo(folder / f"pipe.{suffix}")
    (folder / "loop.npy").symlink_to("loop.npy")
    (folder / "zero.npy").symlink_to("/dev/zero")


@cache
def model_of(net: str) -> bytes:
    """Returns the bytes of the good model beside which a side file lies."""
    return MODELS[net]()
