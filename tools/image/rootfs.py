"""The contents of the image, layer by layer.

Debian's packages are downloaded by apt with a configuration of its own (an empty package state, Debian's sources, a
cache outside the tree), verified by apt against Debian's signatures, and unpacked with dpkg-deb; their installation
scripts do not run. So neither root nor a Debian machine is needed, only apt, dpkg and Debian's keyring.
Python packages are wheels whose checksums are in requirements.lock.

Byte code is compiled here, with the Python of the image itself: containers run with a read-only file system.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

EPOCH = 315532800  # 1980-01-01, the earliest time that a wheel can carry: the time stamp of every file
SUITE = "bookworm"
PYTHON = "3.11"  # the Python of that suite
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SECURITY_MIRROR = os.environ.get("DEBIAN_SECURITY_MIRROR", "http://deb.debian.org/debian-security")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dray" / "image"
SITE_PACKAGES = f"usr/local/lib/python{PYTHON}/dist-packages"
USER = 65532

# What is asked for; apt adds what these need.
WANTED = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "netbase", "tzdata")
# Packages that are needed only to install or to configure packages, and what only they need.
LEFT_OUT = {
    "debconf",
    "dpkg",
    "tar",
    "libacl1",
    "libselinux1",
    "libpcre2-8-0",
    "libmd0",
    "libzstd1",
    "readline-common",
}
# Documentation and parts of the standard library that a server never loads.
REMOVED = (
    "usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/share/bug", "usr/share/info", "usr/share/doc-base",
    "usr/share/pixmaps", "usr/share/applications", "usr/share/python3", "usr/share/binfmts", "usr/share/zoneinfo/right",
    "usr/share/zoneinfo/posix", "usr/include", "usr/lib/valgrind", "etc/python3.11", "var",
    f"usr/lib/python{PYTHON}/pydoc_data", f"usr/lib/python{PYTHON}/lib2to3", f"usr/lib/python{PYTHON}/idlelib",
    f"usr/lib/python{PYTHON}/ensurepip", f"usr/lib/python{PYTHON}/turtledemo",
)  # fmt: skip
MULTIARCH = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
LOADER = {"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}


class CannotBuild(Exception):
    """The image cannot be built on this machine; the message says what is missing."""


@dataclass
class Package:
    """One package in the image."""

    name: str
    version: str
    kind: str  # deb or pypi
    architecture: str = ""
    licence: str = ""  # an SPDX expression, where the package states one


@dataclass
class Layers:
    """The folders of the image's layers, lowest first, and the packages in them."""

    debian: Path
    packages: Path
    dray: Path
    contents: list[Package] = field(default_factory=list)

    def folders(self) -> list[Path]:
        """Return the folders, lowest layer first."""
        return [self.debian, self.packages, self.dray]


def architecture() -> str:
    """Return Debian's name of this machine's architecture, which is also the one that images use."""
    if shutil.which("dpkg") is None or shutil.which("apt-get") is None:
        raise CannotBuild("apt-get and dpkg are needed (Debian or Ubuntu); elsewhere use the Containerfile")
    name = run("dpkg", "--print-architecture").strip()
    if name not in MULTIARCH:
        raise CannotBuild(f"there is no recipe for {name}, only for {', '.join(MULTIARCH)}")
    return name


def run(*command: object, **environment: str) -> str:
    """Run a command and return its output; a failure becomes an error with the command's own words."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
    )
    if done.returncode != 0:
        raise CannotBuild(f"{' '.join(words[:4])} … failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def dray_version(project: Path) -> str:
    """Return the version that the source states."""
    found = re.search(
        r'^__version__ = "([^"]+)"', (project / "src/dray/__init__.py").read_text("utf-8"), re.MULTILINE
    )
    if found is None:
        raise CannotBuild("src/dray/__init__.py states no __version__")
    return found[1]


def make_layers(project: Path, folder: Path) -> Layers:
    """Make the layers below a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    layers = Layers(folder / "1-debian", folder / "2-packages", folder / "3-dray")
    add_debian(layers)
    add_python_packages(layers, project)
    add_dray(layers, project)
    return layers


