"""Compile configs for absent devices, in processes of their own."""
