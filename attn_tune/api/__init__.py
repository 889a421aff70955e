"""Entry points with the calling conventions of other libraries, over the ops of this one."""
