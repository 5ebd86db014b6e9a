"""NVIDIA GPUs and their MIG profiles: the facts that decide which slices fit together.

A MIG instance takes compute slices and a run of *memory slices* starting at one
of the profile's placements; two instances fit on one GPU when their memory slices
do not overlap and the engines suffice. The driver expresses that with counters:
one per engine kind, one for memory, and one of value 1 for each memory slice.

Memory of an instance is the published figure where there is one; otherwise its
share of the GPU's memory, rounded down to whole MiB. Engine counts follow the MIG
user guide: an A100 gives media engines only to the larger instances, Hopper and
later give every compute slice a decoder and a JPEG engine, and there is a single
optical-flow engine, taken by `+me` and by the whole GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Engines:
    """How many of each engine an instance (or a whole GPU) has."""

    multiprocessors: int
    copy_engines: int
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0

    def amounts(self) -> dict[str, int]:
        """Return the counts by the capacity names of the NVIDIA driver."""
        return {
            "multiprocessors": self.multiprocessors,
            "copyEngines": self.copy_engines,
            "decoders": self.decoders,
            "encoders": self.encoders,
            "jpegEngines": self.jpeg_engines,
            "ofaEngines": self.ofa_engines,
        }


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of GPU instance: its size and where it may begin."""

    name: str  # 1g.5gb, 1g.5gb+me, ...
    instance_profile_id: int
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    memory_mib: int
    engines: Engines

    @property
    def label(self) -> str:
        """Return the profile as it appears in device names, a DNS label."""
        return self.name.replace(".", "").replace("+", "")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A product: what every GPU of it has in common."""

    product_name: str
    brand: str
    architecture: str
    compute_capability: str  # semver, as the driver publishes it
    memory_mib: int
    engines: Engines
    memory_slices: int = 0  # 0 means: no MIG
    mig_profiles: tuple[MigProfile, ...] = field(default=())


def _ampere(compute: int, media: bool) -> Engines:
    decoders = {1: 0, 2: 1, 3: 2, 4: 2, 7: 5}[compute]
    extra = 1 if media or compute == 7 else 0
    return Engines(14 * compute, compute, max(decoders, extra), 0, extra, extra)


def _hopper(multiprocessors: int, compute: int, media: bool) -> Engines:
    ofa = 1 if media or compute == 7 else 0
    return Engines(multiprocessors, 8 if compute == 7 else compute, compute, 0, compute, ofa)


_SEVEN_STARTS = tuple(range(7))

# (suffix of compute slices, "+me", memory slices, placements, GPU instance profile id)
_SEVEN_SLOT_SHAPES: tuple[tuple[int, bool, int, tuple[int, ...], int], ...] = (
    (1, False, 1, _SEVEN_STARTS, 19),
    (1, True, 1, _SEVEN_STARTS, 20),
    (1, False, 2, (0, 2, 4, 6), 15),
    (2, False, 2, (0, 2, 4), 14),
    (3, False, 4, (0, 4), 9),
    (4, False, 4, (0,), 5),
    (7, False, 8, (0,), 0),
)
# Multiprocessors of each shape above, on Hopper (published for H100; newer parts are alike).
_HOPPER_MULTIPROCESSORS = (16, 16, 26, 32, 60, 64, 132)


def _seven_slots(
    memory_mib: int,
    gigabytes: tuple[int, int, int, int, int],
    *,
    ampere: bool,
    known_mib: dict[str, int] | None = None,
) -> tuple[MigProfile, ...]:
    """Build the seven profiles of an 8-memory-slice GPU; `gigabytes` names 1g, 1g double, 2g, 3g/4g and 7g."""
    single, double, two, half, whole = gigabytes
    names = (
        f"1g.{single}gb",
        f"1g.{single}gb+me",
        f"1g.{double}gb",
        f"2g.{two}gb",
        f"3g.{half}gb",
        f"4g.{half}gb",
        f"7g.{whole}gb",
    )
    profiles = []
    for name, multiprocessors, (compute, media, slices, starts, profile_id) in zip(
        names, _HOPPER_MULTIPROCESSORS, _SEVEN_SLOT_SHAPES, strict=True
    ):
        engines = _ampere(compute, media) if ampere else _hopper(multiprocessors, compute, media)
        mib = (known_mib or {}).get(name, memory_mib * slices // 8)
        profiles.append(MigProfile(name, profile_id, compute, slices, starts, mib, engines))
    return tuple(profiles)


_A100_ENGINES = Engines(108, 7, 5, 0, 1, 1)
_HOPPER_ENGINES = Engines(132, 8, 7, 0, 7, 1)
_BLACKWELL_ENGINES = Engines(148, 8, 7, 0, 7, 1)

GPU_MODELS: dict[str, GpuModel] = {
    "A100-40GB": GpuModel(
        "NVIDIA A100-SXM4-40GB", "Nvidia", "Ampere", "8.0.0", 40960, _A100_ENGINES, 8,
        _seven_slots(40960, (5, 10, 10, 20, 40), ampere=True,
                     known_mib={"1g.5gb": 4864, "1g.5gb+me": 4864, "1g.10gb": 9856, "2g.10gb": 9984, "7g.40gb": 40192}),
    ),
    "A100-80GB": GpuModel(
        "NVIDIA A100-SXM4-80GB", "Nvidia", "Ampere", "8.0.0", 81920, _A100_ENGINES, 8,
        _seven_slots(81920, (10, 20, 20, 40, 80), ampere=True,
                     known_mib={"1g.10gb": 9984, "1g.10gb+me": 9984, "2g.20gb": 20096, "3g.40gb": 40192, "4g.40gb": 40192,
                                "7g.80gb": 81024}),
    ),
    "A30-24GB": GpuModel(
        "NVIDIA A30", "Nvidia", "Ampere", "8.0.0", 24576, Engines(56, 4, 4, 0, 1, 1), 4,
        (
            MigProfile("1g.6gb", 14, 1, 1, (0, 1, 2, 3), 5952, Engines(14, 1, 1)),
            MigProfile("1g.6gb+me", 21, 1, 1, (0, 1, 2, 3), 5952, Engines(14, 1, 1, 0, 1, 1)),
            MigProfile("2g.12gb", 5, 2, 2, (0, 2), 12032, Engines(28, 2, 2)),
            MigProfile("2g.12gb+me", 6, 2, 2, (0, 2), 12032, Engines(28, 2, 2, 0, 1, 1)),
            MigProfile("4g.24gb", 0, 4, 4, (0,), 24192, Engines(56, 4, 4, 0, 1, 1)),
        ),
    ),
    "H100-80GB": GpuModel(
        "NVIDIA H100 80GB HBM3", "Nvidia", "Hopper", "9.0.0", 81559, _HOPPER_ENGINES, 8,
        _seven_slots(81559, (10, 20, 20, 40, 80), ampere=False,
                     known_mib={"1g.10gb": 9984, "1g.10gb+me": 9984, "1g.20gb": 20096, "2g.20gb": 20096, "3g.40gb": 40448,
                                "4g.40gb": 40448, "7g.80gb": 81152}),
    ),
    "GH200-96GB": GpuModel(
        "NVIDIA GH200 480GB", "Nvidia", "Hopper", "9.0.0", 97871, _HOPPER_ENGINES, 8,
        _seven_slots(97871, (12, 24, 24, 48, 96), ampere=False),
    ),
    "H200-141GB": GpuModel(
        "NVIDIA H200", "Nvidia", "Hopper", "9.0.0", 143771, _HOPPER_ENGINES, 8,
        _seven_slots(143771, (18, 35, 35, 71, 141), ampere=False),
    ),
    "B200-180GB": GpuModel(
        "NVIDIA B200", "Nvidia", "Blackwell", "10.0.0", 183359, _BLACKWELL_ENGINES, 8,
        _seven_slots(183359, (23, 45, 45, 90, 180), ampere=False),
    ),
    "GB200-186GB": GpuModel(
        "NVIDIA GB200", "Nvidia", "Blackwell", "10.0.0", 189471, _BLACKWELL_ENGINES, 8,
        _seven_slots(189471, (23, 47, 47, 93, 186), ampere=False),
    ),
    "GB300-278GB": GpuModel(
        "NVIDIA GB300", "Nvidia", "Blackwell", "10.3.0", 284208, _BLACKWELL_ENGINES, 8,
        _seven_slots(284208, (35, 70, 70, 139, 278), ampere=False),
    ),
    "L40S-48GB": GpuModel("NVIDIA L40S", "Nvidia", "Ada Lovelace", "8.9.0", 46068, Engines(142, 2, 3, 3, 4, 1)),
    "RTX4090-24GB": GpuModel("NVIDIA GeForce RTX 4090", "GeForce", "Ada Lovelace", "8.9.0", 24564, Engines(128, 2, 1, 2, 1, 1)),
}  # fmt: skip
