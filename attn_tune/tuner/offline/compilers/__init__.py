"""Compile configs for devices that are not here, in processes of their own."""
