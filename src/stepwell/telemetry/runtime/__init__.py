"""The runtime watch: what the process and its machine are busy with, recorded beside the training.

Everything here runs on the pump's thread, every few seconds. Knows the journal and the recorder; psutil and
NVML are imported when the first reading is due, never by the training thread.
"""

from stepwell.telemetry.runtime.watch import start_watch

__all__ = ["start_watch"]
