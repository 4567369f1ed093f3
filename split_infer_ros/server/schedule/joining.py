"""Decides whether it saves time if one more request joins an execution."""

from __future__ import annotations

from split_infer_ros.server.schedule.execution_costs import NOISE_MARGIN


def saves_time(
    joined_s: float,
    execution_s: float,
    alone_s: float,
    *,
    is_merged: bool,
    num_joined: int,
    num_waiting: int,
    num_at_once: int | None,
) -> bool:
    """Returns whether it saves time if one more request joins an execution.

    By the paper (§II-B), requests of one model are merged up to the best batch size. Models are fused if that takes
    less time than one after the other. This serves the most requests. On a GPU, merging saves much, so each request is
    done sooner as well. On the cores of a CPU it saves little. There, all waiting requests together must be done
    sooner. Those that were chosen before wait for the one that joins, and those behind the execution gain what joining
    saves. So if few requests wait, as with cameras whose latest images count, joining must save much.

    Args:
        joined_s: the seconds of the execution if the request joins.
        execution_s: the seconds of the execution without it.
        alone_s: the seconds of the request alone.
        is_merged: whether the execution has a request of the same model.
        num_joined: how many requests the execution has without it.
        num_waiting: how many requests wait in all, with those of the execution.
        num_at_once: how many executions run at the same time; None: the paper's rule.
    """
    joined_s *= 1 + NOISE_MARGIN
    if num_at_once is None:
        return is_merged or joined_s <= execution_s + alone_s
    num_behind = num_waiting - num_joined - 1
    together_s = (num_joined + 1) * joined_s + num_behind * joined_s / num_at_once
    apart_s = num_joined * execution_s + execution_s / num_at_once + alone_s
    return together_s <= apart_s + num_behind * (execution_s + alone_s) / num_at_once
