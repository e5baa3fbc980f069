"""Disks that are small, full or read-only: a tmpfs in a namespace of a child process, so no rights are needed."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000  # from linux/sched.h


def small_disk(place, options):
    """Put a disk of its own under a folder, seen by this process only."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS | NEW_USERS):
        raise PermissionError(ctypes.get_errno(), "no namespaces here")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    mount("-t", "tmpfs", "-o", options, "none", place)


def mount(*words):
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise PermissionError(done.returncode, done.stderr)


def elsewhere(work, *given):
    """The result of this work, done in a process of its own."""
    if sys.platform != "linux" or shutil.which("mount") is None:
        pytest.skip("needs Linux")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            return pool.apply(work, given)
        except PermissionError as error:
            pytest.skip(f"no disk of its own: {error}")
