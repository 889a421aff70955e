"""The commands of the command line: each parses, makes one call and prints one answer."""
