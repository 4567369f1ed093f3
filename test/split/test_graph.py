from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.graph import fold_batch_norms, prepare, symbolic_trace, trace


class Tiny(nn.Module):
    """Convolutions with batch norms in every position that matters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.shared = nn.Conv2d(4, 4, 1)
        self.after_shared = nn.BatchNorm2d(4)
        self.seen_twice = nn.Conv2d(4, 4, 1)
        self.after_seen_twice = nn.BatchNorm2d(4)
        self.leading = nn.BatchNorm2d(4)
        self.unsteady = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.after_shared(self.shared(x)) + self.shared(x)
        x = self.after_shared(self.shared(x))
        y = self.seen_twice(x)
        x = self.after_seen_twice(y) * y
        return self.unsteady(self.leading(x.relu()))


def random_norms(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            if module.running_mean is not None and module.running_var is not None:
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.eval()


def kinds(graph: fx.GraphModule) -> list[type[nn.Module]]:
    return [type(graph.get_submodule(str(n.target))) for n in graph.graph.nodes if n.op == "call_module"]


def test_folding_changes_nothing_but_rounding() -> None:
    torch.manual_seed(0)
    model = random_norms(Tiny()).double()
    images = torch.randn(2, 3, 8, 8).double()
    with torch.inference_mode():
        expected = model(images)
        graph = trace(model)
        assert kinds(graph).count(nn.BatchNorm2d) == 6
        fold_batch_norms(graph)
        assert expected.std() > 0.1
        torch.testing.assert_close(graph(images), expected, rtol=1e-9, atol=1e-9)  # in float64
    # a batch norm stays if others use the convolution or if it has no statistics: all but the first
    assert kinds(graph).count(nn.BatchNorm2d) == 5


def test_a_traced_model_shares_its_parameters() -> None:
    model = Tiny()
    graph = trace(model)
    assert {id(parameter) for parameter in graph.parameters()} == {id(parameter) for parameter in model.parameters()}
    assert not model.training


def test_a_prepared_model_is_folded_and_channels_last() -> None:
    graph = prepare(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)))
    assert kinds(graph) == [nn.Conv2d, nn.ReLU, nn.Conv2d]
    assert not graph.training
    assert not any(parameter.requires_grad for parameter in graph.parameters())
    for parameter in graph.parameters():
        if parameter.dim() == 4:
            assert parameter.is_contiguous(memory_format=torch.channels_last)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * int(x.sum())


class Looping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([image for image in x])  # noqa: C416


class Picking(nn.Module):
    """Returns something else than tensors."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x}


class Asking(nn.Module):
    """Takes another argument besides images."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * scale


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Branching, "Branching cannot be traced.*must not branch on values.*torch.fx: .*; torch.export: "),
        (Counting, "Counting cannot be traced"),
        (Looping, "Looping cannot be traced"),
        (Picking, "Picking gives a dict; it must give a tensor or a tuple of tensors"),
        (Asking, "Asking takes 'scale' beside images"),
    ],
)
def test_a_model_that_cannot_be_traced_is_refused(build: type[nn.Module], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trace(build(), (3, 8, 8))


@pytest.mark.parametrize("is_model", [True, False])
def test_other_threads_run_models_during_tracing(is_model: bool) -> None:
    running = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval()
    results: list[Tensor] = []

    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            other = threading.Thread(target=lambda: results.append(running(torch.ones(1, 3, 2, 2))))
            other.start()
            other.join()
            return x.relu()

    graph = trace(Interrupted()) if is_model else symbolic_trace(lambda x: Interrupted().forward(x))
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_method", "output"]
    torch.testing.assert_close(
        results[0], running(torch.ones(1, 3, 2, 2))
    )  # a new thread has its own number of threads
