"""Model definitions, one a family, built from parallel layers."""
