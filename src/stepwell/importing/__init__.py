"""Importing: traces that other tools recorded become run folders like any other.

Each format has a reader that turns its records into rows; rows are sorted outside of memory, nested by
time, and written through the journal. Imports the journal and telemetry's ids; knows no table and no command.
"""

from stepwell.importing.importer import Imported, import_files, import_trace

__all__ = ["Imported", "import_files", "import_trace"]
