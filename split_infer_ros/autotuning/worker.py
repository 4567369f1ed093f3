"""The process in which trials run. ``ChildProcess`` starts it.

The process ends at the end of its input. It also ends itself if a trial takes more than twice its limit.
"""

from __future__ import annotations

import faulthandler
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from split_infer_ros.runtime.child_loop import describe_error, serve


def _prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Loads the model, which the argument describes as JSON, and returns what runs a trial of it."""
    from split_infer_ros.autotuning.trials import Trials
    from split_infer_ros.runtime.process import prepare_process
    from split_infer_ros.split.model_spec import ModelSpec
    from split_infer_ros.vision_ops.schedules import limit_search

    prepare_process()
    limit_search(math.inf)
    trials = Trials(ModelSpec(**json.loads(arguments[0])))

    def run(request: dict[str, Any]) -> dict[str, Any]:
        faulthandler.dump_traceback_later(2 * request["limit_s"], exit=True)  # needed if the parent is gone
        try:
            return trials.run(request["stage"], request["config"], request["about"], request["limit_s"] / 2)
        except Exception as error:  # a configuration that fails must not end the others
            return {"error": describe_error(error)}
        finally:
            faulthandler.cancel_dump_traceback_later()

    return run


if __name__ == "__main__":
    sys.exit(serve(_prepare))
