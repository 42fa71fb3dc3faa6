"""What GPUs can do at most, by their names: dense operations a second in 16 bits (bfloat16 or float16).

As their makers publish them, written down by hand: where a figure matters, give ``peak_flops=``. Utilisation
is by custom measured against these, whatever the precision of the training.
"""

from __future__ import annotations

import re

TERA = 1e12

PEAKS: tuple[tuple[str, float], ...] = (
    (r"GB300|B300", 2500),
    (r"GB200|B200", 2250),
    (r"B100\b", 1750),
    (r"GH200|H200", 989),
    (r"H100.*NVL", 835),
    (r"H100.*PCIe", 756),
    (r"H100\b", 989),
    (r"H800", 989),
    (r"H20\b", 148),
    (r"A100\b|A800\b", 312),
    (r"A30\b", 165),
    (r"A40\b", 149.7),
    (r"RTX A6000", 154.8),
    (r"A10G", 70),
    (r"A10\b", 125),
    (r"L40S", 362),
    (r"L40\b", 181),
    (r"L4\b", 121),
    (r"V100\b", 125),
    (r"T4\b", 65),
    (r"RTX 5090", 209.5),
    (r"RTX 4090", 165.2),
    (r"RTX 3090", 71),
    (r"MI355X", 2500),
    (r"MI325X|MI300X", 1307),
    # Each of its two halves is a device.
    (r"MI250X", 191.5),
)
"""The first pattern that a name matches tells."""


def find_peak(name: str) -> float | None:
    """Operations a second of a GPU of this name, None when it is not in the table."""
    for pattern, teras in PEAKS:
        if re.search(pattern, name):
            return teras * TERA
    return None
