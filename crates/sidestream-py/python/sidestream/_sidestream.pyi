"""What the package asks of its extension module."""

from os import PathLike
from pathlib import Path

__all__ = [
    "ProgramError",
    "TraceError",
    "__version__",
    "check_program",
    "diagnose",
    "ranks",
    "traces",
]

__version__: str

class TraceError(ValueError): ...
class ProgramError(ValueError): ...

def diagnose(
    path: str | PathLike[str],
    link_gbps: float | None,
    what_if: list[str] | None,
) -> tuple[str, str, str, str, str]: ...
def ranks(each: list[str]) -> tuple[str, str] | None: ...
def traces(folder: str | PathLike[str]) -> list[Path]: ...
def check_program(
    path: str | PathLike[str] | None, text: str | None
) -> tuple[str, list[str]]: ...
