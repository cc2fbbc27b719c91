"""Runs between the fork and the agent: sets limits, makes the agent end with its worker, and becomes the agent.

This is a separate program, `python -I -S launcher.py PARENT MEMORY_MB CPU_SECONDS NICE USER -- PROGRAM ARGUMENT...`, because Python
code between a fork and an exec could deadlock in a process with threads. It imports nothing of the application, and skips what the
system cannot set.
"""

import os
import stat
import sys

if sys.platform.startswith("linux"):
    import ctypes  # now, because the user that this process becomes may not be able to read Python's own files

PARENT_DEATH = 1  # PR_SET_PDEATHSIG
NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
KILL = 9
NOT_STARTED = 127  # the exit code that shells use


def main(arguments: list[str]) -> None:
    """Become the program. Does not return. Exits with 127 and a line on standard error when the program cannot be started."""
    parent, memory_mb, cpu_seconds, nice = (int(text) for text in arguments[:4])
    command = arguments[6:]
    limit(memory_mb, cpu_seconds)
    if nice:
        os.nice(nice)
    if arguments[4]:
        become(*(int(text) for text in arguments[4].split(",")))
    die_with(parent)  # after the change of users, which would reset it
    os.umask(0o077)
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_STARTED)


def prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def become(uid: int, gid: int, *groups: int) -> None:
    """Become another user irrevocably: neither a program with a set-user-id bit nor a capability can undo it."""
    for descriptor in (0, 1, 2):
        # A program may open its own pipes by name, such as /dev/stderr, and only their owner is allowed to.
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, uid, gid)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    prctl(NO_NEW_PRIVILEGES, 1)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends. On other systems than Linux, only the sweep does that."""
    if not sys.platform.startswith("linux"):
        return
    prctl(PARENT_DEATH, KILL)
    if os.getppid() != parent:
        os._exit(NOT_STARTED)  # the parent died before the call


def limit(memory_mb: int, cpu_seconds: int) -> None:
    """Set the limits; 0 means none. Core files are never written, because they would contain secrets."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    if cpu_seconds:
        # The second number is a hard limit, because a process can ignore the signal at the first.
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 2))


if __name__ == "__main__":
    main(sys.argv[1:])
