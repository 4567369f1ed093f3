"""Puts another commit of this repository into a git worktree of its own, with an environment of its own.

The user's working tree, index and branches stay as they are. The worktree stays until ``remove``, because its
environment takes minutes to make.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH", "PYTHONPATH")
OF_AN_ENVIRONMENT = ("VIRTUAL_ENV", "_ROS_WHEELS_BOOTSTRAP_COMPLETE")
GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")  # set by git hooks


class CompareError(Exception):
    """Raised if a comparison is not possible. The message says why, for the user."""


class OtherCommit:
    """A commit of a repository, and its worktree.

    Args:
        root: the user's working tree.
        commit: any name that git has for the commit.
        folder: the folder that keeps worktrees.

    Attributes:
        sha: the commit's full name.
        tree: the folder of the commit's worktree. ``make_tree`` makes it.

    Raises:
        CompareError: the commit does not exist, git is not installed, or ``root`` is not a checkout.
    """

    def __init__(self, root: Path, commit: str, folder: Path) -> None:
        self._root = root
        if git(root, "rev-parse", "--show-toplevel", check=False).returncode != 0:
            raise CompareError(f"{root} is not a git checkout, so there is no other commit to compare with")
        found = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}", check=False)
        if found.returncode != 0:
            raise CompareError(f"there is no commit '{commit}' in {root}; git log lists those that there are")
        self.sha = found.stdout.split()[-1]
        self.tree = folder / self.sha[:12]

    def has(self, path: str) -> bool:
        """Returns whether the commit has a file with this path, relative to the root of the repository."""
        return git(self._root, "cat-file", "-e", f"{self.sha}:{path}", check=False).returncode == 0

    def make_tree(self) -> None:
        """Makes the worktree, unless it exists and is unchanged. An unfinished or changed worktree is made anew.

        Raises:
            CompareError: the worktree cannot be made, or something else is in its place.
        """
        if self._is_made():
            return
        self.remove()
        if self.tree.exists():
            raise CompareError(f"{self.tree} exists and is not a worktree of {self.sha[:12]}; move it away")
        self.tree.parent.mkdir(parents=True, exist_ok=True)
        try:
            git(self._root, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(self.tree), self.sha)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> bool:
        """Removes the worktree, its environment and its entry in git's list. Returns whether there was a worktree."""
        if not self._is_registered():
            return False
        git(self._root, "worktree", "remove", "--force", "--force", str(self.tree), check=False)
        if self._is_registered():  # git does not recognise what an interrupted `git worktree add` leaves
            shutil.rmtree(self.tree, ignore_errors=True)
            git(self._root, "worktree", "unlock", str(self.tree), check=False)
            git(self._root, "worktree", "prune", "--expire", "now")
        return True

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Makes the environment of the worktree with the worktree's own ``scripts/run``, or brings it up to date.

        Args:
            environment: the environment variables for ``scripts/run``; see ``outside_environment``.

        Raises:
            CompareError: ``scripts/run`` failed.
        """
        done = subprocess.run(
            [self.tree / "scripts" / "run", "true"], cwd=self.tree, env=environment, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise CompareError(f"the environment of {self.sha[:12]} could not be made in {self.tree}; see above")

    def _is_made(self) -> bool:
        if not self._is_registered() or not (self.tree / ".git").is_file():
            return False
        head = git(self.tree, "rev-parse", "HEAD", check=False)
        state = git(self.tree, "status", "--porcelain", "--untracked-files=no", check=False)
        return head.returncode == 0 and head.stdout.strip() == self.sha and (state.returncode, state.stdout) == (0, "")

    def _is_registered(self) -> bool:
        listed = git(self._root, "worktree", "list", "--porcelain", "-z").stdout.split("\0")
        return f"worktree {self.tree.resolve()}" in listed


def git(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs git in a folder, and returns its result.

    Raises:
        CompareError: git is not installed, or it failed and ``check`` is true.
    """
    environment = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}
    try:
        done = subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, errors="replace", env=environment
        )
    except FileNotFoundError as error:
        raise CompareError("git is not installed, and other commits come from it") from error
    if check and done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CompareError(f"git {arguments[0]} failed in {root} ({reason})")
    return done


def outside_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables as they were before ``scripts/run`` entered the environment of this tree.

    With these variables, the ``scripts/run`` of another tree uses that tree's own environment.
    """
    outside = {name: value for name, value in variables.items() if name not in OF_AN_ENVIRONMENT}
    entered = variables.get("VIRTUAL_ENV")
    for name in SEARCH_PATHS if entered else ():
        parts = [part for part in outside.get(name, "").split(os.pathsep) if part and not _is_in(part, Path(entered))]
        if parts:
            outside[name] = os.pathsep.join(parts)
        else:
            outside.pop(name, None)
    return outside


def _is_in(part: str, folder: Path) -> bool:
    return Path(part) == folder or folder in Path(part).parents
