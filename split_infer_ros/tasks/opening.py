"""Opens the task of a tenant."""

from __future__ import annotations

from split_infer_ros.errors import ConfigurationError, UnknownModelError
from split_infer_ros.models.downloads import refuse_options
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.user_names import CLUSTERS, TASK_PREFIX
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.load import choose_device
from split_infer_ros.tasks.clusters import ClustersTask
from split_infer_ros.tasks.task import Task
from split_infer_ros.tasks.task_model import TaskModel, TaskNetwork
from split_infer_ros.tasks.user_task import UserTask


def open_task(tenant: Tenant, settings: SharedSettings) -> OpenedModel:
    """Opens the task that a tenant names as its model.

    Args:
        tenant: the tenant. ``task:clusters`` finds clusters in point clouds; ``task:module:factory`` is a user's task.
        settings: the settings that all tenants share. ``allow_user_code`` is needed for a user's task.

    Raises:
        ConfigurationError: there is no such task, it cannot be made, or the node's device is no CPU.
    """
    if tenant.own_head:
        raise ConfigurationError(
            f"{tenant.model} has no head in another process: run it in a node tenants with transport intra_process."
        )
    refuse_options(tenant.model, tenant.onnx_options)
    if tenant.weights != NamedWeights.DEFAULT.value:
        raise ConfigurationError(
            f"{tenant.model} has no weights, so weights cannot be '{tenant.weights}': take default."
        )
    task = _task_of(tenant, allow_user_code=settings.allow_user_code)
    try:
        return OpenedModel(TaskModel(TaskNetwork(task), choose_device(settings.device)))
    except Exception:
        task.close()
        raise


def _task_of(tenant: Tenant, *, allow_user_code: bool) -> Task:
    if tenant.model == CLUSTERS:
        return ClustersTask(tenant.clustering)
    if ":" not in tenant.model.removeprefix(TASK_PREFIX):
        raise UnknownModelError(
            f"There is no task '{tenant.model}'. There are: {CLUSTERS}; and {TASK_PREFIX}module:factory, "
            "a task of your own."
        )
    return UserTask(tenant.model, allow_user_code=allow_user_code)
