"""Checks that memory suffices for a model beside other models: for its weights, and for a plan with blank images."""

from __future__ import annotations

from collections.abc import Sequence

from split_infer_ros.buffers.memory import free_bytes
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.server.memory.budget import check_weights
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.warm_up import WarmUp
from split_infer_ros.split.model import SplitModel


def check_room_for_weights(key: str, models: Sequence[SplitModel], split_point: str) -> None:
    """Checks that a GPU has room for the weights of the models' backbones. On a CPU, nothing is checked.

    Args:
        key: the name under which the scheduler knows the model, or the stack of these models.
        models: at least one model. All are on one device and in one precision.
        split_point: where the backbones end.

    Raises:
        ConfigurationError: the GPU's free memory is too small.
    """
    if models[0].device.type == "cuda":
        check_weights(
            key,
            parameters=sum(model.network.num_parameters(split_point) for model in models),
            item_bytes=models[0].dtype.itemsize,
            free_bytes=free_bytes(models[0].device),
        )


def make_tried_plan(
    instance: ModelInstance,
    settings: StageSettings,
    taken_bytes: float,
    warm_up: WarmUp,
    rival: SplitModel | None = None,
) -> Plan:
    """Makes a plan for these settings, and runs blank images with it.

    Args:
        instance: the model's instance. It does not use the plan yet.
        settings: the settings of the plan.
        taken_bytes: the part of the memory budget that other models use.
        warm_up: runs the blank images.
        rival: what the plan runs instead of the instance's model; see ``ModelInstance.make_plan``.

    Raises:
        ConfigurationError: memory is short, or the model cannot run. Nothing was kept.
    """
    try:
        plan = instance.make_plan(settings, taken_bytes, rival)
        try:
            warm_up.run(plan)
        except Exception:
            if rival is None or plan.pool is not instance.plan.pool:  # a rival may have the slots of the plan in force
                plan.close()
            raise
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{instance.key} cannot run a batch of {settings.batch_size} up to {settings.split_point} "
            f"({summarize_error(error)})."
        ) from error
    return plan
