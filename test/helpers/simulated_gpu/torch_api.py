"""Simulates the part of ``torch.cuda`` that the package uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from simulated_gpu.captures import PoolId
from simulated_gpu.gpu import Gpu
from simulated_gpu.memory_pools import MemPool, PoolAllocator, use_mem_pool
from simulated_gpu.torch_graphs import CudaGraph, Generator
from simulated_gpu.torch_streams import Event, Stream


def torch_api(gpu: Gpu) -> SimpleNamespace:
    """Returns substitutes for attributes of ``torch.cuda``, under the same names."""

    def bound(cls: type) -> type:
        return type(cls.__name__.strip("_"), (cls,), {"gpu": gpu})

    stream_class = bound(Stream)

    def external(pointer: int, device: object = None) -> object:
        return stream_class(queue=gpu.queue_of(int(pointer)))

    def current_stream(device: object = None) -> object:
        return stream_class(queue=gpu.current)

    def set_stream(stream: Stream) -> None:
        gpu.current = stream.queue

    @contextmanager
    def stream(entered: Stream | None) -> Iterator[None]:
        before = gpu.current
        if entered is not None:
            gpu.current = entered.queue
        try:
            yield
        finally:
            gpu.current = before

    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    def empty_cache() -> None:
        with gpu.lock:
            gpu.check()
            gpu.allocator.release()

    def end_allocate(device: object, pool: PoolId) -> None:
        if pool not in gpu.allocator.left_open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        gpu.allocator.left_open.remove(pool)

    def release_pool(device: object, pool: PoolId) -> None:
        gpu.allocator.users[pool] -= 1

    properties = SimpleNamespace(
        name="Simulated GPU", total_memory=gpu.total, major=9, minor=0, multi_processor_count=132, is_integrated=0
    )
    api = SimpleNamespace(
        Stream=stream_class,
        ExternalStream=external,
        Event=bound(Event),
        CUDAGraph=bound(CudaGraph),
        MemPool=bound(MemPool),
        use_mem_pool=lambda pool, device=None: use_mem_pool(gpu, pool),
        custom_allocator=PoolAllocator,
        stream=stream,
        set_stream=set_stream,
        current_stream=current_stream,
        default_stream=lambda device=None: stream_class(queue=gpu.default),
        synchronize=lambda device=None: gpu.wait_for_all(),
        device=nothing,
        set_device=lambda device: None,
        current_device=lambda: 0,
        device_count=lambda: 1,
        is_available=lambda: True,
        is_initialized=lambda: True,
        init=lambda: None,
        _lazy_init=lambda: None,
        _sleep=lambda cycles: gpu.launch(gpu.current, lambda: None, []),
        get_device_properties=lambda device=None: properties,
        get_device_name=lambda device=None: properties.name,
        get_device_capability=lambda device=None: (9, 0),
        is_bf16_supported=lambda including_emulation=True: True,
        graph_pool_handle=gpu.new_pool,
        default_generators=(bound(Generator)(),),
        is_current_stream_capturing=lambda: gpu.current.capture is not None,
        empty_cache=empty_cache,
        mem_get_info=lambda device=None: (gpu.free_bytes, gpu.total),
        memory_reserved=lambda device=None: gpu.allocator.reserved,
        memory_allocated=lambda device=None: gpu.allocator.allocated,
        memory_snapshot=lambda *_: gpu.allocator.segments(),
        end_allocate=end_allocate,
        release_pool=release_pool,
    )
    gpu.api = api  # type: ignore[attr-defined]
    return api
