from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.split.export import export
from split_infer_ros.split.graph import trace
from split_infer_ros.split.traced_modules import blocks_of

UNTRACED = TypeError("not tried")
IMAGE = (3, 8, 8)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Stage(nn.Module):
    """Computes nothing outside its children."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Residual(), Residual()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class Row(nn.Module):
    """A row of layers, in which nobody would split."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.activation = nn.Conv2d(3, 3, 1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.convolution(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Most of the model; it also computes something itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Residual(), Row(), Stage()])

    def forward(self, x: Tensor) -> Tensor:
        x = functional.pad(x, (1, 1))
        for block in self.blocks:
            x = block(x)
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
        self.encoder = Encoder()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


def test_chains_stages_and_the_wrapped_whole_are_opened() -> None:
    expected = {"stem.0", "stem.1", "encoder.blocks.0", "encoder.blocks.1", "head"}
    expected |= {"encoder.blocks.2.first", "encoder.blocks.2.second"}
    assert blocks_of(trace(Model())) == expected


def test_exported_and_traced_models_have_the_same_blocks() -> None:
    model = Model().eval()
    exported = export(model, IMAGE, UNTRACED)
    assert blocks_of(exported) == blocks_of(trace(model))


def test_nested_chains_are_opened_completely() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU()), nn.Flatten(), nn.ModuleList([nn.Identity()]))
    model[2].forward = lambda x: model[2][0](x)  # type: ignore[operator]
    blocks = blocks_of(trace(model))
    assert blocks - {"2"} == {"0.0", "0.1", "1"} | (blocks & {"2.0"})
    images = torch.ones(1, 1, 2, 2)
    assert torch.equal(trace(model)(images), model(images))  # tracing keeps every operation
