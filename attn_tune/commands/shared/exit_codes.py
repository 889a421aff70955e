"""Exit codes of commands and their meanings. An error carries its own (``AttnTuneError.exit_code``)."""

OK = 0
FAILED = 1
USAGE = 2
NO_DATA = 3
STORAGE = 4
INTEGRITY = 5
DIFFERS = 6
INTERRUPTED = 130

MEANINGS = {
    OK: "done",
    FAILED: "the work was done and its result is bad: a validation failed, or no config of a case is valid",
    USAGE: "the command cannot be understood or cannot be done: unknown name, impossible shape, unsupported kernel",
    NO_DATA: "nothing stored answers the question, the environment to answer it is missing, or nothing was validated",
    STORAGE: "a file cannot be opened, locked or written; another sweep may be using the database or a device",
    INTEGRITY: "stored data is not what it claims to be: wrong format, failed checksum, unknown version",
    DIFFERS: "two sweeps or packs were compared, and differ in a way that --fail-on names",
    INTERRUPTED: "stopped by Ctrl-C or a termination signal; what was measured is stored",
}
