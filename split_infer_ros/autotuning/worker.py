"""The process in which trials run. Requests are lines of JSON on standard input; answers go to a file descriptor.

The process ends at the end of its input. It also ends itself if a trial takes more than twice its limit.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import sys
from typing import Any

READY = "ready"


def main() -> int:
    """Answers requests until there are no more. Arguments are the answers' file descriptor and the model as JSON."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    try:
        from split_infer_ros.autotuning.trials import Trials
        from split_infer_ros.runtime.process import prepare_process
        from split_infer_ros.split.model_spec import ModelSpec
        from split_infer_ros.vision_ops.schedules import limit_search

        prepare_process()
        limit_search(math.inf)
        trials = Trials(ModelSpec(**json.loads(sys.argv[2])))
    except Exception as error:
        print(json.dumps({"error": _sentence(error)}), file=answers)
        return 1
    print(json.dumps({READY: True}), file=answers)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        faulthandler.dump_traceback_later(2 * request["limit_s"], exit=True)  # needed if the parent is gone
        try:
            answer = trials.run(request["stage"], request["config"], request["about"], request["limit_s"] / 2)
        except Exception as error:  # a configuration that fails must not end the others
            answer = {"error": _sentence(error)}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), file=answers)
    return 0


def _sentence(error: Exception) -> str:
    words = str(error).strip()
    return f"{type(error).__name__}: {words.splitlines()[0][:500]}" if words else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
