"""Options, output and errors that several commands share."""
