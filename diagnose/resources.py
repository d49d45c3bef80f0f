"""Files of the package: read through the loader, since on a node it may have come as one archive over ssh."""

import pkgutil


def text(name: str) -> str:
    """Text of the file ``name`` beside this one. Raises OSError where it is missing."""
    data = pkgutil.get_data("ddp_doctor", name)
    if data is None:
        raise OSError(f"{name}: not in the package")
    return data.decode("utf-8")
