"""Opens a model as it runs best on this machine: with the engine, precision and settings that measured fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from split_infer_ros.autotuning.background_trials import BackgroundTrials
from split_infer_ros.autotuning.best_known import BestKnown, find_best_known
from split_infer_ros.autotuning.engine_choice import compare_engines_once, open_engines
from split_infer_ros.autotuning.engine_rivals import EngineRivals
from split_infer_ros.autotuning.precisions_to_try import precision_rivals
from split_infer_ros.autotuning.profile_trials import ProfileTrials
from split_infer_ros.engines.engine import AUTO, parse_engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision, parse_precision
from split_infer_ros.engines.precision_checks import wants_torch
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.onnx_models import is_onnx_file
from split_infer_ros.models.user_names import is_task
from split_infer_ros.runtime.cores import ANY_CORES, StageCores
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.improving.rivals import Rivals
from split_infer_ros.server.improving.rivals_in_turn import RivalsInTurn
from split_infer_ros.server.opened_model import OpenedModel, OpenModel
from split_infer_ros.server.profiling.stored_profile import profile_finder
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.split_chooser import DEFAULT
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.located_spec import located
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import choose_precision, untuned_engine
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings
from split_infer_ros.weight_streaming.weightless_loading import load_streamable


@dataclass(frozen=True, slots=True)
class Measuring:
    """Says what may be measured for a model that a node opens.

    Attributes:
        say: called with a line before and after a measurement.
        improve: when engines are compared if they were not compared before.
        min_agreement: how much detections in another precision must agree with those in fp32, 0..1; 0: as much as the
            precision should.
        cores: the cores of each stage.
    """

    say: Callable[[str], object]
    improve: Improve
    min_agreement: float = 0.0
    cores: StageCores = ANY_CORES


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model, with the measurements by which its engine and settings were chosen.

    Attributes:
        model: the model, loaded with its engine.
        best_known: the best records of the model on this machine.
        notes: sentences for the user: why the model runs in another precision, or with another engine.
        rivals: what may be tried while the model serves; None: nothing.
        profiles: measures the profile while the model serves; None: it is not measured then.
    """

    model: SplitModel
    best_known: BestKnown
    notes: tuple[str, ...] = ()
    rivals: Rivals | None = None
    profiles: ProfileTrials | None = None


def open_model(
    spec: ModelSpec,
    weights: WeightsSettings,
    database: Database,
    *,
    engine: str,
    precision: str,
    batch_size: int = 0,
    measuring: Measuring | None = None,
    accepts: Callable[[SplitModel], tuple[Precision, ...]] | None = None,
) -> Opened:
    """Loads a model with the engine and the precision in which it runs best.

    Args:
        spec: the model spec.
        weights: where the weights of the caller's partition are.
        database: holds the measurements.
        engine: the engine's name, as ``parse_engine`` reads it, or ``auto``.
        precision: the precision's name, as ``parse_precision`` reads it.
        batch_size: images per batch, 0 for a single image.
        measuring: what may be measured. None: nothing.
        accepts: returns the precisions that a model may use, best first. None: those that ``precision`` names.

    Raises:
        ConfigurationError: as for ``load_model``, or the model cannot run in the named precision or with the named
            engine.
    """
    model = load_streamable(_by_named_engine(spec, engine), weights)
    wanted = parse_precision(precision) if accepts is None else accepts(model)
    chosen, reason = choose_precision(model, wanted, engine)
    engines = open_engines(engine, weights.weights_residency)

    def find() -> BestKnown:
        return find_best_known(model, database, chosen, batch_size, engines)

    found, size, on_device = find(), batch_size or 1, replace(spec, device=str(model.device))
    compares_engines = measuring is not None and found.pipeline is None and not engines
    if measuring is not None and measuring.improve is Improve.BEFORE_START and compares_engines:
        compare_engines_once(model, on_device, database, precision=chosen, batch_size=size, say=measuring.say)
        found = find()
    config = found.execution_config.with_engine(engine, untuned_engine(model, chosen))
    model = load_streamable(replace(spec, execution_config=config), weights)
    opened = Opened(model, found, tuple(note for note in (reason, model.network.note) if note))
    is_resident = weights.weights_residency is Residency.RESIDENT
    if measuring is None or measuring.improve is Improve.NEVER or not is_resident:
        return opened
    trials, in_background = BackgroundTrials(on_device, size), measuring.improve is Improve.BACKGROUND
    kinds: list[Rivals] = [EngineRivals(trials, database)] if compares_engines and in_background else []
    kinds += precision_rivals(trials, database, model, precision, engines, measuring.min_agreement)
    return replace(
        opened,
        rivals=RivalsInTurn(kinds) if kinds else None,
        profiles=ProfileTrials(trials, database, measuring.cores) if in_background else None,
    )


def _by_named_engine(spec: ModelSpec, engine: str) -> ModelSpec:
    """If the user named an engine and it runs the model as an ONNX file, returns the spec with that engine.

    The file is then inspected only for that engine. Otherwise it would also be inspected for the native engine.

    Raises:
        ConfigurationError: a file of the catalogue cannot be downloaded, or no engine has that name.
    """
    if engine == AUTO:
        return spec
    file = located(spec)  # models of the catalogue may be files too
    if file.on_torch or not is_onnx_file(file.name):
        return spec
    named, provider = parse_engine(engine)
    return replace(spec, execution_config=ExecutionConfig(engine=named, provider=provider))


def tenant_opener(database: Database, say: Callable[[str], object] = lambda line: None) -> OpenModel:
    """Returns a function that opens a tenant's model as it runs best, according to earlier measurements.

    The model has the split point that tuning found, unless the settings name one. A pipeline's tuned number of threads
    is used only with the tuned split point and batch size. Engines are compared for single images. The function takes a
    tenant and the settings that all tenants share. It raises ConfigurationError like ``open_model``.

    Args:
        database: holds the measurements.
        say: called with each line about a measurement before the start: of engines, or for split point ``auto``.
    """

    def open_tenant(tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        if is_task(tenant.model):
            from split_infer_ros.tasks.opening import open_task  # only here: few servers have tasks

            return open_task(tenant, settings)
        cores = StageCores.parse(settings.backbone_cores, settings.head_cores)
        spec = ModelSpec(
            tenant.model,
            weights=tenant.weights,
            device=settings.device,
            allow_user_code=settings.allow_user_code,
            on_torch=wants_torch(settings.engine, parse_precision(settings.precision)),
            **asdict(tenant.onnx_options),
        )
        opened = open_model(
            spec,
            settings.stage,
            database,
            engine=settings.engine,
            precision=settings.precision,
            measuring=Measuring(say, settings.improve, settings.min_agreement, cores),
        )
        best_known, stage = opened.best_known, settings.stage
        tuned = best_known.fill_in(replace(stage, split_point=DEFAULT))
        in_force = tuned if stage.split_point == DEFAULT else stage
        return OpenedModel(
            best_known.with_tuned_threads(opened.model, in_force),
            opened.notes,
            split_point=tuned.split_point,
            find_profile=profile_finder(opened.model, database, say, cores),
            head_threads=best_known.head_threads,
            rivals=opened.rivals,
            profiles=opened.profiles,
        )

    return open_tenant
