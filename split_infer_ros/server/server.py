"""A server turns frames of one or many cameras into detections, with one or many models on one processor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.models.detections import Limits
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.admission import Admission, Intake
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.callbacks import Callbacks
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.dispatcher import Dispatcher
from split_infer_ros.server.executor import Executor
from split_infer_ros.server.model_splits import ModelSplits
from split_infer_ros.server.opened_model import OpenModel
from split_infer_ros.server.result_router import Deliver, ResultRouter
from split_infer_ros.server.served_models import ServedModels
from split_infer_ros.server.server_view import ServerView
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.shared_weights import make_ring_memory
from split_infer_ros.server.tenant import Tenant, check_unique_names
from split_infer_ros.server.tenant_registry import TenantRegistry
from split_infer_ros.server.tenant_state import TenantState, WaitingFrames, drop
from split_infer_ros.server.warm_up import NUM_LANES
from split_infer_ros.telemetry.trace import TraceFile


class Server:
    """Serves tenants, which share models. Any thread may use it.

    A single pipeline is a server with one tenant that has no name.

    Args:
        settings: the settings to begin with.
        limits: the limits of post-processing: which detections are kept.
        deliver: called with the tenant's name, a frame's origin, its detections, and the names of the model's classes.
            Calls come on a thread of the model, for each tenant in the order of its frames. After ``set_tenants`` has
            returned, no call begins for a tenant that was removed or got another model. If a call raises, only its
            frame is dropped, as ``head_error``. It must not change tenants or settings, or start or stop the server.
        on_error: called with the name of a tenant or model and an exception: an error that cost frames, or a
            ``Notice``. After one for which ``faults.is_sticky`` is true, the server accepts no more frames: stop it.
        device: the device on which backbones run.
        open_model: opens the model of a tenant.
        database: keeps costs of executions; None means the user's own database.
        trace: the file to which each batch's times are written; None: no file.
        watch: called with each batch that a head gave back, once all its times are known. It must not wait.
        say: called with a model's key and a sentence about its split point or its engine.

    Attributes:
        limits: the limits of post-processing; may be replaced at any time.
        view: shows tenants, models, counts and costs.
        executor: runs the chosen executions.

    Raises:
        ConfigurationError: weights cannot be streamed to the device, or the process may not use one of the cores.
    """

    def __init__(
        self,
        settings: SharedSettings,
        limits: Limits,
        deliver: Deliver,
        on_error: Callable[[str, Exception], None],
        *,
        device: Device,
        open_model: OpenModel,
        database: Database | None = None,
        trace: TraceFile | None = None,
        watch: Callable[[Batch], None] | None = None,
        say: Callable[[str, str], object] = lambda key, line: None,
    ) -> None:
        self._settings = settings
        self._limits = limits
        database = database or Database()
        ring_memory = make_ring_memory(settings, device)
        records = settings.cuda_graphs and device.type == "cuda" and settings.graph_bytes > 0
        lock = threading.RLock()  # guards all that follows; held briefly
        self._changed, work = threading.Condition(lock), threading.Condition(lock)
        # Threads that a bound thread starts are bound, too. So this thread is bound while it builds or starts anything.
        self._cores = StageCores.parse(settings.backbone_cores, settings.head_cores)
        with self._cores.backbone.bound():
            num_lanes = max_threads() if settings.measures else NUM_LANES
            self.executor = Executor(
                self._changed,
                device,
                graph_bytes=settings.graph_bytes if records else None,
                num_lanes=0 if ring_memory is not None else num_lanes,
            )
            key = Key.here(str(device))
        lanes = self.executor.num_lanes
        self._table = CostTable(key, database, max_batch_size=settings.largest_batch, graphs=records, num_lanes=lanes)
        self._changing = threading.RLock()  # held while models, settings or state change, not while a model is loaded
        self._tenants: dict[str, TenantState] = {}
        self._waiting = WaitingFrames(settings.max_waiting, settings.drop_policy)
        self._models = ServedModels(
            self._changed, work, self.executor, self._table, settings.rules, measures=settings.measures
        )
        self._dispatcher = Dispatcher(self._changed, work, self._waiting, self._models, self.executor, self._failed)
        self._admission = Admission(self._changed, work, self._tenants, self._waiting, self._models, on_error)
        self.view = ServerView(self._changed, self._tenants, self._waiting, self._admission, self._models)
        self._router = ResultRouter(
            changed=self._changed,
            tenants=self._tenants,
            models=self._models.by_key,
            deliver=deliver,
            on_error=self._failed,
            trace=trace,
            watch=watch,
        )
        self._splits = ModelSplits(self._changing, say)
        self._registry = TenantRegistry(
            changed=self._changed,
            changing=self._changing,
            tenants=self._tenants,
            waiting=self._waiting,
            models=self._models,
            table=self._table,
            callbacks=Callbacks(self._router.deliver, self._router.watch, self._failed, self._models.note_lanes),
            open_model=open_model,
            database=database,
            splits=self._splits,
            num_lanes=lanes,
            ring_memory=ring_memory,
            say=say,
        )
        self._running = self._was_running = False

    @property
    def settings(self) -> SharedSettings:
        """The settings in force."""
        return self._settings

    @property
    def cores_fault(self) -> str:
        """A sentence about cores that the process may not use any more; see ``StageCores.fault``."""
        return self._cores.fault

    @property
    def limits(self) -> Limits:
        """The limits of post-processing: which detections are kept."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        with self._changed:
            self._limits = limits
            for model in self._models.all:
                model.set_limits(limits)

    def set_tenants(self, tenants: Sequence[Tenant]) -> dict[str, ConfigurationError]:
        """Runs exactly these tenants: adds new ones, removes those that are not listed, and keeps the others running.

        Loading models can take seconds. The call does not wait until costs of new models are measured. If a tenant is
        removed or gets another model, its waiting frames are dropped as ``removed``. Its batches in flight are finished
        but not delivered, and their frames are dropped as ``removed``, too. A tenant that stays keeps its ledger.

        Returns:
            The tenants that could not be started, by name, and why: the model does not load, or memory is short. If
            such a tenant ran before, it goes on as it was.

        Raises:
            ConfigurationError: two tenants have the same name. Nothing was changed.
        """
        check_unique_names(tenants)
        with self._cores.backbone.bound():
            refused = self._registry.set(tenants, lambda: (self._settings, self._limits))
        self._admission.report_loss(refused)
        with self._changing:
            if not self._running:
                self._dispatcher.reconcile()
        return refused

    def configure(self, settings: SharedSettings) -> None:
        """Changes settings while frames flow. Read-only settings cannot change.

        Batches in flight keep the old settings. The call does not wait for models that are being loaded.

        Raises:
            ConfigurationError: a read-only setting would change, or a model refuses one. The old settings stay.
        """
        plan_changer = self._registry.plan_changer
        with self._changing, self._cores.backbone.bound():
            self._settings.check_change(settings)
            moved = self._models.are_moved_from(settings.stage)
            if settings == self._settings and not moved:  # a rival's plan may be in force, with rules of its own
                self._registry.finish([])
                return
            try:
                changed = moved or (settings.stage, settings.goal) != (self._settings.stage, self._settings.goal)
                changes = plan_changer.prepare(settings, self._running) if changed else []
            except Exception as error:
                self._admission.report_loss({"settings": error})
                raise
            with self._changed:
                plan_changer.adopt(changes)
                self._settings = settings
                self._models.rules = settings.rules
                self._table.max_batch_size = settings.largest_batch
                drop(self._waiting.configure(settings.max_waiting, settings.drop_policy), DropReason.OVERRUN)
                self._models.renew()
            self._registry.finish(changes)

    def start(self) -> None:
        """Accepts frames until ``stop``. A stopped server can be started again."""
        with self._changing, self._cores.backbone.bound():
            if not self._running:
                if not self._was_running:
                    trim()  # frees memory left by compiling and warming up; frames reuse what frames leave
                    self._was_running = True
                if self._settings.measures:  # otherwise the owner of the only model moves its split point
                    self._splits.start()
                self._dispatcher.start()
                self._admission.begin()
                self._registry.improver.start()
                self._running = True

    def stop(self, drain_s: float) -> None:
        """Accepts no more frames. Waits up to ``drain_s`` seconds for accepted frames, then drops those that are left.

        They are dropped as ``shutdown``, or as ``device_lost`` if the device was lost.
        """
        self._splits.stop()  # first, because a move that is under way needs the lock
        self._registry.improver.stop()
        with self._changing:
            if not self._running:
                return
            reason = self._admission.end(drain_s)
            self._dispatcher.stop()
            self._registry.stop_models(reason)
            self._running = False
            self._dispatcher.reconcile()

    def close(self) -> None:
        """Frees models and memory. Call it after ``stop``. The server cannot be used again."""
        self.set_tenants([])
        self.executor.close()

    def intake(self, tenant: str) -> Intake:
        """Returns an intake for frames of the tenant with this name. Without such a tenant, it ignores frames."""
        return self._admission.intake(tenant)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delays the scheduler's decisions during a ``with`` block. It then sees all frames of the block together."""
        with self._changed:
            yield

    def _failed(self, name: str, error: Exception) -> None:
        self._admission.fail(name, error)