# --- Debian ----------------------------------------------------------------------------


def apt(*words: object) -> str:
    """Run apt-get on a package state of its own, in which nothing is installed."""
    state = CACHE / f"apt-{SUITE}-{architecture()}"
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    if not KEYRING.exists():
        raise CannotBuild(f"{KEYRING} is missing: install debian-archive-keyring")
    (state / "status").touch()
    (state / "sources.list").write_text(
        f"deb [signed-by={KEYRING}] {MIRROR} {SUITE} main\n"
        f"deb [signed-by={KEYRING}] {MIRROR} {SUITE}-updates main\n"
        f"deb [signed-by={KEYRING}] {SECURITY_MIRROR} {SUITE}-security main\n"
    )
    options = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "Debug::NoLocking": "1",  # the locks of the machine's own packages are not ours
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "0",
        "Acquire::Retries": "3",
        "Acquire::Languages": "none",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return run("apt-get", "-qq", *flags, *words)


def add_debian(layers: Layers) -> None:
    """Unpack Debian's Python and what it needs, without documentation."""
    apt("update")
    archives = CACHE / f"apt-{SUITE}-{architecture()}" / "archives"
    listed = re.findall(r"^'[^']+' (\S+\.deb) ", apt("--print-uris", "-y", "install", *WANTED), re.MULTILINE)
    apt("-y", "--download-only", "install", *WANTED)
    root = layers.debian
    for directory in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64"):
        (root / directory).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):  # one /usr, as in Debian itself
        (root / name).symlink_to(f"usr/{name}")
    by_name = {unquoted.partition("_")[0]: archives / unquoted for unquoted in listed}
    # What is already in the archive folder is not listed with an address.
    simulated = re.findall(r"^Inst (\S+) \((\S+) ", apt("-s", "install", *WANTED), re.MULTILINE)
    for name, version in sorted(simulated):
        if name in LEFT_OUT:
            continue
        archive = by_name.get(name) or next(archives.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))
        unpack(archive, root)
        layers.contents.append(Package(name, version, "deb", archive.stem.rpartition("_")[2]))
    trim(root)
    link_python(root)
    write_accounts(root)
    compile_byte_code(root, root, f"usr/lib/python{PYTHON}")


def unpack(archive: Path, root: Path) -> None:
    """Unpack one package into the merged /usr of the root."""
    # tar follows the links of the root: a package that ships lib/… lands in usr/lib/….
    packed = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE)
    done = subprocess.run(
        ["tar", "-x", "-C", str(root), "--keep-directory-symlink", "--no-same-owner"],
        stdin=packed.stdout,
        check=False,
    )
    if packed.wait() != 0 or done.returncode != 0:
        raise CannotBuild(f"{archive.name} cannot be unpacked; remove it and build again")


def trim(root: Path) -> None:
    """Remove documentation, but never a copyright notice."""
    for name in REMOVED:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in sorted((root / "usr/share/doc").rglob("*"), reverse=True):
        if path.is_file() and path.name != "copyright":
            path.unlink()
        elif path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
    shutil.rmtree(root / "usr/lib" / MULTIARCH[architecture()] / "gconv", ignore_errors=True)
    for name in ("py3clean", "py3compile", "py3versions"):  # for installing Debian's packages
        (root / "usr/bin" / name).unlink(missing_ok=True)
    sitecustomize = root / f"usr/lib/python{PYTHON}/sitecustomize.py"  # a link into etc/python3.11
    if sitecustomize.is_symlink():
        sitecustomize.unlink()


def link_python(root: Path) -> None:
    """Name the interpreter as scripts expect it."""
    link = root / "usr/bin/python3"
    if not link.is_symlink():
        link.symlink_to(f"python{PYTHON}")


