"""Commands of container engines of this machine, completed with the devices of a job: docker, podman, apptainer.

`dray hold` and `dray run --image` start such a command as a job. The job has its devices as every other job has; the
container that the engine makes has not, so what CDI says of them (device nodes, variables, mounts, groups) is
added to the engine's own flags. These are the flags that every version of the engines has; their own support of CDI would need
the files of the node agent, which only root can read. What no flag can say (hooks, network devices) is told to the caller.

Pure: words in, words out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from dray.api.cdi import ContainerEdits, Mount

# program -> the words after which flags of a new container stand
_OCI = ("run", "create")
_APPTAINER = ("exec", "run", "shell", "test", "start")
ENGINES: Mapping[str, Sequence[str]] = {
    "podman": _OCI,
    "docker": _OCI,
    "nerdctl": _OCI,
    "apptainer": _APPTAINER,
    "singularity": _APPTAINER,
}
FOR_IMAGES = ("podman", "docker", "apptainer", "singularity")  # in this order they are looked for


class EngineError(ValueError):
    """A command that is not one of a container engine, or starts no container."""


def engine_of(words: Sequence[str]) -> str:
    """Return the engine that a command calls; raises EngineError.

    >>> engine_of(["/usr/bin/podman", "run", "ubuntu"])
    'podman'
    """
    name = PurePosixPath(words[0]).name if words else ""
    if name not in ENGINES:
        raise EngineError(f"{name or 'nothing'!r} is not a container engine that dray knows")
    _place_of_flags(name, words)
    return name


def with_devices(words: Sequence[str], edits: ContainerEdits) -> list[str]:
    """Return an engine's command that gives its container the devices; raises EngineError.

    >>> with_devices(["podman", "run", "ubuntu", "ls"], ContainerEdits(env=["GPU=0"]))
    ['podman', 'run', '--env', 'GPU=0', 'ubuntu', 'ls']
    """
    engine = engine_of(words)
    place = _place_of_flags(engine, words)
    flags = _apptainer_flags(edits) if ENGINES[engine] is _APPTAINER else _oci_flags(edits)
    return [*words[:place], *flags, *words[place:]]


def not_carried_out(edits: ContainerEdits) -> list[str]:
    """Return what CDI says of the devices and no flag of an engine can say."""
    found = [f"the hook {hook.path} ({hook.hook_name})" for hook in edits.hooks]
    found += [f"the network device {device.host_interface_name}" for device in edits.net_devices]
    return found


def image_command(
    program: str,
    image: str,
    command: Sequence[str],
    *,
    uid: int,
    gid: int,
    directory: str,
    environment: Mapping[str, str],
    with_stdin: bool = False,
    with_tty: bool = False,
    has_crun: bool = False,
) -> list[str]:
    """Return an engine's command that runs an image as a person, in a directory of the machine."""
    engine = PurePosixPath(program).name
    variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    if ENGINES[engine] is _APPTAINER:
        source = image if "://" in image or image.endswith(".sif") else f"docker://{image}"
        place = ["--bind", directory, "--pwd", directory] if directory else []
        return [program, "exec" if command else "run", *variables, *place, source, *command]
    words = [program, "run", "--rm", "--network=host"]  # jobs are processes of the machine, in its network
    if engine == "podman":
        # In the job's own cgroup, so that its limits hold and its end is theirs; runc cannot do that.
        words += ["--runtime=crun", "--cgroups=disabled"] if has_crun else []
        words += ["--userns=keep-id"] if uid else []
    else:
        # The first process of a container ignores SIGTERM unless it has a handler; docker's small init has one.
        words += ["--init", "--user", f"{uid}:{gid}"]
    words += [*(["--interactive"] if with_stdin else []), *(["--tty"] if with_tty else []), *variables]
    if directory:
        words += ["--volume", f"{directory}:{directory}", "--workdir", directory]
    return [*words, image, *command]


def _place_of_flags(engine: str, words: Sequence[str]) -> int:
    for number, word in enumerate(words[1:], 1):
        if word in ENGINES[engine]:
            return number + 1
    starts = ", ".join(f"`{engine} {word}`" for word in ENGINES[engine])
    raise EngineError(f"this command starts no container: devices go to {starts}")


def _oci_flags(edits: ContainerEdits) -> Iterator[str]:
    for variable in edits.env:
        yield from ("--env", variable)
    for node in edits.device_nodes:
        yield from ("--device", f"{node.host_path or node.path}:{node.path}:{node.permissions or 'rwm'}")
    for mount in edits.mounts:
        yield from ("--volume", _bind(mount))
    for gid in edits.additional_gids:
        yield from ("--group-add", str(gid))


def _apptainer_flags(edits: ContainerEdits) -> Iterator[str]:
    for variable in edits.env:
        yield from ("--env", variable)
    for node in edits.device_nodes:
        yield from ("--bind", f"{node.host_path or node.path}:{node.path}")
    for mount in edits.mounts:
        yield from ("--bind", _bind(mount))


def _bind(mount: Mount) -> str:
    return f"{mount.host_path}:{mount.container_path}:{'ro' if 'ro' in mount.options else 'rw'}"
