"""Reading tensors from files that nobody vouches for."""

import io
import pickletools
import re
import warnings
from typing import Any

import torch

_CODE = re.compile(r"GLOBAL (\S+)")


def read_untrusted(data: bytes) -> Any:
    """Tensors, numbers, text and their containers; ValueError where a pickle asks for more.

    Nothing in the file is ever executed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd pickles, which the errors speak of as well
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a hostile or broken file may make the reader raise anything
        program = _program(data, str(error))
        if program is not None:
            raise ValueError(
                f"holds a program ({program}), not only tensors, and was not executed; "
                "do not open it with other tools unless you trust who made it"
            ) from error
        raise ValueError(f"cannot be read as tensors ({type(error).__name__})") from error


def _program(data: bytes, said: str) -> str | None:
    """What a pickle would call, as the reader said or, for pickles it cannot read, as it stands."""
    named = _CODE.search(said)
    if named is not None:
        return named[1]
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):  # looks at a pickle, runs nothing
            if opcode.name in ("GLOBAL", "INST"):
                return str(argument).replace(" ", ".")
            if opcode.name == "STACK_GLOBAL":
                return ".".join(texts[-2:])
            if isinstance(argument, str):
                texts.append(argument)
    except ValueError:  # no pickle at all, or one that ends in the middle
        return None
    return None
