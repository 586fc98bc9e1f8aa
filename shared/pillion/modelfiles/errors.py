"""The one error of this package."""


class ModelFileError(ValueError):
    """A model that cannot be found, read or served. The message names the file or tensor and the remedy."""
