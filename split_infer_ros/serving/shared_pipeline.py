"""Many cameras, many models, one processor: frames of named tenants in, each one's own detections out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from split_infer_ros.errors import ConfigurationError, ImageError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.models.detections import Limits
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.report import PipelineReport
from split_infer_ros.runtime.faults import DEVICE_LOST, is_sticky
from split_infer_ros.serving.cost_tables import CostTables
from split_infer_ros.serving.dispatcher import Dispatcher
from split_infer_ros.serving.model_instance import Callbacks, ModelInstance
from split_infer_ros.serving.result_router import Deliver, ResultRouter
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.shared_weights import make_ring_memory
from split_infer_ros.serving.tenant import Tenant, check_unique_names
from split_infer_ros.serving.tenant_registry import TenantRegistry
from split_infer_ros.serving.tenant_state import TenantFrame, TenantState, WaitingFrames, drop
from split_infer_ros.serving.worker_pool import WorkerPool
from split_infer_ros.split.load import choose_device
from split_infer_ros.telemetry.trace import TraceFile


class SharedPipeline:
    """Tenants that come and go, on models that they share; may be used from any thread.

    Args:
        settings: the first ones.
        limits: what post-processing keeps.
        deliver: called with the tenant's name, a frame's origin, its detections and their labels, on a thread of its
            model's; for one tenant in the order in which its frames came. For a tenant that was removed, or has another
            model now, no call begins after ``set_tenants`` has returned; one that had begun may be under way. What it
            raises costs that frame alone, as ``head_error``. It must not call what changes tenants, settings or state.
        on_error: told of every exception that cost frames, under the tenant's or the model's name. After one for which
            ``faults.is_sticky`` is true, no more frames are taken and the pipeline is only to be stopped.
        database: in which costs of executions are kept; the user's own if None.
        trace: where each batch's times are written, if anywhere.

    Attributes:
        limits: may be replaced at any time.

    Raises:
        ConfigurationError: this machine has no such device, or weights cannot be streamed to it.
    """

    def __init__(
        self,
        settings: SharedSettings,
        limits: Limits,
        deliver: Deliver,
        on_error: Callable[[str, Exception], None],
        database: Database | None = None,
        trace: TraceFile | None = None,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._on_error = on_error
        database = database or Database()
        device = choose_device(settings.device)
        ring_memory = make_ring_memory(settings, device)
        graphs = settings.cuda_graphs and device.type == "cuda"
        self._changed = threading.Condition()  # guards all that follows, for moments
        self._workers = WorkerPool(
            self._changed, device, settings.graph_bytes if graphs else None, self._failed, ring_memory is None
        )
        self._tables = CostTables(
            Key.here(str(device)),
            database,
            max_batch_size=settings.max_batch_size,
            graphs=graphs,
            num_lanes=self._workers.lanes,
        )
        self._changing = threading.RLock()  # held while models, settings or the state change; not while one is loaded
        self._members: dict[str, TenantState] = {}
        self._waiting = WaitingFrames(settings.max_waiting)
        self._dispatcher = Dispatcher(
            self._changed, self._waiting, self._workers, self._tables, settings.rules, self._failed
        )
        self._router = ResultRouter(self._changed, self._members, self._dispatcher.lines, deliver, on_error, trace)
        callbacks = Callbacks(self._router.deliver, self._router.released, self._wake, self._failed)
        self._registry = TenantRegistry(
            *(self._changed, self._changing, self._members, self._waiting, self._dispatcher, self._tables),
            *(callbacks, database, ring_memory),
        )
        self._accepting = self._running = False
        self._lost = False  # the device, and all frames with it

    @property
    def settings(self) -> SharedSettings:
        """The settings in force."""
        return self._settings

    @property
    def limits(self) -> Limits:
        """What post-processing keeps."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        with self._changed:
            self._limits = limits
            for line in self._dispatcher.all_lines:
                line.head.limits = limits

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """Those that run, by name; who could not be started is not among them."""
        with self._changed:
            return {name: member.tenant for name, member in self._members.items()}

    def labels(self, tenant: str) -> Sequence[str]:
        """The name of each label index of its model; raises ConfigurationError if there is no such tenant."""
        with self._changed:
            return self._line_of(self._find(tenant)).model.entry.labels

    def set_tenants(self, tenants: Sequence[Tenant]) -> dict[str, ConfigurationError]:
        """Exactly these from now on: who is new is added, who is not listed is removed, the others run on.

        Loads models, which takes its time, in which settings and the state may change; the call does not wait until
        they are measured. Of a tenant that is removed (or gets another model) what waits is dropped as ``removed``;
        what is under way is finished, not delivered, and dropped under the same name. The ledger of a tenant that
        stays goes on.

        Returns:
            By name, those that could not be started, and why: their model does not load, or there is no memory for
            it. A tenant that was there stays as it was then.

        Raises:
            ConfigurationError: a name is there twice; nothing was changed.
        """
        check_unique_names(tenants)
        refused = self._registry.set(tenants, lambda: (self._settings, self._limits))
        for name, error in refused.items():
            if is_sticky(error):
                self._failed(name, error)
        with self._changing:
            if not self._running:
                self._dispatcher.look_round()
        return refused

    def configure(self, settings: SharedSettings) -> None:
        """Change settings while frames flow; those in ``shared_settings.LIVE`` may change.

        Waits for no model that is being loaded; at most for one that was just loaded to get its slots and run once.

        Raises:
            ConfigurationError: another one would change, or there is no memory for it; the old ones stay in force.
        """
        with self._changing:
            self._settings.check_change(settings)
            try:
                plans = self._registry.plan_anew(settings) if settings.stage != self._settings.stage else {}
            except ConfigurationError as error:
                if is_sticky(error):
                    self._failed("settings", error)
                raise
            with self._changed:
                for line, plan in plans.items():
                    line.use(plan)
                self._settings = settings
                self._dispatcher.rules = settings.rules
                self._tables.set_max_batch_size(settings.max_batch_size)
                drop(self._waiting.limit(settings.max_waiting), "overrun")
                self._dispatcher.renew()

    def start(self) -> None:
        """Accept frames, once models are measured whose costs are not known (some seconds); may be started again."""
        with self._changing:
            if self._running:
                return
            self._dispatcher.start()
            with self._changed:
                self._changed.wait_for(lambda: self._dispatcher.settled or self._lost)
                self._accepting, self._running = not self._lost, True

    def stop(self, drain_s: float) -> None:
        """Accept no more, let what is in flight finish for up to ``drain_s`` seconds, drop the rest.

        The rest is dropped as ``shutdown``, or as ``device_lost`` where the device was lost.
        """
        reason = DEVICE_LOST if self._lost else "shutdown"
        with self._changing:
            if not self._running:
                return
            with self._changed:
                self._accepting = False
                self._changed.wait_for(self._is_idle, drain_s)
                drop(self._waiting.clear(), reason)
            self._dispatcher.stop()
            with self._changed:
                lines = self._dispatcher.all_lines
                for flight in [flight for line in lines for flight in line.out.values()]:
                    if flight.plan.pool.give_up(flight.lease):
                        self._router.give_up(flight, reason)
            for line in lines:
                line.head.stop()
            self._running = False
            self._dispatcher.look_round()

    def close(self) -> None:
        """Free models and memory, once stopped; the pipeline is of no more use."""
        self.set_tenants([])
        self._workers.close()

    def submit(self, tenant: str, pixels: Pixels, origin: Origin, now: float) -> None:
        """A frame of a tenant's came in; never waits. Of a tenant that is not there it is nobody's, and not counted."""
        with self._changed:
            member = self._members.get(tenant)
            if member is None:
                return
            ticket = member.ledger.receive(now)
            if not self._accepting:
                ticket.drop(DEVICE_LOST if self._lost else "inactive")
            elif self._line_of(member).failed:
                ticket.drop("backbone_error")
            else:
                frame = TenantFrame(pixels, origin, ticket, member)
                drop(self._waiting.add(frame, now, self._dispatcher.execution_s(member.model)), "overrun")
                self._changed.notify_all()

    def refuse(self, tenant: str, error: ImageError, now: float) -> None:
        """A frame of a tenant's came in that cannot be read."""
        with self._changed:
            if tenant in self._members:
                self._members[tenant].ledger.receive(now).drop(error.reason)

    def missed(self, tenant: str, count: int, reason: str) -> None:
        """Frames of a tenant's were sent and never reached us."""
        with self._changed:
            if tenant in self._members:
                self._members[tenant].ledger.missed(count, reason)

    def report(self, tenant: str, now: float) -> PipelineReport:
        """A tenant's counts and times at this moment, and what its model runs in.

        The counts are its own ledger's. Times of stages are those of batches in which a frame of its was.

        Raises:
            ConfigurationError: there is no such tenant.
        """
        with self._changed:
            member = self._find(tenant)
            facts = self._line_of(member).facts()
        return member.meters.report(now, counts=member.ledger.counts(), **facts)

    def _find(self, tenant: str) -> TenantState:
        if tenant not in self._members:
            raise ConfigurationError(f"There is no tenant '{tenant}'; there are: {', '.join(self._members) or 'none'}.")
        return self._members[tenant]

    def _line_of(self, member: TenantState) -> ModelInstance:
        return self._dispatcher.lines[member.model]

    def _is_idle(self) -> bool:
        return not self._waiting and not any(line.out for line in self._dispatcher.all_lines)

    def _failed(self, name: str, error: Exception) -> None:
        """Something cost frames; where that was the loss of the device, all that wait are lost with it."""
        if is_sticky(error):
            with self._changed:
                first, self._lost, self._accepting = not self._lost, True, False
                drop(self._waiting.clear(), DEVICE_LOST)
                self._changed.notify_all()
            if not first:
                return
        self._on_error(name, error)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
