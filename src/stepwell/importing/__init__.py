"""Import: traces of other tools become run folders.

A reader per format turns records into rows; rows are sorted on disk, nested by time, and written with the
journal's writer. Imports the journal and the run ids of telemetry; never reading or the CLI.
"""

from stepwell.importing.importer import Imported, import_files, import_trace

__all__ = ["Imported", "import_files", "import_trace"]
