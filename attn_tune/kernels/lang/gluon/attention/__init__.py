"""Device code of forwards for Hopper that several ops share: warps that copy, and groups of warps that multiply."""