def write_accounts(root: Path) -> None:
    """Write the accounts, and the folders that programs expect."""
    home = "home/nonroot"
    for directory in ("etc", "tmp", "run", "proc", "sys", "dev", "root", home, "var/tmp", "var/lib"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "var/run").symlink_to("../run")
    for directory in ("tmp", "var/tmp"):
        (root / directory).chmod(0o1777)
    (root / "root").chmod(0o700)
    nobody = "/usr/sbin/nologin"
    (root / "etc/passwd").write_text(
        f"root:x:0:0:root:/root:{nobody}\nnonroot:x:{USER}:{USER}:nonroot:/{home}:{nobody}\n"
    )
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{USER}:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


# --- Python packages and dray ----------------------------------------------------------


def add_python_packages(layers: Layers, project: Path) -> None:
    """Install the wheels of requirements.lock."""
    target = layers.packages / SITE_PACKAGES
    machine = MULTIARCH[architecture()].partition("-")[0]
    platforms = [
        word
        for glibc in ("2_34", "2_31", "2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
        for word in ("--platform", f"manylinux_{glibc}_{machine}")
    ]
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--target", target, "--no-compile", "--no-deps",
        "--require-hashes", "--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON, *platforms,
        "--platform", f"manylinux2014_{machine}", "--requirement", project / "tools/image/requirements.lock",
        PIP_CACHE_DIR=str(CACHE / "pip"), PIP_DISABLE_PIP_VERSION_CHECK="1",
    )  # fmt: skip
    shutil.rmtree(target / "bin", ignore_errors=True)  # commands of libraries, with this machine's paths
    for source in target.rglob("*"):  # sources of compiled modules
        if source.suffix in {".c", ".pyx", ".pxd", ".h", ".pxi"} and source.is_file():
            source.unlink()
    layers.contents += python_packages(target)
    compile_byte_code(layers.debian, layers.packages, SITE_PACKAGES)


def python_packages(target: Path) -> list[Package]:
    """Return the distributions that are installed in a folder."""
    return sorted(
        (
            Package(
                re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower(),
                found.version,
                "pypi",
                licence=found.metadata.get("License-Expression", ""),
            )
            for found in importlib.metadata.distributions(path=[str(target)])
        ),
        key=lambda package: package.name,
    )


def add_dray(layers: Layers, project: Path) -> None:
    """Build dray's wheel and install it, with its commands."""
    wheels = layers.dray.with_name("wheel")
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels,
        project, SOURCE_DATE_EPOCH=str(EPOCH), PIP_DISABLE_PIP_VERSION_CHECK="1",
    )  # fmt: skip
    target = layers.dray / SITE_PACKAGES
    [wheel] = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(target)
        entry_points = next(name for name in opened.namelist() if name.endswith("entry_points.txt"))
        scripts = re.findall(r"^([\w-]+) = ([\w.]+):(\w+)$", opened.read(entry_points).decode(), re.MULTILINE)
    shutil.rmtree(wheels)
    programs = layers.dray / "usr/local/bin"
    programs.mkdir(parents=True)
    for name, module, function in scripts:
        script = programs / name
        script.write_text(
            f"#!/usr/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
        script.chmod(0o755)
    layers.contents += python_packages(target)
    compile_byte_code(layers.debian, layers.dray, SITE_PACKAGES)


def compile_byte_code(debian: Path, root: Path, inside: str) -> None:
    """Compile the modules below `inside` with the image's own Python, named as they will be found in the image."""
    libraries = debian / "usr/lib" / MULTIARCH[architecture()]
    for stale in sorted((root / inside).rglob("__pycache__")):
        shutil.rmtree(stale)
    run(
        debian / LOADER[architecture()], "--library-path", libraries, debian / f"usr/bin/python{PYTHON}",
        "-S", "-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash",
        "-s", root, "-p", "/", root / inside,
        PYTHONHOME=str(debian / "usr"), PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
