from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from all_layers_model import ENTRY, SIDE, TILE_MB, Odd, PackedModel  # noqa: E402
from networks import network_of  # noqa: E402

from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.torch_network import TorchNetwork  # noqa: E402
from split_infer_ros.weight_streaming.pack import pack_model  # noqa: E402


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Layouts and sums are equal only with equal threads. One thread is not delayed by busy neighbours."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="package")
def packed_model(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Odd().eval()
        images = torch.rand(8, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    model = SplitModel(TorchNetwork(ENTRY, module))
    path = tmp_path_factory.mktemp("packed") / "odd.weights"
    pack_model(network_of(model), path, num_threads=1, tile_mb=TILE_MB)
    found = PackedModel(model, path, images)
    with torch.inference_mode():
        logits = torch.cat([found.resident(image[None]) for image in images])
    assert logits.std(0).mean() > 1e-3 * logits.abs().mean(), "equal because nothing is there"
    return found


@pytest.fixture
def copied_model(packed_model: PackedModel, tmp_path: Path) -> PackedModel:
    """The packed model with a file of its own, which a test may damage."""
    path = tmp_path / "odd.weights"
    path.write_bytes(packed_model.path.read_bytes())
    return PackedModel(packed_model.model, path, packed_model.images)
