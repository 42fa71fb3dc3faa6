"""System metrics: CPU, memory, disk, network, GPUs, energy and garbage collections, recorded beside the
training.

Runs on the pump's thread, every few seconds. Imports the journal and the recorder; psutil and NVML are
imported before the first reading, never by the training thread.
"""

from stepwell.telemetry.runtime.sampler import start_sampling

__all__ = ["start_sampling"]
