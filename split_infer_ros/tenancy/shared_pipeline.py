"""Many cameras, many models, one processor: frames of named tenants in, each one's own detections out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import ConfigurationError, ImageError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.pipeline.report import PipelineReport
from split_infer_ros.split.model import choose_device, load_model
from split_infer_ros.tenancy.cost_book import CostBook
from split_infer_ros.tenancy.dispatcher import Dispatcher, drop
from split_infer_ros.tenancy.engine import Engine
from split_infer_ros.tenancy.member import Member, TenantFrame, WaitingFrames
from split_infer_ros.tenancy.model_line import Callbacks, Flight, ModelLine
from split_infer_ros.tenancy.shared_settings import SharedSettings
from split_infer_ros.tenancy.tenant import Tenant, check_names
from split_infer_ros.tuning.database import Database
from split_infer_ros.tuning.key import Key

Deliver = Callable[[str, Origin, Detections], None]


class SharedPipeline:
    """Tenants that come and go, on models that they share; may be used from any thread.

    Args:
        settings: the first ones.
        limits: what post-processing keeps.
        deliver: called with the tenant's name, a frame's origin and its detections, on a thread of its model's; for one
            tenant in the order in which its frames came. For a tenant that was removed, or has another model now, no
            call begins after ``set_tenants`` has returned; one that had begun may still be under way. What it raises
            costs that frame alone, as ``head_error``.
        on_error: told of every exception that cost frames, under the tenant's or the model's name.
        database: in which costs of executions are kept; the user's own if None.

    Attributes:
        limits: may be replaced at any time.

    Raises:
        ConfigurationError: this machine has no such device.
    """

    def __init__(
        self,
        settings: SharedSettings,
        limits: Limits,
        deliver: Deliver,
        on_error: Callable[[str, Exception], None],
        database: Database | None = None,
    ) -> None:
        self._limits = limits
        self._settings = settings
        self._deliver_to = deliver
        self._on_error = on_error
        self._database = database or Database()
        device = choose_device(settings.device)
        graphs = settings.cuda_graphs and device.type == "cuda"
        book = CostBook(Key.here(str(device)), self._database, settings.most, graphs)
        engine = Engine(device, settings.graph_bytes if graphs else None)
        self._book, self._engine = book, engine
        self._changed = threading.Condition()
        self._changing = threading.RLock()  # held while tenants, settings or the state change, which takes its time
        self._waiting = WaitingFrames(settings.waiting)
        self._dispatcher = Dispatcher(self._changed, self._waiting, engine, device, book, settings.rules, on_error)
        self._members: dict[str, Member] = {}
        self._accepting = self._running = False
        self._callbacks = Callbacks(self._deliver, self._released, self._wake, on_error)

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

        Loads models, which takes its time; the call does not wait until they are measured. Of a tenant that is removed
        (or gets another model) what waits is dropped as ``removed``; what is under way is finished, not delivered, and
        dropped under the same name. The ledger of a tenant that stays goes on.

        Returns:
            By name, those that could not be started, and why: their model does not load, or there is no memory for
            it. A tenant that was there stays as it was then.

        Raises:
            ConfigurationError: a name is there twice; nothing was changed.
        """
        check_names(tenants)
        with self._changing:
            self._remove({tenant.name for tenant in tenants})
            refused: dict[str, ConfigurationError] = {}
            unable: dict[str, ConfigurationError] = {}  # by model: what is tried once is not tried again
            for tenant in tenants:
                try:
                    if tenant.model_key in unable:
                        raise unable[tenant.model_key]
                    self._provide(tenant)
                    self._place(tenant)
                except ConfigurationError as error:
                    refused[tenant.name] = unable[tenant.model_key] = error
            self._remove_unused_models()
            return refused

    def configure(self, settings: SharedSettings) -> None:
        """Change settings while frames flow; those in ``shared_settings.LIVE`` may change.

        Raises:
            ConfigurationError: another one would change, or there is no memory for it; the old ones stay in force.
        """
        with self._changing:
            self._settings.check_change(settings)
            plans: dict[ModelLine, Plan] = {}
            if settings.stage != self._settings.stage:
                plans = self._plan_anew(settings)
            with self._changed:
                for line, plan in plans.items():
                    line.use(plan)
                self._settings = settings
                self._dispatcher.rules = settings.rules
                self._book.most = settings.most
                drop(self._waiting.limit(settings.waiting), "overrun")
                self._dispatcher.measure_again()

    def start(self) -> None:
        """Accept frames, once models are measured whose costs are not known (some seconds); may be started again."""
        with self._changing:
            self._dispatcher.start()
            with self._changed:
                self._changed.wait_for(lambda: self._dispatcher.settled)
                self._accepting = self._running = True

    def stop(self, drain_s: float) -> None:
        """Accept no more, let what is in flight finish for up to ``drain_s`` seconds, drop the rest as ``shutdown``."""
        with self._changing, self._changed:
            self._accepting = False
            self._changed.wait_for(self._is_idle, drain_s if self._running else 0.0)
            drop(self._waiting.clear(), "shutdown")
        with self._changing:
            self._running = False
            self._dispatcher.stop()
            with self._changed:
                lines = self._dispatcher.all_lines
                for line in lines:
                    for flight in [flight for flight in line.out.values() if flight.plan.pool.give_up(flight.lease)]:
                        self._settle(line, flight, "shutdown")
            for line in lines:
                line.head.stop()
            self._dispatcher.look_round()

    def close(self) -> None:
        """Free models and memory, once stopped; the pipeline is of no more use."""
        self.set_tenants([])
        self._engine.close()

    def submit(self, tenant: str, pixels: Pixels, origin: Origin, now: float) -> None:
        """A frame of a tenant's came in; never waits. Of a tenant that is not there it is nobody's, and not counted."""
        with self._changed:
            member = self._members.get(tenant)
            if member is None:
                return
            ticket = member.ledger.receive(now)
            if not self._accepting:
                ticket.drop("inactive")
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
            line = self._line_of(member)
            return member.meters.report(now, counts=member.ledger.counts(), **line.facts())

    def _find(self, tenant: str) -> Member:
        if tenant not in self._members:
            raise ConfigurationError(f"There is no tenant '{tenant}'; there are: {', '.join(self._members) or 'none'}.")
        return self._members[tenant]

    def _line_of(self, member: Member) -> ModelLine:
        return self._dispatcher.lines[member.model]

    def _is_idle(self) -> bool:
        return not self._waiting and not any(line.out for line in self._dispatcher.all_lines)

    def _remove(self, kept: Collection[str]) -> None:
        """Tenants that are not among these go, and with them the models that nobody else has."""
        with self._changed:
            for name in [name for name in self._members if name not in kept]:
                drop(self._waiting.forget(name), "removed")
                del self._members[name]
        self._remove_unused_models()

    def _remove_unused_models(self) -> None:
        with self._changed:
            used = {member.model for member in self._members.values()}
            for line in [line for key, line in self._dispatcher.lines.items() if key not in used]:
                self._dispatcher.remove(line)
        if not self._running:
            self._dispatcher.look_round()

    def _provide(self, tenant: Tenant) -> None:
        """Its model is loaded, for this tenant if for no other."""
        key, settings = tenant.model_key, self._settings
        if key in self._dispatcher.lines:
            return
        model = load_model(
            tenant.model,
            tenant.weights,
            settings.device,
            settings.precision,
            allow_user_code=settings.allow_user_code,
        )
        others = sum(line.budget_bytes for line in self._dispatcher.lines.values())
        line = ModelLine(key, model, settings, others, self._limits, self._callbacks, self._database)
        self._book.recall(model)
        with self._changed:
            line.head.limits = self._limits  # which may have changed meanwhile
            self._dispatcher.add(line)

    def _place(self, tenant: Tenant) -> None:
        """The tenant runs, in the form that it has now."""
        with self._changed:
            member = self._members.setdefault(tenant.name, Member(tenant, tenant.model_key))
            if member.model != tenant.model_key:
                drop(self._waiting.forget(tenant.name), "removed")
            member.tenant, member.model = tenant, tenant.model_key

    def _plan_anew(self, settings: SharedSettings) -> dict[ModelLine, Plan]:
        plans: dict[ModelLine, Plan] = {}
        taken = 0
        try:
            for line in self._dispatcher.lines.values():
                plans[line] = line.make_plan(settings, taken)
                taken += line.budget_of(plans[line])
        except ConfigurationError:
            for plan in plans.values():
                plan.pool.close()
            raise
        return plans

    def _deliver(self, flight: Flight, frame: TenantFrame, detections: Detections) -> None:
        """A frame's detections are there (called on a thread of its model's)."""
        member, name = frame.member, frame.member.tenant.name
        with self._changed:
            if self._members.get(name) is not member or self._dispatcher.lines.get(member.model) is not flight.line:
                flight.open.remove(frame)
                frame.ticket.drop("removed")
                return
        failure: Exception | None = None
        try:
            self._deliver_to(name, frame.origin, detections)
        except Exception as error:  # it costs this tenant's frame, and no other's
            failure = error
        now = time.monotonic()
        with self._changed:
            flight.open.remove(frame)
            if failure is None:
                frame.ticket.publish()
                member.meters.latency.add(now - frame.ticket.received_at, now)
            else:
                frame.ticket.drop("head_error")
        if failure is not None:
            self._on_error(name, failure)

    def _released(self, line: ModelLine, lease: Lease, outcome: Outcome) -> None:
        """A batch is back; frames that were not delivered are settled now (called on a thread of its model's)."""
        now = time.monotonic()
        with self._changed:
            flight = line.out.get(lease)
            if flight is None:
                return
            self._settle(line, flight, outcome.reason)
            if not math.isnan(outcome.head_end):  # a head was at it
                times = flight.timeline
                times.head_start, times.head_end, times.delivered = (
                    *(outcome.head_start, outcome.head_end), outcome.delivered,
                )  # fmt: skip
                for member in dict.fromkeys(frame.member for frame in flight.frames):
                    member.meters.batch_done(times, len(flight.frames), now)

    def _settle(self, line: ModelLine, flight: Flight, reason: str) -> None:
        del line.out[flight.lease]
        drop(flight.settle_rest(), reason)
        self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
