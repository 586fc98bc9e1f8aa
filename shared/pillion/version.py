"""The installed release."""

from importlib.metadata import version

VERSION = version("pillion")
