"""Synthetic sysfs trees: folders, files and links as the kernel lays them out."""

from pathlib import Path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content + "\n")


def pci_function(sysfs: Path, root: str, *addresses: str, numa: int = 0, **files: str) -> Path:
    """Make a PCI function behind bridges, with its link in bus/pci/devices; return its folder."""
    folder = sysfs / "devices" / root
    for address in addresses:
        folder = folder / address
    write(folder / "numa_node", str(numa))
    for name, content in files.items():
        write(folder / name, content)
    link = sysfs / "bus/pci/devices" / addresses[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def class_entry(sysfs: Path, kind: str, name: str, device: Path | None) -> Path:
    """Make /sys/class/<kind>/<name> with a link to its device; return its folder."""
    folder = sysfs / "class" / kind / name
    folder.mkdir(parents=True, exist_ok=True)
    if device is not None:
        (folder / "device").symlink_to(device)
    return folder


def cpu_tree(sysfs: Path, nodes: list[list[tuple[int, int, int]]]) -> Path:
    """Make a CPU topology: for each NUMA node its (cpu, core, L3 cache) triples."""
    system = sysfs / "devices/system"
    everything = [cpu for node in nodes for cpu, _, _ in node]
    write(system / "cpu/online", ",".join(map(str, everything)))
    write(system / "cpu/smt/active", "1")
    for index, node in enumerate(nodes):
        write(system / f"node/node{index}/cpulist", ",".join(str(cpu) for cpu, _, _ in node))
        for cpu, core, cache in node:
            write(system / f"cpu/cpu{cpu}/topology/physical_package_id", str(index))
            write(system / f"cpu/cpu{cpu}/topology/core_id", str(core))
            write(system / f"cpu/cpu{cpu}/cache/index3/id", str(cache))
    return sysfs
