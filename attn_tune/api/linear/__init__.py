"""The public functions of linear attention."""
