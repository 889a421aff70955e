"""Adapters for libraries that take an attention function. None of them imports the library it is for."""
