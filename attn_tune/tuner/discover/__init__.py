"""Make grids of what jobs need: the calls of a traced function or a lowered program, and missed lookups."""
